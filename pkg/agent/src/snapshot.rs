//! A copy of what the reconciler knows, for those who show it.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::SystemTime};

use inpod::PodRulesSnapshot;
use model::{Namespace, Pod, PodUid};
use netns::Netns;
use planner::{
    ambient::AmbientStanding,
    node::{DesiredState, MemberAddresses, ZtunnelFallback},
    ztunnel::ZtunnelCandidate,
};
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
    /// Addresses that the plugin told.
    pub told: Vec<IpAddr>,
    /// Its sandbox was deleted, and there is no other.
    pub ended: bool,
    /// The API server's list lacks it, or shows it as it was before.
    pub doubted: bool,
    /// Since when it is captured, or not, as the reconciler has it.
    pub since: Option<SystemTime>,
}

/// What a capture mode knows.
#[derive(Debug)]
pub enum CaptureSnapshot {
    /// On the node.
    Node {
        /// What the last turn wanted; `None`: none has come that far.
        desired: Option<DesiredState>,
        /// What happens while no ztunnel is ready.
        fallback: ZtunnelFallback,
    },
    /// From within.
    InPod {
        /// Whose probes are to be exempt.
        members: MemberAddresses,
        /// Pods, by UID.
        enrolled: BTreeMap<PodUid, EnrolledPodView>,
        /// Those that are connected.
        ztunnels: Vec<zds::ConnectionState>,
    },
    /// The way that ztunnel speaks could not be opened.
    None,
}

/// What the reconciler knows of a pod that is captured in-pod, or is to be.
#[derive(Clone, Debug)]
pub struct EnrolledPodView {
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// The rules that it asks for.
    pub options: rules::inpod::PodOptions,
    /// Its network namespace, if it is known.
    pub netns: Option<Arc<Netns>>,
    /// Its rules were put in place, and not found otherwise since.
    pub ruled: bool,
    /// They were seen there.
    pub verified: bool,
    /// It is to leave the mesh.
    pub leaving: bool,
    /// Why ztunnel does not serve it, if it has refused.
    pub refused: Option<String>,
    /// When its rules were observed last.
    pub looked: Option<SystemTime>,
    /// What was seen then.
    pub seen: Option<Arc<PodRulesSnapshot>>,
    /// What failed last.
    pub trouble: Option<String>,
    /// The same, as evidence of whether it is captured; its life is filled in by who knows it.
    pub evidence: Evidence,
}

impl EnrolledPodView {
    /// Rules of other components that precede ours, as they were seen.
    pub fn overruling(&self) -> impl Iterator<Item = &str> {
        self.seen.iter().flat_map(|seen| seen.bypasses())
    }
}
