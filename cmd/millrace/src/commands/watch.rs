//! `watch`: state changes, one per line.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use cluster_report::Cluster;
use console::Printer;
use report::{NodeWatch, StateChange};

use crate::{
    arguments::Options,
    gather::ClusterSource,
    output::{self, CANNOT},
};

pub(super) async fn run(
    options: &Options,
    duration: Option<Duration>,
    interval: Duration,
    namespace: Option<&str>,
    node: Option<&str>,
) -> Result<ExitCode> {
    let source = ClusterSource::open(options).await?;
    let end = duration.map(|duration| Instant::now() + duration);
    let (printer, mut watch) = (output::new_printer(options), ClusterWatch::default());
    let (mut heard, mut is_alone) = (false, false);
    loop {
        let began = Instant::now();
        let lines = match source.query_states(node).await {
            Ok(cluster) => {
                heard |= cluster.state_reports().next().is_some();
                if cluster.answers.is_empty() && !std::mem::replace(&mut is_alone, true) {
                    output::print_message("no agent was found");
                }
                watch.detect_changes(&cluster)
            }
            Err(error) => watch.record_api_error(&model::describe_error(&*error)),
        };
        for (node, change) in &lines {
            let is_meant = namespace.is_none_or(|namespace| change.concerns_namespace(namespace));
            if is_meant && !print_change(printer, node, change)? {
                return Ok(ExitCode::SUCCESS); // nobody reads on
            }
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        let next = end.map_or(began + interval, |end| end.min(began + interval));
        tokio::time::sleep(next.saturating_duration_since(Instant::now())).await;
    }
    Ok(if heard && !watch.is_silent() { ExitCode::SUCCESS } else { ExitCode::from(CANNOT) })
}

/// Name of a node, empty for the cluster, and a change there.
type NodeChange = (String, StateChange);

#[derive(Default)]
struct ClusterWatch {
    nodes: BTreeMap<String, NodeWatch>,
    /// Nodes whose agent has answered, and on which none runs any more.
    gone: BTreeSet<String>,
    /// Error of the API server, as last printed.
    lost: Option<String>,
}

impl ClusterWatch {
    fn record_api_error(&mut self, why: &str) -> Vec<NodeChange> {
        if self.lost.as_deref() == Some(why) {
            return Vec::new();
        }
        self.lost = Some(why.to_owned());
        vec![(String::new(), StateChange::for_node("cluster", why.to_owned()))]
    }

    /// Whether the API server, or an agent that answered before, did not answer the last time.
    fn is_silent(&self) -> bool {
        let is_silent = |node: &NodeWatch| node.has_answered() && node.is_silent();
        self.lost.is_some() || !self.gone.is_empty() || self.nodes.values().any(is_silent)
    }

    fn detect_changes(&mut self, cluster: &Cluster) -> Vec<NodeChange> {
        let mut lines = Vec::new();
        if self.lost.take().is_some() {
            lines.push((
                String::new(),
                StateChange::for_node("cluster", "the API server answers again".to_owned()),
            ));
        }
        for (node, answer) in &cluster.answers {
            let changes = self.nodes.entry(node.clone()).or_default().record_answer(answer.clone());
            lines.extend(changes.into_iter().map(|change| (node.clone(), change)));
        }
        let is_gone = |node: &String, watch: &mut NodeWatch| {
            watch.has_answered() && !cluster.answers.contains_key(node)
        };
        self.gone.retain(|node| !cluster.answers.contains_key(node));
        for (node, _) in self.nodes.extract_if(.., is_gone) {
            self.gone.insert(node.clone());
            lines.push((node, StateChange::for_node("agent", "no agent runs here any more".to_owned())));
        }
        lines
    }
}

/// Prints a change; returns false if nobody reads it.
fn print_change(printer: Printer, node: &str, change: &StateChange) -> Result<bool> {
    let time = agent_protocol::rfc3339(SystemTime::now());
    let mut value = change.to_json(&time);
    if let Some(members) = value.as_object_mut() {
        members.insert("node".to_owned(), node.into());
    }
    let node = if node.is_empty() { "-" } else { node };
    printer.print_event(&value, &format!("{}  {}", report::sanitize_text(node), change.to_line(&time)))
}

#[cfg(test)]
mod tests {
    use report::StateReport;

    use super::*;

    fn cluster(answer: Result<StateReport, String>) -> Cluster {
        Cluster { answers: BTreeMap::from([("n1".to_owned(), answer)]), ..Cluster::default() }
    }

    fn words(lines: &[NodeChange]) -> Vec<String> {
        lines.iter().map(|(node, change)| format!("{node} {}", change.to_line("T").trim_end())).collect()
    }

    #[test]
    fn one_namespace_has_its_own_pods_and_whether_they_are_observed() {
        let mut watch = ClusterWatch::default();
        let pod = |namespace: &str| report::PodState {
            namespace: namespace.to_owned(),
            name: "web".to_owned(),
            capture: report::CaptureState::Bypassing,
            ..report::PodState::default()
        };
        let pods = vec![pod("shop"), pod("shopping")];
        let mut lines = watch.detect_changes(&cluster(Ok(StateReport { pods, ..StateReport::default() })));
        lines.extend(watch.detect_changes(&cluster(Err("no answer".to_owned()))));
        lines.extend(watch.record_api_error("refused"));
        lines.retain(|(_, change)| change.concerns_namespace("shop"));
        let kinds = words(&lines).into_iter().map(|line| line.split_whitespace().nth(2).unwrap().to_owned());
        assert_eq!(kinds.collect::<Vec<_>>(), ["pod", "agent", "refused"]);
    }

    #[test]
    fn a_node_is_reported_when_it_falls_silent_and_when_it_answers_again() {
        let mut watch = ClusterWatch::default();
        let well = || cluster(Ok(StateReport::default()));
        let silent = || cluster(Err("no answer".to_owned()));
        assert_eq!(watch.detect_changes(&well()).len(), 1, "the beginning");
        assert_eq!(watch.detect_changes(&well()), Vec::new());
        assert_eq!(
            words(&watch.detect_changes(&silent())),
            ["n1 T  agent       the agent does not answer: no answer"]
        );
        assert_eq!(watch.detect_changes(&silent()), Vec::new(), "once");
        assert!(watch.is_silent(), "nothing is known of the node now");
        assert_eq!(words(&watch.detect_changes(&well())), ["n1 T  agent       the agent answers again"]);
        assert!(!watch.is_silent());
        assert_eq!(watch.detect_changes(&Cluster::default()).len(), 1);
        assert_eq!(watch.detect_changes(&Cluster::default()), Vec::new());
        assert!(watch.is_silent(), "no agent runs there, so nothing is known of it either");
        assert_eq!(watch.detect_changes(&well()).len(), 1, "a new one does");
        assert!(!watch.is_silent());
        assert_eq!(watch.record_api_error("refused").len(), 1);
        assert!(watch.is_silent());
        assert_eq!(watch.record_api_error("refused"), Vec::new());
        assert_eq!(watch.detect_changes(&well()).len(), 1);
    }
}
