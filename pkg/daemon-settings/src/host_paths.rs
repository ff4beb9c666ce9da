//! Where the agent's container sees what the host has elsewhere.

use std::path::{Component, Path, PathBuf};

use model::Reason;
use netns::Netns;

/// Where the socket is, and where the host's namespaces are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSettings {
    /// The socket.
    pub socket: PathBuf,
    /// The namespaces.
    pub places: HostPaths,
}

/// Where this container sees namespaces that the host has elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    /// The host's directories, as far as they are mounted.
    pub root: PathBuf,
    /// The host's processes.
    pub proc: PathBuf,
    /// Where the host's runtime binds namespaces.
    pub netns_directory: PathBuf,
}

impl HostPaths {
    /// Opens the namespace that has this path on the host.
    ///
    /// # Errors
    /// There is none, it is the node's or the agent's own, or the path could lead elsewhere; in a sentence.
    pub fn open(&self, path: &str) -> Result<Netns, Reason> {
        let netns = self.open_any(path)?;
        // That it is not the node's is for the agent to see; it may have another one itself.
        let own = Netns::current().map_err(|error| error.to_string())?;
        if own.id() == netns.id() {
            return Err(format!("{path} is the network namespace of the node, or the agent's own").into());
        }
        Ok(netns)
    }

    fn open_any(&self, path: &str) -> Result<Netns, String> {
        let places = self.of(path)?;
        for place in &places {
            match Netns::open(place) {
                Err(netns::Error::Missing { .. }) => {}
                opened => return opened.map_err(|error| error.to_string()),
            }
        }
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Err(format!("there is no network namespace {path}; looked for as {}", tried.join(", ")))
    }

    /// Where it may be, in the order in which it is looked for.
    fn of(&self, path: &str) -> Result<Vec<PathBuf>, String> {
        let below = Path::new(path).strip_prefix("/").map_err(|_| format!("{path:?} is no absolute path"))?;
        if !below.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(format!("{path:?} is no plain path"));
        }
        if let Ok(process) = below.strip_prefix("proc") {
            // In the container the same number is another process, or none; `self` is always another one.
            let first = process.iter().next().and_then(|part| part.to_str()).unwrap_or_default();
            if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(format!("{path:?} names no process"));
            }
            return Ok(vec![self.proc.join(process)]);
        }
        let mut places = vec![self.root.join(below), Path::new("/").join(below)];
        // Istio's chart mounts whichever directory the runtime has at one and the same place.
        if let (Some(name), Ok(directory)) = (below.file_name(), self.netns_directory.strip_prefix("/")) {
            let usual = self.root.join(directory).join(name);
            if !places.contains(&usual) {
                places.push(usual);
            }
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> HostPaths {
        HostPaths { root: "/host".into(), proc: "/hostproc".into(), netns_directory: "/var/run/netns".into() }
    }

    #[test]
    fn a_namespace_of_the_host_is_looked_for_where_it_may_be_mounted() {
        let of = |path: &str| {
            let places = places().of(path).unwrap();
            places.iter().map(|place| place.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of("/var/run/netns/cni-1"), ["/host/var/run/netns/cni-1", "/var/run/netns/cni-1"]);
        assert_eq!(
            of("/var/run/docker/netns/cni-1"),
            ["/host/var/run/docker/netns/cni-1", "/var/run/docker/netns/cni-1", "/host/var/run/netns/cni-1"]
        );
        assert_eq!(of("/proc/17/ns/net"), ["/hostproc/17/ns/net"], "never a process of the container");
    }

    #[test]
    fn what_could_lead_elsewhere_is_no_path() {
        for path in [
            "",
            "netns",
            "./a",
            "/var/../proc/1/ns/net",
            "/proc",
            "/proc/self/ns/net",
            "/proc/1a/ns/net",
            "/..",
        ] {
            assert!(places().of(path).is_err(), "{path:?}");
        }
    }
}
