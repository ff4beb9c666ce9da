//! Removes everything of ours from the node, by what the kernel shows.

use tracing::warn;

use crate::{in_pod, node, settings::CaptureSettings};

/// Removes everything that an agent, of whatever version of ours and with whatever capture mode, has made. It needs neither
/// facts nor API server. Repeating it changes nothing. Returns what could not be removed, as sentences.
pub fn uninstall(settings: &CaptureSettings) -> Vec<String> {
    let mut problems = node::uninstall(settings);
    problems.extend(in_pod::uninstall(settings));
    problems
}

/// Logs what could not be removed of a capture mode that is no longer used.
pub(crate) fn log_errors(left: &[String]) {
    left.iter().for_each(|left| warn!(target: "ambient", error = left, "not removed"));
}
