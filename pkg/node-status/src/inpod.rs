//! In-pod capture: probes of the node, and single pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::SystemTime,
};

use agent::EnrolledPodView;
use capture_modes::{CaptureSettings, InPodConfig};
use conntrack::ConntrackHandle;
use hostnet::RtnetlinkHandle;
use model::{Family, MemberAddresses, PodUid};
use netns::{Netns, NetnsId};
use pod_capture::{
    BypassingConnections, NodeProbes, PodRulesSpec, ProbeRules, is_dns_received, probe_set_name,
};
use pod_status::{Evidence, PodLife, ProxyEvidence, RulesEvidence};
use report::{
    BypassView, CaptureState, Comparison, DifferenceKind, KernelView, NetnsRef, NetworkState, PlanStep,
    PodState, StateDifference, StatePart, StateReport, Unobserved,
};
use rules::ChainSet;

use crate::{
    firewall::{compare_shown_rules, shown_rule, to_observed_line},
    node::compare_members,
};

/// Fills in the node's part.
pub(super) fn observe_probes(settings: &CaptureSettings, desired: &MemberAddresses, state: &mut StateReport) {
    let unobserved = &mut state.observation.unobserved;
    let Some(chosen) = settings.capture.in_pod() else { return };
    // The node has no links, routes, policy rules or changed settings in this mode.
    state.network = NetworkState {
        ipsets: Comparison::without_observation(Vec::new()),
        firewall: Comparison::without_observation(Vec::new()),
        ..NetworkState::nothing_desired()
    };
    let opened = NodeProbes::open(
        chosen.rules.clone(),
        chosen.captured_families(),
        settings.tools.clone(),
        &settings.journal,
    );
    let mut probes = match opened {
        Ok(probes) => probes,
        Err(error) => return unobserved.push(Unobserved::new(StatePart::Network, error)),
    };
    match probes.set_members() {
        Ok(members) => {
            state.network.ipsets =
                compare_members(desired, members.into_iter(), |family| probe_set_name(family).to_owned());
        }
        Err(error) => unobserved.push(Unobserved::new(StatePart::Ipsets, error)),
    }
    match compare_probe_rules(&probes.rules, chosen) {
        Ok(shown) => state.network.firewall = shown,
        Err(error) => unobserved.push(Unobserved::new(StatePart::Firewall, error)),
    }
}

fn compare_probe_rules(
    probes: &ProbeRules,
    chosen: &InPodConfig,
) -> Result<Comparison<report::FirewallRule>, pod_capture::Error> {
    let observed = probes.observe_tables()?;
    let desired = chosen.captured_families().into_iter().flat_map(|family| {
        let lines = probes.desired_rules(family).rule_lines();
        lines.into_iter().map(move |line| shown_rule("node", family, &to_observed_line(line)))
    });
    let shown_observed = Family::BOTH.into_iter().flat_map(|family| {
        let lines = ChainSet::PROBES.owned_lines(observed.family_tables(family));
        lines.into_iter().map(move |line| shown_rule("node", family, &line))
    });
    let mut shown = compare_shown_rules(desired.collect(), shown_observed.collect());
    if shown.differences.is_empty() {
        // A misplaced rule is not another rule.
        let kind = DifferenceKind::Changed;
        let changes = probes.plan_changes(&observed);
        let differs = changes.reasons().map(|(family, what)| StateDifference {
            kind,
            family: family.map(Family::number),
            object: what,
        });
        shown.differences = differs.collect();
    }
    Ok(shown)
}

/// Returns the steps that the reconciler would take now: on the node, and for each pod.
pub(super) fn plan_steps(state: &StateReport, enrolled: &BTreeMap<PodUid, EnrolledPodView>) -> Vec<PlanStep> {
    let mut steps = Vec::new();
    let mut step = |kind: &str, message: String, operations: Vec<String>| {
        steps.push(PlanStep { kind: kind.to_owned(), message, operations });
    };
    let network = &state.network;
    let differs = |found: &[StateDifference]| found.iter().map(ToString::to_string).collect::<Vec<_>>();
    if !network.firewall.differences.is_empty() {
        let message = "add the rules that exempt the node's probes from capture".to_owned();
        step("firewall", message, differs(&network.firewall.differences));
    }
    if !network.ipsets.differences.is_empty() {
        step(
            "add-members",
            "correct the sets of probed pods".to_owned(),
            differs(&network.ipsets.differences),
        );
    }
    for pod in &state.pods {
        let Some(enrolled_pod) = enrolled.get(&pod.uid) else { continue };
        let title = pod.title();
        match enrolled_pod {
            EnrolledPodView { netns: None, .. } => {
                step("find-netns", format!("find the network namespace of {title}"), Vec::new());
            }
            EnrolledPodView { leaving: true, .. } => {
                step("release-pod", format!("remove the rules of {title}, then notify ztunnel"), Vec::new());
            }
            EnrolledPodView { ruled: false, .. } => {
                step("capture-pod", format!("add the rules of {title}, then notify ztunnel"), Vec::new());
            }
            _ if matches!(enrolled_pod.evidence.proxy, ProxyEvidence::Announced | ProxyEvidence::Absent) => {
                step("notify-ztunnel", format!("send {title} to ztunnel"), Vec::new());
            }
            EnrolledPodView { verified: false, .. } => {
                step("verify-pod", format!("verify the rules of {title}"), Vec::new());
            }
            _ if !pod.kernel.differences.is_empty() => {
                step("capture-pod", format!("restore what {title} lacks"), pod.kernel.differences.clone());
            }
            _ => {}
        }
    }
    steps
}

pub(super) fn netns_ref(id: NetnsId) -> NetnsRef {
    NetnsRef { device: id.dev, inode: id.ino }
}

/// Reason for a pod whose network namespace is unknown.
const NO_NETNS: &str = "the plugin did not pass its network namespace, and no process of the pod was found in one that has its \
                        address";

/// Returns the reconciler's last observation.
pub(super) fn last_observation(enrolled_pod: &EnrolledPodView) -> KernelView {
    let mut view = KernelView {
        observed_at: enrolled_pod.observed_at.map(agent_protocol::rfc3339),
        netns: enrolled_pod.netns.as_ref().map(|netns| netns_ref(netns.id())),
        netns_witness: enrolled_pod.witness.map(|witness| witness.to_string()),
        preceding_rules: enrolled_pod.overruling_rules().map(str::to_owned).collect(),
        repair_count: enrolled_pod.repairs,
        bypassing_connections: enrolled_pod
            .observed_rules
            .as_ref()
            .map(|rules| bypass_view(rules.bypassing_connections()))
            .unwrap_or_default(),
        ..KernelView::default()
    };
    if enrolled_pod.netns.is_none() {
        view.unobserved =
            Some(enrolled_pod.ambiguity.map_or_else(|| NO_NETNS.to_owned(), |why| why.to_string()));
    } else if enrolled_pod.verified {
        let observed = if enrolled_pod.options.open {
            "it had no rules, as no ztunnel was connected, and its policy route was in place"
        } else {
            "its rules and its policy route were in place"
        };
        view.observed.push(observed.to_owned());
    } else if enrolled_pod.ruled {
        view.observed.push("its rules were applied, and will be verified".to_owned());
    }
    view
}

/// Observes whether sockets receive the DNS queries of the pods whose DNS is redirected to a ztunnel that serves them.
pub(super) fn observe_dns(
    chosen: &InPodConfig,
    enrolled: &BTreeMap<PodUid, EnrolledPodView>,
    pods: &mut [PodState],
) {
    let redirected = pods.iter_mut().filter_map(|pod| {
        let enrolled_pod = enrolled.get(&pod.uid).filter(|enrolled_pod| is_dns_redirected(enrolled_pod));
        let netns = enrolled_pod?.netns.as_deref()?;
        Some((netns, pod))
    });
    let (places, pods): (Vec<&Netns>, Vec<&mut PodState>) = redirected.unzip();
    let received = Netns::run_in_each(&places, |_| is_dns_received(&chosen.rules)).unwrap_or_default();
    for (pod, received) in pods.into_iter().zip(received) {
        pod.kernel.dns_unanswered = received.is_ok_and(|received| received == Some(false));
    }
}

fn is_dns_redirected(enrolled_pod: &EnrolledPodView) -> bool {
    let options = &enrolled_pod.options;
    let is_served = enrolled_pod.verified && enrolled_pod.evidence.proxy == ProxyEvidence::Serves;
    is_served && options.dns && !options.open
}

pub(super) fn bypass_view(found: &BypassingConnections) -> BypassView {
    let connections = found.listed.iter().map(|one| format!("{} to {}", one.source, one.dest));
    BypassView { count: found.count, connections: connections.collect() }
}

/// Returns the source addresses of the node's packets to a pod by its routes, in the calling thread's namespace, without those for
/// addresses that the node does not reach, or that the kernel does not report.
pub(super) fn node_sources(ips: &[IpAddr]) -> BTreeSet<IpAddr> {
    let Ok(mut routes) = RtnetlinkHandle::open() else { return BTreeSet::new() };
    ips.iter().filter_map(|ip| routes.source_to(*ip).ok().flatten()).collect()
}

/// Returns the addresses from which the node reaches the pod, and whether probes came from the one that its rules exempt, as
/// clauses. Empty if the kernel could not be queried, or has more connections than are read.
fn observed_probes(netns: &Netns, chosen: &InPodConfig, node: &BTreeSet<IpAddr>) -> Vec<String> {
    let sources: BTreeSet<IpAddr> = chosen
        .captured_families()
        .into_iter()
        .map(|family| chosen.rules.probes.address_for(family))
        .collect();
    let Ok(Ok((tracked, true))) = netns.run_in(|| ConntrackHandle::list(None)) else { return Vec::new() };
    let from: BTreeSet<IpAddr> = tracked.iter().map(|connection| connection.original.source.ip()).collect();
    probe_clauses(&sources, node, &from)
}

/// Formats the clauses. `sources`: those exempted by the pod's rules; `node`: those by the node's routes; `from`: those of the
/// pod's connections.
fn probe_clauses(
    sources: &BTreeSet<IpAddr>,
    node: &BTreeSet<IpAddr>,
    from: &BTreeSet<IpAddr>,
) -> Vec<String> {
    let listed = |ips: &BTreeSet<IpAddr>, word: &str| {
        ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(word)
    };
    let mut clauses = Vec::new();
    let replaced: BTreeSet<IpAddr> = node.difference(sources).copied().collect();
    if !replaced.is_empty() {
        let reached = listed(&replaced, " and ");
        clauses
            .push(format!("by its routes the node reaches it from {reached}, which it replaces for probes"));
    }
    let arrived: BTreeSet<IpAddr> = sources.intersection(from).copied().collect();
    let unchanged: BTreeSet<IpAddr> = replaced.intersection(from).copied().collect();
    if arrived.is_empty() && !unchanged.is_empty() {
        let unchanged = listed(&unchanged, " and ");
        clauses.push(format!(
            "connections have come from {unchanged} itself, which its rules do not take for probes"
        ));
    }
    // The kernel keeps a closed connection for two minutes.
    let (verb, addresses) =
        if arrived.is_empty() { ("no probe has", sources) } else { ("probes have", &arrived) };
    clauses.push(format!("{verb} come from {} in the last two minutes", listed(addresses, " or ")));
    clauses
}

/// Observes each rule. `node`: see [`node_sources`].
pub(super) fn verify_rules(
    enrolled_pod: &EnrolledPodView,
    chosen: &InPodConfig,
    tools: &firewall::FirewallOptions,
    life: PodLife,
    node: &BTreeSet<IpAddr>,
    pod: &mut PodState,
) {
    // A pod that is joining or leaving has no rules, or not all, which is no difference.
    let Some(netns) = enrolled_pod.netns.as_ref().filter(|_| enrolled_pod.ruled && !enrolled_pod.leaving)
    else {
        return;
    };
    let families = chosen.captured_families();
    let desired = PodRulesSpec {
        config: &chosen.rules,
        pod: &enrolled_pod.options,
        families: &families,
        existing: chosen.existing,
    };
    let now = agent_protocol::rfc3339(SystemTime::now());
    match pod_capture::observe_pod(netns, &desired, enrolled_pod.observed_rules.as_deref(), tools) {
        Err(error) => {
            record_unobserved(pod, format!("its network namespace cannot be observed: {error}"));
        }
        Ok(snapshot) => {
            pod.kernel.observed_at = Some(now);
            pod.kernel.observed.clear();
            if snapshot.is_complete() {
                let names: Vec<String> = families.iter().map(|family| family.to_string()).collect();
                let observed = if enrolled_pod.options.open {
                    "it has no rules, as no ztunnel is connected, and its policy route is in place"
                } else {
                    "its rules and its policy route are in place"
                };
                pod.kernel.observed.push(format!("{observed} ({})", names.join(", ")));
                if !enrolled_pod.options.open {
                    pod.kernel.observed.extend(observed_probes(netns, chosen, node));
                }
            }
            pod.kernel.bypassing_connections = bypass_view(snapshot.bypassing_connections());
            pod.kernel.preceding_rules = snapshot.bypass_reasons().map(str::to_owned).collect();
            let rules = match snapshot.is_complete() {
                true if enrolled_pod.repairs > 0 => RulesEvidence::Unstable,
                true => RulesEvidence::Verified,
                false => RulesEvidence::Incomplete { holds: false },
            };
            let overruled = !pod.kernel.preceding_rules.is_empty();
            let evidence = Evidence { life, rules, overruled, ..enrolled_pod.evidence };
            let reported = std::mem::replace(&mut pod.capture, evidence.classify().state);
            // Otherwise the change was not observed.
            pod.last_transition_time = pod.last_transition_time.take().filter(|_| pod.capture == reported);
            pod.kernel.differences.splice(..0, snapshot.differences().map(str::to_owned));
        }
    }
}

/// Records why a pod cannot be observed now: whether it is still captured, if it was at its last observation, is unknown.
fn record_unobserved(pod: &mut PodState, why: String) {
    pod.kernel.unobserved = Some(why);
    if pod.capture == CaptureState::Captured {
        (pod.capture, pod.last_transition_time) = (Evidence::UNKNOWN.classify().state, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_cannot_be_observed_again_is_not_called_captured() {
        use CaptureState::{Bypassing, Captured, Held, Unknown};
        for (before, after) in [(Captured, Unknown), (Bypassing, Bypassing), (Held, Held)] {
            let mut pod = PodState { capture: before, ..PodState::default() };
            record_unobserved(&mut pod, "no descriptors".to_owned());
            assert_eq!((pod.capture, pod.kernel.unobserved.is_some()), (after, true));
        }
    }

    #[test]
    fn the_source_of_probes_is_told_from_that_of_the_nodes_routes() {
        let set = |ips: &[&str]| -> BTreeSet<IpAddr> { ips.iter().map(|ip| ip.parse().unwrap()).collect() };
        let (probe, node) = ("169.254.7.127", "10.0.0.1");
        let reaches = format!("by its routes the node reaches it from {node}, which it replaces for probes");
        let none = format!("no probe has come from {probe} in the last two minutes");
        let some = format!("probes have come from {probe} in the last two minutes");
        let unchanged =
            format!("connections have come from {node} itself, which its rules do not take for probes");
        for (routes, from, expected) in [
            (&[node][..], &[probe, node][..], vec![&reaches, &some]),
            (&[node], &["10.0.0.9"], vec![&reaches, &none]),
            (&[node], &[node], vec![&reaches, &unchanged, &none]),
            (&[probe], &[probe], vec![&some]),
            (&[], &[], vec![&none]),
        ] {
            let found = probe_clauses(&set(&[probe]), &set(routes), &set(from));
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{routes:?} {from:?}");
        }
    }
}
