//! Pods with a sidecar: the plugin redirects them at ADD, and does not maintain their rules. So each observation asks the
//! kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use hostnet::RtnetlinkHandle;
use model::{Family, PodUid};
use netfilter::{Firewall, FirewallOptions, RuleDigest, RulesFingerprint};
use netns::{Netns, NetnsId};
use planner::SidecarRedirect;
use pod_status::{Evidence, PodLife, ProxyEvidence, RulesEvidence};
use redirect::FamilyChoice;
use report::{PodState, RedirectionMode};
use rules::ChainSet;

use crate::{inpod::netns_ref, pods::PodRedirects};

/// Observing rules starts two tools. On a node with very many such pods the first observation does not reach all of them.
const LIMIT: Duration = Duration::from_secs(4);

/// Why nothing can be determined of a pod that an earlier version of the plugin redirected.
const UNRECORDED: &str = "its ADD left no record of its rules, as earlier versions of the plugin do, and there are no iptables tools \
                          here to compare them with its annotations; a restart of the pod leaves one";

/// A pod that has a sidecar and runs: its rules are yet to be observed; its sidecar is not asked.
pub(super) const SIDECAR: Evidence = Evidence { proxy: ProxyEvidence::Serves, ..Evidence::UNKNOWN };

/// Earlier observations, namespace by namespace.
#[derive(Debug, Default)]
pub(super) struct SidecarCache {
    addresses: BTreeMap<NetnsId, BTreeSet<IpAddr>>,
    /// What the kernel had shown of them by then.
    rules: BTreeMap<NetnsId, (RulesFingerprint, Vec<String>)>,
}

/// Where network namespaces of pods are found.
#[derive(Clone, Debug)]
pub(super) struct NetnsPaths {
    /// Where the container runtime binds them.
    pub(super) netns_directory: PathBuf,
    /// The node's processes, if that directory is missing.
    pub(super) proc: Option<PathBuf>,
}

impl NetnsPaths {
    pub(super) fn used(&self) -> &Path {
        self.by_process().unwrap_or(&self.netns_directory)
    }

    fn by_process(&self) -> Option<&Path> {
        self.proc.as_deref().filter(|proc| !self.netns_directory.is_dir() && proc.is_dir())
    }

    /// Whether it is unknown which there are.
    pub(super) fn are_unknown(&self) -> bool {
        !self.netns_directory.is_dir() && self.by_process().is_none()
    }

    /// All that there are, and their addresses.
    pub(super) fn namespaces(&self) -> Result<Vec<(PathBuf, Netns)>, ::inpod::Error> {
        match self.by_process() {
            Some(proc) => ::inpod::namespaces_of_pods(proc),
            None => Ok(Netns::list(&self.netns_directory)?),
        }
    }
}

/// How a pod's rules are compared: with what its ADD left, by its UID, which needs no tool; or, without a record of that,
/// with what its annotations request, by the iptables tools.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompareContext<'a> {
    pub(super) places: &'a NetnsPaths,
    pub(super) tools: &'a FirewallOptions,
    pub(super) recorded: &'a BTreeMap<PodUid, RuleDigest>,
    /// The namespace of each pod's ADD, where that is recorded.
    pub(super) namespaces: &'a BTreeMap<PodUid, NetnsId>,
}

/// Fills in what the kernel shows of pods with a sidecar.
pub(super) fn show(
    means: CompareContext<'_>,
    redirects: &PodRedirects,
    cache: &mut SidecarCache,
    pods: &mut [PodState],
) {
    let is_one =
        |pod: &PodState| pod.way == Some(RedirectionMode::Sidecar) && redirects.contains_key(&pod.uid);
    if !pods.iter().any(is_one) {
        return;
    }
    let found = means.places.namespaces().map_err(|error| error.to_string());
    let found = found.map(|all| cache.by_address(all));
    let began = Instant::now();
    for pod in pods.iter_mut().filter(|pod| is_one(pod)) {
        let Some(redirect) = redirects.get(&pod.uid) else { continue };
        let outcome = match &found {
            Err(error) => Err(format!("network namespaces of pods cannot be listed: {error}")),
            Ok(_) if pod.phase != "Running" || pod.ips.is_empty() => {
                let rules = RulesEvidence::Absent { failing: false };
                pod.capture = Evidence { life: PodLife::Starting, rules, ..SIDECAR }.classify().state;
                continue;
            }
            Ok(all) => all
                .netns_of_pod(&pod.ips, means.namespaces.get(&pod.uid).copied())
                .ok_or_else(|| all.not_found(&pod.ips, means.places)),
        };
        let late = || began.elapsed() > LIMIT;
        let seen = outcome.and_then(|netns| {
            pod.kernel.netns = Some(netns_ref(netns.id()));
            let then = means.recorded.get(&pod.uid);
            cache.differences(netns, |netns| compare(netns, redirect, then, means.tools), late)
        });
        tell(pod, seen);
    }
}

fn tell(pod: &mut PodState, seen: Result<Vec<String>, String>) {
    match seen {
        Err(why) => {
            pod.capture = SIDECAR.classify().state;
            pod.kernel.blind = Some(why);
        }
        Ok(differences) => {
            let is_complete = differences.is_empty();
            let rules = if is_complete {
                RulesEvidence::Verified
            } else {
                RulesEvidence::Incomplete { holds: false }
            };
            pod.capture = Evidence { rules, ..SIDECAR }.classify().state;
            pod.kernel.looked = Some(wire::rfc3339(SystemTime::now()));
            pod.kernel.blind = None;
            if is_complete {
                pod.kernel.seen.push("all rules that redirect to its sidecar are in place".to_owned());
            } else {
                pod.since = None; // the change was not observed
            }
            pod.kernel.differences = differences;
        }
    }
}

impl SidecarCache {
    /// Which namespace has which address. An address does not change once a plugin has given it.
    fn by_address(&mut self, all: Vec<(PathBuf, Netns)>) -> NetnsByAddress {
        let ids: BTreeSet<NetnsId> = all.iter().map(|(_, netns)| netns.id()).collect();
        self.addresses.retain(|id, _| ids.contains(id));
        self.rules.retain(|id, _| ids.contains(id));
        let mut found = NetnsByAddress::default();
        for (_, netns) in all {
            let known = self.addresses.get(&netns.id()).filter(|ips| !ips.is_empty()).cloned();
            let asked = known.map_or_else(|| addresses(&netns), Ok);
            // A pod that ends meanwhile has none any more.
            let ips = asked.map_err(|error| found.refused = Some(error)).unwrap_or_default();
            self.addresses.insert(netns.id(), ips.clone());
            let netns = Arc::new(netns);
            for ip in ips {
                found.by_address.entry(ip).or_default().push(Arc::clone(&netns));
            }
        }
        found
    }

    /// Differences from the desired state, from the last observation if nothing has changed since. What the policy route of
    /// TPROXY needs is no part of it, so an observation of a pod that uses it may be as old as its rules.
    fn differences(
        &mut self,
        netns: &Netns,
        compare: impl Fn(&Netns) -> Result<Vec<String>, String>,
        late: impl Fn() -> bool,
    ) -> Result<Vec<String>, String> {
        let now =
            netns.run_in(|| RulesFingerprint::of_this_netns().ok()).map_err(|error| error.to_string())?;
        if let (Some(now), Some((then, differences))) = (&now, self.rules.get(&netns.id()))
            && now == then
        {
            return Ok(differences.clone());
        }
        if late() {
            return Err("there was no time to observe it; the next attempt continues here".to_owned());
        }
        let differences = compare(netns)?;
        if let Some(now) = now {
            self.rules.insert(netns.id(), (now, differences.clone()));
        }
        Ok(differences)
    }
}

/// Differences from the desired state in a pod's namespace.
fn compare(
    netns: &Netns,
    redirect: &SidecarRedirect,
    then: Option<&RuleDigest>,
    tools: &FirewallOptions,
) -> Result<Vec<String>, String> {
    let families = if redirect.dual_stack { FamilyChoice::Dual } else { FamilyChoice::First };
    if let Some(then) = then.filter(|then| !then.is_empty()) {
        let compare = || redirect::compare(&redirect.config, families, then);
        let compared = netns.run_in(compare).map_err(|error| error.to_string())?;
        return compared.map_err(|error| error.to_string());
    }
    let act = |options: &FirewallOptions| redirect::verify(&redirect.config, families, options);
    match netfilter::inside(netns, tools, act) {
        Ok((seen, _)) => Ok(seen.differences),
        Err(redirect::Error::Firewall(netfilter::Error::NoIptables(_))) => Err(UNRECORDED.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Namespaces by the addresses in them.
#[derive(Debug, Default)]
pub(super) struct NetnsByAddress {
    by_address: BTreeMap<IpAddr, Vec<Arc<Netns>>>,
    /// Why at least one of them could not be observed.
    refused: Option<String>,
}

impl NetnsByAddress {
    /// The namespace of a pod with these addresses: the one of its ADD, else the only one that has any of them. A pod may
    /// give itself the address of another one, so several are none.
    pub(super) fn netns_of_pod(&self, ips: &[IpAddr], recorded: Option<NetnsId>) -> Option<&Arc<Netns>> {
        let fitting: BTreeMap<NetnsId, &Arc<Netns>> = ips
            .iter()
            .filter_map(|ip| self.by_address.get(ip))
            .flatten()
            .map(|one| (one.id(), one))
            .collect();
        if let Some(own) = recorded.and_then(|id| fitting.get(&id)) {
            return Some(own);
        }
        let mut all = fitting.into_values();
        all.next().filter(|_| all.next().is_none())
    }

    fn not_found(&self, ips: &[IpAddr], places: &NetnsPaths) -> String {
        let place = places.used().display();
        if ips.iter().any(|ip| self.by_address.contains_key(ip)) {
            return format!("several network namespaces in {place} have its address");
        }
        match &self.refused {
            Some(why) => format!("network namespaces in {place} cannot be observed: {why}"),
            None => format!("no network namespace in {place} has its address"),
        }
    }
}

/// Which namespace has which address.
pub(super) fn by_address(all: Vec<(PathBuf, Netns)>) -> NetnsByAddress {
    SidecarCache::default().by_address(all)
}

/// How many rules of sidecar redirection a namespace has.
pub(super) fn rules_there(netns: &Netns, tools: &FirewallOptions) -> Result<usize, String> {
    let act = |options: &FirewallOptions| {
        let (_, seen) = Firewall::open(options)?;
        let of = |family| ChainSet::SIDECAR.lines(seen.of(family)).len();
        Ok::<usize, redirect::Error>(Family::BOTH.into_iter().map(of).sum())
    };
    netfilter::inside(netns, tools, act).map(|(number, _)| number).map_err(|error| error.to_string())
}

/// Without those of loopback, which every namespace has.
fn addresses(netns: &Netns) -> Result<BTreeSet<IpAddr>, String> {
    let list = || RtnetlinkHandle::open().and_then(|mut handle| handle.addresses());
    let all = netns.run_in(list).map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let ips = all.into_iter().map(|address| address.ip);
    Ok(ips.filter(|ip| !ip.is_loopback() && !is_link_local(*ip)).collect())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
