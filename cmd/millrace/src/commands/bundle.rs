//! `bundle`: one archive of all nodes with everything needed to diagnose a fault elsewhere.

use std::{collections::BTreeMap, io, process::ExitCode, time::SystemTime};

use ::bundle::{Archive, redact};
use anyhow::{Context as _, Result};
use cluster_report::{Cluster, NodeMessage, Pod, check, check_text, partial_text};
use report::{PodState, StateReport, tables};

use crate::{
    arguments::Options,
    discovery::agents_by_node,
    gather::ClusterSource,
    output::{self, CANNOT},
};

/// Last lines of agents, by node.
type AgentLogs = BTreeMap<String, Result<String, String>>;

/// Maximum length of a node's name: names in an archive have at most 100 bytes.
const MAX_NODE: usize = 48;
const README: &str = "State of a cluster, as its agents reported it when the bundle was written. Credentials have been removed.

check.txt, check.json    the cluster checked
nodes.txt                which directory is of which node, and which nodes did not answer
nodes/N/state.json       everything that the node's agent knows, as /debug/state has it
nodes/N/summary.txt      a summary of the node
nodes/N/pods.txt         its pods, worst first
nodes/N/differences.txt  what is not as desired, and what is not known
nodes/N/agent.log        the agent's last lines
";

pub(super) async fn run(options: &Options, file: Option<&str>, node: Option<&str>) -> Result<ExitCode> {
    console::check_terminal(file.unwrap_or_default())?;
    let source = ClusterSource::open(options).await?;
    let cluster = source.read_cluster(None, node).await?;
    let now = SystemTime::now();
    let stamp: String =
        agent_protocol::rfc3339(now).chars().filter(char::is_ascii_alphanumeric).take(15).collect();
    let name = format!("millrace-{stamp}");
    let logs = agent_logs(&source, &cluster).await;
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let archive = pack_archive(&name, &cluster, &logs, seconds).context("cannot make the archive")?;
    let default = format!("{name}.tar.gz");
    console::write_archive(Some(file.unwrap_or(&default)).filter(|file| *file != "-"), &archive)?;
    let unanswered = cluster.unanswered_nodes();
    output::print_message(&partial_text(&unanswered));
    Ok(if cluster.state_reports().next().is_some() { ExitCode::SUCCESS } else { ExitCode::from(CANNOT) })
}

/// Returns the last log lines of each agent that answered, by node, or why they are unknown.
async fn agent_logs(source: &ClusterSource<'_>, cluster: &Cluster) -> AgentLogs {
    let answered = |node: &str| cluster.answers.get(node).is_some_and(Result::is_ok);
    let agents = agents_by_node(&cluster.agents).into_iter().filter(|(node, _)| answered(node));
    let agents: Vec<Pod> = agents.map(|(_, agent)| agent.clone()).collect();
    source.ask_each_node(&agents, async |query, agent| query.log_lines(agent).await).await
}

fn pack_archive(name: &str, cluster: &Cluster, logs: &AgentLogs, time: u64) -> io::Result<Vec<u8>> {
    let mut archive = Archive::new(name, time);
    let report = check(cluster);
    archive.add_file("README.txt", README)?;
    archive.add_file("check.txt", &redact::text(&check_text(&report, true, false)))?;
    archive.add_file("check.json", &redact::json(&report))?;
    archive.add_file("nodes.txt", &redact::text(&node_names(cluster)))?;
    for (at, (node, state)) in cluster.state_reports().enumerate() {
        let directory = format!("nodes/{}", node_directory(at, node));
        add_node(&mut archive, &directory, state)?;
        let lines = match logs.get(node) {
            Some(Ok(lines)) => redact::text(lines),
            Some(Err(why)) => redact::text(&format!("its last lines are unknown: {why}\n")),
            None => continue,
        };
        archive.add_file(&format!("{directory}/agent.log"), &lines)?;
    }
    archive.finish()
}

fn add_node(archive: &mut Archive, directory: &str, state: &StateReport) -> io::Result<()> {
    let pods: Vec<&PodState> = state.pods.iter().collect();
    for (name, text) in [
        ("state.json", redact::json(state)),
        ("summary.txt", redact::text(&tables::render_summary(state, false))),
        ("pods.txt", redact::text(&tables::pods_table(state, &pods, true, false))),
        ("differences.txt", redact::text(&tables::differences_table(state, false))),
    ] {
        archive.add_file(&format!("{directory}/{name}"), &text)?;
    }
    Ok(())
}

/// Returns a directory name; the number distinguishes long names with a common prefix.
fn node_directory(at: usize, node: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let node: String = node.chars().filter(plain).take(MAX_NODE).collect();
    format!("{at:04}-{node}")
}

fn node_names(cluster: &Cluster) -> String {
    let answered = cluster
        .state_reports()
        .enumerate()
        .map(|(at, (node, _))| format!("{}  {node}\n", node_directory(at, node)));
    let silent = cluster.unanswered_nodes().into_iter().map(|NodeMessage { node, message }| {
        format!("did not answer  {node}: {}\n", report::sanitize_text(&message))
    });
    answered.chain(silent).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_archive_has_every_node_and_no_credential() {
        let node = "n".repeat(253);
        let mut state = StateReport::default();
        state.node.problem = Some("token: abc".to_owned());
        let mut cluster = Cluster::default();
        cluster.answers.insert(node.clone(), Ok(state));
        cluster.answers.insert("quiet".to_owned(), Err("no answer".to_owned()));
        let logs = AgentLogs::from([(node, Ok("Authorization: Bearer abc\n".to_owned()))]);
        let archive = pack_archive("millrace-20261121T010000", &cluster, &logs, 0).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(archive.as_slice()).read_to_string(&mut text).unwrap();
        assert!(
            text.contains("nodes/0000-nnn") && text.contains("/state.json") && text.contains("/agent.log")
        );
        assert!(text.contains("did not answer  quiet: no answer"));
        assert!(text.contains("[removed]") && !text.contains("abc"), "{text}");
    }
}
