//! `watch`: what changes, line by line.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use cluster_report::Cluster;
use console::Printer;
use report::{StateChange, StateReport, state_changes};

use crate::{
    arguments::Options,
    gather::ClusterSource,
    output::{self, CANNOT},
};

/// Namespace and node to which the watch is restricted; `None` means all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Only<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) node: Option<&'a str>,
}

pub(super) async fn run(
    options: &Options,
    duration: Option<Duration>,
    interval: Duration,
    only: Only<'_>,
) -> Result<ExitCode> {
    let source = ClusterSource::open(options).await?;
    let end = duration.map(|duration| Instant::now() + duration);
    let (printer, mut watch) = (output::new_printer(options), ClusterWatch::default());
    let mut heard = false;
    loop {
        let began = Instant::now();
        let lines = match source.query_states(only.node).await {
            Ok(cluster) => {
                heard |= cluster.state_reports().next().is_some();
                watch.detect_changes(&cluster)
            }
            Err(error) => watch.record_api_error(&format!("{error:#}")),
        };
        for (node, change) in &lines {
            let is_meant = only.namespace.is_none_or(|namespace| {
                change.pod_title().is_some_and(|pod| pod.starts_with(&format!("{namespace}/")))
            });
            if is_meant {
                print_change(printer, node, change)?;
            }
        }
        let next = began + interval;
        if end.is_some_and(|end| next >= end) {
            break;
        }
        tokio::time::sleep(next.saturating_duration_since(Instant::now())).await;
    }
    Ok(if heard { ExitCode::SUCCESS } else { ExitCode::from(CANNOT) })
}

/// A node, or the cluster if it is empty, and what changed there.
type NodeChange = (String, StateChange);

#[derive(Default)]
struct ClusterWatch {
    last: BTreeMap<String, StateReport>,
    /// Why a node does not answer, as it was printed.
    silent: BTreeMap<String, String>,
    /// Why the API server does not answer, as it was printed.
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

    fn detect_changes(&mut self, cluster: &Cluster) -> Vec<NodeChange> {
        let mut lines = Vec::new();
        if self.lost.take().is_some() {
            lines.push((
                String::new(),
                StateChange::for_node("cluster", "the API server answers again".to_owned()),
            ));
        }
        for (node, answer) in &cluster.answers {
            let found = match answer {
                Ok(state) => self.record_answer(node, state),
                Err(why) => self.record_silence(node, why).into_iter().collect(),
            };
            lines.extend(found.into_iter().map(|change| (node.clone(), change)));
        }
        let gone: Vec<String> =
            self.last.keys().filter(|node| !cluster.answers.contains_key(*node)).cloned().collect();
        for node in gone {
            self.last.remove(&node);
            self.silent.remove(&node);
            lines.push((node, StateChange::for_node("agent", "no agent runs here any more".to_owned())));
        }
        lines
    }

    fn record_answer(&mut self, node: &str, state: &StateReport) -> Vec<StateChange> {
        let mut found = Vec::new();
        if self.silent.remove(node).is_some() {
            found.push(StateChange::for_node("agent", "the agent answers again".to_owned()));
        }
        found.extend(state_changes(self.last.get(node), state));
        self.last.insert(node.to_owned(), state.clone());
        found
    }

    fn record_silence(&mut self, node: &str, why: &str) -> Option<StateChange> {
        let old = self.silent.insert(node.to_owned(), why.to_owned());
        (old.as_deref() != Some(why))
            .then(|| StateChange::for_node("agent", format!("the agent does not answer: {why}")))
    }
}

fn print_change(printer: Printer, node: &str, change: &StateChange) -> Result<()> {
    let time = wire::rfc3339(SystemTime::now());
    let mut value = change.to_json(&time);
    if let Some(members) = value.as_object_mut() {
        members.insert("node".to_owned(), node.into());
    }
    let node = if node.is_empty() { "-" } else { node };
    printer.print_event(&value, &format!("{}  {}", report::sanitize_text(node), change.to_line(&time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(answer: Result<StateReport, String>) -> Cluster {
        Cluster { answers: BTreeMap::from([("n1".to_owned(), answer)]), ..Cluster::default() }
    }

    fn words(lines: &[NodeChange]) -> Vec<String> {
        lines.iter().map(|(node, change)| format!("{node} {}", change.to_line("T").trim_end())).collect()
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
        assert_eq!(words(&watch.detect_changes(&well())), ["n1 T  agent       the agent answers again"]);
        assert_eq!(watch.detect_changes(&Cluster::default()).len(), 1);
        assert_eq!(watch.detect_changes(&Cluster::default()), Vec::new());
        assert_eq!(watch.record_api_error("refused").len(), 1);
        assert_eq!(watch.record_api_error("refused"), Vec::new());
        assert_eq!(watch.detect_changes(&Cluster::default()).len(), 1);
    }
}
