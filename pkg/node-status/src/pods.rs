//! Pods, each with what is decided on it and what the kernel shows.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use agent::{AgentSnapshot, CaptureSnapshot, EnrolledPodView, KnownPod, life};
use capture_modes::CaptureSettings;
use model::{Family, PodUid};
use planner::{
    AmbientStanding, EnrolmentPolicy, EnrolmentReason, PodDecision, SidecarRedirect, SkipReason,
    ambient::AMBIENT_REDIRECTION, node::ZtunnelSlot, ztunnel::ZtunnelCandidate,
};
use pod_status::{Evidence, MeshMembership, PodLife, ProxyEvidence, RulesEvidence};
use report::{
    CaptureState, Comparison, DifferenceKind, KernelView, PodState, RedirectionMode, RouteState, SetMember,
    StateDifference, StateReason, StateReport, ZtunnelState, ZtunnelView,
};
use zds::ConnectionState;

use crate::{inpod, node::number};

/// The node's ztunnels. `active`: the slot that the kernel sends new connections to.
pub(super) fn ztunnels(snapshot: &AgentSnapshot, active: Option<u32>) -> Vec<ZtunnelState> {
    let only = snapshot.ztunnels.len() == 1;
    let show = |one: &ZtunnelCandidate| {
        let mut shown = ZtunnelState {
            namespace: one.name.namespace.clone(),
            name: one.name.name.clone(),
            uid: one.uid.clone(),
            ips: one.ips.clone(),
            ready: one.ready,
            terminating: one.terminating,
            dns: one.dns_capture,
            ..ZtunnelState::default()
        };
        match &snapshot.way {
            CaptureSnapshot::Node { desired: Some(desired), .. } => {
                let slot = ZtunnelSlot::BOTH
                    .into_iter()
                    .find(|slot| desired.slot(*slot).is_some_and(|generation| generation.uid == one.uid));
                shown.slot = slot.map(ZtunnelSlot::number);
                shown.link =
                    slot.and_then(|slot| desired.slot(slot)).map(|generation| generation.veth.clone());
                shown.active = shown.slot.is_some() && shown.slot == active;
            }
            CaptureSnapshot::InPod { ztunnels, .. } => connection(ztunnels, only, &mut shown),
            _ => {}
        }
        shown
    };
    snapshot.ztunnels.iter().map(show).collect()
}

/// Whether a ztunnel is connected. `only`: there is no other pod whose connection it could be.
fn connection(all: &[ConnectionState], only: bool, shown: &mut ZtunnelState) {
    let own = all.iter().find(|one| one.pod.as_ref() == Some(&shown.uid));
    let unknown = all.iter().find(|one| one.pod.is_none());
    let own = own.or(unknown.filter(|_| only));
    shown.connected = match (own, unknown) {
        (Some(_), _) => Some(true),
        (None, Some(_)) => None, // it may be this one's
        (None, None) => Some(false),
    };
    shown.synced = own.map(|own| own.in_sync);
    shown.active = own.is_some_and(|own| own.newest);
}

/// How pods with a sidecar are to be redirected, by UID.
pub(super) type PodRedirects = BTreeMap<PodUid, Box<SidecarRedirect>>;

/// All pods, and how those with a sidecar are to be redirected. The network must have been observed. `holding`: the network
/// compared with what holds traffic back without a ztunnel, where the desired one could not be made.
pub(super) fn pods(
    snapshot: &AgentSnapshot,
    state: &StateReport,
    holding: Option<&report::NetworkState>,
    settings: &CaptureSettings,
) -> (Vec<PodState>, PodRedirects) {
    let mut seen = NodeNetwork::of(&state.network);
    seen.active = state.node.active_slot.is_some();
    seen.holding = holding.map(|network| Box::new(NodeNetwork::of(network)));
    let mut redirects = PodRedirects::new();
    let pods = snapshot.pods.iter().map(|known| pod(snapshot, known, &seen, settings, &mut redirects));
    (pods.collect(), redirects)
}

/// What concerns single pods in the node's network.
pub(super) struct NodeNetwork<'a> {
    members: Option<&'a [SetMember]>,
    /// Rules of the node that are missing or changed.
    broken: Vec<&'a StateDifference>,
    /// Routes of the node that are missing.
    lost: Vec<&'a RouteState>,
    /// A ztunnel accepts new connections.
    pub(super) active: bool,
    /// The same in what holds traffic back, where that is not the desired state.
    holding: Option<Box<NodeNetwork<'a>>>,
}

impl<'a> NodeNetwork<'a> {
    pub(super) fn of(network: &'a report::NetworkState) -> NodeNetwork<'a> {
        let missing = |found: &&StateDifference| found.kind != DifferenceKind::Unexpected;
        let rules = network.rules.difference.iter().chain(&network.firewall.difference);
        NodeNetwork {
            members: network.ipsets.observed.as_deref(),
            broken: rules.filter(missing).collect(),
            lost: lost(&network.routes),
            active: false,
            holding: None,
        }
    }

    /// Routes that are missing and concern an address: its own, and those for all.
    fn lost_for(&self, ip: IpAddr) -> impl Iterator<Item = &RouteState> {
        let (text, family) = (ip.to_string(), number(Family::of(ip)));
        let concerns = move |route: &&&RouteState| {
            route.family == family && (route.destination == text || route.destination == EVERYTHING)
        };
        self.lost.iter().filter(concerns).copied()
    }

    /// Something is missing, so that an address's traffic may bypass the mesh.
    fn leaks(&self, ip: IpAddr) -> bool {
        let of = number(Family::of(ip));
        self.broken.iter().any(|rule| rule.concerns(of))
            || self.lost_for(ip).any(|route| route.gateway.is_none())
    }

    fn has(&self, ip: IpAddr, uid: &PodUid) -> bool {
        let is =
            |member: &&SetMember| member.ip == ip && member.uid.as_ref().is_none_or(|owner| owner == uid);
        self.members.is_some_and(|members| members.iter().any(|member| is(&member)))
    }
}

const EVERYTHING: &str = "default";

fn lost(routes: &Comparison<RouteState>) -> Vec<&RouteState> {
    let Some(observed) = &routes.observed else { return Vec::new() };
    let there: BTreeSet<&RouteState> = observed.iter().collect();
    routes.desired.iter().filter(|route| route.place == "node" && !there.contains(route)).collect()
}

const DOUBT: &str = "the API server's list lacks it, or shows it as it was before, and the API server has not reported that \
                     it is gone: it stays as it was";

fn pod(
    snapshot: &AgentSnapshot,
    known: &KnownPod,
    seen: &NodeNetwork<'_>,
    settings: &CaptureSettings,
    redirects: &mut PodRedirects,
) -> PodState {
    let meta = &known.pod.metadata;
    let mut ips = known.pod.status.ips();
    ips.extend(known.told.iter().filter(|ip| !ips.contains(ip)).copied().collect::<Vec<_>>());
    let mut shown = PodState {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        ips,
        phase: known.pod.status.phase.clone(),
        capture: CaptureState::Unknown,
        way: None,
        reason: reason(&known.standing),
        since: known.since.map(wire::rfc3339),
        annotation: meta.annotations.get(AMBIENT_REDIRECTION).cloned(),
        kernel: KernelView::default(),
        ztunnel: None,
        doubt: known.doubted.then(|| DOUBT.to_owned()),
        trouble: None,
        privilege: None,
    };
    if known.ended && meta.deleted.is_some() {
        shown.reason = StateReason {
            code: SkipReason::Terminated.code().to_owned(),
            words: "its containers have ended, and the API server is about to remove it".to_owned(),
        };
        shown.capture = Evidence::OUTSIDE.classify().state;
        return shown;
    }
    let mut evidence = Evidence { life: life_of(known), ..Evidence::OUTSIDE };
    match (&known.standing, &snapshot.way) {
        (AmbientStanding::Out(_), _) => {
            let redirect = outside(known, &settings.policy, &mut shown, &mut evidence);
            redirects.extend(redirect.map(|redirect| (shown.uid.clone(), redirect)));
        }
        (_, CaptureSnapshot::Node { .. }) => shown.way = Some(RedirectionMode::Node),
        (_, CaptureSnapshot::InPod { .. }) => shown.way = Some(RedirectionMode::InPod),
        (_, CaptureSnapshot::None) => evidence.membership = MeshMembership::Undetermined,
    }
    match &snapshot.way {
        CaptureSnapshot::Node { .. } => on_node(seen, is_open(snapshot), &mut shown, &mut evidence),
        CaptureSnapshot::InPod { enrolled, .. } => {
            if shown.way == Some(RedirectionMode::InPod) {
                shown.privilege = Some(known.pod.network_privilege().word().to_owned());
            }
            if let Some(enrolled_pod) = enrolled.get(&shown.uid) {
                evidence = Evidence { life: evidence.life, ..enrolled_pod.evidence };
                from_within(enrolled_pod, &mut shown);
            } else if shown.way == Some(RedirectionMode::InPod) {
                evidence.membership = MeshMembership::Member;
                evidence.rules = RulesEvidence::Absent { failing: false };
                evidence.awaited = true; // the next pass handles it
            }
        }
        CaptureSnapshot::None => {}
    }
    // Without a sandbox it waits for the next one, or for its end.
    let is_leaving =
        meta.deleted.is_some() && shown.kernel.netns.is_none() && shown.way == Some(RedirectionMode::InPod);
    if is_leaving {
        evidence.life = PodLife::Ending;
    }
    shown.capture = evidence.classify().state;
    match &snapshot.way {
        CaptureSnapshot::Node { .. }
            if shown.way == Some(RedirectionMode::Node) && shown.capture.is_wrong() =>
        {
            shown.trouble.clone_from(&snapshot.trouble);
        }
        CaptureSnapshot::InPod { .. } => of_probes(seen, settings, &mut shown),
        _ => {}
    }
    // The reconciler knows since when a pod is enrolled, but not since when something is wrong with it.
    let is_owners = match shown.capture {
        CaptureState::Captured | CaptureState::Pending | CaptureState::Outside => true,
        CaptureState::Held => shown.way == Some(RedirectionMode::InPod),
        _ => false,
    };
    shown.since = shown.since.filter(|_| is_owners);
    shown
}

/// The phase of its life, by the API server and its sandbox.
pub(super) fn life_of(known: &KnownPod) -> PodLife {
    if known.ended { PodLife::Ending } else { life(&known.pod) }
}

fn reason(standing: &AmbientStanding) -> StateReason {
    let words = match standing {
        AmbientStanding::Member { reason, .. } | AmbientStanding::Pending(reason) => {
            EnrolmentReason::to_string(reason)
        }
        AmbientStanding::Out(left) => SkipReason::to_string(left),
    };
    let code = match standing {
        AmbientStanding::Member { reason, .. } | AmbientStanding::Pending(reason) => reason.code(),
        AmbientStanding::Out(left) => left.code(),
    };
    StateReason { code: code.to_owned(), words }
}

/// A pod outside of ambient mode: it may have a sidecar. The plugin's decision at its ADD is made here from the same facts;
/// returns how the pod is redirected, if it is.
fn outside(
    known: &KnownPod,
    policy: &EnrolmentPolicy,
    shown: &mut PodState,
    evidence: &mut Evidence,
) -> Option<Box<SidecarRedirect>> {
    let show = |reason: SkipReason| StateReason { code: reason.code().to_owned(), words: reason.to_string() };
    // Labels come first, so that a user who is advised to change them does not do so in vain.
    let never = match () {
        () if matches!(shown.phase.as_str(), "Succeeded" | "Failed") => Some(SkipReason::Terminated),
        () if policy.ztunnel.matches(&known.pod) => Some(SkipReason::Ztunnel),
        () => None,
    };
    if let Some(reason) = never {
        shown.reason = show(reason);
        return None;
    }
    match planner::decide(&known.pod, known.namespace.as_ref(), policy) {
        Ok(PodDecision::Sidecar(redirect)) => {
            shown.way = Some(RedirectionMode::Sidecar);
            evidence.membership = MeshMembership::Member; // `sidecar::show` observes its rules
            shown.reason = StateReason {
                code: "sidecar".to_owned(),
                words: "it has an injected sidecar (annotation sidecar.istio.io/status)".to_owned(),
            };
            return Some(redirect);
        }
        Ok(PodDecision::Skip(reason)) => shown.reason = show(reason),
        Ok(PodDecision::Ambient(_)) => {}
        Err(error) => {
            shown.way = Some(RedirectionMode::Sidecar);
            evidence.membership = MeshMembership::Member;
            evidence.rules = RulesEvidence::Absent { failing: true };
            shown.trouble =
                Some(format!("its annotations cannot be read, so it cannot start again: {error}"));
        }
    }
    None
}

/// In node-level capture the sets, routes and rules of the node are all that there is.
///
/// `open`: without a ztunnel, traffic bypasses the mesh.
pub(super) fn on_node(seen: &NodeNetwork<'_>, open: bool, shown: &mut PodState, evidence: &mut Evidence) {
    let active = seen.active;
    let inside: Vec<IpAddr> = shown.ips.iter().copied().filter(|ip| seen.has(*ip, &shown.uid)).collect();
    if shown.way != Some(RedirectionMode::Node) {
        if !inside.is_empty() && shown.way.is_none() {
            evidence.membership = MeshMembership::Outside { remains: true };
            let left = inside.iter().map(|ip| format!("{ip} is still in the set of enrolled addresses"));
            shown.kernel.differences.extend(left);
        }
        return;
    }
    evidence.membership = MeshMembership::Member;
    if seen.members.is_none() {
        evidence.rules = RulesEvidence::Unobserved;
        shown.kernel.blind = Some("the node's network could not be observed".to_owned());
        return;
    }
    shown.kernel.looked = Some(wire::rfc3339(std::time::SystemTime::now()));
    let mut leaks = false;
    for ip in shown.ips.clone() {
        let KernelView { differences, seen: in_place, .. } = &mut shown.kernel;
        let of = number(Family::of(ip));
        let broken = seen.broken.iter().filter(|rule| rule.concerns(of));
        let broken: Vec<String> = broken.map(|rule| format!("on the node: {rule}")).collect();
        let lost: Vec<&RouteState> = seen.lost_for(ip).collect();
        // Where a route is missing, what holds its traffic applies, unless that is missing, too.
        leaks |= !inside.contains(&ip) || seen.holding.as_deref().unwrap_or(seen).leaks(ip);
        if !inside.contains(&ip) {
            differences.push(format!("{ip} is not in the set of enrolled addresses"));
        } else if active && lost.is_empty() && broken.is_empty() {
            in_place.push(format!("{ip} is in the set of enrolled addresses, and is routed to ztunnel"));
        } else {
            in_place.push(format!("{ip} is in the set of enrolled addresses"));
        }
        differences.extend(lost.iter().map(|route| format!("missing: {route}")));
        differences.extend(broken);
    }
    evidence.rules = match () {
        () if shown.ips.is_empty() => RulesEvidence::Absent { failing: false },
        () if shown.kernel.differences.is_empty() => RulesEvidence::Verified,
        () => RulesEvidence::Incomplete { holds: !leaks },
    };
    evidence.proxy = if active { ProxyEvidence::Serves } else { ProxyEvidence::Unavailable };
    evidence.fails_open = open;
    if shown.ips.is_empty() {
        evidence.life = PodLife::Starting;
    }
}

fn is_open(snapshot: &AgentSnapshot) -> bool {
    matches!(snapshot.way, CaptureSnapshot::Node { fallback: planner::node::ZtunnelFallback::Open, .. })
}

/// In in-pod redirection the reconciler knows the state of each pod.
fn from_within(enrolled_pod: &EnrolledPodView, shown: &mut PodState) {
    if shown.ips.is_empty() {
        shown.ips.clone_from(&enrolled_pod.ips);
    }
    shown.kernel = inpod::view(enrolled_pod);
    let serves = enrolled_pod.evidence.proxy == ProxyEvidence::Serves;
    shown.ztunnel = Some(ZtunnelView { serves, refused: enrolled_pod.refused.clone() });
    shown.trouble.clone_from(&enrolled_pod.trouble);
}

/// An address that is missing in the set of probed pods blocks the kubelet's probes, and nothing else.
fn of_probes(seen: &NodeNetwork<'_>, settings: &CaptureSettings, shown: &mut PodState) {
    let captured = matches!(shown.capture, CaptureState::Captured | CaptureState::Held);
    let Some(chosen) = settings.capture.in_pod().filter(|_| captured && seen.members.is_some()) else {
        return;
    };
    let families = chosen.families();
    let lacking =
        shown.ips.iter().filter(|ip| families.contains(&Family::of(**ip)) && !seen.has(**ip, &shown.uid));
    let words = lacking.map(|ip| format!("{ip} is not in the set of pods whose probes are exempt"));
    shown.kernel.differences.extend(words);
}
