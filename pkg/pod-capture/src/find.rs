//! Netns discovery: the network namespaces of running pods, found by their processes.
//!
//! A process of a pod may be in any namespace: it may have created one, or have entered another pod's. So this module
//! only gathers candidates, and the node's routes to them; `pod_identity` decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io, iter,
    net::IpAddr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use agent_protocol::PodRecord;
use hostnet::RtnetlinkHandle;
use model::PodUid;
use netns::{Netns, NetnsId};
use pod_identity::{
    Ambiguity, Candidate, Identity, KnownPods, NodePath, ProcessOwner, Witness, choose_netns, names_a_pod,
};
use rules::inpod::InPodRulesConfig;

use crate::{Error, node_network::NodeNetwork, pod::families_with_rule};

/// Number of namespaces of one pod's processes that are examined: a process can create any number, and each takes a
/// descriptor and a few requests. In a pod with that many, only the node's routes are evidence.
const MOST_NAMESPACES: usize = 64;

/// Finder of pods' namespaces.
#[derive(Debug)]
pub struct NetnsFinder {
    proc: PathBuf,
    node: Netns,
    config: InPodRulesConfig,
}

/// A pod whose namespace is searched for.
#[derive(Clone, Debug)]
pub struct NetnsQuery {
    /// Addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// The namespace that is known to be the pod's. While a process of the pod is in it, or the namespace has one of
    /// the pod's addresses and the node does not route that address elsewhere, no other one is searched for.
    pub known: Option<Arc<Netns>>,
    /// The namespace in which the runtime added the pod, by the record of its ADD.
    pub recorded: Option<NetnsId>,
}

/// The answer for a pod.
#[derive(Debug)]
pub enum NetnsAnswer {
    /// The pod's namespace, which was not known.
    Found(NetnsMatch),
    /// The known namespace is still the pod's.
    Unchanged {
        /// Whether a process of the pod was found, in any namespace.
        runs: bool,
    },
    /// No decision is possible.
    Ambiguous(Ambiguity),
}

/// A pod's namespace.
#[derive(Debug)]
pub struct NetnsMatch {
    /// The namespace.
    pub netns: Netns,
    /// Evidence on which the answer rests.
    pub witness: Witness,
    /// Whether the namespace has rules of ours; see [`crate::captured_families`].
    pub captured: bool,
}

/// A namespace that a process of a pod is in.
#[derive(Debug)]
struct ProcessNetns {
    netns: Netns,
    /// See [`Candidate::nested`].
    nested: bool,
}

/// Properties that can be observed in a namespace.
#[derive(Clone, Copy, Debug)]
struct NetnsView {
    /// See [`Candidate::linked_to_node`].
    linked_to_node: bool,
    /// See [`NetnsMatch::captured`].
    captured: bool,
}

/// A pod whose processes are in namespaces that are not known to be the pod's.
#[derive(Debug)]
struct OpenQuery<'a> {
    uid: &'a PodUid,
    query: &'a NetnsQuery,
    /// Namespaces of the pod's processes that have one of its addresses.
    fitting: Vec<(ProcessNetns, NetnsView)>,
    /// Whether the known namespace still has one of the pod's addresses.
    known_fits: bool,
    /// Whether there may be namespaces that were not examined.
    is_crowded: bool,
}

impl OpenQuery<'_> {
    fn known_netns(&self) -> Option<&Netns> {
        self.query.known.as_deref().filter(|_| self.known_fits)
    }

    fn choose_answer(self, network: &NodeNetwork) -> Option<NetnsAnswer> {
        let path = |netns: NetnsId| network.path_to_pod(&self.query.ips, netns);
        if self.known_netns().is_some_and(|known| path(known.id()) != NodePath::Elsewhere) {
            return Some(NetnsAnswer::Unchanged { runs: true });
        }
        let recorded = |(one, _): &(ProcessNetns, NetnsView)| Some(one.netns.id()) == self.query.recorded;
        if let Some(place) = self.fitting.iter().position(recorded) {
            return self.found_answer(place, Witness::Record);
        }
        let candidates = self.fitting.iter().enumerate().map(|(place, (one, view))| Candidate {
            netns: place,
            path: path(one.netns.id()),
            linked_to_node: view.linked_to_node,
            nested: one.nested,
        });
        let identity = choose_netns(&candidates.collect::<Vec<_>>());
        if self.is_crowded && !matches!(identity, Identity::Found(_, Witness::Route)) {
            return Some(NetnsAnswer::Ambiguous(Ambiguity::TooMany));
        }
        match identity {
            Identity::Found(place, witness) => self.found_answer(place, witness),
            Identity::Ambiguous(why) => Some(NetnsAnswer::Ambiguous(why)),
            Identity::NotFound => self.query.known.as_ref().map(|_| NetnsAnswer::Unchanged { runs: true }),
        }
    }

    fn found_answer(self, place: usize, witness: Witness) -> Option<NetnsAnswer> {
        let (one, view) = self.fitting.into_iter().nth(place)?;
        Some(NetnsAnswer::Found(NetnsMatch { netns: one.netns, witness, captured: view.captured }))
    }
}

impl NetnsFinder {
    /// Creates a finder. `proc`: directory that shows the processes of the whole node. `node`: the node's namespace,
    /// which is no pod's.
    pub fn new(proc: &Path, node: Netns, config: InPodRulesConfig) -> NetnsFinder {
        NetnsFinder { proc: proc.to_owned(), node, config }
    }

    /// Searches for the namespaces of pods, by UID. `pods`: all pods of the node, so that processes of one are not
    /// attributed to another. Pods of which no namespace is known, and no process is in a namespace with their address,
    /// are absent. Each process of the node is examined once, whatever the number of pods.
    ///
    /// # Errors
    /// The processes cannot be listed, no descriptor is left, or the node's network cannot be observed. A process that
    /// ends meanwhile, or cannot be examined, is skipped.
    pub fn find_netns(
        &self,
        pods: &KnownPods,
        sought: &BTreeMap<PodUid, NetnsQuery>,
    ) -> Result<BTreeMap<PodUid, NetnsAnswer>, Error> {
        let mut candidates = self.candidate_netns(pods, sought)?;
        let (mut answers, mut open) = (BTreeMap::new(), Vec::new());
        for (uid, query) in sought {
            let own = candidates.remove(uid).unwrap_or_default();
            let is_known = |known: &Arc<Netns>| own.contains_key(&known.id());
            let answer = match &query.known {
                Some(known) if is_known(known) => NetnsAnswer::Unchanged { runs: true },
                Some(_) if own.is_empty() => NetnsAnswer::Unchanged { runs: false },
                None if own.is_empty() && pods.is_contested(uid) => {
                    NetnsAnswer::Ambiguous(Ambiguity::SharedUid)
                }
                None if own.is_empty() => continue,
                _ => {
                    open.push(self.open_query(uid, query, own)?);
                    continue;
                }
            };
            answers.insert(uid.clone(), answer);
        }
        let network = self.node_network(&open)?;
        for query in open {
            let uid = query.uid.clone();
            answers.extend(query.choose_answer(&network).map(|answer| (uid, answer)));
        }
        refuse_shared(&mut answers);
        Ok(answers)
    }

    fn open_query<'a>(
        &self,
        uid: &'a PodUid,
        query: &'a NetnsQuery,
        own: BTreeMap<NetnsId, ProcessNetns>,
    ) -> Result<OpenQuery<'a>, Error> {
        let is_crowded = own.len() >= MOST_NAMESPACES;
        let view = |netns: &Netns| match self.view_netns(netns, &query.ips) {
            Err(error) if is_starved(&error) => Err(error),
            viewed => Ok(viewed.ok().flatten()),
        };
        let known_fits = query.known.as_deref().map(view).transpose()?.flatten().is_some();
        let mut fitting = Vec::new();
        for one in own.into_values() {
            fitting.extend(view(&one.netns)?.map(|view| (one, view)));
        }
        Ok(OpenQuery { uid, query, fitting, known_fits, is_crowded })
    }

    fn node_network(&self, open: &[OpenQuery<'_>]) -> Result<NodeNetwork, Error> {
        let mut namespaces: Vec<&Netns> = Vec::new();
        let mut ips = BTreeSet::new();
        for query in open {
            namespaces.extend(query.fitting.iter().map(|(one, _)| &one.netns).chain(query.known_netns()));
            ips.extend(query.query.ips.iter().copied());
        }
        if namespaces.is_empty() {
            return Ok(NodeNetwork::default());
        }
        NodeNetwork::observe(&self.node, &ips, &namespaces)
    }

    fn candidate_netns(
        &self,
        pods: &KnownPods,
        sought: &BTreeMap<PodUid, NetnsQuery>,
    ) -> Result<BTreeMap<PodUid, BTreeMap<NetnsId, ProcessNetns>>, Error> {
        let mut candidates: BTreeMap<PodUid, BTreeMap<NetnsId, ProcessNetns>> = BTreeMap::new();
        for process in process_directories(&self.proc)? {
            let Some(cgroup) = read_cgroup(&process)? else { continue };
            let ProcessOwner::Pod { uid, nested } = pods.process_owner(&cgroup) else { continue };
            let Some(query) = sought.get(&uid) else { continue };
            let Some(netns) = open_netns(&process)? else { continue };
            if netns.id() == self.node.id() {
                continue;
            }
            let own = candidates.entry(uid).or_default();
            let known = query.known.as_ref().map(|known| known.id());
            if own.len() >= MOST_NAMESPACES && ![known, query.recorded].contains(&Some(netns.id())) {
                continue;
            }
            let one = own.entry(netns.id()).or_insert(ProcessNetns { netns, nested });
            one.nested &= nested;
        }
        Ok(candidates)
    }

    /// Confirms the namespace in the record of a pod's ADD, if it is not the node's own and has one of these addresses.
    pub fn confirm_recorded(&self, netns: Netns, ips: &[IpAddr]) -> Option<NetnsMatch> {
        if netns.id() == self.node.id() {
            return None;
        }
        let view = self.view_netns(&netns, ips).ok()??;
        Some(NetnsMatch { netns, witness: Witness::Record, captured: view.captured })
    }

    /// Observes a namespace. `None`: it has none of the addresses.
    fn view_netns(&self, netns: &Netns, ips: &[IpAddr]) -> Result<Option<NetnsView>, Error> {
        netns.run_in(|| self.view_current_netns(ips))?
    }

    fn view_current_netns(&self, ips: &[IpAddr]) -> Result<Option<NetnsView>, Error> {
        let mut handle = RtnetlinkHandle::open_in_pod()?;
        let has = handle.list_addresses()?.iter().any(|address| ips.contains(&address.ip));
        if !has {
            return Ok(None);
        }
        let node = handle.netns_number(self.node.as_fd())?;
        let linked_to_node =
            handle.list_links()?.iter().any(|link| node.is_some() && link.peer_netns == node);
        // If this cannot be observed, the rules are applied anew.
        let captured = families_with_rule(&mut handle, &self.config).is_ok_and(|found| !found.is_empty());
        Ok(Some(NetnsView { linked_to_node, captured }))
    }
}

/// Refuses answers with the same namespace, which belongs to one pod only. Of several claims, one may have a better
/// witness than all others.
fn refuse_shared(answers: &mut BTreeMap<PodUid, NetnsAnswer>) {
    let mut claims: BTreeMap<NetnsId, Vec<(Witness, PodUid)>> = BTreeMap::new();
    for (uid, answer) in &*answers {
        if let NetnsAnswer::Found(found) = answer {
            claims.entry(found.netns.id()).or_default().push((found.witness, uid.clone()));
        }
    }
    for mut claims in claims.into_values() {
        claims.sort();
        let refused = match claims.as_slice() {
            [(best, _), (next, _), ..] if best < next => claims.split_off(1),
            [_] => continue,
            _ => claims,
        };
        for (_, uid) in refused {
            answers.insert(uid, NetnsAnswer::Ambiguous(Ambiguity::SharedNetns));
        }
    }
}

/// Returns each namespace that any process of the node is in.
///
/// # Errors
/// The processes cannot be listed. A process that ends meanwhile is skipped.
pub fn process_netns(proc: &Path) -> Result<BTreeMap<NetnsId, Netns>, Error> {
    let mut found = BTreeMap::new();
    for process in process_directories(proc)? {
        // One by one: open at the same time are as many as there are namespaces, not processes.
        if let Some(netns) = open_netns(&process)? {
            let _ = found.insert(netns.id(), netns);
        }
    }
    Ok(found)
}

/// Returns the namespace of each pod that has a process, and that process, for callers that cannot see the directory in
/// which the container runtime binds namespaces. Those of the node's first process and of the caller are no pod's.
/// Requires CAP_SYS_PTRACE.
///
/// # Errors
/// The processes cannot be listed. A process that ends meanwhile, or may not be examined, is skipped.
pub fn find_pod_netns(proc: &Path) -> Result<Vec<(PathBuf, Netns)>, Error> {
    let first = Netns::open(proc.join("1/ns/net")).map(|netns| netns.id());
    let mut visited = BTreeSet::from([Netns::current()?.id()]);
    visited.extend(first);
    let mut found = Vec::new();
    for process in process_directories(proc)? {
        let cgroup = read_cgroup(&process)?.unwrap_or_default();
        if !names_a_pod(&cgroup) {
            continue;
        }
        if let Some(netns) = open_netns(&process)?
            && visited.insert(netns.id())
        {
            found.push((process, netns));
        }
    }
    Ok(found)
}

/// Returns the namespace of a pod's ADD, as its record identifies it.
pub fn recorded_netns(record: &PodRecord) -> Option<NetnsId> {
    record.netns_file.map(|file| NetnsId { dev: file.dev, ino: file.ino })
}

/// Returns the control groups of a process; `None`: it has ended, or may not be examined. A lack of descriptors is an
/// error, because every process would seem to have ended.
fn read_cgroup(process: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(process.join("cgroup")) {
        Err(source) if is_exhausted(&source) => Err(processes_error(process, source)),
        read => Ok(read.ok()),
    }
}

/// Returns the namespace of a process, likewise.
fn open_netns(process: &Path) -> Result<Option<Netns>, Error> {
    match Netns::open(process.join("ns/net")) {
        Err(netns::Error::Kernel { source, .. }) if is_exhausted(&source) => {
            Err(processes_error(process, source))
        }
        opened => Ok(opened.ok()),
    }
}

/// Returns the error for processes that cannot be examined, in the same words for each process.
fn processes_error(process: &Path, source: io::Error) -> Error {
    Error::Processes { path: process.parent().unwrap_or(process).to_owned(), source }
}

/// Returns whether an error is due to a lack of descriptors.
fn is_starved(error: &Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    iter::successors(Some(first), |error| error.source())
        .any(|cause| cause.downcast_ref().is_some_and(is_exhausted))
}

/// Returns whether a file could not be opened for lack of descriptors (`ENFILE`, `EMFILE`).
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

fn process_directories(proc: &Path) -> Result<Vec<PathBuf>, Error> {
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
