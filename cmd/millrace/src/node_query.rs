//! Query to one agent.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use cluster_report::Pod;
use http_response::HttpError;
use kube_api::KubeClient;
use report::{Explanation, MAX_DOCUMENT, NodeSimulation, Proof, SimulatedChange, StateReport};
use serde::de::DeserializeOwned;

use crate::arguments::{Options, Via};

/// Name of the agent's container, in our manifests and in Istio's charts.
pub(crate) const CONTAINER: &str = "install-cni";
/// Time limit for the proofs of all pods of a node, each of which takes up to a second.
const ALL_PROOFS: Duration = Duration::from_secs(600);
const STATE: &str = "/debug/state";
const LINES: &str = "/debug/lines";

/// Advice for a port without a listener.
const CLOSED: &str = "with hostNetwork the debug port is closed by default: set millrace.debugPort (--ctrlz_port), or use --via exec";

/// Queries agents.
#[derive(Clone)]
pub(crate) struct AgentQuery {
    client: KubeClient,
    via: Via,
    port: u16,
    limit: Duration,
}

impl AgentQuery {
    pub(crate) fn new(client: KubeClient, options: &Options) -> AgentQuery {
        AgentQuery { client, via: options.via, port: options.port, limit: options.timeout }
    }

    /// Returns the node's document.
    pub(crate) async fn node_state(&self, agent: &Pod) -> Result<StateReport> {
        let body = self.query_agent(agent, STATE, &["install-cni", "state", "-o", "json"]).await?;
        Ok(StateReport::parse(&body)?)
    }

    /// Returns the agent's explanation of a pod, whose name is from the API server.
    pub(crate) async fn explain_pod(&self, agent: &Pod, namespace: &str, name: &str) -> Result<Explanation> {
        let pod = format!("{namespace}/{name}");
        let path = format!("/debug/explain?pod={pod}");
        let command = ["install-cni", "explain", pod.as_str(), "-o", "json"];
        decode_json(&self.query_agent(agent, &path, &command).await?)
    }

    /// Makes the agent prove a pod. This sends packets, which no agent does for a request over TCP, so always by pods/exec.
    pub(crate) async fn prove_pod(&self, agent: &Pod, namespace: &str, name: &str) -> Result<Proof> {
        let pod = format!("{namespace}/{name}");
        let command = ["install-cni", "prove", pod.as_str(), "-o", "json"];
        decode_json(&self.exec_within(self.limit, agent, &command).await?)
    }

    /// Proves pods like [`AgentQuery::prove_pod`], one of the node after the other: those of a namespace, if given.
    pub(crate) async fn prove_all(&self, agent: &Pod, namespace: Option<&str>) -> Result<Vec<Proof>> {
        let only = namespace.map(|namespace| ["-n", namespace]);
        let command = [&["install-cni", "prove", "--all", "-o", "json"][..], only.as_slice().as_flattened()];
        decode_json(&self.exec_within(ALL_PROOFS, agent, &command.concat()).await?)
    }

    /// Returns the agent's simulation of a change.
    pub(crate) async fn simulate_change(
        &self,
        agent: &Pod,
        change: &SimulatedChange,
    ) -> Result<NodeSimulation> {
        let arguments = simulation_arguments(change);
        let command = ["install-cni", "simulate", "-o", "json"].into_iter();
        let command: Vec<&str> = command.chain(arguments.iter().map(String::as_str)).collect();
        decode_json(&self.query_agent(agent, &change.debug_path(), &command).await?)
    }

    /// Returns the agent's last log lines.
    pub(crate) async fn log_lines(&self, agent: &Pod) -> Result<String> {
        ensure!(self.via != Via::Exec, "with --via exec, kubectl logs has its lines");
        let body = self.get_document(agent, LINES).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Asks an agent: by this path of its debug endpoint, or by this command in its container, which has the same answer.
    async fn query_agent(&self, agent: &Pod, path: &str, command: &[&str]) -> Result<Vec<u8>> {
        match self.via {
            Via::PortForward => self.get_document(agent, path).await,
            Via::Exec => self.exec_within(self.limit, agent, command).await,
        }
    }

    async fn get_document(&self, agent: &Pod, path: &str) -> Result<Vec<u8>> {
        let meta = &agent.metadata;
        let began = Instant::now();
        let connecting = self.client.forward_port(&meta.namespace, &meta.name, self.port, self.limit);
        let mut port = connecting.await.map_err(|error| query_error(error, self.limit))?;
        // HTTP/1.0, so that the agent closes the connection after the response.
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let remaining = self.limit.saturating_sub(began.elapsed());
        let answer =
            match tokio::time::timeout(remaining, port.exchange(request.as_bytes(), MAX_DOCUMENT as u64))
                .await
            {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => return Err(connection_error(port, &error.to_string()).await),
                Err(_) => return Err(late_error(self.limit)),
            };
        match http_response::receive::<MAX_DOCUMENT>(&mut answer.as_slice()) {
            Ok(response) if response.status == 200 => Ok(response.body),
            Ok(response) => {
                let (status, body) = (response.status, report::excerpt(&response.body));
                bail!("the agent refused: HTTP status {status}: {body}")
            }
            Err(HttpError::Io(error)) => Err(connection_error(port, &error.to_string()).await),
            Err(HttpError::Malformed(what)) => bail!("the answer is not usable: {what}"),
        }
    }

    async fn exec_within(&self, limit: Duration, agent: &Pod, command: &[&str]) -> Result<Vec<u8>> {
        let meta = &agent.metadata;
        let place = (meta.namespace.as_str(), meta.name.as_str(), CONTAINER);
        let output = self.client.exec_output(place, command, MAX_DOCUMENT as u64, limit).await;
        let output = output.map_err(|error| query_error(error, limit))?;
        ensure!(output.len() <= MAX_DOCUMENT, "the answer is longer than {MAX_DOCUMENT} bytes");
        Ok(output)
    }
}

/// Returns the kubelet's reason for a failed connection, else the one observed here.
async fn connection_error(port: kube_api::ForwardedPort, otherwise: &str) -> anyhow::Error {
    match port.failure_reason().await {
        // Container runtimes pass on the system's text for ECONNREFUSED.
        Some(reason) if reason.contains("connection refused") => anyhow!("{reason}; {CLOSED}"),
        Some(reason) => anyhow!("{reason}"),
        None => anyhow!("{otherwise}"),
    }
}

/// Returns the error for a missed time limit.
fn late_error(limit: Duration) -> anyhow::Error {
    anyhow!("no answer within {limit:?}")
}

/// Returns the error of a request to an agent through the API server.
fn query_error(error: kube_api::Error, limit: Duration) -> anyhow::Error {
    if matches!(error, kube_api::Error::Timeout { .. }) { late_error(limit) } else { error.into() }
}

/// Returns the change as arguments of `install-cni simulate`.
fn simulation_arguments(change: &SimulatedChange) -> Vec<String> {
    match change {
        SimulatedChange::Settings(change) => vec!["settings".to_owned(), change.to_json()],
        SimulatedChange::Labels(change) => {
            let (kind, name) = match &change.pod {
                Some(pod) => ("pod", format!("{}/{pod}", change.namespace)),
                None => ("namespace", change.namespace.clone()),
            };
            let labels = change.labels_text();
            let arguments = ["label", kind, &name].into_iter().chain(labels.split(','));
            arguments.map(str::to_owned).collect()
        }
    }
}

fn decode_json<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| anyhow!("its answer cannot be read: {error}"))
}
