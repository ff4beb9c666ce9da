//! Kinds of jobs, their results, and how these reach the reconciler.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{self, Receiver, Sender},
    },
    time::Duration,
};

use agent::{AgentHandle, CaptureReply};
use model::{ExistingConnections, PodUid, Reason};
use netns::{Netns, NetnsId};
use netns_changes::{Change, NetnsWatch};
use pod_capture::{CaptureReport, ConnectionsReport, NetnsAnswer, NetnsQuery, PodRulesSnapshot};
use pod_identity::{KnownPods, PodIds};
use zds::ZdsEvent;

use crate::{in_pod::pod_records::RecordedPod, node_watch::NodeNotice};

/// A kind of job.
#[derive(Debug)]
pub(in crate::in_pod) enum CaptureJob {
    /// Apply a pod's rules.
    Capture(JobPod),
    /// Verify a pod's rules, and restore missing ones. `watch`: start watching the namespace before.
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
        /// Pods whose records are read, with their addresses.
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
    /// Whether the pod's last job was slow.
    pub(in crate::in_pod) slow: Arc<AtomicBool>,
}

impl JobPod {
    /// Returns this snapshot, or the previous one if both are equal.
    pub(super) fn reuse_snapshot(&self, now: PodRulesSnapshot) -> Arc<PodRulesSnapshot> {
        self.before.as_ref().filter(|before| ***before == now).map_or_else(|| Arc::new(now), Arc::clone)
    }
}

impl CaptureJob {
    /// Returns the flag of the job's pod; `None`: the job is not about a single pod.
    pub(super) fn slow_flag(&self) -> Option<&Arc<AtomicBool>> {
        match self {
            CaptureJob::Capture(pod)
            | CaptureJob::Verify { pod, .. }
            | CaptureJob::Release(pod)
            | CaptureJob::Check { pod, .. } => Some(&pod.slow),
            CaptureJob::ObserveEach(_) | CaptureJob::Exempt | CaptureJob::DiscoverNetns { .. } => None,
        }
    }

    /// Returns the result to report if the job has failed. `None`: only the requester gets the result, and notices that
    /// it is missing.
    pub(super) fn into_failure(self, why: Reason) -> Option<JobResult> {
        Some(match self {
            CaptureJob::Capture(JobPod { uid, netns, .. }) => {
                JobResult::Captured { uid, netns: netns.id(), result: Err(why) }
            }
            CaptureJob::Verify { pod: JobPod { uid, netns, .. }, .. } => {
                JobResult::Verified { uid, netns: netns.id(), watch: None, result: Err(why) }
            }
            CaptureJob::ObserveEach(pods) => {
                let unobserved = pods.into_iter().map(|pod| (pod.uid, pod.netns.id(), None));
                JobResult::ObservedEach(unobserved.collect())
            }
            CaptureJob::Release(JobPod { uid, netns, .. }) => {
                JobResult::Released { uid, netns: netns.id(), result: Err(why) }
            }
            CaptureJob::Check { .. } => return None,
            CaptureJob::Exempt => JobResult::Exempted { took: Duration::ZERO, result: Err(why) },
            CaptureJob::DiscoverNetns { .. } => JobResult::NetnsDiscovered(Err(why)),
        })
    }
}

/// The result of a job, or an event of ztunnel.
#[derive(Debug)]
pub(crate) enum JobResult {
    /// The result of applying a pod's rules.
    Captured { uid: PodUid, netns: NetnsId, result: Result<CaptureReport, Reason> },
    /// The result of a verification. `watch`: the watch that was started before it, if any.
    Verified {
        uid: PodUid,
        netns: NetnsId,
        watch: Option<NetnsWatch<PodUid>>,
        result: Result<RulesCheck, Reason>,
    },
    /// The network namespace of a pod changed.
    Changed(Change<PodUid>),
    /// Another component changed sets or rules of ours on the node.
    NodeChanged(NodeNotice),
    /// The rules of pods, if they are in place; otherwise they have to be verified.
    ObservedEach(Vec<(PodUid, NetnsId, Option<Arc<PodRulesSnapshot>>)>),
    /// The rules of a pod were removed.
    Released { uid: PodUid, netns: NetnsId, result: Result<Vec<String>, Reason> },
    /// The result of applying the rules for the node's probes.
    Exempted { took: Duration, result: Result<Vec<String>, Reason> },
    /// The network namespaces that were found, by UID.
    NetnsDiscovered(Result<DiscoveryResult, Reason>),
    /// Events of ztunnels.
    Zds(ZdsEvent),
}

impl JobResult {
    /// Returns the pod that the result is about, if any.
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

/// Sends results to the capture mode, and wakes the reconciler once for each.
#[derive(Clone, Debug)]
pub(in crate::in_pod) struct JobResultSender {
    results: Sender<JobResult>,
    agent: AgentHandle,
}

impl JobResultSender {
    /// Creates a sender, and the receiver from which [`CaptureMode::work_completed`] takes one result at a time.
    ///
    /// [`CaptureMode::work_completed`]: agent::CaptureMode::work_completed
    pub(in crate::in_pod) fn new(agent: AgentHandle) -> (JobResultSender, Receiver<JobResult>) {
        let (results, receiver) = mpsc::channel();
        (JobResultSender { results, agent }, receiver)
    }

    /// Sends a result. Without a receiver it is dropped: the process ends when the reconciler has.
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
    /// The last observation: incomplete if another component again removed what was restored.
    pub(in crate::in_pod) observed: Arc<PodRulesSnapshot>,
    /// Missing parts that were restored, as text.
    pub(in crate::in_pod) repaired: Vec<String>,
    /// The outcome for connections that existed before.
    pub(in crate::in_pod) connections: Option<ConnectionsReport>,
}
