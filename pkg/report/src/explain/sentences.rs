//! Evidence of an explanation: since when, why, the kernel's state, and what is unknown.

use pod_status::{CaptureState, RedirectionMode};

use super::known::has_no_api;
use crate::{
    pod::{BypassView, PodState, ZtunnelView},
    state::{ChangeRecord, ChangeStatus, Observer, StateReport, Unobserved},
    text::{more_clause, to_clause, to_sentence},
};

/// Maximum number of a pod's changes that are listed.
const MOST_CHANGES: usize = 3;

/// Returns details about the pod. `answer`: the statement, which the details do not repeat.
pub(super) fn describe_pod(state: &StateReport, pod: &PodState, answer: &str) -> Vec<String> {
    let is_new = |text: &&String| !answer.contains(&to_clause(text));
    let mut all = vec![since_sentence(state, pod)];
    all.extend(reason_sentence(pod));
    all.extend(kernel_sentences(pod, answer));
    all.extend(pod.ztunnel.as_ref().and_then(|ztunnel| ztunnel_sentence(ztunnel, pod.capture, answer)));
    all.extend(annotation_sentence(state, pod));
    let unconfirmed = pod.unconfirmed.as_deref().map(to_clause);
    all.extend(unconfirmed.map(|doubt| format!("Not confirmed by the API server: {doubt}.")));
    all.extend(privilege_sentence(pod));
    all.extend(exception_sentences(pod));
    let problem = pod.problem.as_ref().filter(is_new);
    all.extend(problem.map(|problem| format!("Last error: {}.", to_clause(problem))));
    let which = std::iter::once("The last change").chain(std::iter::repeat("Before that"));
    let changes = which.zip(pod_changes(state, pod)).take(MOST_CHANGES);
    all.extend(changes.map(|(which, change)| change_sentence(which, change)));
    all.iter().map(|text| to_sentence(text)).collect()
}

/// Returns the changes of a pod, the newest first, without those of earlier pods of its name.
fn pod_changes<'a>(
    state: &'a StateReport,
    pod: &'a PodState,
) -> impl Iterator<Item = &'a ChangeRecord> + Clone {
    let title = pod.title();
    let is_own = move |change: &&ChangeRecord| {
        change.pod.as_ref() == Some(&title) && is_after_creation(pod, &change.started_at)
    };
    state.history.iter().filter(is_own)
}

/// Returns whether a time is not before the pod's creation, in whole seconds, if that is known.
fn is_after_creation(pod: &PodState, time: &str) -> bool {
    time.get(..19) >= pod.created_at.as_deref().and_then(|created| created.get(..19))
}

fn since_sentence(state: &StateReport, pod: &PodState) -> String {
    let mut changes = pod_changes(state, pod);
    let is_uncaptured =
        matches!(pod.capture, CaptureState::Pending | CaptureState::Bypassing | CaptureState::Held);
    // A change that succeeded did not lead to this state.
    let failed =
        changes.clone().next().filter(|change| is_uncaptured && change.outcome == ChangeStatus::Failed);
    // An earlier agent captured the pod, and this one found it captured. Every start records anew that a ztunnel serves it.
    let is_capture =
        |change: &&ChangeRecord| change.outcome == ChangeStatus::Succeeded && change.cause != "ztunnel";
    let captured = changes.find(is_capture).filter(|_| pod.capture == CaptureState::Captured);
    match (&pod.last_transition_time, failed, captured, &state.node.agent_started_at) {
        (Some(since), ..) => format!("In this state since {since}."),
        (None, Some(change), ..) => {
            let own = change.first_started_at.as_ref().filter(|first| is_after_creation(pod, first));
            let first = own.unwrap_or(&change.started_at);
            format!("In this state at least since {first}, as far as the history goes.")
        }
        (None, None, Some(change), _) => {
            format!("In this state since {}, as far as the history goes.", change.started_at)
        }
        (None, None, None, Some(started)) => {
            format!(
                "Time of the last transition unknown: unchanged since the agent started at {started}, or the change was not observed."
            )
        }
        (None, None, None, None) => {
            "Time of the last transition unknown: only the agent keeps this history.".to_owned()
        }
    }
}

/// Returns why the pod should be captured, or why not; `None` if the statement is the reason.
fn reason_sentence(pod: &PodState) -> Option<String> {
    if matches!(pod.capture, CaptureState::Outside | CaptureState::Leaving) {
        return None;
    }
    let clause = match to_clause(&pod.reason.message) {
        clause if clause.is_empty() => {
            return Some("The reason for its desired state is unknown.".to_owned());
        }
        clause => clause,
    };
    Some(match pod.capture {
        CaptureState::Unknown if pod.mode.is_none() => format!("It should not be captured: {clause}."),
        _ => format!("It should be captured{}: {clause}.", mode_clause(pod.mode)),
    })
}

fn mode_clause(mode: Option<RedirectionMode>) -> &'static str {
    match mode {
        Some(RedirectionMode::Sidecar) => " by its own sidecar",
        Some(RedirectionMode::Node) => " on the node",
        Some(RedirectionMode::InPod) => " in its network namespace",
        None => "",
    }
}

fn bypass_sentence(outside: &BypassView) -> Option<String> {
    let (count, listed) = (outside.count, outside.connections.join(", "));
    let more = more_clause(count.saturating_sub(outside.connections.len()));
    match count {
        0 => None,
        1 => Some(format!(
            "A connection that is older than its capture bypasses the proxy until it closes: {listed}."
        )),
        _ => Some(format!(
            "{count} connections that are older than its capture bypass the proxy until they close: {listed}{more}."
        )),
    }
}

fn kernel_sentences(pod: &PodState, answer: &str) -> Vec<String> {
    let list = |all: &[String]| all.iter().map(|clause_| to_clause(clause_)).collect::<Vec<_>>().join("; ");
    let kernel = &pod.kernel;
    let mut all = Vec::new();
    if let (Some(netns), Some(witness)) = (&kernel.netns, &kernel.netns_witness) {
        all.push(format!("Its network namespace is net:[{}]: {}.", netns.inode, to_clause(witness)));
    }
    let when = kernel.observed_at.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
    if !kernel.observed.is_empty() {
        all.push(format!("The kernel showed{when}: {}.", list(&kernel.observed)));
    }
    let is_answered =
        |differences: &[String]| matches!(differences, [one] if answer.contains(&to_clause(one)));
    if !kernel.differences.is_empty() && !is_answered(&kernel.differences) {
        all.push(format!("Differences from the desired state{when}: {}.", list(&kernel.differences)));
    }
    all.extend(bypass_sentence(&kernel.bypassing_connections));
    match (&kernel.unobserved, &kernel.observed_at) {
        (Some(why), _) if answer.contains(&to_clause(why)) => {}
        (Some(why), _) => all.push(format!("What the kernel has for it is unknown: {}.", to_clause(why))),
        (None, None) if pod.capture != CaptureState::Outside => {
            all.push("The kernel has not been queried for it yet.".to_owned());
        }
        (None, Some(at)) if kernel.observed.is_empty() && kernel.differences.is_empty() => {
            all.push(format!("The kernel had none of the agent's objects for it at {at}."));
        }
        _ => {}
    }
    all
}

fn ztunnel_sentence(ztunnel: &ZtunnelView, capture: CaptureState, answer: &str) -> Option<String> {
    Some(match (&ztunnel.error, ztunnel.acknowledged) {
        (Some(why), _) if answer.contains(&to_clause(why)) => return None,
        (Some(why), _) => format!("ztunnel reported: {}.", to_clause(why)),
        (None, true) => "The pod is served by ztunnel, which has acknowledged it.".to_owned(),
        (None, false) if capture == CaptureState::Leaving => {
            "The pod is not served by ztunnel any more.".to_owned()
        }
        (None, false) => "The pod is not served by ztunnel: it has not acknowledged it.".to_owned(),
    })
}

/// Describes a pod with enough privilege to remove its own capture.
fn privilege_sentence(pod: &PodState) -> Option<String> {
    let may = match pod.privilege.as_deref()? {
        "privileged" => "One of its containers is privileged",
        "net-admin" => "One of its containers has NET_ADMIN",
        "net-raw" => "One of its containers asks for NET_RAW",
        _ => return None,
    };
    Some(format!("{may}: with that, it can bypass the mesh."))
}

fn exception_sentences(pod: &PodState) -> Vec<String> {
    let applied = (!pod.exceptions.is_empty())
        .then(|| format!("Outside by intent, as annotations ask for it: {}.", pod.exceptions.join("; ")));
    let refused =
        pod.refused_exceptions.iter().map(|refused| format!("Not applied: {}.", to_clause(refused)));
    applied.into_iter().chain(refused).collect()
}

fn annotation_sentence(state: &StateReport, pod: &PodState) -> Option<String> {
    let ambient = matches!(pod.mode, Some(RedirectionMode::Node | RedirectionMode::InPod));
    match &pod.redirection_annotation {
        _ if pod.reason.code == "opted-out" => None, // the statement has it
        Some(value) => Some(format!("Its annotation ambient.istio.io/redirection is {value}.")),
        None if ambient && !has_no_api(state) && state.observation.observer == Observer::Agent => {
            Some("It has no annotation ambient.istio.io/redirection.".to_owned())
        }
        None => None,
    }
}

fn change_sentence(which: &str, change: &ChangeRecord) -> String {
    let what = format!("{}, because of: {}", to_clause(&change.action), to_clause(&change.cause));
    let took =
        if change.duration_ms < 0.05 { String::new() } else { format!(" ({:.1} ms)", change.duration_ms) };
    let times = change.repeats_text().map_or_else(String::new, |times| format!(" ({times})"));
    let when = format!("{which}, at {}{times}", change.started_at);
    match (&change.error, change.outcome) {
        (Some(error), _) => format!("{when}: {what}; it failed: {}.", to_clause(error)),
        (None, ChangeStatus::Failed) => format!("{when}: {what}; it failed."),
        (None, ChangeStatus::Succeeded) => format!("{when}: {what}{took}."),
    }
}

/// Returns sentences about what could not be observed when the document was made.
pub(crate) fn describe_unobserved(state: &StateReport) -> Vec<String> {
    let describe = |Unobserved { description, message, .. }: &Unobserved| {
        to_sentence(&format!("Unknown: {}, because: {}", to_clause(description), to_clause(message)))
    };
    state.observation.unobserved.iter().map(describe).collect()
}
