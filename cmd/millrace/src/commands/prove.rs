//! `prove`: has the agent of the pod's node send packets in the pod.

use std::process::ExitCode;

use anyhow::Result;
use report::PodVerdict;

use super::explain::{PodAgent, Unlocated, locate};
use crate::{
    arguments::Options,
    gather::ClusterSource,
    output::{CANNOT, Printer},
};

pub(super) async fn run(options: &Options, word: &str, namespace: Option<&str>) -> Result<ExitCode> {
    let source = ClusterSource::open(options).await?;
    let found = match locate(&source, options, word, namespace).await? {
        Ok(found) => found,
        Err(Unlocated::NoSuchPod) => return Ok(ExitCode::from(PodVerdict::NotFound.status())),
        Err(Unlocated::Unscheduled | Unlocated::NoAgent) => return Ok(ExitCode::from(CANNOT)),
    };
    let PodAgent { namespace, name, node, agent } = &found;
    let proof = source.query().prove(agent, namespace, name).await;
    let proof = proof.map_err(|error| found.unanswered(error))?;
    Printer::new(options).print(&proof, |_, colour| format!("{}\nNode: {node}\n", proof.text(colour)))?;
    Ok(ExitCode::from(proof.status()))
}
