//! Query to one agent.

use std::time::{Duration, Instant};

use cluster_report::Pod;
use http_response::HttpError;
use kubeio::KubeClient;
use report::{
    DocumentError, Explanation, MAX_DOCUMENT, NodeSimulation, Proof, SCHEMA, SimulatedChange, StateReport,
};
use serde::de::DeserializeOwned;

use crate::arguments::{Options, Via};

/// Name of the agent's container, in our manifests and in Istio's charts.
pub(crate) const CONTAINER: &str = "install-cni";
/// Time limit for the proofs of all pods of a node, each of which takes up to a second.
const ALL_PROOFS: Duration = Duration::from_secs(600);
const STATE: &str = "/debug/state";
const LINES: &str = "/debug/lines";

/// Reason why an agent did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// Error of the API server, the kubelet, or the connection.
    #[error(transparent)]
    Kube(#[from] kubeio::Error),
    /// The port has no listener.
    #[error(
        "{0}; with hostNetwork the debug port is closed by default: set millrace.debugPort (--ctrlz_port), or use --via exec"
    )]
    Closed(String),
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
    /// The time limit was exceeded.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The response is not HTTP, or too long.
    #[error("the answer is not usable: {0}")]
    Malformed(String),
    /// The agent responded with an error.
    #[error("the agent refused: HTTP status {status}: {body}")]
    Refused {
        /// HTTP status code.
        status: u16,
        /// Beginning of the body.
        body: String,
    },
    /// The content of the response is unexpected.
    #[error("its answer cannot be read: {0}")]
    Content(String),
    /// The response has another version.
    #[error("its document is {0:?}, and this program knows {SCHEMA}: use the version of the agents")]
    Version(String),
}

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
    pub(crate) async fn node_state(&self, agent: &Pod) -> Result<StateReport, QueryError> {
        let body = self.query_agent(agent, STATE, &["install-cni", "state", "-o", "json"]).await?;
        StateReport::parse(&body).map_err(|error| match error {
            DocumentError::Schema { found } => QueryError::Version(found),
            DocumentError::Content(error) => QueryError::Content(error.to_string()),
        })
    }

    /// Returns the agent's explanation of a pod, whose name is from the API server.
    pub(crate) async fn explain_pod(
        &self,
        agent: &Pod,
        namespace: &str,
        name: &str,
    ) -> Result<Explanation, QueryError> {
        let pod = format!("{namespace}/{name}");
        let path = format!("/debug/explain?pod={pod}");
        let command = ["install-cni", "explain", pod.as_str(), "-o", "json"];
        decode_json(&self.query_agent(agent, &path, &command).await?)
    }

    /// Makes the agent prove a pod. This sends packets, which no agent does for a request over TCP, so always by pods/exec.
    pub(crate) async fn prove_pod(
        &self,
        agent: &Pod,
        namespace: &str,
        name: &str,
    ) -> Result<Proof, QueryError> {
        let pod = format!("{namespace}/{name}");
        let command = ["install-cni", "prove", pod.as_str(), "-o", "json"];
        decode_json(&self.exec_within(self.limit, agent, &command).await?)
    }

    /// Proves pods like [`AgentQuery::prove_pod`], one of the node after the other: those of a namespace, if given.
    pub(crate) async fn prove_all(
        &self,
        agent: &Pod,
        namespace: Option<&str>,
    ) -> Result<Vec<Proof>, QueryError> {
        let only = namespace.map(|namespace| ["-n", namespace]);
        let command = [&["install-cni", "prove", "--all", "-o", "json"][..], only.as_slice().as_flattened()];
        decode_json(&self.exec_within(ALL_PROOFS, agent, &command.concat()).await?)
    }

    /// Returns the agent's simulation of a change.
    pub(crate) async fn simulate_change(
        &self,
        agent: &Pod,
        change: &SimulatedChange,
    ) -> Result<NodeSimulation, QueryError> {
        let arguments = simulation_arguments(change);
        let command = ["install-cni", "simulate", "-o", "json"].into_iter();
        let command: Vec<&str> = command.chain(arguments.iter().map(String::as_str)).collect();
        decode_json(&self.query_agent(agent, &change.debug_path(), &command).await?)
    }

    /// Returns the agent's last log lines.
    pub(crate) async fn log_lines(&self, agent: &Pod) -> Result<String, QueryError> {
        if self.via == Via::Exec {
            return Err(QueryError::Content("with --via exec, kubectl logs has its lines".to_owned()));
        }
        let body = self.get_document(agent, LINES).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Asks an agent: by this path of its debug endpoint, or by this command in its container, which has the same answer.
    async fn query_agent(&self, agent: &Pod, path: &str, command: &[&str]) -> Result<Vec<u8>, QueryError> {
        match self.via {
            Via::PortForward => self.get_document(agent, path).await,
            Via::Exec => self.exec_within(self.limit, agent, command).await,
        }
    }

    async fn get_document(&self, agent: &Pod, path: &str) -> Result<Vec<u8>, QueryError> {
        let meta = &agent.metadata;
        let began = Instant::now();
        let connecting = self.client.forward_port(&meta.namespace, &meta.name, self.port, self.limit);
        let mut port = connecting.await.map_err(|error| match error {
            kubeio::Error::Timeout { .. } => QueryError::Late(self.limit),
            other => QueryError::Kube(other),
        })?;
        // HTTP/1.0, so that the agent closes the connection after the response.
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let remaining = self.limit.saturating_sub(began.elapsed());
        let answer =
            match tokio::time::timeout(remaining, port.exchange(request.as_bytes(), MAX_DOCUMENT as u64))
                .await
            {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => return Err(connection_error(port, &error.to_string()).await),
                Err(_) => return Err(QueryError::Late(self.limit)),
            };
        match http_response::receive::<MAX_DOCUMENT>(&mut answer.as_slice()) {
            Ok(response) if response.status == 200 => Ok(response.body),
            Ok(response) => {
                Err(QueryError::Refused { status: response.status, body: report::excerpt(&response.body) })
            }
            Err(HttpError::Io(error)) => Err(connection_error(port, &error.to_string()).await),
            Err(HttpError::Malformed(what)) => Err(QueryError::Malformed(what)),
        }
    }

    async fn exec_within(
        &self,
        limit: Duration,
        agent: &Pod,
        command: &[&str],
    ) -> Result<Vec<u8>, QueryError> {
        let meta = &agent.metadata;
        let place = (meta.namespace.as_str(), meta.name.as_str(), CONTAINER);
        let output = self.client.exec_output(place, command, MAX_DOCUMENT as u64, limit).await;
        let output = output.map_err(|error| match error {
            kubeio::Error::Timeout { .. } => QueryError::Late(limit),
            other => QueryError::Kube(other),
        })?;
        if output.len() > MAX_DOCUMENT {
            return Err(QueryError::Malformed(format!("it is longer than {MAX_DOCUMENT} bytes")));
        }
        Ok(output)
    }
}

/// Returns the kubelet's reason for a failed connection, else the one observed here.
async fn connection_error(port: kubeio::ForwardedPort, otherwise: &str) -> QueryError {
    match port.failure_reason().await {
        // Container runtimes pass on the system's text for ECONNREFUSED.
        Some(reason) if reason.contains("connection refused") => QueryError::Closed(reason),
        Some(reason) => QueryError::Connection(reason),
        None => QueryError::Connection(otherwise.to_owned()),
    }
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

fn decode_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, QueryError> {
    serde_json::from_slice(body).map_err(|error| QueryError::Content(error.to_string()))
}
