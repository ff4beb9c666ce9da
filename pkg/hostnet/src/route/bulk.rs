//! Many changes of routes together.

use super::{Route, RouteVerb};
use crate::{Error, RtnetlinkHandle, error::kernel_error};

/// One of many changes of routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// As [`RtnetlinkHandle::add_route`].
    Add(Route),
    /// The route takes the place of the one with the same destination and metric, if there is one, without a moment in which
    /// neither exists. It counts as a change always: the kernel does not tell.
    Replace(Route),
    /// As [`RtnetlinkHandle::delete_route`].
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

    /// Whether this refusal says that there is nothing to change.
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
    /// Makes changes in their order, many with one system call, and tells how many of them changed something. Each
    /// stands for itself, as if it had been made alone: one that is refused does not keep the later ones from being
    /// tried.
    ///
    /// # Errors
    ///
    /// [`Error::ApplyRoutes`] with the first one that was refused, after all have been tried;
    /// [`Error::Kernel`] if the exchange with the kernel fails. Look again what is there before going on.
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
        self.result_of(changes, tally)
    }

    fn result_of(&mut self, changes: &[RouteChange], tally: BulkTally) -> Result<usize, Error> {
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
