//! Bulk changes of routes.

use super::{Route, RouteVerb};
use crate::{Error, RtnetlinkHandle, error::kernel_error};

/// One change of a bulk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Atomically replaces the route with the same destination and metric, if there is one. Always counts as a change,
    /// because the kernel does not report whether it was one.
    Replace(Route),
    /// Like [`RtnetlinkHandle::delete_route`].
    Delete(Route),
}

impl RouteChange {
    const fn verb_and_route(&self) -> (RouteVerb, &Route) {
        match self {
            Self::Replace(route) => (RouteVerb::Replace, route),
            Self::Delete(route) => (RouteVerb::Delete, route),
        }
    }
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
        let parts = || changes.iter().map(RouteChange::verb_and_route);
        let requests = parts().map(|(verb, route)| verb.to_request(route));
        let step = format_args!("change {} routes together", changes.len());
        let outcomes = self.socket.send_batch(requests).map_err(|source| kernel_error(step, source))?;
        let (mut applied, mut refused) = (0, Vec::new());
        for (index, ((verb, route), outcome)) in parts().zip(outcomes).enumerate() {
            match outcome {
                Ok(()) => applied += 1,
                Err(error) if error.errno().is_some_and(|errno| verb.ignored_errors().contains(&errno)) => {}
                Err(error) => refused.push((index, verb, route, error)),
            }
        }
        let failed = refused.len();
        let Some((index, verb, route, source)) = refused.into_iter().next() else { return Ok(applied) };
        let change = self.describe_change(verb, route);
        Err(Error::ApplyRoutes { change, index, count: changes.len(), applied, failed, source })
    }
}
