//! Observation without an agent: the kernel's state, and the last agent's record.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use capture_modes::{CaptureSettings, InPodConfig, found_on_node as observe_installed, open_path};
use firewall::CapturedTraffic;
use model::Family;
use netns::{Netns, NetnsId};
use node_plan::{ZtunnelFallback, ZtunnelSlot};
use pod_capture::{captured_families, has_listener};
use pod_status::{Evidence, PodLife, ProxyEvidence, RulesEvidence};
use report::{
    CaptureState, Comparison, FirewallRule, KernelView, NetworkState, NodeState, PodState, RedirectionMode,
    StatePart, StateReport, Unobserved, ZtunnelView,
};
use rules::{
    ChainSet, SavedTables,
    inpod::{InPodRulesConfig, PodOptions},
};

use crate::{
    inpod, local, node,
    pods::{NodeNetwork as NodeView, judge_on_node},
    records::NetnsOwners,
    sidecar,
};

/// Reason for a pod whose own rules are in place, but which rules of another component preceded.
const OVERRULED: &str = "rules of another component preceded its own in the last agent's record, and only an agent observes \
                         whether they still do";

/// Observes the node without an agent: compares the kernel with the last agent's document, `last`, as far as possible, and lists
/// what cannot be determined. `at`: the node's network namespace; `None`: the process's own. Blocks.
pub(super) fn compare_with_last(
    settings: &CaptureSettings,
    at: Option<&Netns>,
    last: Option<StateReport>,
) -> StateReport {
    let is_known = last.is_some();
    let mut state = last.unwrap_or_else(local::empty_report);
    let mode = state.node.mode;
    let observe = || observe_network(settings, mode);
    let now = match at {
        None => observe(),
        Some(netns) => netns.run_in(observe).unwrap_or_else(|error| unobserved_report(error.to_string())),
    };
    state.observation.unobserved = now.observation.unobserved;
    if mode != Some(RedirectionMode::InPod) && state.observation.unobserved.is_empty() {
        set_active_slot(&mut state, now.node.active_slot);
    }
    state.plan.clear();
    state.node.agent_started_at = None;
    state.network = compare_network(std::mem::take(&mut state.network), now.network);
    if !is_known {
        forget_differences(&mut state.network); // every existing object may be desired
    }
    let pods = Netns::list_directory(&settings.netns_directory).map(sidecar::by_address);
    match pods {
        Ok(found) => {
            let owners = NetnsOwners::from_records(&settings.records.read_records());
            for pod in &mut state.pods {
                let belongs_to_another =
                    |netns: NetnsId| owners.belongs_to_another(netns, &pod.namespace, &pod.name);
                let own = found.find_pod_netns(&pod.ips, None, belongs_to_another).cloned();
                observe_pod(settings, &state.node, &state.network, own, pod);
            }
        }
        Err(error) => {
            let why = error.to_string();
            forget_pod_states(&mut state.pods, &why);
            state.observation.unobserved.push(Unobserved::new(StatePart::PodNamespaces, why));
        }
    }
    state
}

/// Makes the state of every pod of the mesh unknown: that of the last agent's record may have changed since, and was not observed.
pub(super) fn forget_pod_states(pods: &mut [PodState], why: &str) {
    for pod in pods.iter_mut().filter(|pod| pod.mode.is_some()) {
        (pod.capture, pod.ztunnel, pod.last_transition_time) =
            (Evidence::UNKNOWN.classify().state, None, None);
        pod.kernel =
            KernelView { netns: pod.kernel.netns, unobserved: Some(why.to_owned()), ..KernelView::default() };
    }
}

/// Sets the slot to which the kernel sends new connections, which may differ from the last agent's record.
fn set_active_slot(state: &mut StateReport, active: Option<u32>) {
    state.node.active_slot = active;
    for ztunnel in &mut state.ztunnels {
        ztunnel.active = active.is_some() && ztunnel.slot == active;
    }
}

/// Returns a document with the node's network in the kernel; with node-level capture also the slot that new connections are sent
/// to.
fn observe_network(settings: &CaptureSettings, mode: Option<RedirectionMode>) -> StateReport {
    let mut state = StateReport::default();
    if mode == Some(RedirectionMode::InPod) {
        inpod::observe_probes(settings, &BTreeMap::new(), &mut state);
        return state;
    }
    let path = open_path(settings).map_err(|error| error.to_string());
    // Everything on the node, and in the ztunnels that its routes lead to.
    match path.and_then(|mut path| Ok(observe_installed(settings, &mut path)?)) {
        Ok(observed) => {
            // The last agent's record shows which of them are ours.
            let sysctls = node::ShownObjects::from(&observed).sysctls;
            state.node.active_slot = node::active_slot(settings, &observed).map(ZtunnelSlot::number);
            let observation = node::KernelObservation { observed: Some(observed), unobserved: Vec::new() };
            node::add_network(settings, None, observation, &mut state);
            state.network.sysctls.observed = Some(sysctls);
            state
        }
        Err(error) => unobserved_report(error),
    }
}

/// Returns a document with the reason why the network could not be observed.
fn unobserved_report(why: String) -> StateReport {
    let mut state = StateReport::default();
    state.observation.unobserved.push(Unobserved::new(StatePart::Network, why));
    state
}

fn forget_differences(network: &mut NetworkState) {
    network.ipsets.differences.clear();
    network.rules.differences.clear();
    network.routes.differences.clear();
    network.links.differences.clear();
    network.sysctls.differences.clear();
    network.firewall.differences.clear();
}

/// Compares the last desired state with the current one; an unobserved network has no observed objects.
fn compare_network(last: NetworkState, now: NetworkState) -> NetworkState {
    let mut links = now.links.observed;
    // Only an agent that knows the desired peer of a link knows its actual one.
    links.iter_mut().flatten().for_each(|link| link.correct = true);
    let sysctls = last.sysctls.desired;
    NetworkState {
        ipsets: compare_objects(last.ipsets.desired, now.ipsets.observed),
        rules: compare_objects(last.rules.desired, now.rules.observed),
        routes: compare_objects(last.routes.desired, now.routes.observed),
        links: compare_objects(last.links.desired, links),
        sysctls: match now.sysctls.observed {
            Some(observed) => node::compare_sysctls(sysctls, observed),
            None => Comparison::without_observation(sysctls),
        },
        firewall: compare_firewall(last.firewall.desired, now.firewall.observed),
        foreign: now.foreign,
        overruling: now.overruling,
    }
}

fn compare_objects<T: Ord + report::OfFamily + std::fmt::Display>(
    desired: Vec<T>,
    observed: Option<Vec<T>>,
) -> Comparison<T> {
    match observed {
        Some(observed) => Comparison::compare_sets(desired, observed),
        None => Comparison::without_observation(desired),
    }
}

/// Compares rules like [`compare_objects`], although a save formats them differently.
fn compare_firewall(
    desired: Vec<FirewallRule>,
    observed: Option<Vec<FirewallRule>>,
) -> Comparison<FirewallRule> {
    let Some(observed) = observed else { return Comparison::without_observation(desired) };
    let normal = |rules: &[FirewallRule]| rules.iter().map(in_our_form).collect();
    let differences = Comparison::compare_sets(normal(&desired), normal(&observed)).differences;
    Comparison { desired, observed: Some(observed), differences }
}

fn in_our_form(rule: &FirewallRule) -> FirewallRule {
    let save = format!("*{}\n-A {} {}\nCOMMIT\n", rule.table, rule.chain, rule.rule);
    let read = SavedTables::parse(&save).ok();
    let read = read.and_then(|saved| saved.tables.into_values().flat_map(|table| table.rules).next()?.rule);
    FirewallRule { rule: read.map_or_else(|| rule.rule.clone(), |read| read.to_string()), ..rule.clone() }
}

/// Observes a pod that the last agent knew, and that may no longer exist.
fn observe_pod(
    settings: &CaptureSettings,
    node: &NodeState,
    network: &NetworkState,
    netns: Option<Arc<Netns>>,
    pod: &mut PodState,
) {
    let (before, was) = (std::mem::take(&mut pod.kernel), pod.capture);
    let was_overruled = !before.preceding_rules.is_empty();
    pod.kernel =
        KernelView { observed_at: Some(agent_protocol::rfc3339(SystemTime::now())), ..KernelView::default() };
    pod.kernel.netns = netns.as_ref().map(|netns| inpod::netns_ref(netns.id()));
    match pod.mode {
        Some(RedirectionMode::Node) => judge_node_level(node, network, pod),
        Some(RedirectionMode::InPod) => judge_in_pod(settings, netns, pod),
        Some(RedirectionMode::Sidecar) => judge_sidecar(settings, netns, pod),
        None => pod.kernel = before,
    }
    if was_overruled && pod.mode == Some(RedirectionMode::InPod) && pod.capture == CaptureState::Captured {
        set_unknown(pod, OVERRULED.to_owned());
    }
    pod.last_transition_time = pod.last_transition_time.take().filter(|_| pod.capture == was);
}

/// Determines a pod's state in node-level capture, where everything can be observed except whether ztunnel is ready.
fn judge_node_level(node: &NodeState, network: &NetworkState, pod: &mut PodState) {
    let open = node.no_ztunnel_policy == Some(ZtunnelFallback::Open.to_string());
    let mut view = NodeView::from_state(network);
    view.served = node.active_slot.map_or_else(Vec::new, |_| Family::BOTH.to_vec());
    let mut evidence = Evidence { life: recorded_life(pod), ..Evidence::OUTSIDE };
    judge_on_node(&view, open, pod, &mut evidence);
    pod.capture = evidence.classify().state;
}

/// Returns the life of the pod by its phase in the document.
pub(super) fn recorded_life(pod: &PodState) -> PodLife {
    if pod.phase == "Running" { PodLife::Running } else { PodLife::Starting }
}

fn judge_in_pod(settings: &CaptureSettings, netns: Option<Arc<Netns>>, pod: &mut PodState) {
    let Some(netns) = netns else { return set_netns_unknown(settings, pod) };
    let chosen = settings.capture.in_pod();
    let config = chosen.map(|chosen| chosen.rules.clone()).unwrap_or_default();
    let families = chosen.map_or_else(|| Family::BOTH.to_vec(), InPodConfig::captured_families);
    let observed = captured_families(&netns, &config).map_err(|error| error.to_string());
    match observed.and_then(|routes| Ok((routes, redirected_traffic(&netns)?))) {
        Ok((routes, traffic)) => {
            let lacking = families.iter().filter(|family| !routes.contains(family));
            let describe =
                |family| format!("its network namespace has no policy route to ztunnel for {family}");
            let missing = expected_traffic(&config, &families).missing_from(&traffic);
            let missing = missing.iter().map(|traffic| format!("no rule redirects {traffic} traffic"));
            pod.kernel.differences.extend(lacking.map(describe).chain(missing));
            if pod.kernel.differences.is_empty() {
                pod.kernel.observed.push(format!(
                    "policy routes are in its network namespace, and rules redirect {} traffic to ztunnel; they were not compared \
                     one by one",
                    traffic.to_lines().join(" and ")
                ));
                return judge_listener(&netns, &config, pod);
            }
            let rules = RulesEvidence::Incomplete { holds: false };
            pod.capture = Evidence { life: recorded_life(pod), rules, ..Evidence::UNKNOWN }.classify().state;
        }
        Err(error) => set_unknown(pod, error),
    }
}

fn redirected_traffic(netns: &Netns) -> Result<CapturedTraffic, String> {
    let observe = || CapturedTraffic::observe_netns(ChainSet::IN_POD);
    netns.run_in(observe).map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Returns the traffic that the rules of every pod redirect, whatever its annotations exclude.
fn expected_traffic(config: &InPodRulesConfig, families: &[Family]) -> CapturedTraffic {
    let least = PodOptions { bypass_inbound: true, ..PodOptions::default() };
    let of_family = |family: &Family| {
        CapturedTraffic::from_rules(*family, &rules::inpod::pod_rules(config, &least, *family))
    };
    families.iter().map(of_family).fold(CapturedTraffic::default(), CapturedTraffic::union)
}

/// Determines whether ztunnel serves the pod by its listener in the pod's namespace: without one, traffic reaches nothing.
fn judge_listener(netns: &Netns, config: &InPodRulesConfig, pod: &mut PodState) {
    match has_listener(netns, config) {
        Ok(serves) => {
            let proxy = if serves { ProxyEvidence::Serves } else { ProxyEvidence::Absent };
            let rules = RulesEvidence::Applied;
            pod.capture =
                Evidence { life: recorded_life(pod), rules, proxy, ..Evidence::UNKNOWN }.classify().state;
            pod.ztunnel = Some(ZtunnelView { acknowledged: serves, error: None });
            pod.problem = None; // outdated
            let (word, port) = (if serves { "listens" } else { "does not listen" }, config.outbound);
            pod.kernel.observed.push(format!("ztunnel {word} in its network namespace at its port ({port})"));
        }
        Err(error) => set_unknown(pod, error.to_string()),
    }
}

fn judge_sidecar(settings: &CaptureSettings, netns: Option<Arc<Netns>>, pod: &mut PodState) {
    let Some(netns) = netns else { return set_netns_unknown(settings, pod) };
    sidecar::add_comparison(pod, recorded_life(pod), sidecar::judge_traffic(&netns));
}

fn set_netns_unknown(settings: &CaptureSettings, pod: &mut PodState) {
    let directory = settings.netns_directory.display();
    set_unknown(pod, format!("no network namespace in {directory} has its address"));
}

fn set_unknown(pod: &mut PodState, why: String) {
    pod.capture = Evidence::UNKNOWN.classify().state;
    pod.kernel.unobserved = Some(why);
}
