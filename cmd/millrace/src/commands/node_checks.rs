//! Pods that check nodes before an installation: one on each node, made from the agent's manifests, which runs `install-cni check`.

mod manifest;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io, process,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, ensure};
use cluster_report::{NodeChecks, Pod};
use futures_util::{StreamExt as _, stream};
use kube_api::{ApiErrorKind, KubeClient};
use model::PodName;
use report::{PREFLIGHT_SCHEMA, PreflightCheck};
use serde::Deserialize;
use serde_json::Value;

pub(super) use self::manifest::CheckedAgent;
use crate::{arguments::Options, node_query::CONTAINER, output, progress::ProgressBar};

/// Time limit from the creation of a pod to its end, including the image pull.
const POD_LIMIT: Duration = Duration::from_secs(180);
/// Polling interval of a pod.
const POLL: Duration = Duration::from_secs(1);
/// Number of nodes checked concurrently: each pulls an image, perhaps all from the same registry.
const AT_A_TIME: usize = 16;
/// Maximum size of a pod's log, in bytes. The result has a tenth of it.
const MAX_LOG: u64 = 256 * 1024;

/// Agent whose pods check nodes.
pub(super) struct NodeChecker<'a> {
    client: &'a KubeClient,
    options: &'a Options,
    agent: CheckedAgent,
    /// Distinguishes this run's pods from those of other runs.
    run: String,
    /// Pods that may exist.
    created: RefCell<BTreeSet<PodName>>,
}

/// Output of `install-cni check -o json`, reduced to what is evaluated here.
#[derive(Deserialize)]
struct Answer {
    schema: String,
    checks: Vec<PreflightCheck>,
}

impl<'a> NodeChecker<'a> {
    /// Returns a checker.
    pub(super) fn new(client: &'a KubeClient, options: &'a Options, agent: CheckedAgent) -> NodeChecker<'a> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run = format!("{:x}", now.as_millis() ^ u128::from(process::id()));
        NodeChecker { client, options, agent, run, created: RefCell::default() }
    }

    /// Returns the results of these nodes, by node. No pod is left behind, even if the command is interrupted or terminated.
    ///
    /// # Errors
    /// The command was interrupted or terminated.
    pub(super) async fn check_nodes(&self, nodes: &[&str]) -> Result<NodeChecks> {
        let outcome = tokio::select! {
            checks = self.check_each(nodes) => Ok(checks),
            interrupt = tokio::signal::ctrl_c() => Err(interrupt),
            terminated = wait_for_termination() => Err(terminated),
        };
        let left: Vec<PodName> = self.created.borrow().iter().cloned().collect();
        for name in left {
            if let Err(error) = self.client.delete_pod_now(&name).await
                && error.kind() != ApiErrorKind::NotFound
            {
                output::print_message(&format!("left behind: {error}; delete it with kubectl"));
            }
        }
        ensure!(outcome.is_ok(), "interrupted");
        Ok(outcome.unwrap_or_default())
    }

    async fn check_each(&self, nodes: &[&str]) -> NodeChecks {
        let mut bar = ProgressBar::new(nodes.len());
        let mut checks = BTreeMap::new();
        let pods = nodes.iter().enumerate().map(async |(index, node)| {
            let name = PodName {
                namespace: self.agent.namespace.clone(),
                name: format!("millrace-check-{}-{index}", self.run),
            };
            ((*node).to_owned(), self.check_node(&name, node).await)
        });
        let mut pods = stream::iter(pods).buffer_unordered(AT_A_TIME);
        while let Some((node, result)) = pods.next().await {
            checks.insert(node, result);
            bar.step();
        }
        checks
    }

    async fn check_node(&self, name: &PodName, node: &str) -> Result<Vec<PreflightCheck>, String> {
        // Before the request: if it gets no response, it is unknown whether the pod was created.
        self.created.borrow_mut().insert(name.clone());
        let manifest = self.agent.pod_for_node(&name.name, node);
        if let Err(error) = self.client.create_pod(name, manifest).await {
            if matches!(error.kind(), ApiErrorKind::Refused | ApiErrorKind::NotFound | ApiErrorKind::Conflict)
            {
                self.created.borrow_mut().remove(name);
            }
            return Err(error.to_string());
        }
        let result = self.read_result(name).await;
        if self.client.delete_pod_now(name).await.is_ok() {
            self.created.borrow_mut().remove(name);
        }
        result
    }

    async fn read_result(&self, name: &PodName) -> Result<Vec<PreflightCheck>, String> {
        self.wait_for_end(name).await?;
        let log = self.client.read_pod_log(name, CONTAINER, MAX_LOG, self.options.request_timeout).await;
        parse_log(&log.map_err(|error| error.to_string())?)
    }

    /// Waits until the pod has ended, successfully or not.
    async fn wait_for_end(&self, name: &PodName) -> Result<(), String> {
        let (what, path) = (format!("pod {name}"), name.api_path());
        let until = Instant::now() + POD_LIMIT;
        loop {
            let state = match self.client.get::<Value>(&what, &path, self.options.request_timeout).await {
                Ok(pod) => match pod_progress(&pod)? {
                    None => return Ok(()),
                    Some(state) => state,
                },
                Err(error) if error.kind() == ApiErrorKind::NotFound => {
                    return Err("its pod was deleted".to_owned());
                }
                Err(error) => error.to_string(),
            };
            if Instant::now() >= until {
                return Err(format!("its pod did not end within {POD_LIMIT:?}: {state}"));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Waits for a SIGTERM, as a build server sends it.
async fn wait_for_termination() -> io::Result<()> {
    #[cfg(unix)]
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?.recv().await;
    #[cfg(not(unix))]
    std::future::pending::<()>().await;
    Ok(())
}

/// Returns the progress of a pod; `None`: it has ended.
///
/// # Errors
/// The scheduler cannot assign it to its node, or a ConfigMap or Secret that it needs does not exist, with the reason.
fn pod_progress(manifest: &Value) -> Result<Option<String>, String> {
    let conditions = manifest.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let refused = |found: &&Value| found.get("reason").is_some_and(|reason| reason == "Unschedulable");
    if let Some(condition) = conditions.into_iter().find(refused) {
        let why = condition.get("message").and_then(Value::as_str).unwrap_or_default();
        return Err(format!("its pod cannot be scheduled: {}", report::excerpt(why.as_bytes())));
    }
    let pod = Pod::deserialize(manifest).map_err(|error| error.to_string())?;
    let state = pod.phase_summary();
    if state.ends_with("CreateContainerConfigError") {
        return Err(format!("its container cannot be created: {state}"));
    }
    Ok((!pod.status.has_ended()).then_some(state))
}

/// Extracts the result of `install-cni check -o json` from a log, which may have other lines as well.
fn parse_log(log: &str) -> Result<Vec<PreflightCheck>, String> {
    let starts = log.match_indices('{').map(|(at, _)| at).filter(|at| *at == 0 || log[..*at].ends_with('\n'));
    for rest in starts.filter_map(|at| log.get(at..)) {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Answer>();
        if let Some(Ok(answer)) = values.next()
            && answer.schema == PREFLIGHT_SCHEMA
        {
            return Ok(answer.checks);
        }
    }
    match log.lines().rfind(|line| !line.trim().is_empty()) {
        Some(last) => Err(format!("its pod did not check the node: {}", report::excerpt(last.as_bytes()))),
        None => Err("its pod ended without a result".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_result_is_found_among_log_lines() {
        let result =
            format!(r#"{{"schema": "{PREFLIGHT_SCHEMA}", "node": "n1", "checks": [{{"code": "clock"}}]}}"#);
        for log in [
            result.clone(),
            format!("info\tstarting {{\n{{\"level\":\"warn\"}}\n{result}\nmore\n"),
            format!("{{ \"schema\n{result}"),
        ] {
            assert_eq!(parse_log(&log).unwrap().len(), 1, "{log}");
        }
    }

    #[test]
    fn a_pod_is_waited_for_until_it_has_ended_or_cannot_start() {
        let waiting = json!([{"name": "install-cni", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]);
        for (status, expected) in [
            (json!({}), Ok(Some("Unknown, not ready".to_owned()))),
            (
                json!({"phase": "Pending", "containerStatuses": waiting}),
                Ok(Some("Pending, ImagePullBackOff".to_owned())),
            ),
            (json!({"phase": "Succeeded"}), Ok(None)),
            (json!({"phase": "Failed"}), Ok(None)),
            (
                json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
                    "reason": "Unschedulable", "message": "0/3 nodes are available: 1 Insufficient cpu."}]}),
                Err("its pod cannot be scheduled: 0/3 nodes are available: 1 Insufficient cpu.".to_owned()),
            ),
        ] {
            let pod = json!({"metadata": {"name": "p"}, "spec": {}, "status": status});
            assert_eq!(pod_progress(&pod), expected, "{pod}");
        }
    }

    #[test]
    fn a_log_without_a_result_says_what_the_pod_said_last() {
        for (log, expected) in [
            ("", "its pod ended without a result"),
            ("a\nError: exec format error\n\n", "its pod did not check the node: Error: exec format error"),
            (
                r#"{"schema": "other/v1", "checks": []}"#,
                "its pod did not check the node: {\"schema\": \"other/v1\", \"checks\": []}",
            ),
        ] {
            assert_eq!(parse_log(log).unwrap_err(), expected);
        }
    }
}
