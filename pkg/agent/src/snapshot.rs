//! Snapshot of the reconciler's state, for the debug state.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::SystemTime,
};

use enrolment::{ambient::AmbientStanding, ztunnel::ZtunnelCandidate};
use model::{MemberAddresses, Namespace, Pod, PodUid};
use netns::Netns;
use node_plan::{DesiredState, ZtunnelFallback};
use pod_capture::PodRulesSnapshot;
use pod_identity::{Ambiguity, Witness};
use pod_status::{CaptureState, Evidence, PodLife};
use report::ChangeRecord;

use crate::watch_health::StaleCollection;

/// State of the reconciler at one moment.
#[derive(Debug)]
pub struct AgentSnapshot {
    /// Pods of the node.
    pub pods: Vec<KnownPod>,
    /// Names of all known namespaces.
    pub namespaces: BTreeSet<String>,
    /// ztunnel pods of the node.
    pub ztunnels: Vec<ZtunnelCandidate>,
    /// Whether the first lists of the API server were received.
    pub synced: bool,
    /// Whether the first list of pods was received, so that `pods` lacks none; without ambient mode namespaces are not followed.
    pub has_pods: bool,
    /// Collections whose changes are unknown.
    pub stale: Vec<StaleCollection>,
    /// Problem of the node, if there is one.
    pub problem: Option<String>,
    /// Recent changes, newest first.
    pub history: Vec<ChangeRecord>,
    /// State of the capture mode.
    pub capture: CaptureSnapshot,
}

/// A pod, and the decision on it.
#[derive(Debug)]
pub struct KnownPod {
    /// Pod as shown by the API.
    pub pod: Pod,
    /// Namespace of the pod; `None` if unknown yet.
    pub namespace: Option<Namespace>,
    /// Whether it belongs to ambient mode, and why.
    pub standing: AmbientStanding,
    /// Addresses reported by the plugin.
    pub reported_ips: Vec<IpAddr>,
    /// Phase of its life, by the API and by the DEL of its sandbox.
    pub life: PodLife,
    /// Whether the API server's list lacks it, or shows it in an older state.
    pub unconfirmed: bool,
    /// State last reported, and since when; `None`: not reported yet, or unchanged since the agent started.
    pub since: Option<(CaptureState, SystemTime)>,
}

impl KnownPod {
    /// Whether the pod's sandbox was deleted and no other one will follow, so that the agent no longer decides on it.
    pub fn is_gone(&self) -> bool {
        self.life == PodLife::Ending && (self.unconfirmed || self.pod.metadata.deleted.is_some())
    }
}

/// State of a capture mode at one moment.
///
/// The agent only passes it on. Defined here, because the reconciler's messages contain it: with a type of `capture_modes`, the
/// handle, the socket and all that hold these would need a type parameter.
#[derive(Debug)]
pub enum CaptureSnapshot {
    /// Node-level capture.
    Node {
        /// Desired state of the last pass; `None`: no pass has computed it yet.
        desired: Option<DesiredState>,
        /// Treatment of enrolled pods' TCP while no ztunnel is ready.
        fallback: ZtunnelFallback,
        /// Exceptions that pods request and that are not applied, each as a sentence without a full stop.
        refused_exceptions: BTreeMap<PodUid, Vec<String>>,
        /// Number of consecutive repairs of the node path's objects; 0: they are stable.
        repairs: u32,
    },
    /// In-pod capture.
    InPod {
        /// Pods whose probes are to be exempt.
        members: MemberAddresses,
        /// Enrolled pods, by UID.
        enrolled: BTreeMap<PodUid, EnrolledPodView>,
        /// Connected ztunnels.
        ztunnels: Vec<zds::ConnectionState>,
    },
    /// No capture: ambient mode is off, or the capture mode that ztunnel supports could not be opened.
    None,
}

/// State of a pod with in-pod capture, actual or desired.
#[derive(Clone, Debug)]
pub struct EnrolledPodView {
    /// Addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// Rule options that its annotations request.
    pub options: rules::inpod::PodOptions,
    /// Exceptions that were requested and are not applied, each as a sentence without a full stop.
    pub refused_exceptions: Vec<String>,
    /// Network namespace of the pod, if known.
    pub netns: Option<Arc<Netns>>,
    /// Evidence that attributes this namespace to it.
    pub witness: Option<Witness>,
    /// Reason why the last search could not determine it; `None`: it could, or there was none.
    pub ambiguity: Option<Ambiguity>,
    /// Whether the pod's rules were applied, and have not been found changed since.
    pub ruled: bool,
    /// Whether the rules were verified.
    pub verified: bool,
    /// Number of consecutive repairs of the pod's rules, which are removed repeatedly; 0 if they are stable.
    pub repairs: u32,
    /// Whether the pod is to leave the mesh.
    pub leaving: bool,
    /// Reason why ztunnel does not serve it, if it has refused.
    pub refused: Option<String>,
    /// Time of the last observation of its rules.
    pub observed_at: Option<SystemTime>,
    /// Result of that observation.
    pub observed_rules: Option<Arc<PodRulesSnapshot>>,
    /// Last failure that concerns the pod, unless overcome since.
    pub problem: Option<String>,
    /// Evidence of whether the pod is captured. Completed by the caller, who knows the pod's phase.
    pub evidence: Evidence,
}

impl EnrolledPodView {
    /// Returns observed foreign rules that precede ours.
    pub fn overruling_rules(&self) -> impl Iterator<Item = &str> {
        self.observed_rules.iter().flat_map(|rules| rules.bypass_reasons())
    }
}
