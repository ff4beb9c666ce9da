//! `prove`: makes the agent of the pod's node send packets in the pod.

use std::process::ExitCode;

use anyhow::Result;
use cluster_report::NodeMessage;
use report::{PodVerdict, Proof, proofs_status, proofs_text};

use super::{
    explain::{PodAgent, locate_pod_agent},
    print_partial,
};
use crate::{
    arguments::Options,
    gather::ClusterSource,
    output::{self, CANNOT},
};

/// Proves every mesh pod; of one namespace or one node, if given.
///
/// # Errors
/// The agents cannot be found, or the result cannot be printed.
pub(super) async fn run_all(
    options: &Options,
    namespace: Option<&str>,
    node: Option<&str>,
) -> Result<ExitCode> {
    let (answers, unread) = ClusterSource::open(options).await?.query_proofs(namespace, node).await?;
    let (mut proofs, mut unanswered): (Vec<Proof>, _) = (Vec::new(), Vec::new());
    let has_agents = !answers.is_empty();
    for (node, answer) in answers {
        match answer {
            Ok(proven) => proofs.extend(proven),
            Err(why) => unanswered.push(NodeMessage { node, message: why }),
        }
    }
    let is_partial = !has_agents || !unanswered.is_empty() || !unread.is_empty();
    output::new_printer(options).print_value(&proofs, |_, colour| match proofs.is_empty() && is_partial {
        true => "Unknown: not every node answered.\n".to_owned(),
        false => proofs_text(&proofs, colour),
    })?;
    print_partial(&unanswered, &unread);
    if !has_agents {
        output::print_message("no agent was found");
    }
    Ok(match proofs_status(&proofs) {
        0 if is_partial => ExitCode::from(CANNOT),
        status => ExitCode::from(status),
    })
}

pub(super) async fn run(options: &Options, word: &str, namespace: Option<&str>) -> Result<ExitCode> {
    let source = ClusterSource::open(options).await?;
    let found = match locate_pod_agent(&source, word, namespace).await? {
        Ok(found) => found,
        Err(PodVerdict::NotFound) => return Ok(ExitCode::from(PodVerdict::NotFound.exit_status())),
        Err(_) => return Ok(ExitCode::from(CANNOT)),
    };
    let PodAgent { namespace, name, node, agent, .. } = &found;
    let proof = source.agent_query().prove_pod(agent, namespace, name).await;
    let proof = proof.map_err(|error| found.no_answer_error(error))?;
    output::new_printer(options)
        .print_value(&proof, |_, colour| format!("{}\nNode: {node}\n", proof.render_table(colour)))?;
    // The API server has the pod, also if its agent does not know it.
    Ok(ExitCode::from(if proof.found { proof.exit_status() } else { CANNOT }))
}
