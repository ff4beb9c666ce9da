//! Removal of all our objects from the node, based on what the kernel shows.

use tracing::warn;

use crate::{in_pod, node, settings::CaptureSettings};

/// Removes everything that an agent of any version of ours, with any capture mode, has created. Needs neither facts nor
/// API server. Repeating it changes nothing. Returns a message for each object that could not be removed.
pub fn uninstall(settings: &CaptureSettings) -> Vec<String> {
    let mut problems = node::uninstall(settings);
    problems.extend(in_pod::uninstall(settings));
    problems
}

/// Logs which objects of a capture mode that is no longer used could not be removed.
pub(crate) fn log_errors(left: &[String]) {
    left.iter().for_each(|left| warn!(target: "ambient", error = left, "not removed"));
}
