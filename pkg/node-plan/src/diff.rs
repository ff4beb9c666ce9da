//! Differences between lists.

use super::state::PathRoute;

/// Returns the elements of `these` that are not among `those`.
pub(super) fn missing_elements<T: PartialEq + Clone>(these: &[T], those: &[T]) -> Vec<T> {
    these.iter().filter(|this| !those.contains(this)).cloned().collect()
}

/// Returns the routes of `observed` whose key no route of `desired` has.
pub(super) fn stale_routes(desired: &[PathRoute], observed: &[PathRoute]) -> Vec<PathRoute> {
    let keys: std::collections::BTreeSet<_> = desired.iter().map(PathRoute::key).collect();
    observed.iter().filter(|route| !keys.contains(&route.key())).cloned().collect()
}

/// Returns the routes of `desired` that are missing or different in `observed`.
pub(super) fn changed_routes(desired: &[PathRoute], observed: &[PathRoute]) -> Vec<PathRoute> {
    let there: std::collections::BTreeSet<_> = observed.iter().collect();
    desired.iter().filter(|route| !there.contains(route)).cloned().collect()
}
