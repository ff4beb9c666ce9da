//! Pods with a sidecar: the plugin redirects them at ADD, and does not maintain their rules. So each observation queries the
//! kernel. The state of repair in place is added to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use agent_protocol::PodRecord;
use enrolment::SidecarRedirect;
use firewall::{CapturedTraffic, RulesFingerprint};
use model::PodUid;
use netns::{Netns, NetnsId, NetnsInstance};
use pod_capture::netns_addresses;
use pod_identity::choose_by_address;
use pod_status::{Evidence, PodLife, ProxyEvidence, RulesEvidence};
use redirect::FamilyChoice;
use report::{PodState, RedirectionMode, StateReport};
use rules::{ChainSet, RecordedRules};

use crate::{
    alone::recorded_life,
    inpod::netns_ref,
    pods::PodRedirects,
    records::{NetnsOwners, netns_by_record, redirects_by_record, rules_by_record},
};

/// Time limit of an observation. On a node with very many such pods, or with very many rules in some of them, the first one does
/// not reach all.
const LIMIT: Duration = Duration::from_secs(4);

/// Evidence of a running pod with a sidecar: its rules are yet to be observed; its sidecar is not queried.
pub(super) const SIDECAR: Evidence = Evidence { proxy: ProxyEvidence::Serves, ..Evidence::UNKNOWN };

/// Cached observations by network namespace, none of which is kept alive by it.
#[derive(Debug, Default)]
pub(super) struct SidecarCache {
    addresses: BTreeMap<NetnsInstance, BTreeSet<IpAddr>>,
    /// Fingerprint of each namespace's rules, its missing routes, and the result of the comparison at that time.
    rules: BTreeMap<NetnsInstance, (RulesFingerprint, Vec<String>, RulesComparison)>,
}

/// Result of comparing a pod's rules.
#[derive(Clone, Debug)]
pub(super) struct RulesComparison {
    /// Differences; empty: all traffic is redirected as desired.
    differences: Vec<String>,
    /// Description of the observed rules, if nothing differs.
    in_place: String,
}

/// Locations of the network namespaces of pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetnsPaths<'a> {
    /// Directory to which the container runtime binds them.
    pub(super) netns_directory: &'a Path,
    /// /proc of the node, used if that directory is missing.
    pub(super) proc: Option<&'a Path>,
}

impl<'a> NetnsPaths<'a> {
    pub(super) fn used_path(self) -> &'a Path {
        self.by_process().unwrap_or(self.netns_directory)
    }

    pub(super) fn by_process(self) -> Option<&'a Path> {
        self.proc.filter(|proc| !self.netns_directory.is_dir() && proc.is_dir())
    }

    /// Whether neither location is available.
    pub(super) fn are_unknown(self) -> bool {
        !self.netns_directory.is_dir() && self.by_process().is_none()
    }

    /// Returns all network namespaces with their paths.
    pub(super) fn list_netns(self) -> Result<Vec<(PathBuf, Netns)>, pod_capture::Error> {
        match self.by_process() {
            Some(proc) => pod_capture::find_pod_netns(proc),
            None => Ok(Netns::list_directory(self.netns_directory)?),
        }
    }
}

/// Fills in the kernel's state of pods with a sidecar, which needs no tool. A pod's rules are compared with those that its ADD
/// recorded. Without a record, another version or another plugin made them, so any rules that redirect its traffic are accepted.
/// `present`: the pods' redirections by their present annotations.
pub(super) fn observe_sidecars(
    places: NetnsPaths<'_>,
    records: &[Arc<PodRecord>],
    present: &PodRedirects,
    cache: &mut SidecarCache,
    pods: &mut [PodState],
) {
    let is_one = |pod: &&mut PodState| pod.mode == Some(RedirectionMode::Sidecar);
    let uids: BTreeSet<PodUid> = pods.iter_mut().filter(is_one).map(|pod| pod.uid.clone()).collect();
    if uids.is_empty() {
        return;
    }
    let is_meant = |uid: &PodUid| uids.contains(uid);
    let (rules, namespaces) = (rules_by_record(records, is_meant), netns_by_record(records, is_meant));
    let redirects = redirects_by_record(records, is_meant);
    let found = places.list_netns().map_err(|error| error.to_string());
    let found = found.map(|all| cache.by_address(all));
    let owners = NetnsOwners::from_records(records);
    let began = Instant::now();
    for pod in pods.iter_mut().filter(is_one) {
        // Annotations that changed after the ADD have no effect.
        let decided = redirects.get(&pod.uid).or_else(|| present.get(&pod.uid));
        let redirect: Option<&SidecarRedirect> = decided.map(AsRef::as_ref);
        let outcome = match &found {
            Err(error) => Err(format!("network namespaces of pods cannot be listed: {error}")),
            Ok(_) if pod.ips.is_empty() => {
                let absent = RulesEvidence::Absent { failing: false };
                let evidence = Evidence { life: PodLife::Starting, rules: absent, ..SIDECAR };
                pod.capture = evidence.classify().state;
                continue;
            }
            Ok(all) => all
                .find_pod_netns(&pod.ips, namespaces.get(&pod.uid).copied(), |netns| {
                    owners.belongs_to_another(netns, &pod.namespace, &pod.name)
                })
                .ok_or_else(|| all.not_found(&pod.ips, places)),
        };
        let late = || began.elapsed() > LIMIT;
        let comparison = outcome.and_then(|netns| {
            pod.kernel.netns = Some(netns_ref(netns.id()));
            let then = rules.get(&pod.uid);
            let missing_routes = || missing_routes(redirect, then);
            cache.compare_cached(netns, missing_routes, |netns| compare_rules(netns, redirect, then), late)
        });
        add_comparison(pod, recorded_life(pod), comparison);
    }
}

pub(super) fn add_comparison(pod: &mut PodState, life: PodLife, comparison: Result<RulesComparison, String>) {
    match comparison {
        Err(why) => {
            (pod.capture, pod.last_transition_time) = (SIDECAR.classify().state, None);
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
            pod.kernel.observed_at = Some(agent_protocol::rfc3339(SystemTime::now()));
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

/// Marks pods as pending whose rules repair in place has to restore repeatedly, whatever the kernel shows at this moment.
/// `repairs`: number of consecutive repairs, by UID.
pub fn add_repairs(repairs: &BTreeMap<PodUid, u32>, state: &mut StateReport) {
    for pod in state.pods.iter_mut().filter(|pod| pod.mode == Some(RedirectionMode::Sidecar)) {
        let Some(count) = repairs.get(&pod.uid) else { continue };
        pod.kernel.repair_count = *count;
        let unstable = Evidence { rules: RulesEvidence::Unstable, ..SIDECAR };
        (pod.capture, pod.last_transition_time) = (unstable.classify().state, None);
    }
}

impl SidecarCache {
    /// Maps addresses to namespaces. An address does not change once a plugin has assigned it.
    fn by_address(&mut self, all: Vec<(PathBuf, Netns)>) -> NetnsByAddress {
        let listed: BTreeSet<NetnsInstance> = all.iter().map(|(_, netns)| netns.instance()).collect();
        self.addresses.retain(|netns, _| listed.contains(netns));
        self.rules.retain(|netns, _| listed.contains(netns));
        let mut found = NetnsByAddress::default();
        for (_, netns) in all {
            let known = self.addresses.get(&netns.instance()).filter(|ips| !ips.is_empty()).cloned();
            let asked = known.map_or_else(|| netns_addresses(&netns).map_err(|error| error.to_string()), Ok);
            // A pod that ends meanwhile has no addresses any more.
            let ips = asked.map_err(|error| found.refused = Some(error)).unwrap_or_default();
            self.addresses.insert(netns.instance(), ips.clone());
            let netns = Arc::new(netns);
            for ip in ips {
                found.by_address.entry(ip).or_default().push(Arc::clone(&netns));
            }
        }
        found
    }

    /// Returns the last comparison if nothing has changed since. `missing_routes` is called in the namespace.
    fn compare_cached(
        &mut self,
        netns: &Netns,
        missing_routes: impl Fn() -> Vec<String> + Sync,
        compare: impl Fn(&Netns) -> Result<RulesComparison, String>,
        late: impl Fn() -> bool,
    ) -> Result<RulesComparison, String> {
        let observe = || RulesFingerprint::observe_netns().ok().map(|rules| (rules, missing_routes()));
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

/// Returns the missing routes, in this namespace, of a pod whose rules are compared one by one: no fingerprint covers them.
fn missing_routes(redirect: Option<&SidecarRedirect>, then: Option<&RecordedRules>) -> Vec<String> {
    let Some(redirect) = redirect.filter(|_| then.is_some_and(RecordedRules::is_usable)) else {
        return Vec::new();
    };
    let choice = FamilyChoice::by_setting(redirect.dual_stack);
    let missing = redirect::missing_routes(&redirect.config, choice);
    missing.unwrap_or_else(|error| vec![error.to_string()])
}

/// Compares the rules in a pod's namespace.
fn compare_rules(
    netns: &Netns,
    redirect: Option<&SidecarRedirect>,
    then: Option<&RecordedRules>,
) -> Result<RulesComparison, String> {
    let recorded = redirect.zip(then.filter(|then| then.is_usable()));
    let Some((redirect, then)) = recorded else { return judge_traffic(netns) };
    let choice = FamilyChoice::by_setting(redirect.dual_stack);
    let compare = || redirect::compare_recorded(&redirect.config, choice, then);
    let compared = netns.run_in(compare).map_err(|error| error.to_string())?;
    let differences = compared.map_err(|error| error.to_string())?;
    let in_place = "all rules that redirect to its sidecar are in place".to_owned();
    Ok(RulesComparison { differences, in_place })
}

/// Evaluates the rules by their effect on packets, whichever version or setting made them.
pub(super) fn judge_traffic(netns: &Netns) -> Result<RulesComparison, String> {
    let owner = ChainSet::SIDECAR;
    let observe = || Ok((CapturedTraffic::observe_netns(owner)?, firewall::inactive_rules(owner)?));
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

/// Namespaces by their addresses.
#[derive(Debug, Default)]
pub(super) struct NetnsByAddress {
    by_address: BTreeMap<IpAddr, Vec<Arc<Netns>>>,
    /// Reason why at least one of them could not be observed.
    refused: Option<String>,
}

impl NetnsByAddress {
    /// Returns the namespace of a pod with these addresses, as decided by `pod_identity`.
    pub(super) fn find_pod_netns(
        &self,
        ips: &[IpAddr],
        recorded: Option<NetnsId>,
        belongs_to_another: impl Fn(NetnsId) -> bool,
    ) -> Option<&Arc<Netns>> {
        let fitting: BTreeMap<NetnsId, &Arc<Netns>> = ips
            .iter()
            .filter_map(|ip| self.by_address.get(ip))
            .flatten()
            .map(|one| (one.id(), one))
            .collect();
        let own = choose_by_address(fitting.keys().copied(), recorded, belongs_to_another)?;
        fitting.get(&own).copied()
    }

    fn not_found(&self, ips: &[IpAddr], places: NetnsPaths<'_>) -> String {
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

/// Maps addresses to namespaces.
pub(super) fn by_address(all: Vec<(PathBuf, Netns)>) -> NetnsByAddress {
    SidecarCache::default().by_address(all)
}

#[cfg(test)]
mod tests;
