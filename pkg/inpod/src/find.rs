//! The network namespaces of pods that run already, found by their processes.
//!
//! A process of a pod may be in any namespace: it may have made one of its own, or have entered another pod's. So a
//! namespace is a pod's only if it has one of the pod's addresses; and of several such, the one whose link leads to
//! the node, for a pod may give its own address to whatever it makes inside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use hostnet::RtnetlinkHandle;
use model::PodUid;
use netns::{Netns, NetnsId};
use rules::inpod::InPodRulesConfig;

use crate::{
    Error,
    pod::families_with_rule,
    process::{digits, pod_of, started},
};

/// Looks for namespaces.
#[derive(Debug)]
pub struct NetnsFinder {
    proc: PathBuf,
    node: Netns,
    config: InPodRulesConfig,
}

/// A pod that is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetnsQuery {
    /// The UIDs by which its processes are known: its own, or the hash of its manifest.
    pub uids: Vec<PodUid>,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// The namespace that it was in when last looked; while a process of it is there, no other one is looked for.
    pub known: Option<NetnsId>,
}

/// A pod's namespace.
#[derive(Debug)]
pub struct NetnsMatch {
    /// It.
    pub netns: Netns,
    /// How many other namespaces processes of the pod were in.
    pub others: usize,
    /// It is captured already; see [`crate::is_captured`].
    pub captured: bool,
}

/// A namespace that some process of a pod is in.
#[derive(Debug)]
struct NetnsCandidate {
    netns: Netns,
    /// When the oldest of these processes began.
    started: u64,
}

/// What a namespace shows of itself.
#[derive(Clone, Copy, Debug)]
struct CandidateLook {
    /// One of its links leads to the node.
    leads_to_node: bool,
    /// See [`NetnsMatch::captured`].
    captured: bool,
}

impl NetnsFinder {
    /// `proc`: where the processes of the whole node are seen. `node`: its namespace, which is no pod's.
    #[must_use]
    pub fn new(proc: &Path, node: Netns, config: InPodRulesConfig) -> NetnsFinder {
        NetnsFinder { proc: proc.to_owned(), node, config }
    }

    /// Finds pods, each by what it is sought by; those that are not found, and those that are still where they were, are
    /// absent. One look at each process of the
    /// node, whatever the number of pods.
    ///
    /// # Errors
    /// The processes cannot be listed. One that ends meanwhile, or cannot be looked at, is passed over.
    pub fn find<K: Ord + Clone>(
        &self,
        sought: &BTreeMap<K, NetnsQuery>,
    ) -> Result<BTreeMap<K, NetnsMatch>, Error> {
        let mut candidates = self.candidates(sought)?;
        let mut found = BTreeMap::new();
        for (key, pod) in sought {
            let of = candidates.remove(key).unwrap_or_default();
            if pod.known.is_some_and(|known| of.contains_key(&known)) {
                continue;
            }
            if let Some(one) = self.choose(of, &pod.ips) {
                found.insert(key.clone(), one);
            }
        }
        Ok(found)
    }

    fn candidates<K: Ord + Clone>(
        &self,
        sought: &BTreeMap<K, NetnsQuery>,
    ) -> Result<BTreeMap<K, BTreeMap<NetnsId, NetnsCandidate>>, Error> {
        let keys = sought
            .iter()
            .flat_map(|(key, pod)| pod.uids.iter().filter_map(digits).map(move |digits| (digits, key)));
        let keys: BTreeMap<String, &K> = keys.collect();
        let mut candidates: BTreeMap<K, BTreeMap<NetnsId, NetnsCandidate>> = BTreeMap::new();
        for process in processes(&self.proc)? {
            let text = |file: &str| fs::read_to_string(process.join(file)).ok();
            let pod = text("cgroup").and_then(|cgroup| pod_of(&cgroup));
            let Some(key) = pod.and_then(|pod| keys.get(&pod).copied()) else { continue };
            let began = text("stat").and_then(|stat| started(&stat)).unwrap_or(u64::MAX);
            let Ok(netns) = Netns::open(process.join("ns/net")) else { continue };
            if netns.id() == self.node.id() {
                continue;
            }
            let of = candidates.entry(key.clone()).or_default();
            let candidate = of.entry(netns.id()).or_insert(NetnsCandidate { netns, started: began });
            candidate.started = candidate.started.min(began);
        }
        Ok(candidates)
    }

    fn choose(&self, candidates: BTreeMap<NetnsId, NetnsCandidate>, ips: &[IpAddr]) -> Option<NetnsMatch> {
        let others = candidates.len().saturating_sub(1);
        let fitting = candidates.into_values().filter_map(|candidate| {
            let look = self.look(&candidate.netns, ips).ok()??;
            Some((candidate, look))
        });
        let best = fitting.min_by_key(|(NetnsCandidate { netns, started }, look)| {
            (!look.leads_to_node, *started, netns.id())
        });
        best.map(|(candidate, look)| NetnsMatch { netns: candidate.netns, others, captured: look.captured })
    }

    /// A namespace that somebody names as that of a pod with these addresses. None if it is the node's own, or has none of
    /// them.
    #[must_use]
    pub fn confirm(&self, netns: Netns, ips: &[IpAddr]) -> Option<NetnsMatch> {
        if netns.id() == self.node.id() {
            return None;
        }
        let look = self.look(&netns, ips).ok()??;
        Some(NetnsMatch { netns, others: 0, captured: look.captured })
    }

    /// None if it has none of the addresses.
    fn look(&self, netns: &Netns, ips: &[IpAddr]) -> Result<Option<CandidateLook>, Error> {
        let look = || -> Result<Option<CandidateLook>, Error> {
            let mut handle = RtnetlinkHandle::open_in_pod()?;
            let has = handle.addresses()?.iter().any(|address| ips.contains(&address.ip));
            if !has {
                return Ok(None);
            }
            let node = handle.netns_number(self.node.as_fd())?;
            let leads_to_node = handle.links()?.iter().any(|link| node.is_some() && link.peer_netns == node);
            // What cannot be found out is made anew.
            let captured = families_with_rule(&mut handle, &self.config).is_ok_and(|found| !found.is_empty());
            Ok(Some(CandidateLook { leads_to_node, captured }))
        };
        netns.run_in(look)?
    }
}

/// Each namespace that any process of the node is in.
///
/// # Errors
/// The processes cannot be listed. One that ends meanwhile is passed over.
pub fn namespaces(proc: &Path) -> Result<BTreeMap<NetnsId, Netns>, Error> {
    let opened = processes(proc)?.into_iter().filter_map(|process| Netns::open(process.join("ns/net")).ok());
    Ok(opened.map(|netns| (netns.id(), netns)).collect())
}

/// The namespace of each pod that has a process, and that process: where the directory in which the container runtime binds
/// namespaces is not to be seen. Those of the node's first process and of the caller are no pod's. It wants CAP_SYS_PTRACE.
///
/// # Errors
/// The processes cannot be listed. One that ends meanwhile, or may not be looked at, is passed over.
pub fn namespaces_of_pods(proc: &Path) -> Result<Vec<(PathBuf, Netns)>, Error> {
    let first = Netns::open(proc.join("1/ns/net")).map(|netns| netns.id());
    let mut seen = BTreeSet::from([Netns::current()?.id()]);
    seen.extend(first);
    let mut found = Vec::new();
    for process in processes(proc)? {
        let cgroup = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        if pod_of(&cgroup).is_none() {
            continue;
        }
        if let Ok(netns) = Netns::open(process.join("ns/net"))
            && seen.insert(netns.id())
        {
            found.push((process, netns));
        }
    }
    Ok(found)
}

fn processes(proc: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::Processes { path: proc.to_owned(), source };
    let mut processes = Vec::new();
    for entry in fs::read_dir(proc).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            processes.push(entry.path());
        }
    }
    Ok(processes)
}
