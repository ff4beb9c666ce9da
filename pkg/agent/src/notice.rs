//! Events about pods and the node: selects reportable changes, and reports each once.
//!
//! The tracker remembers what was reported of each pod. It observes nothing and reads no clock: the pass passes in its
//! observations, and the loop the time.

mod bypass;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use enrolment::{AmbientStanding, SkipReason};
use model::{EventLevel, EventSubject, NOTICE_INTERVAL, Notice, Pod, PodName, PodUid};
use pod_status::{CaptureState, CaptureStatus, Evidence, PodLife, Redirection, RulesEvidence};

pub use bypass::RulesPlace;

/// Subject of a notice about the node: the agent's pod, which people inspect first.
const NODE: EventSubject = EventSubject::Agent { or_node: true };

/// Passes notices to the component that publishes them; must not block.
pub type NoticeSink = Box<dyn Fn(Notice) + Send>;

/// Time that a running pod may take to join the mesh, and that the node may be without a ztunnel, before that is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// Observations and reports of a pod.
#[derive(Debug, Default)]
struct PodHistory {
    name: PodName,
    /// Whether the pod was captured when it was last observed.
    captured: bool,
    /// Whether the pod is known to have run outside of the mesh, or bypassed it. If so, it is reported when the pod joins.
    ran_outside: bool,
    refused: Option<SkipReason>,
    missing: Option<UncapturedPod>,
}

/// A running pod that should be captured and is not.
#[derive(Debug)]
struct UncapturedPod {
    reason: &'static str,
    why: String,
    reported: Option<&'static str>,
    next: Instant,
}

/// Absence of a ztunnel after one was present.
#[derive(Debug, Default)]
struct ZtunnelAbsence {
    known: bool,
    /// When to report the absence, and the policy that applies meanwhile.
    gone: Option<(Instant, String)>,
    reported: bool,
}

/// A process that connected as ztunnel, but runs in no ztunnel pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UnknownZtunnel {
    #[default]
    Absent,
    /// When to report it: the API shows the address of a new pod with a delay.
    Due(Instant),
    Reported,
}

/// Reported notices, and pending ones.
pub struct NoticeTracker {
    notify: NoticeSink,
    pods: BTreeMap<PodUid, PodHistory>,
    ztunnel: ZtunnelAbsence,
    unknown_ztunnel: UnknownZtunnel,
    bypasses: bypass::BypassNotices,
}

impl NoticeTracker {
    pub(crate) fn new(notify: NoticeSink) -> NoticeTracker {
        NoticeTracker {
            notify,
            pods: BTreeMap::new(),
            ztunnel: ZtunnelAbsence::default(),
            unknown_ztunnel: UnknownZtunnel::default(),
            bypasses: bypass::BypassNotices::default(),
        }
    }

    /// Forgets all other pods, after an observation of all.
    pub(crate) fn retain_pods(&mut self, was_observed: impl Fn(&PodUid) -> bool) {
        self.pods.retain(|uid, _| was_observed(uid));
    }

    /// Forgets a pod that is no longer observed.
    pub(crate) fn forget_pod(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Records a pod, the phase of its life and its status. `why` is called for a pod that should be captured and is not.
    pub(crate) fn observe_pod(
        &mut self,
        pod: &Pod,
        life: PodLife,
        standing: &AmbientStanding,
        status: CaptureStatus,
        why: impl FnOnce() -> String,
        now: Instant,
    ) {
        if has_ended(pod) {
            self.forget_pod(&pod.metadata.uid);
            return;
        }
        let new = || PodHistory { name: pod.name(), ..PodHistory::default() };
        let history = self.pods.entry(pod.metadata.uid.clone()).or_insert_with(new);
        let runs = life == PodLife::Running;
        // A ztunnel outage is reported for the node, not for each of its pods.
        let captured =
            status.state == CaptureState::Captured || status.annotation == Some(Redirection::Enabled);
        let notice = match (standing, status.state) {
            (AmbientStanding::Member { .. }, _) if captured => history.captured_now(),
            // Without traffic, or reported by an Event of its own.
            (AmbientStanding::Member { .. }, _) if !runs || self.bypasses.is_unstable(&pod.metadata.uid) => {
                history.missing = None;
                None
            }
            // An unknown state is neither a fault of the pod nor the end of one; metrics and commands show it.
            (AmbientStanding::Member { .. }, state) if state != CaptureState::Unknown => {
                history.missing_now(state == CaptureState::Held, why, now);
                None
            }
            (AmbientStanding::Out(reason), CaptureState::Outside)
                if *reason != SkipReason::NamespaceUnknown =>
            {
                history.left_now(*reason, runs)
            }
            _ => None,
        };
        if let Some(draft) = notice {
            let about = EventSubject::Pod { name: pod.name(), uid: pod.metadata.uid.clone() };
            self.emit_notice(about, draft);
        }
    }

    /// Records a pod after a failed pass: pods that were captured are assumed to be still, and others not.
    pub(crate) fn observe_failure(
        &mut self,
        pod: &Pod,
        life: PodLife,
        standing: &AmbientStanding,
        why: &str,
        now: Instant,
    ) {
        let before = self.pods.get(&pod.metadata.uid);
        if before.is_some_and(|history| history.captured && !has_ended(pod)) {
            return;
        }
        let rules = RulesEvidence::Absent { failing: true };
        let status = match standing {
            AmbientStanding::Out(_) => CaptureStatus { state: CaptureState::Unknown, annotation: None },
            _ => Evidence { life, rules, ..Evidence::UNKNOWN }.classify(),
        };
        self.observe_pod(pod, life, standing, status, || why.to_owned(), now);
    }

    /// Reports the repair of rules that another component had changed. `what_is_redirected`: the traffic concerned, and its
    /// destination.
    pub fn report_repair(&self, what_is_redirected: &str, what: &[String]) {
        self.emit_warning(
            "DriftRepaired",
            format!(
                "Rules that redirect {what_is_redirected} were changed externally and have been restored: {}.",
                what.join("; ")
            ),
        );
    }

    /// Records whether a ztunnel accepts new connections; `meanwhile`: their treatment if none does.
    pub fn observe_ztunnel(&mut self, there: bool, meanwhile: &str, now: Instant) {
        let ztunnel = &mut self.ztunnel;
        if there {
            ztunnel.known = true;
            ztunnel.gone = None;
            if std::mem::take(&mut ztunnel.reported) {
                let message = "A ztunnel accepts new connections again.".to_owned();
                self.emit_notice(NODE, (EventLevel::Normal, "ZtunnelReady", message));
            }
        } else if ztunnel.known && ztunnel.gone.is_none() && !ztunnel.reported {
            ztunnel.gone = Some((now + PATIENCE, meanwhile.to_owned()));
        }
    }

    /// Records the number of connected ztunnels that run in none of the node's ztunnel pods.
    pub fn unknown_ztunnels(&mut self, count: usize, now: Instant) {
        self.unknown_ztunnel = match self.unknown_ztunnel {
            _ if count == 0 => UnknownZtunnel::Absent,
            UnknownZtunnel::Absent => UnknownZtunnel::Due(now + PATIENCE),
            other => other,
        };
    }

    /// Sends due notices.
    pub(crate) fn report_due(&mut self, now: Instant) {
        if matches!(self.unknown_ztunnel, UnknownZtunnel::Due(when) if when <= now) {
            self.unknown_ztunnel = UnknownZtunnel::Reported;
            let message = "A process that runs in none of the node's ztunnel pods has connected to the ZDS socket. It receives \
                           the network namespaces of all captured pods in its snapshot. The agent's log has its connection (scope zds).";
            self.emit_warning("UnknownZtunnel", message.to_owned());
        }
        let due = self.ztunnel.gone.take_if(|(when, _)| *when <= now);
        if let Some((_, meanwhile)) = due {
            self.ztunnel.reported = true;
            self.emit_warning("NoZtunnel", format!("No ztunnel is available on the node: {meanwhile}."));
        }
        let mut due = Vec::new();
        for (uid, history) in &mut self.pods {
            let Some(missing) = history.missing.as_mut().filter(|missing| missing.next <= now) else {
                continue;
            };
            missing.next = now + NOTICE_INTERVAL;
            missing.reported = Some(missing.reason);
            history.ran_outside = true;
            let about = EventSubject::Pod { name: history.name.clone(), uid: uid.clone() };
            due.push((about, (EventLevel::Warning, missing.reason, missing.event_message(&history.name))));
        }
        due.into_iter().for_each(|(about, what)| self.emit_notice(about, what));
    }

    /// Returns when the next notice is due.
    pub(crate) fn next_wakeup(&self) -> Option<Instant> {
        let pods =
            self.pods.values().filter_map(|history| history.missing.as_ref()).map(|missing| missing.next);
        let unknown = match self.unknown_ztunnel {
            UnknownZtunnel::Due(when) => Some(when),
            UnknownZtunnel::Absent | UnknownZtunnel::Reported => None,
        };
        pods.chain(self.ztunnel.gone.as_ref().map(|(when, _)| *when)).chain(unknown).min()
    }

    fn emit_warning(&self, reason: &'static str, message: String) {
        self.emit_notice(NODE, (EventLevel::Warning, reason, message));
    }

    fn emit_notice(&self, about: EventSubject, (level, reason, message): EventDraft) {
        (self.notify)(Notice { about, level, reason, message });
    }
}

type EventDraft = (EventLevel, &'static str, String);

impl PodHistory {
    fn captured_now(&mut self) -> Option<EventDraft> {
        self.captured = true;
        self.refused = None;
        self.missing = None;
        std::mem::take(&mut self.ran_outside).then(|| {
            let message =
                "The running pod joined the mesh: its new connections are captured from now on.".to_owned();
            (EventLevel::Normal, "JoinedMesh", message)
        })
    }

    fn missing_now(&mut self, is_ruled: bool, why: impl FnOnce() -> String, now: Instant) {
        let reason = if is_ruled { "CaptureFailed" } else { "BypassesMesh" };
        let missing = self.missing.get_or_insert_with(|| UncapturedPod {
            reason,
            why: String::new(),
            reported: None,
            next: now + PATIENCE,
        });
        missing.reason = reason;
        missing.why = why();
        // The cause differs from the reported one.
        if missing.reported.is_some_and(|reported| reported != reason) {
            missing.next = missing.next.min(now + PATIENCE);
        }
    }

    fn left_now(&mut self, reason: SkipReason, runs: bool) -> Option<EventDraft> {
        let captured = std::mem::take(&mut self.captured);
        self.missing = None;
        self.ran_outside = runs;
        let known = self.refused.replace(reason) == Some(reason);
        if captured && runs {
            let message = format!("The pod left the mesh and keeps running outside of it: {reason}.");
            return Some((EventLevel::Normal, "ReleasedFromMesh", message));
        }
        let level = exclusion_level(reason).filter(|_| !known)?;
        let message =
            format!("Labels or selectors request ambient mode, but the pod is not enrolled: {reason}.");
        Some((level, "RefusedByMesh", message))
    }
}

impl UncapturedPod {
    fn event_message(&self, pod: &PodName) -> String {
        let what = match self.reason {
            "CaptureFailed" => "Its traffic is redirected to ztunnel, but ztunnel does not serve the pod",
            _ => "The pod should be captured and is not: its traffic may bypass the mesh",
        };
        format!("{what}: {}. Run `install-cni explain {pod}` on the node for details.", self.why)
    }
}

/// Returns the severity of a pod's exclusion; `None`: not reported.
fn exclusion_level(reason: SkipReason) -> Option<EventLevel> {
    match reason {
        // The pod's annotations claim a sidecar, but its traffic is not redirected.
        SkipReason::HostNetwork | SkipReason::NoProxy => Some(EventLevel::Warning),
        // Chosen by an operator, explicitly or with the sidecar.
        SkipReason::OptedOut | SkipReason::HasSidecar => Some(EventLevel::Normal),
        _ => None,
    }
}

/// Whether a pod has ended, or is about to, and is therefore not reported.
fn has_ended(pod: &Pod) -> bool {
    pod.metadata.deleted.is_some() || pod.status.has_ended()
}

#[cfg(test)]
mod tests;
