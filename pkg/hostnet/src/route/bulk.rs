//! Bulk changes of routes.

use super::{Route, RouteVerb};
use crate::{Error, RtnetlinkHandle, error::kernel_error};

/// One change of a bulk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Like [`RtnetlinkHandle::add_route`].
    Add(Route),
    /// Atomically replaces the route with the same destination and metric, if there is one. Always counts as a change,
    /// because the kernel does not report whether it was one.
    Replace(Route),
    /// Like [`RtnetlinkHandle::delete_route`].
    Delete(Route),
}

impl RouteChange {
    const fn verb_and_route(&self) -> (RouteVerb, &Route) {
        match self {
            Self::Add(route) => (RouteVerb::Add, route),
            Self::Replace(route) => (RouteVerb::Replace, route),
            Self::Delete(route) => (RouteVerb::Delete, route),
        }
    }

    /// Returns whether this error means that there is nothing to change.
    fn finds_it_so(&self, refused: &netlink::Error) -> bool {
        refused.errno().is_some_and(|errno| self.verb_and_route().0.ignored_errors().contains(&errno))
    }
}

/// Counts of the results so far, and the first refusal.
#[derive(Default)]
struct BulkTally {
    applied: usize,
    failed: usize,
    first: Option<(usize, netlink::Error)>,
}

impl RtnetlinkHandle {
    /// Sends changes in order, many with one system call, and returns how many had an effect. Each is independent: a
    /// refused one does not keep later ones from being attempted.
    ///
    /// # Errors
    ///
    /// [`Error::ApplyRoutes`] with the first one that was refused, after all have been attempted; [`Error::Kernel`] if
    /// the exchange with the kernel fails. Read the routes again before further changes.
    pub fn apply_routes(&mut self, changes: &[RouteChange]) -> Result<usize, Error> {
        let requests = changes.iter().map(|change| {
            let (verb, route) = change.verb_and_route();
            verb.to_request(route)
        });
        let step = format_args!("change {} routes together", changes.len());
        let outcomes = self.socket.send_batch(requests).map_err(|source| kernel_error(step, source))?;
        let mut tally = BulkTally::default();
        for (index, (change, outcome)) in changes.iter().zip(outcomes).enumerate() {
            tally.count_outcome(index, change, outcome);
        }
        self.bulk_result(changes, tally)
    }

    fn bulk_result(&mut self, changes: &[RouteChange], tally: BulkTally) -> Result<usize, Error> {
        let BulkTally { applied, failed, first } = tally;
        let Some((index, source)) = first else { return Ok(applied) };
        let change = changes.get(index).map_or_else(String::new, |change| self.describe_change(change));
        Err(Error::ApplyRoutes { change, index, count: changes.len(), applied, failed, source })
    }

    fn describe_change(&mut self, change: &RouteChange) -> String {
        let (verb, route) = change.verb_and_route();
        format!("{} route {}", verb.as_str(), self.describe_route(route))
    }
}

impl BulkTally {
    fn count_outcome(&mut self, index: usize, change: &RouteChange, outcome: Result<(), netlink::Error>) {
        match outcome {
            Ok(()) => self.applied += 1,
            Err(refused) if change.finds_it_so(&refused) => {}
            Err(refused) => {
                self.failed += 1;
                let _ = self.first.get_or_insert((index, refused));
            }
        }
    }
}
