//! Life cycle of a pod with in-pod capture, from its enrolment to its end, as a state machine.
//!
//! Input is a [`PodEvent`], output are [`PodAction`]s, which the caller executes. The time is passed with each event. The table of
//! transitions is in docs/in-pod-internals.md.

mod event;
mod stability;
mod transition;

use std::time::Duration;

use model::Reason;
use retry::{Attempts, Backoff, ChangePace};

use crate::{Evidence, MeshMembership, PodLife, ProxyEvidence, RulesEvidence};

pub use event::{PodAction, PodEvent};
pub use stability::{
    FIRST_RECHECK, LAST_RECHECK, SERIES, Stability, UNDONE, UNSTABLE, describe_conflict, writer_clause,
};

/// Time since the agent's start.
pub type AgentTime = Duration;

/// Delay after a failure, doubled after each further one up to the last.
pub const FIRST_RETRY: Duration = Duration::from_millis(200);
/// Maximum delay between attempts.
pub const LAST_RETRY: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
/// Interval at which a pod's rules are observed.
pub const OBSERVE: Duration = Duration::from_secs(40);
/// Maximum delay of a pod's first process, while its image is pulled and no other process holds its namespace.
pub const EMPTY: Duration = Duration::from_secs(600);
/// Minimum interval between changes of a pod's rules that authors of its annotations can cause.
pub const OPTIONS: Duration = Duration::from_secs(2);

/// State of the pod's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RulesState {
    /// Unknown or missing.
    Absent,
    /// Applied.
    Applied,
    /// Observed in place.
    Verified,
}

/// State of a pod.
#[derive(Clone, Debug)]
pub struct Lifecycle<N> {
    netns: Option<N>,
    rules: RulesState,
    /// Whether an action runs in its namespace.
    busy: bool,
    /// Whether the desired state has changed meanwhile.
    again: bool,
    leaving: bool,
    /// Whether the API shows it as captured by a previous agent.
    marked: bool,
    /// Whether the API shows it as captured and served, and this agent has no other evidence yet.
    announced: bool,
    /// Whether the pod's namespace was found with our rules in it.
    adopted: bool,
    /// Whether ztunnel serves it in its current namespace.
    served: bool,
    refused: Option<Reason>,
    /// Whether its rules let its traffic pass, because no ztunnel is available.
    open: bool,
    /// Earliest deadline of the waiting ADDs.
    deadline: Option<AgentTime>,
    /// Since when searches have found no process of it.
    empty: Option<AgentTime>,
    /// Time of the last change of its rule options.
    changed: Option<AgentTime>,
    /// Whether [`PodAction::Announce`] is pending.
    announce: bool,
    attempts: Attempts,
    /// Number of consecutive failures to observe or keep its rules.
    doubts: u32,
    /// Stability of its rules.
    stability: Stability,
    /// Rate of observations after changes of its namespace.
    pace: ChangePace,
    /// Whether an observation after a change is due at [`Self::observe`].
    changing: bool,
    /// Earliest time of the next attempt after a failure.
    due: AgentTime,
    /// Time of the next observation of its rules.
    observe: AgentTime,
    problem: Option<Reason>,
}

impl<N: Copy + PartialEq> Lifecycle<N> {
    /// Returns the state of a mesh pod. `annotation`: the value in the API, written by a previous agent.
    pub fn new(annotation: Option<&str>, now: AgentTime) -> Lifecycle<N> {
        use crate::Redirection;
        Lifecycle {
            netns: None,
            rules: RulesState::Absent,
            busy: false,
            again: false,
            leaving: false,
            marked: annotation.is_some_and(|value| Redirection::VALUES.contains(&value)),
            announced: annotation.is_some() && annotation == Redirection::Enabled.annotation_value(),
            adopted: false,
            served: false,
            refused: None,
            open: false,
            deadline: None,
            empty: None,
            changed: None,
            announce: false,
            attempts: BACKOFF.start_attempts(),
            doubts: 0,
            stability: Stability::default(),
            pace: ChangePace::default(),
            changing: false,
            due: now,
            observe: now,
            problem: None,
        }
    }

    /// Returns the action that is due without an event. There may be many [`PodAction::Observe`] at the same time: the caller may
    /// delay them. Followed by [`Self::begin_action`].
    pub fn due_action(&self, now: AgentTime) -> Option<PodAction> {
        if self.busy || self.netns.is_none() || now < self.due {
            return None;
        }
        match self.rules {
            _ if self.leaving => Some(PodAction::Release),
            RulesState::Absent => Some(PodAction::Capture),
            RulesState::Applied if self.served => Some(PodAction::Observe),
            _ => (now >= self.observe).then_some(PodAction::Observe),
        }
    }

    /// Records the start of [`Self::due_action`]. `observe`: time of the next observation of its rules.
    pub fn begin_action(&mut self, action: &PodAction, observe: AgentTime) {
        self.busy = true;
        if *action == PodAction::Observe {
            (self.observe, self.changing) = (observe, false);
        }
    }

    /// Postpones a due [`PodAction::Observe`] until then, because no change can have been missed.
    pub fn postpone_observation(&mut self, until: AgentTime) {
        self.observe = until;
    }

    /// Returns when [`Self::due_action`] has an action, an ADD expires, or a change of options is permitted. `soon`: time of the
    /// next attempt of an action that could not be started.
    pub fn next_wakeup(&self, now: AgentTime, soon: AgentTime) -> Option<AgentTime> {
        let works = self.netns.is_some() && !self.busy;
        let work = match self.rules {
            _ if !works => None,
            RulesState::Absent => Some(self.due),
            _ if self.leaving => Some(self.due),
            _ => Some(self.observe.max(self.due).max(soon)),
        };
        let options = self.changed.map(|changed| changed + OPTIONS).filter(|due| *due > now);
        self.deadline.into_iter().chain(work).chain(options).min()
    }

    /// Returns the evidence about the pod, from which all reports are derived. `served`: a connected ztunnel serves it; the
    /// acknowledgement of a disconnected one stays valid, because its successor will serve the pod, too. `overruled`: foreign rules
    /// in its namespace precede ours.
    pub fn capture_evidence(&self, life: PodLife, served: bool, overruled: bool) -> Evidence {
        Evidence {
            membership: if self.leaving { MeshMembership::Leaving } else { MeshMembership::Member },
            life,
            rules: match self.rules {
                RulesState::Absent => RulesEvidence::Absent { failing: self.is_doubtful() },
                _ if self.is_doubtful() => RulesEvidence::Doubtful,
                _ if self.is_unstable() => RulesEvidence::Unstable,
                RulesState::Applied => RulesEvidence::Applied,
                RulesState::Verified => RulesEvidence::Verified,
            },
            proxy: match () {
                () if self.served && served && !self.open => ProxyEvidence::Serves,
                () if self.served => ProxyEvidence::Unavailable,
                () if self.announced => ProxyEvidence::Announced,
                () => ProxyEvidence::Absent,
            },
            overruled,
            fails_open: self.open, // otherwise its own rules hold its traffic while no ztunnel is available
            awaited: self.is_awaited(),
        }
    }

    /// Returns the state of its rules.
    pub fn rules_state(&self) -> RulesState {
        self.rules
    }

    /// Whether the pod's rules are known to be in place.
    pub fn is_ruled(&self) -> bool {
        self.rules != RulesState::Absent
    }

    /// Whether the last observation succeeded and found its rules in place, and none is due soon after a repair.
    pub fn is_settled(&self) -> bool {
        let is_verified = self.rules == RulesState::Verified && self.problem.is_none();
        is_verified && self.stability.recheck_delay().is_none()
    }

    /// Whether the pod's rules were removed repeatedly, and have not been observed in place twice in a row since.
    pub fn is_unstable(&self) -> bool {
        self.stability.is_unstable()
    }

    /// Whether the last attempt to observe or keep its rules failed.
    pub fn has_lost_rules(&self) -> bool {
        self.doubts > 0
    }

    /// Returns the number of consecutive repairs of its rules.
    pub fn repair_count(&self) -> u32 {
        self.stability.repair_count()
    }

    /// Whether the pod is to leave the mesh.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether an ADD is waiting.
    pub fn is_awaited(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether the deadline of an ADD has passed.
    pub fn is_late(&self, now: AgentTime) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether an action runs in its namespace.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether a ztunnel that is older than this agent may serve it already.
    pub fn is_inherited(&self) -> bool {
        if self.netns.is_some() { self.adopted } else { self.marked }
    }

    /// Whether it has had no process for long, and no ADD is waiting: it has ended, unless the API shows it.
    pub fn is_empty(&self, now: AgentTime) -> bool {
        !self.is_awaited() && self.empty.is_some_and(|since| now.saturating_sub(since) >= EMPTY)
    }

    /// Whether its rules may be changed now.
    pub fn may_change(&self, now: AgentTime) -> bool {
        self.changed.is_none_or(|changed| now.saturating_sub(changed) >= OPTIONS)
    }

    /// Returns why ztunnel does not serve it; `None`: it has not refused.
    pub fn refusal_reason(&self) -> Option<&str> {
        self.refused.as_ref().map(Reason::as_str)
    }

    /// Returns the error of the last failure, unless an attempt has succeeded since.
    pub fn last_failure(&self) -> Option<&str> {
        self.problem.as_ref().map(Reason::as_str)
    }

    /// Whether the pod may bypass the mesh, or be cut off. A single failure does not count: it is retried immediately.
    fn is_doubtful(&self) -> bool {
        self.doubts > 1 || (self.attempts.failure_count() > 1 && !self.is_ruled())
    }
}

#[cfg(test)]
mod tests;
