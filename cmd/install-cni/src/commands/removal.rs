//! `uninstall --dry-run`: everything that an uninstallation would remove.

use std::process::ExitCode;

use anyhow::Result;
use console::Printer;
use report::{CaptureState, Comparison, PodState, RedirectionMode, StateReport, sanitize_text, tables};
use serde::Serialize;

/// Everything to be removed, as plain text and in the notation of the kernel's own tools.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct RemovalPlan {
    files: Vec<String>,
    network: Vec<String>,
    pods: Vec<String>,
    unknown: Vec<String>,
}

/// Prints the removal plan. `files`: those to be removed, and those of which that is unknown; `None`: as the document has them.
///
/// # Errors
/// The plan cannot be printed.
pub(crate) fn print_plan(
    state: &StateReport,
    files: Option<(Vec<String>, Vec<String>)>,
    output: Printer,
) -> Result<ExitCode> {
    let removal = RemovalPlan::new(state, files);
    output.print_value(&removal, |_, _| removal.to_table())?;
    Ok(if removal.unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl RemovalPlan {
    fn new(state: &StateReport, files: Option<(Vec<String>, Vec<String>)>) -> RemovalPlan {
        let network = &state.network;
        let mut all = observed_objects(&network.firewall);
        all.extend(observed_objects(&network.ipsets));
        all.extend(observed_objects(&network.rules));
        all.extend(observed_objects(&network.routes));
        all.extend(observed_objects(&network.links));
        for setting in network.sysctls.observed.iter().flatten() {
            if let Some(before) = &setting.previous_value {
                all.push(format!("{setting}, set back to {before}"));
            }
        }
        let documented = state.installation.iter();
        let documented = documented.map(|file| format!("{} {}: {}", file.kind, file.path, file.message));
        let (files, mut unknown) = files.unwrap_or_else(|| (documented.collect(), Vec::new()));
        unknown.extend(tables::unobserved_parts(state));
        let pods = state.pods.iter().filter(|pod| may_have_rules(pod));
        let pods =
            pods.map(|pod| format!("rules and the policy route in the network namespace of {}", pod.title()));
        let cleaned = |all: Vec<String>| all.iter().map(|text| sanitize_text(text)).collect();
        RemovalPlan {
            files: cleaned(files),
            network: cleaned(all),
            pods: cleaned(pods.collect()),
            unknown: cleaned(unknown),
        }
    }

    fn to_table(&self) -> String {
        let mut text = String::new();
        let parts = [("Files", &self.files), ("Network of the node", &self.network), ("Pods", &self.pods)];
        for (title, list) in parts.into_iter().chain([("Unknown", &self.unknown)]) {
            if !list.is_empty() {
                text.extend([title, ":\n"]);
                text.extend(list.iter().map(|line| format!("  {line}\n")));
            }
        }
        let nothing = parts.iter().all(|(_, list)| list.is_empty());
        let end = match (nothing, self.unknown.is_empty()) {
            (true, true) => "Nothing to remove.",
            (true, false) => "Unknown whether there is something to remove.",
            (false, _) => "Nothing was changed.",
        };
        format!("{text}{end}\n")
    }
}

/// Whether a pod may have rules of in-pod capture.
fn may_have_rules(pod: &PodState) -> bool {
    match (pod.mode, pod.capture) {
        (Some(RedirectionMode::InPod), CaptureState::Outside | CaptureState::Pending) => {
            !pod.kernel.observed.is_empty()
        }
        (Some(RedirectionMode::InPod), _) => true,
        (None, CaptureState::Leaving) => pod.kernel.netns.is_some(), // known with in-pod capture only
        _ => false,
    }
}

/// Returns our objects that exist in the kernel.
fn observed_objects<T: std::fmt::Display>(compared: &Comparison<T>) -> Vec<String> {
    compared.observed.iter().flatten().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use report::{KernelView, NetnsRef};

    use super::*;

    #[test]
    fn pods_that_leave_the_mesh_or_whose_rules_do_not_stay_are_listed() {
        use CaptureState::{Captured, Leaving, Pending};
        let found = KernelView { netns: Some(NetnsRef::default()), ..KernelView::default() };
        let ruled = KernelView { observed: vec!["its rules".to_owned()], ..found.clone() };
        let in_pod = Some(RedirectionMode::InPod);
        for (mode, capture, kernel, expected) in [
            (in_pod, Captured, KernelView::default(), true),
            (in_pod, Pending, ruled, true),
            (in_pod, Pending, found.clone(), false),
            (None, Leaving, found.clone(), true),
            (None, Leaving, KernelView::default(), false),
            (Some(RedirectionMode::Sidecar), Captured, found, false),
        ] {
            let pod = PodState { mode, capture, kernel, ..PodState::default() };
            assert_eq!(may_have_rules(&pod), expected, "{pod:?}");
        }
    }
}
