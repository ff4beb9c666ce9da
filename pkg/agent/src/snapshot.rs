//! A copy of what the reconciler knows, for the debug state.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::SystemTime};

use inpod::PodRulesSnapshot;
use model::{Namespace, Pod, PodUid};
use netns::Netns;
use planner::{
    ambient::AmbientStanding,
    node::{DesiredState, MemberAddresses, ZtunnelFallback},
    ztunnel::ZtunnelCandidate,
};
use pod_identity::{Ambiguity, Witness};
use pod_status::Evidence;
use report::ChangeRecord;

/// What the reconciler knows.
#[derive(Debug)]
pub struct AgentSnapshot {
    /// The node's pods.
    pub pods: Vec<KnownPod>,
    /// Its ztunnel pods.
    pub ztunnels: Vec<ZtunnelCandidate>,
    /// The first lists of the API server have come.
    pub synced: bool,
    /// The first list of pods has come, so `pods` lacks none; without ambient mode nobody follows namespaces.
    pub has_pods: bool,
    /// What is wrong with the node.
    pub trouble: Option<String>,
    /// When the agent started.
    pub started: SystemTime,
    /// The last changes, newest first.
    pub history: Vec<ChangeRecord>,
    /// What the capture mode knows.
    pub way: CaptureSnapshot,
}

/// A pod, and what is decided on it.
#[derive(Debug)]
pub struct KnownPod {
    /// The pod, as the API knows it.
    pub pod: Pod,
    /// Its namespace; `None`: not known yet.
    pub namespace: Option<Namespace>,
    /// Whether it belongs to ambient mode, and why.
    pub standing: AmbientStanding,
    /// Addresses that the plugin reported.
    pub told: Vec<IpAddr>,
    /// Its sandbox was deleted, and there is no other one.
    pub ended: bool,
    /// The API server's list lacks it, or shows it as it was before.
    pub doubted: bool,
    /// Since when it is captured, or not, as far as the reconciler knows.
    pub since: Option<SystemTime>,
}

/// What a capture mode knows.
///
/// The agent only passes it on. It is defined here, because the reconciler's messages carry it: with a type of
/// `capture_modes`, the handle, the socket and all that hold these would need a type parameter.
#[derive(Debug)]
pub enum CaptureSnapshot {
    /// Node-level capture.
    Node {
        /// The desired state of the last pass; `None`: no pass has come that far.
        desired: Option<DesiredState>,
        /// What happens while no ztunnel is ready.
        fallback: ZtunnelFallback,
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
    /// The capture mode that ztunnel supports could not be opened.
    None,
}

/// What the reconciler knows of a pod with in-pod redirection, or one that is to have it.
#[derive(Clone, Debug)]
pub struct EnrolledPodView {
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// The rules that its annotations request.
    pub options: rules::inpod::PodOptions,
    /// Its network namespace, if it is known.
    pub netns: Option<Arc<Netns>>,
    /// The evidence on which this namespace is attributed to it.
    pub witness: Option<Witness>,
    /// Why the last search could not determine it; `None`: it could, or there was none.
    pub ambiguity: Option<Ambiguity>,
    /// Its rules were applied, and have not been found changed since.
    pub ruled: bool,
    /// They were verified.
    pub verified: bool,
    /// Its rules are removed repeatedly: how many times in a row they were restored; 0: they stay in place.
    pub repairs: u32,
    /// It is to leave the mesh.
    pub leaving: bool,
    /// Why ztunnel does not serve it, if it has refused.
    pub refused: Option<String>,
    /// When its rules were observed last.
    pub looked: Option<SystemTime>,
    /// What was observed then.
    pub seen: Option<Arc<PodRulesSnapshot>>,
    /// What failed last.
    pub trouble: Option<String>,
    /// The same, as evidence of whether it is captured; the caller, who knows it, adds the pod's phase.
    pub evidence: Evidence,
}

impl EnrolledPodView {
    /// Rules of other components that precede ours, as they were observed.
    pub fn overruling(&self) -> impl Iterator<Item = &str> {
        self.seen.iter().flat_map(|seen| seen.bypasses())
    }
}
