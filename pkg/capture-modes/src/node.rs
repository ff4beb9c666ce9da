//! Node-level capture: rules, sets, links and routes in the node's namespace redirect the traffic of enrolled pods through
//! the ztunnel of a slot.

mod enrol;
mod pass;
mod remaining;
mod shared;
mod uninstall;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    time::Instant,
};

use model::{Family, PodUid};
use node_capture::{EnrolledMembers, NodePath, ZtunnelWatcher};
use node_plan::{DesiredState, ObservedState, ZtunnelFallback};
use pod_status::{Evidence, ProxyEvidence, RulesEvidence, lifecycle::Stability};
use rules::ChainSet;

use crate::{
    node_watch::{NodeDrift, NodeNotice, NodeObjects, NodeWatch},
    settings::CaptureSettings,
};
use agent::{AgentHandle, AgentState, CaptureReply, CaptureResult, PodAttachment, RulesPlace};

pub use uninstall::observe_installed;
pub(crate) use uninstall::{is_installed, uninstall};

/// The desired state, and the observed state when the kernel last matched it.
#[derive(Debug)]
struct VerifiedState {
    desired: DesiredState,
    observed: ObservedState,
}

/// The node path.
pub(crate) struct NodeCapture {
    settings: Arc<CaptureSettings>,
    path: NodePath,
    ztunnels: ZtunnelWatcher,
    members: EnrolledMembers,
    fallback: ZtunnelFallback,
    /// The desired state that was applied last: any difference from it was caused by another component.
    applied: Option<DesiredState>,
    verified: Option<VerifiedState>,
    /// Whether our rules were removed from the iptables backend that is not in use.
    alone: bool,
    /// The desired state of the last pass, whether or not it was reached.
    desired: Option<DesiredState>,
    /// ADDs that wait until the next pass has enrolled their pods.
    joining: Vec<CaptureReply>,
    /// Addresses that were enrolled without a pass: no pass has verified them yet.
    fresh: BTreeSet<IpAddr>,
    /// When the next pass is to verify them.
    verify_at: Option<Instant>,
    /// Exceptions that pods request: node-level capture applies none.
    refused_exceptions: BTreeMap<PodUid, Vec<String>>,
    /// Reports changes of the node's objects until it is dropped.
    watch: NodeWatch,
    /// Changes that the watch reported.
    changes: Receiver<NodeNotice>,
    /// Changes by other components that no pass has observed yet.
    pub(crate) drift: NodeDrift,
    started: Instant,
    /// Whether the objects of the node path stay in place.
    stability: Stability,
    /// When they are to be observed again after a repair.
    recheck_at: Option<Instant>,
    /// Consecutive passes that ended before they could report the status of pods.
    unreported: u32,
}

impl NodeCapture {
    /// Opens node-level capture for the calling thread's network namespace. `owner` is woken when another component may
    /// have changed the node path.
    pub(crate) fn open(
        settings: &Arc<CaptureSettings>,
        owner: &AgentHandle,
    ) -> Result<NodeCapture, node_capture::Error> {
        let (sender, changes) = mpsc::channel();
        let owner = owner.clone();
        let mut path = open_path(settings)?;
        let ztunnels = ZtunnelWatcher::new().map_err(node_capture::Error::Watch)?;
        let objects = NodeObjects {
            rules: ChainSet::NODE,
            sets: node_capture::set_names(&settings.node)?,
            network: true,
            ztunnels: Some(ztunnels.clone()),
            attributed: settings.drift_attribution,
        };
        let mut watch = NodeWatch::start(objects, move |change| {
            if sender.send(change).is_ok() {
                owner.work_completed();
            }
        });
        watch_ztunnels(&mut path, &mut watch, &ztunnels);
        Ok(NodeCapture {
            settings: Arc::clone(settings),
            path,
            ztunnels,
            members: EnrolledMembers::open(settings.node.clone())?,
            fallback: settings.fallback,
            applied: None,
            verified: None,
            alone: false,
            desired: None,
            joining: Vec::new(),
            fresh: BTreeSet::new(),
            verify_at: None,
            refused_exceptions: BTreeMap::new(),
            watch,
            changes,
            drift: NodeDrift::new(Instant::now()),
            started: Instant::now(),
            stability: Stability::default(),
            recheck_at: None,
            unreported: 0,
        })
    }

    /// Removes a pod's addresses from the node path, which keeps other pods: the pod is captured by its own rules by
    /// now, or has ended.
    pub(crate) fn hand_over(&mut self, pod: &PodAttachment) -> Result<(), node_capture::Error> {
        self.members.release_pod(&pod.ips, &pod.uid)?;
        let verified = self.verified.as_mut().map(|verified| &mut verified.desired);
        for state in verified.into_iter().chain(&mut self.applied) {
            state.members.retain(|ip, uid| *uid != pod.uid || !pod.ips.contains(ip));
        }
        Ok(())
    }

    /// Returns whether the node path led new connections to a ztunnel at the last verification.
    pub(crate) fn has_ztunnel(&self) -> bool {
        self.verified.as_ref().is_some_and(|verified| verified.desired.active.is_some())
    }

    /// Checks that all of these addresses are in the node's sets.
    pub(crate) fn check_members(&mut self, ips: &[IpAddr]) -> CaptureResult {
        self.members.check_members(ips)
    }
}

/// Has ztunnels' namespaces watched, if the thread runs that reads their changes; without it, a watch would keep the namespace of an
/// ended ztunnel alive.
fn watch_ztunnels(path: &mut NodePath, watch: &mut NodeWatch, ztunnels: &ZtunnelWatcher) {
    if watch.ensure_running() {
        path.watch_ztunnels(ztunnels.clone());
    }
}

/// Opens the configured node path for the calling thread's network namespace.
///
/// # Errors
/// It cannot be opened.
pub fn open_path(settings: &CaptureSettings) -> Result<NodePath, node_capture::Error> {
    NodePath::open(
        settings.node.clone(),
        settings.tools.clone(),
        &settings.netns_directory,
        &settings.journal,
    )
}

/// Reports pods by the last observation of the kernel, and counts them. `overruled`: foreign objects that take their
/// traffic before ours; empty: none.
fn report_status(
    state: &mut AgentState,
    desired: &DesiredState,
    observed: &ObservedState,
    overruled: &str,
    is_unstable: bool,
) {
    state.report_pods(
        None,
        |pod, life, ips| {
            let Some(ips) = ips else { return Evidence::OUTSIDE.classify() };
            let redirected = is_redirected(ips, &pod.metadata.uid, desired, observed);
            let is_served = ips.iter().all(|ip| desired.active_for(Family::from_ip(*ip)).is_some());
            let evidence = Evidence {
                life,
                rules: match redirected {
                    true if is_unstable => RulesEvidence::Unstable,
                    true => RulesEvidence::Verified,
                    false => RulesEvidence::Incomplete { holds: false },
                },
                proxy: if is_served { ProxyEvidence::Serves } else { ProxyEvidence::Unavailable },
                overruled: !overruled.is_empty(),
                fails_open: desired.fallback == ZtunnelFallback::Open,
                ..Evidence::UNKNOWN
            };
            evidence.classify()
        },
        |_| match overruled {
            "" => "the node's sets do not have its addresses as its own".to_owned(),
            overruled => overruled.to_owned(),
        },
    );
    for family in Family::BOTH {
        state.metrics.set_size(family, observed.sets.get(&family).map_or(0, BTreeMap::len));
    }
}

/// Reports that objects of the node path are removed repeatedly: which, by which process if that is known, and how many
/// times in a row they were restored.
fn report_unstable(state: &mut AgentState, desired: &DesiredState, what: (&str, Option<&str>), repairs: u32) {
    let enrolled: BTreeSet<&PodUid> = desired.members.values().collect();
    for pod in state.index.pods().filter(|pod| enrolled.contains(&pod.metadata.uid)) {
        state.notices.report_unstable(&pod.name(), &pod.metadata.uid, what, repairs, Instant::now());
    }
}

/// Reports the state of all pods of the mesh as unknown, because passes fail.
fn report_unobserved(state: &mut AgentState, problem: &str) {
    state.report_pods(
        None,
        |_, life, ips| ips.map_or(Evidence::OUTSIDE, |_| Evidence { life, ..Evidence::UNKNOWN }).classify(),
        |_| problem.to_owned(),
    );
}

/// Reports foreign objects that take the traffic of enrolled pods before ours, and the exceptions that pods request,
/// which node-level capture does not support. Returns the latter.
fn report_bypasses(
    state: &mut AgentState,
    desired: &DesiredState,
    overruled: &str,
    is_unstable: bool,
) -> BTreeMap<PodUid, Vec<String>> {
    let enrolled: BTreeSet<&PodUid> = desired.members.values().collect();
    state.metrics.set_overruled(if overruled.is_empty() { 0 } else { enrolled.len() });
    let (now, mut all) = (Instant::now(), BTreeMap::new());
    for pod in state.index.pods().filter(|pod| enrolled.contains(&pod.metadata.uid)) {
        let name = pod.name();
        state.notices.report_overruled(&name, &pod.metadata.uid, (RulesPlace::Node, overruled), now);
        if !is_unstable {
            state.notices.clear_unstable(&pod.metadata.uid);
        }
        let Some(asked) = state.index.pod_annotations(&name) else { continue };
        let refused = asked.exceptions.refused_on_node(state.index.namespace_exceptions(&name.namespace));
        state.notices.refused_exceptions(&name, &pod.metadata.uid, &refused);
        if !refused.is_empty() {
            all.insert(pod.metadata.uid.clone(), refused);
        }
    }
    state.notices.forget_bypasses(|uid| enrolled.contains(uid));
    all
}

/// Returns whether all addresses are in the sets. The pass has just verified all rules and routes: only the sets are
/// left to compare.
fn is_redirected(ips: &[IpAddr], uid: &PodUid, desired: &DesiredState, observed: &ObservedState) -> bool {
    ips.iter().all(|ip| {
        let in_set = observed.sets.get(&Family::from_ip(*ip)).is_some_and(|members| members.contains_key(ip));
        in_set && desired.members.get(ip).is_some_and(|owner| owner == uid)
    })
}
