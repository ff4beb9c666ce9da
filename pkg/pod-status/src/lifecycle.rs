//! The life of a pod that is captured in-pod, from its enrolment to its end, as a state machine.
//!
//! What happens to the pod comes in as a [`PodEvent`], and what is to be done about it goes out as [`PodAction`]s, which somebody
//! else carries out. Time is told with each event. The table of transitions is in docs/in-pod-internals.md.

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

/// After a failure, the next attempt; twice as long after each further one, up to the last.
pub const FIRST_RETRY: Duration = Duration::from_millis(200);
/// The longest time between attempts.
pub const LAST_RETRY: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
/// How often a pod's rules are observed.
pub const OBSERVE: Duration = Duration::from_secs(40);
/// A pod's first process may be that late, while its image is pulled and without one that holds its namespace.
pub const EMPTY: Duration = Duration::from_secs(600);
/// Whoever may write a pod's annotations may have its rules made anew no more often than this.
pub const OPTIONS: Duration = Duration::from_secs(2);

/// How far its rules are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RulesState {
    /// Nothing is known of its rules.
    Absent,
    /// They were put in place.
    Applied,
    /// They were observed in place.
    Verified,
}

/// How far a pod is.
#[derive(Clone, Debug)]
pub struct Lifecycle<N> {
    netns: Option<N>,
    rules: RulesState,
    /// Something is being done in its namespace.
    busy: bool,
    /// Whether the desired state has changed meanwhile.
    again: bool,
    leaving: bool,
    /// The API shows it as captured, by an agent before this one.
    marked: bool,
    /// The API shows it as captured and served, and this agent knows nothing else yet.
    announced: bool,
    /// Whether the pod's namespace was found with rules of ours.
    adopted: bool,
    /// The namespace in which ztunnel serves it.
    served: Option<N>,
    refused: Option<Reason>,
    /// Whether its rules let its traffic go on, because no ztunnel is there.
    open: bool,
    /// The first deadline of the ADDs that wait.
    deadline: Option<AgentTime>,
    /// Since when searches have found no process of it.
    empty: Option<AgentTime>,
    /// When the rules that it asks for were changed last.
    changed: Option<AgentTime>,
    /// [`PodAction::Announce`] was given.
    announce: bool,
    attempts: Attempts,
    /// How often in a row its rules could not be observed, or not be kept.
    doubts: u32,
    /// Whether its rules stay in place.
    stability: Stability,
    /// How soon they are observed after a change of its namespace.
    pace: ChangePace,
    /// Such an observation is to begin at [`Self::observe`].
    changing: bool,
    /// No attempt before; after a failure.
    due: AgentTime,
    /// When its rules are to be observed.
    observe: AgentTime,
    problem: Option<Reason>,
}

impl<N: Copy + PartialEq> Lifecycle<N> {
    /// A pod that belongs to the mesh. `annotation`: what the API shows of it, by an agent before this one.
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
            served: None,
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

    /// Returns the action that is due now without any event. Of [`PodAction::Observe`] there may be many at a time: whoever
    /// carries it out may let it wait. [`Self::begin_action`] follows.
    pub fn due_action(&self, now: AgentTime) -> Option<PodAction> {
        if self.busy || self.netns.is_none() || now < self.due {
            return None;
        }
        match self.rules {
            _ if self.leaving => Some(PodAction::Release),
            RulesState::Absent => Some(PodAction::Capture),
            RulesState::Applied if self.is_served() => Some(PodAction::Observe),
            _ => (now >= self.observe).then_some(PodAction::Observe),
        }
    }

    /// [`Self::due_action`] is begun. `observe`: when its rules are to be observed the next time.
    pub fn begin_action(&mut self, action: &PodAction, observe: AgentTime) {
        self.busy = true;
        if *action == PodAction::Observe {
            (self.observe, self.changing) = (observe, false);
        }
    }

    /// Has a [`PodAction::Observe`] that is due wait until then, because nothing can have changed unnoticed.
    pub fn postpone_observation(&mut self, until: AgentTime) {
        self.observe = until;
    }

    /// When [`Self::due_action`] has something, an ADD expires, or a change of options may be taken in. `soon`: when what could
    /// not be begun is to be tried again.
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

    /// Returns the evidence of the pod, from which all that is reported of it follows. `served`: a ztunnel that is connected
    /// serves it; the acknowledgement of one that is gone remains, because its successor will serve the pod, too. `overruled`:
    /// rules of another component in its namespace precede ours.
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
                () if self.is_served() && served && !self.open => ProxyEvidence::Serves,
                () if self.is_served() => ProxyEvidence::Unavailable,
                () if self.announced => ProxyEvidence::Announced,
                () => ProxyEvidence::Absent,
            },
            overruled,
            fails_open: self.open, // else its own rules hold its traffic while no ztunnel is there
            awaited: self.is_awaited(),
        }
    }

    /// How far its rules are.
    pub fn rules_state(&self) -> RulesState {
        self.rules
    }

    /// Whether the pod's rules are in place, as far as is known.
    pub fn is_ruled(&self) -> bool {
        self.rules != RulesState::Absent
    }

    /// Whether the last observation succeeded and found its rules in place, and none has to follow a repair soon.
    pub fn is_settled(&self) -> bool {
        let is_verified = self.rules == RulesState::Verified && self.problem.is_none();
        is_verified && self.stability.recheck_delay().is_none()
    }

    /// ztunnel serves it where it is now.
    pub fn is_served(&self) -> bool {
        self.served.is_some() && self.served == self.netns
    }

    /// Whether the pod's rules were removed repeatedly, and have not been observed in place twice in a row since.
    pub fn is_unstable(&self) -> bool {
        self.stability.is_unstable()
    }

    /// Whether its rules could not be observed, or not be kept, the last time.
    pub fn has_lost_rules(&self) -> bool {
        self.doubts > 0
    }

    /// How many times in a row its rules had to be restored.
    pub fn repair_count(&self) -> u32 {
        self.stability.repair_count()
    }

    /// Whether the pod is to leave the mesh.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// An ADD waits.
    pub fn is_awaited(&self) -> bool {
        self.deadline.is_some()
    }

    /// The deadline of an ADD has passed.
    pub fn is_late(&self, now: AgentTime) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Something is being done in its namespace.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// A ztunnel that runs longer than this agent may serve it already.
    pub fn is_inherited(&self) -> bool {
        !self.leaving && if self.netns.is_some() { self.adopted } else { self.marked }
    }

    /// No process of it was there for long, and no ADD waits: it has ended, if the API knows nothing of it.
    pub fn is_empty(&self, now: AgentTime) -> bool {
        !self.is_awaited() && self.empty.is_some_and(|since| now.saturating_sub(since) >= EMPTY)
    }

    /// Other rules may be made for it now.
    pub fn may_change(&self, now: AgentTime) -> bool {
        self.changed.is_none_or(|changed| now.saturating_sub(changed) >= OPTIONS)
    }

    /// Why ztunnel does not serve it; `None`: it has not refused.
    pub fn refusal_reason(&self) -> Option<&str> {
        self.refused.as_ref().map(Reason::as_str)
    }

    /// Returns the reason of the last failure, unless an attempt has succeeded since.
    pub fn last_failure(&self) -> Option<&str> {
        self.problem.as_ref().map(Reason::as_str)
    }

    /// Whether the pod may bypass the mesh, or be cut off. A single failure does not count: it is retried at once.
    fn is_doubtful(&self) -> bool {
        self.doubts > 1 || (self.attempts.failure_count() > 1 && !self.is_ruled())
    }
}

#[cfg(test)]
mod tests;
