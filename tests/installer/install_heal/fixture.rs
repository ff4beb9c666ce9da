//! A node with a primary network, the agent on it, and its invariants.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kit::{Container, Daemon, Node, NodeOptions};
use serde_json::{Value, json};

/// The primary network's file.
pub(crate) const HOLDER: &str = "10-kit.conflist";
pub(crate) const KUBECONFIG: &str = "ZZZ-istio-cni-kubeconfig";
pub(crate) const OURS: &str = "istio-cni";
/// Another program in the image's directory.
pub(crate) const BESIDE: &str = "istio-iptables";
/// Far longer than any operation here, and than the back-off after a conflict.
const LIMIT: Duration = Duration::from_secs(60);

/// An agent that has installed everything.
pub(crate) struct HealFixture {
    pub(crate) daemon: Daemon,
    pub(crate) files: Files,
    pub(crate) container: Container,
    pub(crate) node: Node,
}

impl HealFixture {
    pub(crate) fn new() -> Self {
        Self::with(primary_of, |container| container)
    }

    /// With another primary network and another container.
    pub(crate) fn with(primary: fn(&Node) -> Value, change: impl FnOnce(Container) -> Container) -> Self {
        let node = Node::new(NodeOptions::default());
        let container = change(Container::new(&node));
        // Our image has only the plugin. Further programs of an image are maintained as well.
        container.add_image_program(BESIDE);
        let primary = primary(&node);
        let text = serde_json::to_vec_pretty(&primary).unwrap();
        fs::write(node.net_d().join(HOLDER), &text).unwrap();
        let mut daemon = container.start();
        daemon.wait_until_ready();
        let files = Files::installed(&container, primary);
        Self { daemon, files, container, node }
    }

    /// Waits until everything is correct and `/readyz` reports it; returns the time since `damaged`.
    pub(crate) fn healed(&self, damaged: Instant) -> Duration {
        loop {
            if self.sample() && self.files.fault().is_none() {
                return damaged.elapsed();
            }
            assert!(
                damaged.elapsed() < LIMIT,
                "never healed: {:?}\n{:?}\n{}",
                self.files.fault(),
                self.daemon.get(8000, "/readyz"),
                self.daemon.log()
            );
        }
    }

    /// Checks files, `/readyz`, and files again; returns whether all were correct. No other thread may damage anything meanwhile:
    /// then a fault before and after the request existed during it.
    ///
    /// # Panics
    /// If `/readyz` was wrong.
    pub(crate) fn sample(&self) -> bool {
        let before = self.files.broken();
        let ready = self.daemon.is_ready();
        let after = self.files.broken();
        if let (true, Some(before), Some(after)) = (ready, &before, &after) {
            panic!("/readyz says 200, but {before}, and then still {after}:\n{}", self.daemon.log());
        }
        ready && before.is_none() && after.is_none()
    }

    /// Number of restores counted under a cause.
    pub(crate) fn restores(&self, cause: &str) -> f64 {
        self.daemon.metric(&format!("istio_cni_restores_total{{cause=\"{cause}\"}}")).unwrap_or_default()
    }
}

/// The primary network of a fixture.
pub(crate) fn primary_of(node: &Node) -> Value {
    let mut network = node.conflist(&[]);
    network["plugins"][0]["mtu"] = json!(1500);
    network
}

/// The installed files, and their expected content.
pub(crate) struct Files {
    pub(crate) net_d: PathBuf,
    pub(crate) bin_dir: PathBuf,
    pub(crate) source_dir: PathBuf,
    /// The primary network without our entry.
    pub(crate) primary: Value,
    entry: Value,
    kubeconfig: (Vec<u8>, u32),
}

impl Files {
    /// Records the first installation as the expected state; other tests check its content.
    pub(crate) fn installed(container: &Container, primary: Value) -> Self {
        let (net_d, bin_dir) = (container.net_d(), container.bin_dir());
        let plugins = read_json(&net_d.join(HOLDER)).unwrap()["plugins"].take();
        let entry = plugins.as_array().unwrap().last().unwrap().clone();
        assert_eq!(entry["type"], OURS);
        let kubeconfig = net_d.join(KUBECONFIG);
        let kubeconfig = (fs::read(&kubeconfig).unwrap(), mode(&kubeconfig).unwrap());
        Self { net_d, bin_dir, source_dir: container.source_dir(), primary, entry, kubeconfig }
    }

    pub(crate) fn holder(&self) -> PathBuf {
        self.net_d.join(HOLDER)
    }

    pub(crate) fn plugin(&self) -> PathBuf {
        self.bin_dir.join(OURS)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.net_d.join(KUBECONFIG)
    }

    /// A primary network with these plugins after its own.
    pub(crate) fn network(&self, plugins: &[&Value]) -> Vec<u8> {
        let mut network = self.primary.clone();
        network["plugins"].as_array_mut().unwrap().extend(plugins.iter().copied().cloned());
        serde_json::to_vec_pretty(&network).unwrap()
    }

    pub(crate) fn entry(&self) -> &Value {
        &self.entry
    }

    /// Faults that `/readyz` must report: a plugin that is missing or invalid, an entry that is not the last one that the runtime
    /// calls.
    pub(crate) fn broken(&self) -> Option<String> {
        self.binary_fault(OURS).or_else(|| self.entry_fault())
    }

    /// Any deviation from the expected state.
    pub(crate) fn fault(&self) -> Option<String> {
        let kubeconfig = self.kubeconfig();
        let good = mode(&kubeconfig) == Some(self.kubeconfig.1)
            && fs::read(&kubeconfig).is_ok_and(|found| found == self.kubeconfig.0);
        self.broken()
            .or_else(|| self.binary_fault(BESIDE))
            .or_else(|| (!good).then(|| "the kubeconfig is another".to_owned()))
            .or_else(|| self.stale_fault())
    }

    /// Compares only what is cheap to compare; see [`Files::assert_whole`].
    fn binary_fault(&self, name: &str) -> Option<String> {
        let (source, installed) = (self.source_dir.join(name), self.bin_dir.join(name));
        let (Ok(source), Ok(installed)) = (fs::metadata(source), fs::metadata(installed)) else {
            return Some(format!("{name} is missing"));
        };
        let same = source.len() == installed.len() && source.permissions() == installed.permissions();
        (!same).then(|| format!("{name} is another: {} bytes", installed.len()))
    }

    /// Compares every byte of the binaries.
    pub(crate) fn assert_whole(&self) {
        for name in [OURS, BESIDE] {
            let (source, installed) = (self.source_dir.join(name), self.bin_dir.join(name));
            assert!(fs::read(source).unwrap() == fs::read(installed).unwrap(), "{name} is another");
        }
    }

    fn entry_fault(&self) -> Option<String> {
        let networks = networks(&self.net_d);
        let Some((name, network)) = networks.first() else { return Some("there is no network".to_owned()) };
        let Some(plugins) = network["plugins"].as_array() else { return Some(format!("{name} is no list")) };
        let ours = plugins.iter().filter(|plugin| plugin["type"] == OURS).count();
        match plugins.last() {
            _ if ours == 0 => Some(format!("{name} has no entry of ours")),
            _ if ours > 1 => Some(format!("{name} has {ours} entries of ours")),
            Some(last) if last["type"] != OURS => Some(format!("our entry in {name} is not the last")),
            Some(last) if *last != self.entry => Some(format!("our entry in {name} is another")),
            _ => None,
        }
    }

    /// An entry in a file that runtimes do not use.
    fn stale_fault(&self) -> Option<String> {
        let others = networks(&self.net_d).into_iter().skip(1);
        let mut stale = others.filter(|(_, network)| entries_of(network) > 0);
        stale.next().map(|(name, _)| format!("{name} has an entry of ours, too"))
    }
}

/// The usable networks of a directory, in the order of runtimes.
pub(crate) fn networks(directory: &Path) -> Vec<(String, Value)> {
    let names = names(directory).into_iter().filter(|name| is_network(name));
    let read = |name: String| read_json(&directory.join(&name)).map(|network| (name, network));
    names.filter_map(read).filter(|(_, network)| network.is_object()).collect()
}

/// Whether a runtime treats a file of this name as a network.
pub(crate) fn is_network(name: &str) -> bool {
    matches!(Path::new(name).extension().and_then(|end| end.to_str()), Some("conf" | "conflist"))
}

/// Number of our entries in a network.
pub(crate) fn entries_of(network: &Value) -> usize {
    let plugins = network["plugins"].as_array().into_iter().flatten();
    plugins.filter(|plugin| plugin["type"] == OURS).count()
}

/// All names in a directory, sorted.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().filter_map(Result::ok);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

pub(crate) fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn mode(path: &Path) -> Option<u32> {
    Some(fs::metadata(path).ok()?.permissions().mode() & 0o7777)
}

/// Replaces a file as careful programs do, under a foreign temporary name.
pub(crate) fn replace(path: &Path, content: &[u8]) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let temporary = path.with_file_name(format!(".{name}.new"));
    fs::write(&temporary, content).unwrap();
    fs::rename(temporary, path).unwrap();
}
