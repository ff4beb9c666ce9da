//! State of single pods in the node's network: their addresses in sets, and the rules and routes that apply to them.

use std::{collections::BTreeSet, net::IpAddr};

use capture_modes::CaptureSettings;
use model::{Family, PodUid};
use pod_status::{Evidence, MeshMembership, PodLife, ProxyEvidence, RulesEvidence};
use report::{
    CaptureState, Comparison, DifferenceKind, KernelView, PodState, RedirectionMode, RouteState, SetMember,
    StateDifference,
};

/// Parts of the node's network that apply to single pods.
pub(crate) struct NodeNetwork<'a> {
    members: Option<&'a [SetMember]>,
    /// Rules of the node that are missing or changed.
    broken: Vec<&'a StateDifference>,
    /// Routes of the node that are missing.
    lost: Vec<&'a RouteState>,
    /// Reasons why captured traffic bypasses ztunnel although our objects exist.
    overruling: &'a [String],
    /// Whether a part that applies to all pods could not be observed.
    pub(crate) is_partial: bool,
    /// IP families in which a ztunnel accepts new connections.
    pub(crate) served: Vec<Family>,
    /// Comparison of these parts with the holding state, if that is not the desired one.
    pub(crate) holding: Option<Box<NodeNetwork<'a>>>,
}

impl<'a> NodeNetwork<'a> {
    pub(crate) fn from_state(network: &'a report::NetworkState) -> NodeNetwork<'a> {
        let missing = |found: &&StateDifference| found.kind != DifferenceKind::Unexpected;
        let rules = network.rules.differences.iter().chain(&network.firewall.differences);
        NodeNetwork {
            members: network.ipsets.observed.as_deref(),
            broken: rules.filter(missing).collect(),
            lost: lost_routes(&network.routes),
            overruling: &network.overruling,
            is_partial: network.firewall.observed.is_none() && !network.firewall.desired.is_empty(),
            served: Vec::new(),
            holding: None,
        }
    }

    /// Returns missing routes that apply to an address: its own, and those for all.
    fn lost_for(&self, ip: IpAddr) -> impl Iterator<Item = &RouteState> {
        let (text, family) = (ip.to_string(), Family::from_ip(ip).number());
        let concerns = move |route: &&&RouteState| {
            route.family == family && (route.destination == text || route.destination == EVERYTHING)
        };
        self.lost.iter().filter(concerns).copied()
    }

    /// Whether objects are missing, so that an address's traffic may bypass the mesh.
    fn may_bypass(&self, ip: IpAddr) -> bool {
        let of = Family::from_ip(ip).number();
        self.broken.iter().any(|rule| rule.concerns_family(of))
            || self.lost_for(ip).any(|route| route.gateway.is_none())
    }

    fn has_member(&self, ip: IpAddr, uid: &PodUid) -> bool {
        let mut members = self.members.into_iter().flatten();
        members.any(|member| member.ip == ip && member.uid.as_ref().is_none_or(|owner| owner == uid))
    }
}

const EVERYTHING: &str = "default";

fn lost_routes(routes: &Comparison<RouteState>) -> Vec<&RouteState> {
    let Some(observed) = &routes.observed else { return Vec::new() };
    let there: BTreeSet<&RouteState> = observed.iter().collect();
    routes.desired.iter().filter(|route| route.netns == "node" && !there.contains(route)).collect()
}

/// Evaluates a pod in node-level capture, where the sets, routes and rules of the node are all that exists.
///
/// `open`: without a ztunnel, traffic bypasses the mesh.
pub(crate) fn judge_on_node(
    network: &NodeNetwork<'_>,
    open: bool,
    shown: &mut PodState,
    evidence: &mut Evidence,
) {
    let is_served = |ip: &IpAddr| network.served.contains(&Family::from_ip(*ip));
    let inside: Vec<IpAddr> =
        shown.ips.iter().copied().filter(|ip| network.has_member(*ip, &shown.uid)).collect();
    if shown.mode != Some(RedirectionMode::Node) {
        if !inside.is_empty() && shown.mode.is_none() {
            evidence.membership = MeshMembership::Outside { remains: true };
            let left = inside.iter().map(|ip| format!("{ip} is still in the set of enrolled addresses"));
            shown.kernel.differences.extend(left);
        }
        return;
    }
    evidence.membership = MeshMembership::Member;
    if network.members.is_none() {
        evidence.rules = RulesEvidence::Unobserved;
        shown.kernel.unobserved = Some("the node's network could not be observed".to_owned());
        return;
    }
    shown.kernel.observed_at = Some(agent_protocol::rfc3339(std::time::SystemTime::now()));
    let mut leaks = false;
    for ip in shown.ips.clone() {
        let KernelView { differences, observed: in_place, .. } = &mut shown.kernel;
        let of = Family::from_ip(ip).number();
        let broken = network.broken.iter().filter(|rule| rule.concerns_family(of));
        let broken: Vec<String> = broken.map(|rule| format!("on the node: {rule}")).collect();
        let lost: Vec<&RouteState> = network.lost_for(ip).collect();
        // If a route is missing, the holding one applies to its traffic, unless that is missing, too.
        leaks |= !inside.contains(&ip) || network.holding.as_deref().unwrap_or(network).may_bypass(ip);
        if !inside.contains(&ip) {
            differences.push(format!("{ip} is not in the set of enrolled addresses"));
        } else if is_served(&ip) && lost.is_empty() && broken.is_empty() {
            in_place.push(format!("{ip} is in the set of enrolled addresses, and is routed to ztunnel"));
        } else {
            in_place.push(format!("{ip} is in the set of enrolled addresses"));
        }
        differences.extend(lost.iter().map(|route| format!("missing: {route}")));
        differences.extend(broken);
    }
    evidence.rules = match () {
        () if shown.ips.is_empty() => RulesEvidence::Absent { failing: false },
        () if network.is_partial && !leaks => {
            shown.kernel.unobserved = Some("the node's network could not be observed completely".to_owned());
            RulesEvidence::Unobserved
        }
        () if shown.kernel.differences.is_empty() => RulesEvidence::Verified,
        () => RulesEvidence::Incomplete { holds: !leaks },
    };
    let is_served = shown.ips.iter().all(is_served);
    evidence.proxy = if is_served { ProxyEvidence::Serves } else { ProxyEvidence::Unavailable };
    evidence.fails_open = open;
    evidence.overruled = !network.overruling.is_empty();
    shown.kernel.preceding_rules = network.overruling.to_vec();
    if shown.ips.is_empty() {
        evidence.life = PodLife::Starting;
    }
}

/// Adds missing addresses in the set of probed pods, which block the kubelet's probes, and nothing else.
pub(super) fn add_missing_probes(
    network: &NodeNetwork<'_>,
    settings: &CaptureSettings,
    shown: &mut PodState,
) {
    let captured = matches!(shown.capture, CaptureState::Captured | CaptureState::Held);
    let Some(chosen) = settings.capture.in_pod().filter(|_| captured && network.members.is_some()) else {
        return;
    };
    let families = chosen.captured_families();
    let lacking = shown
        .ips
        .iter()
        .filter(|ip| families.contains(&Family::from_ip(**ip)) && !network.has_member(**ip, &shown.uid));
    let differences = lacking.map(|ip| format!("{ip} is not in the set of pods whose probes are exempt"));
    shown.kernel.differences.extend(differences);
}
