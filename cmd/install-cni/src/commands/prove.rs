//! `prove`: the agent sends packets in a pod.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

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
const LATE: &str = "there was no time for it: prove it alone, or its namespace";
/// No proof of a further pod starts after this time: `millrace` waits 10 min for all of them, and one may take 25 s.
const LATEST: Duration = Duration::from_secs(540);
/// Consecutive requests without a response after which no further one is sent.
const MOST_UNANSWERED: usize = 2;

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    if is_on(&call.values, &ALL)? {
        return prove_all(call);
    }
    let (operands, namespace) = (call.values.positionals(), call.values.flag_text(&POD_NAMESPACE));
    let (namespace, name) = explain::qualified_pod_name(operands, namespace)?;
    let proof = node_status::prove_pod(&call.settings.debug_socket, &namespace, &name)?;
    call.output.print_value(&proof, |_, colour| proof.render_table(colour))?;
    Ok(ExitCode::from(proof.exit_status()))
}

/// Proves one pod after the other. The agent observes the node before each, and pauses between observations, which bounds the rate.
fn prove_all(call: &CommandInvocation) -> Result<ExitCode> {
    ensure!(call.values.positionals().is_empty(), "--all and a pod cannot be used together");
    let (socket, namespace) = (&call.settings.debug_socket, call.values.flag_text(&POD_NAMESPACE));
    let state = node_status::from_agent(socket, node_status::LIMIT)?;
    let is_meant = |pod: &&PodState| {
        (namespace.is_empty() || pod.namespace == namespace)
            && (pod.mode.is_some() || pod.capture == CaptureState::Unknown)
    };
    let pods: Vec<&PodState> = state.pods.iter().filter(is_meant).collect();
    let began = Instant::now();
    let prove = |pod: &PodState| node_status::prove_pod(socket, &pod.namespace, &pod.name);
    let (mut proofs, left) = prove_each(&pods, prove, || began.elapsed() > LATEST);
    let of_node = |why| Proof::untested(format!("node {}", state.node.name), true, why);
    if left > 0 {
        let why = format!("its agent does not answer any more: {left} more pods were not tested");
        proofs.push(of_node(why));
    }
    if !state.knows_all_pods() {
        proofs.push(of_node(tables::empty_list_doubts(&state).join(" ")));
    }
    call.output.print_value(&proofs, |_, colour| proofs_text(&proofs, colour))?;
    Ok(ExitCode::from(proofs_status(&proofs)))
}

/// Returns the proofs, and the number of pods left unproven when the agent stops answering. Completed proofs are kept.
fn prove_each(
    pods: &[&PodState],
    prove: impl Fn(&PodState) -> Result<Proof>,
    is_late: impl Fn() -> bool,
) -> (Vec<Proof>, usize) {
    let (mut proofs, mut unanswered) = (Vec::new(), 0);
    for pod in pods {
        proofs.push(match pod.mode {
            Some(RedirectionMode::Node) => untested_pod(pod, NODE_LEVEL),
            None => untested_pod(pod, UNDECIDED),
            Some(RedirectionMode::InPod | RedirectionMode::Sidecar) if is_late() => untested_pod(pod, LATE),
            Some(RedirectionMode::InPod | RedirectionMode::Sidecar) => {
                let proof = prove(pod);
                unanswered = if proof.is_ok() { 0 } else { unanswered + 1 };
                proof.unwrap_or_else(|error| untested_pod(pod, &model::describe_error(&*error)))
            }
        });
        if unanswered == MOST_UNANSWERED {
            break;
        }
    }
    let left = pods.len() - proofs.len();
    (proofs, left)
}

fn untested_pod(pod: &PodState, why: &str) -> Proof {
    Proof::untested(format!("{}/{}", pod.namespace, pod.name), true, why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::bail;
    use report::{ProofPath, ProofResult};

    use super::*;

    fn pods(modes: &[Option<RedirectionMode>]) -> Vec<PodState> {
        let pod = |(at, mode): (usize, &Option<RedirectionMode>)| PodState {
            name: format!("p{at}"),
            mode: *mode,
            ..PodState::default()
        };
        modes.iter().enumerate().map(pod).collect()
    }

    /// Proves pods whose number is not among the failing ones.
    fn proven(
        pods: &[PodState],
        failing: &[usize],
        is_late: impl Fn() -> bool,
    ) -> (Vec<Option<String>>, usize) {
        let prove = |pod: &PodState| {
            if failing.iter().any(|at| pod.name == format!("p{at}")) {
                bail!("no answer");
            }
            let paths = vec![ProofPath { result: ProofResult::Proven, ..ProofPath::default() }];
            Ok(Proof { found: true, paths, ..Proof::default() })
        };
        let (proofs, left) = prove_each(&pods.iter().collect::<Vec<_>>(), prove, is_late);
        (proofs.into_iter().map(|proof| proof.message).collect(), left)
    }

    #[test]
    fn an_agent_that_does_not_answer_takes_no_proof_away() {
        let some = |text: &str| Some(text.to_owned());
        let all = pods(&[Some(RedirectionMode::InPod); 5]);
        let expected = vec![None, some("no answer"), None, some("no answer"), None];
        assert_eq!(proven(&all, &[1, 3], || false), (expected, 0));
        assert_eq!(proven(&all, &[1, 2], || false), (vec![None, some("no answer"), some("no answer")], 2));
        assert_eq!(proven(&all[..3], &[1, 2], || false).1, 0, "none is left");
    }

    #[test]
    fn pods_for_which_no_time_is_left_are_named() {
        let modes = [RedirectionMode::InPod, RedirectionMode::Sidecar, RedirectionMode::Node].map(Some);
        let (asked, limit) = (Cell::new(0), 1);
        let is_late = || asked.replace(asked.get() + 1) >= limit;
        let some = |text: &str| Some(text.to_owned());
        let expected = vec![None, some(LATE), some(NODE_LEVEL), some(UNDECIDED)];
        assert_eq!(proven(&pods(&[&modes[..], &[None]].concat()), &[], is_late), (expected, 0));
    }
}
