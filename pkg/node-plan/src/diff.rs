//! Differences between lists.

use std::collections::BTreeSet;

use super::state::PathRoute;

/// Returns the elements of `these` that are not among `those`.
pub(super) fn missing_elements<T: Ord + Clone>(these: &[T], those: &[T]) -> Vec<T> {
    let those: BTreeSet<_> = those.iter().collect();
    these.iter().filter(|this| !those.contains(this)).cloned().collect()
}

/// Returns the routes of `observed` whose key no route of `desired` has.
pub(super) fn stale_routes(desired: &[PathRoute], observed: &[PathRoute]) -> Vec<PathRoute> {
    let keys: BTreeSet<_> = desired.iter().map(PathRoute::key).collect();
    observed.iter().filter(|route| !keys.contains(&route.key())).cloned().collect()
}
