//! Determines which nodes are handled next, and when a failed one is retried. Pure computation; the caller passes the time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use retry::{Attempts, Backoff};

/// The delay before the first retry after a failure; it doubles with each further one, up to the maximum.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);

/// Nodes to handle, each once however often it is marked.
#[derive(Debug, Default)]
pub struct TaintQueue(BTreeMap<String, QueuedNode>);

#[derive(Debug)]
struct QueuedNode {
    /// `None`: the node is being handled.
    due: Option<Instant>,
    attempts: Attempts,
}

impl TaintQueue {
    /// Queues a node that needs a change, unless it is already waiting or being handled.
    pub fn mark_pending(&mut self, node: &str, now: Instant) {
        let new = || QueuedNode { due: Some(now), attempts: BACKOFF.start_attempts() };
        self.0.entry(node.to_owned()).or_insert_with(new);
    }

    /// Takes the node that has been due for the longest time, and marks it as being handled.
    pub fn take_due(&mut self, now: Instant) -> Option<String> {
        let due = self.0.iter_mut().filter_map(|(node, queued)| Some((queued.due?, node, queued)));
        let (due, node, queued) = due.min_by_key(|(due, ..)| *due)?;
        if due > now {
            return None;
        }
        queued.due = None;
        Some(node.clone())
    }

    /// Returns when the next node is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.0.values().filter_map(|queued| queued.due).min()
    }

    /// Records that a node needs no further change, or was deleted.
    pub fn record_success(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// Records that an attempt failed, or that a watch has not shown its result yet: the node is handled again later.
    pub fn schedule_retry(&mut self, node: &str, now: Instant) {
        if let Some(queued) = self.0.get_mut(node) {
            queued.due = Some(now + queued.attempts.record_failure());
        }
    }

    /// Whether no node is waiting or being handled.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the nodes that are waiting or being handled.
    pub fn pending_nodes(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_taken_once_and_the_oldest_first() {
        let (mut queue, start) = (TaintQueue::default(), Instant::now());
        let later = start + Duration::from_secs(1);
        queue.mark_pending("b", start);
        queue.mark_pending("a", later);
        queue.mark_pending("b", later);
        assert_eq!(queue.next_due(), Some(start));
        assert_eq!(
            [start, start, later, later].map(|now| queue.take_due(now)),
            [Some("b".to_owned()), None, Some("a".to_owned()), None]
        );
        queue.mark_pending("a", later);
        assert_eq!((queue.take_due(later), queue.next_due()), (None, None), "it is being handled");
        queue.record_success("a");
        assert_eq!(queue.pending_nodes().collect::<Vec<_>>(), ["b"]);
        queue.record_success("b");
        assert!(queue.is_empty());
    }

    #[test]
    fn a_failed_node_waits_longer_each_time_whatever_happens_to_it() {
        let (mut queue, mut now) = (TaintQueue::default(), Instant::now());
        queue.mark_pending("a", now);
        let mut delays = Vec::new();
        for _ in 0..11 {
            assert!(queue.take_due(now).is_some());
            queue.schedule_retry("a", now);
            queue.mark_pending("a", now);
            let due = queue.next_due().unwrap();
            delays.push((due - now).as_millis());
            assert_eq!(queue.take_due(now), None);
            now = due;
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        queue.record_success("a");
        queue.mark_pending("a", now);
        assert_eq!(queue.next_due(), Some(now));
        queue.schedule_retry("gone", now);
        assert_eq!(queue.pending_nodes().collect::<Vec<_>>(), ["a"]);
    }
}
