//! A pod that is captured, or about to be, or no longer to be.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use inpod::RulesSnapshot;
use model::{NetworkPrivilege, Pod, PodName};
use netns::{Netns, NetnsId};
use pod_status::{Evidence, Life, Membership, Proxy, Rules};
use tracing::info;
use zds::Workload;

use crate::{inspect::EnrolledPodView, pause, reconciler::Reply};

/// After a failure, the next try; twice as long after each further one, up to the last.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// A pod's first process may be that late, while its image is pulled and without one that holds its namespace.
const EMPTY: Duration = Duration::from_secs(600);
/// Whoever may write a pod's annotations may have its rules made anew no more often than this.
const CHANGES: Duration = Duration::from_secs(2);

/// An ADD that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) deadline: Instant,
    pub(super) reply: Reply<Result<(), String>>,
}

/// How far its network namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RulesState {
    /// Nothing is known of its rules.
    Absent,
    /// Its rules were put in place.
    Applied,
    /// They were seen there.
    Verified,
}

/// The pod.
#[derive(Debug)]
pub(super) struct EnrolledPod {
    pub(super) name: PodName,
    pub(super) service_account: String,
    /// UIDs by which its processes are known.
    pub(super) uids: Vec<String>,
    pub(super) ips: Vec<IpAddr>,
    pub(super) options: rules::inpod::Pod,
    /// When its options were changed last.
    changed: Option<Instant>,
    /// What it may do to its own network namespace.
    pub(super) privilege: NetworkPrivilege,
    /// The container of its last ADD; empty if its namespace was found.
    pub(super) container: String,
    pub(super) netns: Option<Arc<Netns>>,
    pub(super) rules: RulesState,
    /// A worker is at it.
    pub(super) busy: bool,
    /// When the last work on it began.
    pub(super) begun: Instant,
    /// What is wanted has changed meanwhile.
    pub(super) again: bool,
    /// It is to leave the mesh.
    pub(super) leaving: bool,
    /// The API shows it as captured, by an agent before this one.
    pub(super) marked: bool,
    /// The API shows it as captured and served, and this agent knows nothing else yet.
    pub(super) announced: bool,
    /// Since when searches have found no process of it.
    pub(super) empty: Option<Instant>,
    /// Its namespace was found with rules of ours.
    pub(super) adopted: bool,
    /// The namespace in which ztunnel serves it.
    pub(super) served: Option<NetnsId>,
    /// Why ztunnel does not.
    pub(super) refused: Option<String>,
    /// What was last seen of its rules.
    pub(super) seen: Option<RulesSnapshot>,
    /// When its rules were last looked at.
    pub(super) looked: Option<SystemTime>,
    /// When its rules are to be looked at.
    pub(super) next_look: Instant,
    pub(super) waiting: Vec<Waiter>,
    /// That it is captured was said.
    said: bool,
    pub(super) failures: u32,
    /// How often in a row its rules could not be looked at, or not be kept.
    doubts: u32,
    /// Not before; after a failure.
    pub(super) due: Instant,
    /// What failed last.
    pub(super) trouble: Option<String>,
}

impl EnrolledPod {
    pub(super) fn new(pod: &Pod, options: rules::inpod::Pod) -> EnrolledPod {
        let now = Instant::now();
        EnrolledPod {
            name: pod.name(),
            service_account: pod.spec.service_account_name.clone(),
            uids: pod.runtime_uids(),
            ips: pod.status.ips(),
            options,
            changed: None,
            privilege: pod.network_privilege(),
            container: String::new(),
            netns: None,
            rules: RulesState::Absent,
            busy: false,
            begun: now,
            again: false,
            leaving: false,
            marked: false,
            announced: false,
            empty: None,
            adopted: false,
            served: None,
            refused: None,
            seen: None,
            looked: None,
            next_look: now,
            waiting: Vec::new(),
            said: false,
            failures: 0,
            doubts: 0,
            due: now,
            trouble: None,
        }
    }

    /// An ADD has come for it.
    pub(super) fn added(&mut self, container: &str, ips: Vec<IpAddr>, netns: Option<Netns>, waiter: Waiter) {
        container.clone_into(&mut self.container);
        self.ips = ips;
        self.leaving = false;
        self.due = Instant::now();
        self.waiting.push(waiter);
        if let Some(netns) = netns {
            self.found(netns);
        }
    }

    /// Its namespace is this one. True if that is another one than before.
    pub(super) fn found(&mut self, netns: Netns) -> bool {
        if self.id() == Some(netns.id()) {
            return false;
        }
        self.netns = Some(Arc::new(netns));
        self.rules = RulesState::Absent;
        self.seen = None;
        self.refused = None;
        self.said = false;
        true
    }

    /// No process of it was there for long, and no ADD waits: it has ended, if the API knows nothing of it.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.empty.is_some_and(|since| since.elapsed() >= EMPTY)
    }

    /// Its options may be others from now on.
    pub(super) fn may_change(&self) -> bool {
        self.changed.is_none_or(|changed| changed.elapsed() >= CHANGES)
    }

    pub(super) fn change(&mut self, options: rules::inpod::Pod) {
        self.options = options;
        self.changed = Some(Instant::now());
    }

    /// When a change of its options that came too soon is to be taken in.
    pub(super) fn change_due(&self) -> Option<Instant> {
        self.changed.map(|changed| changed + CHANGES).filter(|due| *due > Instant::now())
    }

    pub(super) fn id(&self) -> Option<NetnsId> {
        self.netns.as_ref().map(|netns| netns.id())
    }

    /// ztunnel serves it where it is now.
    pub(super) fn is_served(&self) -> bool {
        self.served.is_some() && self.served == self.id()
    }

    /// A ztunnel that runs longer than this agent may serve it already.
    pub(super) fn is_inherited(&self) -> bool {
        !self.leaving && if self.netns.is_some() { self.adopted } else { self.marked }
    }

    /// What is known of it, from which all that anybody is told of it follows. `connected`: a ztunnel is.
    pub(super) fn evidence(&self, life: Life, connected: bool) -> Evidence {
        Evidence {
            membership: if self.leaving { Membership::Leaving } else { Membership::Member },
            life,
            rules: match self.rules {
                RulesState::Absent => Rules::Absent { failing: self.is_doubtful() },
                _ if self.is_doubtful() => Rules::Doubtful,
                RulesState::Applied => Rules::Applied,
                RulesState::Verified => Rules::Verified,
            },
            proxy: match () {
                () if self.is_served() && connected => Proxy::Serves,
                () if self.is_served() => Proxy::Unavailable,
                () if self.announced => Proxy::Announced,
                () => Proxy::Absent,
            },
            overruled: self.bypasses().next().is_some(),
            fails_open: false, // its own rules hold its traffic while no ztunnel is there
            awaited: !self.waiting.is_empty(),
        }
    }

    /// Rules of other components that precede ours, as they were seen last.
    pub(super) fn bypasses(&self) -> impl Iterator<Item = &str> {
        self.seen.iter().flat_map(RulesSnapshot::bypasses)
    }

    /// Its rules are there, as far as is known.
    pub(super) fn is_ruled(&self) -> bool {
        self.rules != RulesState::Absent
    }

    /// Whether it ends with a container.
    pub(super) fn ends_with(&self, container: &str) -> bool {
        self.container == container || self.container.is_empty()
    }

    pub(super) fn workload(&self, uid: &str) -> Workload {
        Workload {
            uid: uid.to_owned(),
            name: self.name.name.clone(),
            namespace: self.name.namespace.clone(),
            service_account: self.service_account.clone(),
            netns: self.netns.clone(),
        }
    }

    /// Says once that it is captured, when its rules were seen and ztunnel serves it.
    pub(super) fn say(&mut self) {
        if self.rules == RulesState::Verified && self.is_served() && !std::mem::replace(&mut self.said, true)
        {
            info!(target: "ambient", namespace = %self.name.namespace, pod = %self.name.name, "pod captured");
        }
    }

    /// A worker is given something to do.
    pub(super) fn begin(&mut self) {
        self.busy = true;
        self.begun = Instant::now();
    }

    /// For people who ask.
    pub(super) fn view(&self, connected: bool) -> EnrolledPodView {
        EnrolledPodView {
            evidence: self.evidence(Life::Running, connected),
            ips: self.ips.clone(),
            options: self.options.clone(),
            netns: self.netns.clone(),
            ruled: self.is_ruled(),
            verified: self.rules == RulesState::Verified,
            leaving: self.leaving,
            refused: self.refused.clone(),
            looked: self.looked,
            seen: self.seen.clone(),
            trouble: self.trouble.clone(),
        }
    }

    /// Answers all ADDs that wait.
    pub(super) fn answer(&mut self, result: &Result<(), String>) {
        for waiter in std::mem::take(&mut self.waiting) {
            drop(waiter.reply.send(result.clone()));
        }
    }

    pub(super) fn failed(&mut self, why: String) {
        self.failures = self.failures.saturating_add(1);
        self.due = Instant::now() + pause::after(self.failures, FIRST_RETRY, LAST_RETRY);
        self.trouble = Some(why);
    }

    /// Its rules could not be looked at, or not be kept. That they can be made does not end it.
    pub(super) fn doubted(&mut self, why: String) {
        self.rules = RulesState::Absent;
        self.failed(why);
        self.doubts = self.doubts.saturating_add(1);
        self.due = self.due.max(Instant::now() + pause::after(self.doubts, FIRST_RETRY, LAST_RETRY));
    }

    /// Its rules were seen.
    pub(super) fn seen_well(&mut self) {
        self.rules = RulesState::Verified;
        self.doubts = 0;
        self.succeeded();
    }

    /// It may bypass the mesh, or be cut off. Once is no news: it is tried again at once.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubts > 1 || (self.failures > 1 && !self.is_ruled())
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.trouble = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_cannot_be_looked_at_is_doubtful_until_it_can_whatever_is_made_there() {
        let mut enrolled_pod = EnrolledPod::new(&Pod::default(), rules::inpod::Pod::default());
        for doubtful in [false, true, true] {
            enrolled_pod.doubted("too many routes".to_owned());
            assert_eq!(enrolled_pod.is_doubtful(), doubtful);
            enrolled_pod.succeeded(); // its rules were made anew
            enrolled_pod.rules = RulesState::Applied;
            assert_eq!(enrolled_pod.is_doubtful(), doubtful);
        }
        assert!(enrolled_pod.due > Instant::now() + FIRST_RETRY, "the next look is not at once");
        enrolled_pod.seen_well();
        assert!(!enrolled_pod.is_doubtful());
    }
}
