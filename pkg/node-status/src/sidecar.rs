//! Pods with a sidecar: the plugin redirects them at ADD, and does not maintain their rules. So each observation asks the
//! kernel. What repair in place knows of them comes on top.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ::inpod::netns_addresses;
use enrolment::SidecarRedirect;
use firewall::{CapturedTraffic, RulesFingerprint};
use model::PodUid;
use netns::{Netns, NetnsId, NetnsInstance};
use pod_identity::choose_by_address;
use pod_status::{Evidence, PodLife, ProxyEvidence, RulesEvidence};
use redirect::FamilyChoice;
use report::{PodState, RedirectionMode, StateReport};
use rules::{ChainSet, RecordedRules};
use wire::PodRecord;

use crate::{
    inpod::netns_ref,
    pods::PodRedirects,
    records::{NetnsOwners, RecordedAdds},
};

/// On a node with very many such pods, or with very many rules in some of them, the first observation does not reach all.
const LIMIT: Duration = Duration::from_secs(4);

/// A pod that has a sidecar and runs: its rules are yet to be observed; its sidecar is not asked.
pub(super) const SIDECAR: Evidence = Evidence { proxy: ProxyEvidence::Serves, ..Evidence::UNKNOWN };

/// Earlier observations, namespace by namespace. It keeps none of them alive.
#[derive(Debug, Default)]
pub(super) struct SidecarCache {
    addresses: BTreeMap<NetnsInstance, BTreeSet<IpAddr>>,
    /// Fingerprint of each namespace's rules and what is missing of its routes, and the result of comparing all that at that time.
    rules: BTreeMap<NetnsInstance, (RulesFingerprint, Vec<String>, RulesComparison)>,
}

/// Result of comparing a pod's rules.
#[derive(Clone, Debug)]
pub(super) struct RulesComparison {
    /// Empty: all of its traffic is redirected that is to be.
    differences: Vec<String>,
    /// Text on what is in place, where nothing differs.
    in_place: String,
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
    pub(super) fn used_path(&self) -> &Path {
        self.by_process().unwrap_or(&self.netns_directory)
    }

    pub(super) fn by_process(&self) -> Option<&Path> {
        self.proc.as_deref().filter(|proc| !self.netns_directory.is_dir() && proc.is_dir())
    }

    /// Whether it is unknown which there are.
    pub(super) fn are_unknown(&self) -> bool {
        !self.netns_directory.is_dir() && self.by_process().is_none()
    }

    /// All that there are, and their addresses.
    pub(super) fn list_netns(&self) -> Result<Vec<(PathBuf, Netns)>, ::inpod::Error> {
        match self.by_process() {
            Some(proc) => ::inpod::netns_of_pods(proc),
            None => Ok(Netns::list_directory(&self.netns_directory)?),
        }
    }
}

/// Fills in what the kernel shows of pods with a sidecar, which needs no tool. A pod's rules are compared with what its ADD
/// left. Without a record of that another version made them, or another plugin, so whatever redirects its traffic counts.
pub(super) fn observe_sidecars(
    places: &NetnsPaths,
    records: &[Arc<PodRecord>],
    redirects: &PodRedirects,
    cache: &mut SidecarCache,
    pods: &mut [PodState],
) {
    let is_one =
        |pod: &PodState| pod.mode == Some(RedirectionMode::Sidecar) && redirects.contains_key(&pod.uid);
    if !pods.iter().any(is_one) {
        return;
    }
    let adds = RecordedAdds::of_pods(records, redirects);
    let found = places.list_netns().map_err(|error| error.to_string());
    let found = found.map(|all| cache.by_address(all));
    let owners = NetnsOwners::of_records(records);
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
                .netns_of_pod(&pod.ips, adds.namespaces.get(&pod.uid).copied(), |netns| {
                    owners.is_of_another(netns, &pod.namespace, &pod.name)
                })
                .ok_or_else(|| all.not_found(&pod.ips, places)),
        };
        let late = || began.elapsed() > LIMIT;
        let comparison = outcome.and_then(|netns| {
            pod.kernel.netns = Some(netns_ref(netns.id()));
            let then = adds.rules.get(&pod.uid);
            let missing_routes = || missing_routes(redirect, then);
            cache.compare_cached(netns, missing_routes, |netns| compare_rules(netns, redirect, then), late)
        });
        add_comparison(pod, PodLife::Running, comparison);
    }
}

pub(super) fn add_comparison(pod: &mut PodState, life: PodLife, comparison: Result<RulesComparison, String>) {
    match comparison {
        Err(why) => {
            pod.capture = SIDECAR.classify().state;
            pod.kernel.unobserved = Some(why);
        }
        Ok(RulesComparison { differences, in_place }) => {
            let is_complete = differences.is_empty();
            let rules = if is_complete {
                RulesEvidence::Verified
            } else {
                RulesEvidence::Incomplete { holds: false }
            };
            pod.capture = Evidence { life, rules, ..SIDECAR }.classify().state;
            pod.kernel.observed_at = Some(wire::rfc3339(SystemTime::now()));
            pod.kernel.unobserved = None;
            if is_complete {
                pod.kernel.observed.push(in_place);
            } else {
                pod.last_transition_time = None; // the change was not observed
            }
            pod.kernel.differences = differences;
        }
    }
}

/// Shows the pods pending whose rules repair in place has to restore repeatedly, whatever the kernel shows at this moment.
/// `repairs`: how many times in a row it did, by UID.
pub fn add_repairs(repairs: &BTreeMap<PodUid, u32>, state: &mut StateReport) {
    for pod in state.pods.iter_mut().filter(|pod| pod.mode == Some(RedirectionMode::Sidecar)) {
        let Some(count) = repairs.get(&pod.uid) else { continue };
        pod.kernel.repair_count = *count;
        pod.capture = Evidence { rules: RulesEvidence::Unstable, ..SIDECAR }.classify().state;
    }
}

impl SidecarCache {
    /// Which namespace has which address. An address does not change once a plugin has given it.
    fn by_address(&mut self, all: Vec<(PathBuf, Netns)>) -> NetnsByAddress {
        let listed: BTreeSet<NetnsInstance> = all.iter().map(|(_, netns)| netns.instance()).collect();
        self.addresses.retain(|netns, _| listed.contains(netns));
        self.rules.retain(|netns, _| listed.contains(netns));
        let mut found = NetnsByAddress::default();
        for (_, netns) in all {
            let known = self.addresses.get(&netns.instance()).filter(|ips| !ips.is_empty()).cloned();
            let asked = known.map_or_else(|| netns_addresses(&netns).map_err(|error| error.to_string()), Ok);
            // A pod that ends meanwhile has none any more.
            let ips = asked.map_err(|error| found.refused = Some(error)).unwrap_or_default();
            self.addresses.insert(netns.instance(), ips.clone());
            let netns = Arc::new(netns);
            for ip in ips {
                found.by_address.entry(ip).or_default().push(Arc::clone(&netns));
            }
        }
        found
    }

    /// The comparison of the last observation if nothing has changed since. `missing_routes` is called in the namespace.
    fn compare_cached(
        &mut self,
        netns: &Netns,
        missing_routes: impl Fn() -> Vec<String> + Sync,
        compare: impl Fn(&Netns) -> Result<RulesComparison, String>,
        late: impl Fn() -> bool,
    ) -> Result<RulesComparison, String> {
        let observe = || RulesFingerprint::of_this_netns().ok().map(|rules| (rules, missing_routes()));
        let now = netns.run_in(observe).map_err(|error| error.to_string())?;
        if let (Some((rules, missing)), Some((then, lacked, compared))) =
            (&now, self.rules.get(&netns.instance()))
            && (rules, missing) == (then, lacked)
        {
            return Ok(compared.clone());
        }
        if late() {
            return Err("there was no time to observe it; the next attempt continues here".to_owned());
        }
        let compared = compare(netns)?;
        if let Some((rules, missing)) = now {
            self.rules.insert(netns.instance(), (rules, missing, compared.clone()));
        }
        Ok(compared)
    }
}

/// Returns what is missing, in this namespace, of the routes of a pod whose rules are compared one by one: no fingerprint shows it.
fn missing_routes(redirect: &SidecarRedirect, then: Option<&RecordedRules>) -> Vec<String> {
    if !then.is_some_and(RecordedRules::is_usable) {
        return Vec::new();
    }
    let missing = redirect::missing_routes(&redirect.config, families_of(redirect));
    missing.unwrap_or_else(|error| vec![error.to_string()])
}

fn families_of(redirect: &SidecarRedirect) -> FamilyChoice {
    if redirect.dual_stack { FamilyChoice::Dual } else { FamilyChoice::First }
}

/// Compares the rules in a pod's namespace.
fn compare_rules(
    netns: &Netns,
    redirect: &SidecarRedirect,
    then: Option<&RecordedRules>,
) -> Result<RulesComparison, String> {
    let Some(then) = then.filter(|then| then.is_usable()) else { return judge_traffic(netns) };
    let compare = || redirect::compare_recorded(&redirect.config, families_of(redirect), then);
    let compared = netns.run_in(compare).map_err(|error| error.to_string())?;
    let differences = compared.map_err(|error| error.to_string())?;
    let in_place = "all rules that redirect to its sidecar are in place".to_owned();
    Ok(RulesComparison { differences, in_place })
}

/// Judges by what the kernel does with packets, whichever version or setting made the rules.
pub(super) fn judge_traffic(netns: &Netns) -> Result<RulesComparison, String> {
    let owner = ChainSet::SIDECAR;
    let observe = || Ok((CapturedTraffic::of_this_netns(owner)?, firewall::inactive_rules(owner)?));
    let observed = netns.run_in(observe).map_err(|error| error.to_string())?;
    let (found, inactive) = observed.map_err(|error: firewall::Error| error.to_string())?;
    let missing = CapturedTraffic::any_outbound().missing_from(&found);
    let missing = missing.iter().map(|traffic| format!("no rule redirects {traffic} traffic"));
    Ok(RulesComparison {
        differences: missing.chain(inactive).collect(),
        in_place: format!(
            "rules redirect {} traffic to its sidecar; they were not compared one by one",
            found.to_lines().join(" and ")
        ),
    })
}

/// Namespaces by the addresses in them.
#[derive(Debug, Default)]
pub(super) struct NetnsByAddress {
    by_address: BTreeMap<IpAddr, Vec<Arc<Netns>>>,
    /// Why at least one of them could not be observed.
    refused: Option<String>,
}

impl NetnsByAddress {
    /// The namespace of a pod with these addresses, as `pod_identity` decides.
    pub(super) fn netns_of_pod(
        &self,
        ips: &[IpAddr],
        recorded: Option<NetnsId>,
        is_of_another: impl Fn(NetnsId) -> bool,
    ) -> Option<&Arc<Netns>> {
        let fitting: BTreeMap<NetnsId, &Arc<Netns>> = ips
            .iter()
            .filter_map(|ip| self.by_address.get(ip))
            .flatten()
            .map(|one| (one.id(), one))
            .collect();
        let own = choose_by_address(fitting.keys().copied(), recorded, is_of_another)?;
        fitting.get(&own).copied()
    }

    fn not_found(&self, ips: &[IpAddr], places: &NetnsPaths) -> String {
        let place = places.used_path().display();
        if ips.iter().any(|ip| self.by_address.contains_key(ip)) {
            return format!("which of the network namespaces in {place} is its own is not known");
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

#[cfg(test)]
mod tests;
