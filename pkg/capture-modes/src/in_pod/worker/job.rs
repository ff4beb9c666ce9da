//! The kinds of work, their results, and how these reach the reconciler.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    time::Duration,
};

use agent::{AgentHandle, CaptureReply};
use inpod::{CaptureReport, ConnectionsReport, NetnsAnswer, NetnsQuery, PodRulesSnapshot};
use model::{ExistingConnections, PodUid, Reason};
use netns::{Netns, NetnsId};
use netns_changes::{Change, NetnsWatch};
use pod_identity::{KnownPods, PodIds};
use zds::ZdsEvent;

use crate::{in_pod::pod_records::RecordedPod, node_watch::NodeNotice};

/// A kind of work.
#[derive(Debug)]
pub(in crate::in_pod) enum CaptureJob {
    /// Apply a pod's rules.
    Capture(JobPod),
    /// Verify a pod's rules, and restore what is missing. `watch`: the namespace is to be watched for changes before.
    Verify { pod: JobPod, watch: bool },
    /// Observe whether pods' rules are in place.
    ObserveEach(Vec<JobPod>),
    /// Remove a pod's rules.
    Release(JobPod),
    /// Compare a pod's rules, and answer the request.
    Check { pod: JobPod, reply: CaptureReply },
    /// Apply the rules for the node's probes.
    Exempt,
    /// Find namespaces by processes, and by the plugin's records.
    DiscoverNetns {
        /// All pods of the node.
        pods: KnownPods,
        processes: BTreeMap<PodUid, NetnsQuery>,
        /// With the pods' addresses.
        records: Vec<(PodIds, Vec<IpAddr>)>,
    },
}

/// A pod as a job needs it.
#[derive(Debug)]
pub(in crate::in_pod) struct JobPod {
    pub(in crate::in_pod) uid: PodUid,
    pub(in crate::in_pod) netns: Arc<Netns>,
    pub(in crate::in_pod) options: rules::inpod::PodOptions,
    pub(in crate::in_pod) existing: ExistingConnections,
    /// The last snapshot of its rules.
    pub(in crate::in_pod) before: Option<Arc<PodRulesSnapshot>>,
}

impl JobPod {
    /// Returns this snapshot, or the one before if it is the same.
    pub(super) fn reuse_snapshot(&self, now: PodRulesSnapshot) -> Arc<PodRulesSnapshot> {
        self.before.as_ref().filter(|before| ***before == now).map_or_else(|| Arc::new(now), Arc::clone)
    }
}

/// The result if a job fails, with the reason.
pub(super) type JobFallback = Box<dyn FnOnce(Reason) -> JobResult>;

impl CaptureJob {
    /// `None`: the result is only for the requester, who notices that there is none.
    pub(super) fn job_fallback(&self) -> Option<JobFallback> {
        Some(match self {
            CaptureJob::Capture(pod) => {
                let (uid, netns) = (pod.uid.clone(), pod.netns.id());
                Box::new(move |why| JobResult::Captured { uid, netns, result: Err(why) })
            }
            CaptureJob::Verify { pod, .. } => {
                let (uid, netns) = (pod.uid.clone(), pod.netns.id());
                Box::new(move |why| JobResult::Verified { uid, netns, watch: None, result: Err(why) })
            }
            CaptureJob::ObserveEach(pods) => {
                let pods = pods.iter().map(|pod| (pod.uid.clone(), pod.netns.id(), None)).collect();
                Box::new(move |_| JobResult::ObservedEach(pods))
            }
            CaptureJob::Release(pod) => {
                let uid = pod.uid.clone();
                Box::new(move |why| JobResult::Released { uid, result: Err(why) })
            }
            CaptureJob::Check { .. } => return None,
            CaptureJob::Exempt => {
                Box::new(|why| JobResult::Exempted { took: Duration::ZERO, result: Err(why) })
            }
            CaptureJob::DiscoverNetns { .. } => Box::new(|why| JobResult::NetnsDiscovered(Err(why))),
        })
    }
}

/// The result of a job, or an answer of ztunnel.
#[derive(Debug)]
pub(crate) enum JobResult {
    /// A pod's rules.
    Captured { uid: PodUid, netns: NetnsId, result: Result<CaptureReport, Reason> },
    /// The result of a verification, before which the namespace began to be watched, or has been since before.
    Verified {
        uid: PodUid,
        netns: NetnsId,
        watch: Option<NetnsWatch<PodUid>>,
        result: Result<RulesCheck, Reason>,
    },
    /// Something changed in a pod's namespace.
    Changed(Change<PodUid>),
    /// Somebody changed sets or rules of the node that are ours.
    NodeChanged(NodeNotice),
    /// Pods' rules, if they are in place; otherwise they have to be verified.
    ObservedEach(Vec<(PodUid, NetnsId, Option<Arc<PodRulesSnapshot>>)>),
    /// A pod has no rules any more.
    Released { uid: PodUid, result: Result<Vec<String>, Reason> },
    /// The rules for the node's probes.
    Exempted { took: Duration, result: Result<Vec<String>, Reason> },
    /// Namespaces, by UID.
    NetnsDiscovered(Result<DiscoveryResult, Reason>),
    /// Events of ztunnels.
    Zds(ZdsEvent),
}

impl JobResult {
    /// The pod that it is about, if it is about one.
    pub(in crate::in_pod) fn pod_uid(&self) -> Option<&PodUid> {
        match self {
            JobResult::Captured { uid, .. }
            | JobResult::Verified { uid, .. }
            | JobResult::Released { uid, .. }
            | JobResult::Zds(ZdsEvent::Accepted { uid, .. } | ZdsEvent::Refused { uid, .. }) => Some(uid),
            _ => None,
        }
    }
}

/// Passes results to the capture mode, and wakes the reconciler once for each.
#[derive(Clone, Debug)]
pub(in crate::in_pod) struct JobResultSender {
    results: Sender<JobResult>,
    agent: AgentHandle,
}

impl JobResultSender {
    /// Also returns the receiver, from which [`CaptureMode::work_completed`] takes one result at a time.
    ///
    /// [`CaptureMode::work_completed`]: crate::capture_mode::CaptureMode::work_completed
    pub(in crate::in_pod) fn new(agent: AgentHandle) -> (JobResultSender, Receiver<JobResult>) {
        let (results, receiver) = mpsc::channel();
        (JobResultSender { results, agent }, receiver)
    }

    /// A result without a receiver is dropped: the process ends when the reconciler has.
    pub(in crate::in_pod) fn send(&self, result: JobResult) {
        if self.results.send(result).is_ok() {
            self.agent.work_completed();
        }
    }
}

/// The result of a search.
#[derive(Debug, Default)]
pub(crate) struct DiscoveryResult {
    pub(in crate::in_pod) processes: BTreeMap<PodUid, NetnsAnswer>,
    pub(in crate::in_pod) records: BTreeMap<PodUid, RecordedPod>,
}

/// The result of a verification.
#[derive(Debug)]
pub(crate) struct RulesCheck {
    /// The last observation: incomplete if another component removed again what was restored, by us or by others.
    pub(in crate::in_pod) observed: Arc<PodRulesSnapshot>,
    /// Missing parts that were restored, as text.
    pub(in crate::in_pod) repaired: Vec<String>,
    /// The outcome for connections that were there before.
    pub(in crate::in_pod) connections: Option<ConnectionsReport>,
}
