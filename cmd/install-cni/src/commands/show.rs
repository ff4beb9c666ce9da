//! `state`, `list`, `verify` and `plan`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use report::{CaptureState, PodState, tables};
use serde_json::json;

use super::{
    command_flags,
    invocation::{CANNOT, CommandInvocation},
    output::{PROGRAM, is_on},
};

pub(super) fn show_state(call: &CommandInvocation) -> Result<ExitCode> {
    let state = node_status::obtain_report(&call.settings)?;
    call.output.print_value(&state, |_, colour| tables::render_summary(&state, colour))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn list_pods(call: &CommandInvocation) -> Result<ExitCode> {
    let bypassing = is_on(&call.values, &command_flags::BYPASSING)?;
    let selected = match (call.values.flag_text(&command_flags::WITH_STATE), bypassing) {
        ("", false) => None,
        ("", true) => Some(CaptureState::Bypassing),
        (_, true) => bail!("--bypassing and --state cannot be used together"),
        (word, false) => Some(parse_capture_state(word)?),
    };
    let mut state = node_status::obtain_report(&call.settings)?;
    let namespace = call.values.flag_text(&command_flags::NAMESPACE);
    state.pods.retain(|pod| namespace.is_empty() || pod.namespace == namespace);
    let is_selected = |pod: &&PodState| selected.is_none_or(|selected| selected == pod.capture);
    let shown: Vec<&PodState> = state.pods.iter().filter(is_selected).collect();
    call.output.print_value(&shown, |is_wide, colour| tables::pods_table(&state, &shown, is_wide, colour))?;
    Ok(match (bypassing, shown.is_empty()) {
        (true, false) => ExitCode::FAILURE,
        (_, true) => print_unknown(&tables::empty_list_doubts(&state)),
        _ => ExitCode::SUCCESS,
    })
}

fn print_unknown(doubts: &[String]) -> ExitCode {
    for unknown in doubts {
        console::print_message(PROGRAM, &format!("unknown: {unknown}"));
    }
    if doubts.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CANNOT) }
}

fn parse_capture_state(word: &str) -> Result<CaptureState> {
    let known = CaptureState::WORST_FIRST.map(CaptureState::as_str);
    CaptureState::from_name(word)
        .with_context(|| format!("--state: {word:?} must be one of {}", known.join(", ")))
}

pub(super) fn verify_node(call: &CommandInvocation) -> Result<ExitCode> {
    let state = node_status::obtain_report(&call.settings)?;
    let (differences, unknown) = (tables::verification_findings(&state), tables::not_known(&state));
    let equal = differences.is_empty() && unknown.is_empty();
    let value = json!({ "equal": equal, "differences": differences, "unknown": unknown });
    call.output.print_value(&value, |_, colour| tables::differences_table(&state, colour))?;
    Ok(match (differences.is_empty(), equal) {
        (_, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(CANNOT),
        (false, _) => ExitCode::FAILURE,
    })
}

pub(super) fn show_plan(call: &CommandInvocation) -> Result<ExitCode> {
    let state = node_status::obtain_report(&call.settings)?;
    call.output.print_value(&state.plan, |_, colour| tables::render_plan(&state, colour))?;
    Ok(match (state.plan.is_empty(), state.knows_plan()) {
        (true, false) => print_unknown(&tables::empty_list_doubts(&state)),
        (true, true) => ExitCode::SUCCESS,
        (false, _) => ExitCode::FAILURE,
    })
}
