//! `prove`: the agent sends packets in a pod.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use node_status::NODE_LEVEL;
use report::{CaptureState, PodState, Proof, RedirectionMode, proofs_status, proofs_text, tables};

use super::{
    command_flags::{ALL, POD_NAMESPACE},
    explain,
    invocation::CommandInvocation,
    output::is_on,
};

const UNDECIDED: &str = "whether it is to be redirected is not known";

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    if is_on(&call.values, &ALL)? {
        return prove_all(call);
    }
    let (namespace, name) = explain::qualified_pod_name(call)?;
    let proof = node_status::prove_pod(&call.settings.debug_socket, &namespace, &name)?;
    call.output.print_value(&proof, |_, colour| proof.render_table(colour))?;
    Ok(ExitCode::from(proof.exit_status()))
}

/// One pod after the other. The agent observes the node before each, and pauses between observations, which bounds the rate.
fn prove_all(call: &CommandInvocation) -> Result<ExitCode> {
    ensure!(call.values.positionals().is_empty(), "--all and a pod cannot be used together");
    let (socket, namespace) = (&call.settings.debug_socket, call.values.flag_text(&POD_NAMESPACE));
    let state = node_status::from_agent(socket, node_status::LIMIT)?;
    let mut proofs = Vec::new();
    for pod in state.pods.iter().filter(|pod| namespace.is_empty() || pod.namespace == namespace) {
        match (pod.mode, pod.capture) {
            (Some(RedirectionMode::Node), _) => proofs.push(untested_pod(pod, NODE_LEVEL)),
            (Some(RedirectionMode::InPod | RedirectionMode::Sidecar), _) => {
                proofs.push(node_status::prove_pod(socket, &pod.namespace, &pod.name)?);
            }
            (None, CaptureState::Unknown) => proofs.push(untested_pod(pod, UNDECIDED)),
            (None, _) => {}
        }
    }
    if !state.knows_all_pods() {
        let why = tables::empty_list_doubts(&state).join(" ");
        proofs.push(Proof::untested(format!("node {}", state.node.name), true, why));
    }
    call.output.print_value(&proofs, |_, colour| proofs_text(&proofs, colour))?;
    Ok(ExitCode::from(proofs_status(&proofs)))
}

fn untested_pod(pod: &PodState, why: &str) -> Proof {
    Proof::untested(format!("{}/{}", pod.namespace, pod.name), true, why.to_owned())
}
