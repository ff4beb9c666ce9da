//! Queue of Events to be published: holds the newest of each subject and reason, and selects the next.
//!
//! Each class of Events has a budget of its own, so that no Event about a pod delays one about the node, and none about a pod's
//! mere standing delays one about a pod that bypasses the mesh. Within a class each namespace has a budget, half of the class's,
//! and namespaces are served round-robin: the author of one cannot exhaust what others need.
//!
//! Pure: time is an argument.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use model::{EventSubject, Notice};

/// Burst of a class: a node in trouble has hundreds of Events, and so have all other nodes.
const CLASS_BURST: u32 = 20;
/// Burst of one namespace in a class.
const NAMESPACE_BURST: u32 = 10;
/// Interval after which a class, and a namespace in it, may publish one more Event.
const EVERY: Duration = Duration::from_secs(10);
/// Maximum number of queued Events per class. An entry has a message of at most 1024 bytes.
const WAITING: usize = 512;
/// Time after which an Event that could not be published is dropped.
const EXPIRY: Duration = Duration::from_secs(3600);

/// Class of Events that share a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventClass {
    /// Node or agent.
    Node,
    /// Pods that bypass the mesh, or can.
    Bypass,
    /// Other Events about pods.
    Pod,
}

/// A queued Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitingEvent {
    pub(super) notice: Notice,
    /// Whether it reports that a pod bypasses the mesh, or can: such Events have a budget of their own.
    is_bypass: bool,
    /// Number of occurrences.
    pub(super) times: u32,
    /// Time of the last occurrence.
    since: Instant,
    /// Sequence number among the queued Events.
    number: u64,
}

/// Next step of the publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextEvent {
    /// Publish this Event.
    Publish(WaitingEvent),
    /// Wait until then, when a budget allows the next one.
    At(Instant),
    /// Wait for an Event.
    Idle,
}

impl WaitingEvent {
    fn class(&self) -> EventClass {
        match self.notice.about {
            EventSubject::Node | EventSubject::Agent { .. } => EventClass::Node,
            EventSubject::Pod { .. } if self.is_bypass => EventClass::Bypass,
            EventSubject::Pod { .. } => EventClass::Pod,
        }
    }

    /// Returns the key of the share within its class: the namespace, and for the node the reason, so that a repeated Event does not
    /// delay a new one.
    fn share_name(&self) -> &str {
        match &self.notice.about {
            EventSubject::Node | EventSubject::Agent { .. } => self.notice.reason,
            EventSubject::Pod { name, .. } => &name.namespace,
        }
    }

    fn replaces(&self, other: &WaitingEvent) -> bool {
        self.notice.about == other.notice.about && self.notice.reason == other.notice.reason
    }
}

/// Token bucket with this burst, refilled by one each [`EVERY`].
#[derive(Debug)]
struct Budget {
    burst: u32,
    left: u32,
    refilled: Instant,
}

impl Budget {
    fn new(burst: u32, now: Instant) -> Budget {
        Budget { burst, left: burst, refilled: now }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled).as_secs() / EVERY.as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.refilled += EVERY.saturating_mul(passed);
        self.left = self.left.saturating_add(passed).min(self.burst);
    }

    fn spend(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Returns when the next Event is allowed; a past time: now.
    fn allows_at(&self) -> Instant {
        if self.left > 0 { self.refilled } else { self.refilled + EVERY }
    }
}

/// Share of a class's budget.
#[derive(Debug)]
struct Share {
    budget: Budget,
    /// Number of its last published Event; 0: none.
    served: u64,
    /// Number of the last published Event of each reason.
    reasons: BTreeMap<&'static str, u64>,
}

#[derive(Debug)]
struct ClassQueue {
    budget: Budget,
    /// Shares with queued Events, or with a partly used budget.
    shares: BTreeMap<String, Share>,
    waiting: Vec<WaitingEvent>,
}

impl ClassQueue {
    fn new(now: Instant) -> ClassQueue {
        ClassQueue { budget: Budget::new(CLASS_BURST, now), shares: BTreeMap::new(), waiting: Vec::new() }
    }

    fn refill_budgets(&mut self, now: Instant) {
        self.budget.refill(now);
        self.waiting.retain(|waiting| now.saturating_duration_since(waiting.since) < EXPIRY);
        let needed: BTreeSet<&str> = self.waiting.iter().map(WaitingEvent::share_name).collect();
        self.shares.retain(|name, share| {
            share.budget.refill(now);
            share.budget.left < share.budget.burst || needed.contains(name.as_str())
        });
    }

    /// Returns the index of the next Event to publish, if the budgets allow one.
    fn next_place(&self) -> Option<usize> {
        let candidates = self.waiting.iter().enumerate().filter_map(|(place, waiting)| {
            let Some(share) = self.shares.get(waiting.share_name()) else { return Some((place, (0, 0, 0))) };
            let reason = share.reasons.get(waiting.notice.reason).copied().unwrap_or_default();
            (share.budget.left > 0).then_some((place, (share.served, reason, waiting.number)))
        });
        let next = candidates.min_by_key(|(_, order)| *order);
        next.filter(|_| self.budget.left > 0).map(|(place, _)| place)
    }

    /// Returns when the budgets allow the next Event; `None`: the queue is empty.
    fn allows_at(&self) -> Option<Instant> {
        let shares = self.waiting.iter().filter_map(|waiting| self.shares.get(waiting.share_name()));
        shares.map(|share| share.budget.allows_at()).min().map(|share| share.max(self.budget.allows_at()))
    }

    fn remove_event(&mut self, place: usize, order: u64) -> WaitingEvent {
        let next = self.waiting.remove(place);
        self.budget.spend();
        if let Some(share) = self.shares.get_mut(next.share_name()) {
            share.budget.spend();
            share.served = order;
            share.reasons.insert(next.notice.reason, order);
        }
        next
    }

    fn insert(&mut self, waiting: WaitingEvent, now: Instant) -> Option<WaitingEvent> {
        self.shares.entry(waiting.share_name().to_owned()).or_insert_with(|| Share {
            budget: Budget::new(NAMESPACE_BURST, now),
            served: 0,
            reasons: BTreeMap::new(),
        });
        self.waiting.push(waiting);
        (self.waiting.len() > WAITING).then(|| self.drop_one()).flatten()
    }

    /// Drops one Event: the oldest of the namespace with the most; of several namespaces, the one served last.
    fn drop_one(&mut self) -> Option<WaitingEvent> {
        let served = |name: &str| self.shares.get(name).map_or(0, |share| share.served);
        let name = most_crowded(self.waiting.iter().map(WaitingEvent::share_name), served)?.to_owned();
        let oldest = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.share_name() == name);
        let place = oldest.min_by_key(|(_, waiting)| waiting.number)?.0;
        Some(self.waiting.remove(place))
    }
}

/// Returns the most frequent name; of several, the one with the highest rank.
pub(super) fn most_crowded<'a>(
    names: impl Iterator<Item = &'a str>,
    rank: impl Fn(&str) -> u64,
) -> Option<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts.into_iter().max_by_key(|(name, count)| (*count, rank(name), Reverse(*name))).map(|(name, _)| name)
}

/// Queue with bounded memory and rate, whatever happens on the node.
#[derive(Debug)]
pub(super) struct EventQueue {
    /// Classes, in order of priority.
    classes: BTreeMap<EventClass, ClassQueue>,
    number: u64,
}

impl EventQueue {
    pub(super) fn new(now: Instant) -> EventQueue {
        let classes = [EventClass::Node, EventClass::Bypass, EventClass::Pod];
        EventQueue { classes: classes.map(|class| (class, ClassQueue::new(now))).into(), number: 0 }
    }

    /// Adds an Event, replacing an older one with the same subject and reason. Returns an Event dropped for it, if any.
    pub(super) fn add(&mut self, notice: Notice, is_bypass: bool, now: Instant) -> Option<WaitingEvent> {
        let number = self.next_number();
        let new = WaitingEvent { notice, is_bypass, times: 1, since: now, number };
        let queue = self.classes.get_mut(&new.class())?;
        let Some(older) = queue.waiting.iter_mut().find(|older| new.replaces(older)) else {
            return queue.insert(new, now);
        };
        let times = if older.notice == new.notice { older.times.saturating_add(1) } else { 1 };
        // Keeps its position, so that a constantly changing Event is published, too.
        *older = WaitingEvent { times, number: older.number, ..new };
        None
    }

    /// Requeues an Event that could not be published, unless a newer one is queued.
    pub(super) fn requeue_event(&mut self, failed: WaitingEvent, now: Instant) -> Option<WaitingEvent> {
        let queue = self.classes.get_mut(&failed.class())?;
        match queue.waiting.iter_mut().find(|newer| newer.replaces(&failed)) {
            Some(newer) if newer.notice == failed.notice => {
                newer.times = newer.times.saturating_add(failed.times);
                None
            }
            Some(_) => None,
            None => queue.insert(failed, now),
        }
    }

    /// Removes and returns the Event to publish now, and charges its budgets; or returns when there will be one.
    pub(super) fn next_event(&mut self, now: Instant) -> NextEvent {
        let order = self.next_number();
        for queue in self.classes.values_mut() {
            queue.refill_budgets(now);
            if let Some(place) = queue.next_place() {
                return NextEvent::Publish(queue.remove_event(place, order));
            }
        }
        let next = self.classes.values().filter_map(ClassQueue::allows_at).min();
        next.map_or(NextEvent::Idle, NextEvent::At)
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

#[cfg(test)]
mod tests;
