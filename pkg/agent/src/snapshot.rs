//! A copy of what the reconciler knows, for the debug state.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::SystemTime,
};

use enrolment::{ambient::AmbientStanding, ztunnel::ZtunnelCandidate};
use inpod::PodRulesSnapshot;
use model::{MemberAddresses, Namespace, Pod, PodUid};
use netns::Netns;
use node_plan::{DesiredState, ZtunnelFallback};
use pod_identity::{Ambiguity, Witness};
use pod_status::{CaptureState, Evidence};
use report::ChangeRecord;

use crate::watch_health::StaleCollection;

/// State of the reconciler at one moment.
#[derive(Debug)]
pub struct AgentSnapshot {
    /// The node's pods.
    pub pods: Vec<KnownPod>,
    /// Names of all namespaces that are known.
    pub namespaces: BTreeSet<String>,
    /// The node's ztunnel pods.
    pub ztunnels: Vec<ZtunnelCandidate>,
    /// The first lists of the API server have come.
    pub synced: bool,
    /// The first list of pods has come, so `pods` lacks none; without ambient mode nobody follows namespaces.
    pub has_pods: bool,
    /// Collections whose changes are not known.
    pub stale: Vec<StaleCollection>,
    /// Problem of the node, if there is one.
    pub problem: Option<String>,
    /// The last changes, newest first.
    pub history: Vec<ChangeRecord>,
    /// State of the capture mode.
    pub capture: CaptureSnapshot,
}

/// A pod, and what is decided on it.
#[derive(Debug)]
pub struct KnownPod {
    /// The pod, as the API knows it.
    pub pod: Pod,
    /// The pod's namespace; `None` if it is not known yet.
    pub namespace: Option<Namespace>,
    /// Whether it belongs to ambient mode, and why.
    pub standing: AmbientStanding,
    /// Addresses that the plugin reported.
    pub reported_ips: Vec<IpAddr>,
    /// Whether the pod's sandbox was deleted and it has no other one.
    pub ended: bool,
    /// The API server's list lacks it, or shows it as it was before.
    pub unconfirmed: bool,
    /// The state that the reconciler last reported, and since when; `None`: none yet, or it was so when the agent started.
    pub since: Option<(CaptureState, SystemTime)>,
}

impl KnownPod {
    /// Whether the pod's sandbox was deleted and there will be no other one: the agent decides on it no more.
    pub fn is_gone(&self) -> bool {
        self.ended && (self.unconfirmed || self.pod.metadata.deleted.is_some())
    }
}

/// State of a capture mode at one moment.
///
/// The agent only passes it on. It is defined here, because the reconciler's messages carry it: with a type of
/// `capture_modes`, the handle, the socket and all that hold these would need a type parameter.
#[derive(Debug)]
pub enum CaptureSnapshot {
    /// Node-level capture.
    Node {
        /// The desired state of the last pass; `None`: no pass has come that far.
        desired: Option<DesiredState>,
        /// Treatment of enrolled pods' TCP while no ztunnel is ready.
        fallback: ZtunnelFallback,
        /// Exceptions that pods ask for and that are not applied, each in a sentence without a full stop.
        refused_exceptions: BTreeMap<PodUid, Vec<String>>,
        /// How often in a row objects of the node path were restored; 0: they stay in place.
        repairs: u32,
    },
    /// In-pod redirection.
    InPod {
        /// The pods whose probes are to be exempt.
        members: MemberAddresses,
        /// Pods, by UID.
        enrolled: BTreeMap<PodUid, EnrolledPodView>,
        /// Connected ztunnels.
        ztunnels: Vec<zds::ConnectionState>,
    },
    /// Nothing is captured: ambient mode is off, or the capture mode that ztunnel supports could not be opened.
    None,
}

/// State of a pod with in-pod redirection, or of one that is to have it.
#[derive(Clone, Debug)]
pub struct EnrolledPodView {
    /// The pod's addresses.
    pub ips: Vec<IpAddr>,
    /// The rules that its annotations request.
    pub options: rules::inpod::PodOptions,
    /// Exceptions that were asked for and are not applied, each in a sentence without a full stop.
    pub refused_exceptions: Vec<String>,
    /// The pod's network namespace, if it is known.
    pub netns: Option<Arc<Netns>>,
    /// The evidence on which this namespace is attributed to it.
    pub witness: Option<Witness>,
    /// Why the last search could not determine it; `None`: it could, or there was none.
    pub ambiguity: Option<Ambiguity>,
    /// Whether the pod's rules were applied, and have not been found changed since.
    pub ruled: bool,
    /// They were verified.
    pub verified: bool,
    /// How many times in a row the pod's rules were restored because they are removed repeatedly; 0 if they stay in place.
    pub repairs: u32,
    /// Whether the pod is to leave the mesh.
    pub leaving: bool,
    /// Why ztunnel does not serve it, if it has refused.
    pub refused: Option<String>,
    /// When its rules were observed last.
    pub observed_at: Option<SystemTime>,
    /// Result of that observation.
    pub observed_rules: Option<Arc<PodRulesSnapshot>>,
    /// Last failure that concerns the pod, unless it has been overcome since.
    pub problem: Option<String>,
    /// Evidence of whether the pod is captured. The caller, who knows the pod's phase, adds it.
    pub evidence: Evidence,
}

impl EnrolledPodView {
    /// Rules of other components that precede ours, as they were observed.
    pub fn overruling_rules(&self) -> impl Iterator<Item = &str> {
        self.observed_rules.iter().flat_map(|rules| rules.bypass_reasons())
    }
}
