//! Client for the state document: from the agent's socket, or from the node itself if no agent answers.

use std::{
    io::{self, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use daemon_settings::DaemonSettings;
use http_response::{HttpError, HttpResponse};
use report::{
    Explanation, MAX_DOCUMENT, NodeSimulation, Proof, SimulatedChange, StatePart, StateReport, Unobserved,
};

use crate::standalone;

/// Time limit of the whole exchange with the agent: it may be in the middle of a pass, and observes the kernel then.
pub const LIMIT: Duration = Duration::from_secs(25);
/// Path of the document.
const STATE: &str = "/debug/state";

/// Reason why the agent did not answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No agent runs.
    #[error(
        "no agent runs here: nothing serves {socket}; run this in the agent's container on the pod's node, or name its directory by --cni-agent-run-dir",
        socket = .socket.display()
    )]
    NoAgent {
        /// Socket of the agent.
        socket: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The socket cannot be used.
    #[error("cannot connect to the agent at {socket}", socket = .socket.display())]
    Connect {
        /// Socket of the agent.
        socket: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The agent did not answer within the limit.
    #[error("the agent runs, but has not answered within {0:?}")]
    Late(Duration),
    /// The connection failed, or ended before the response was complete.
    #[error("the exchange with the agent was interrupted")]
    Exchange(#[source] io::Error),
    /// The response is not HTTP, or longer than [`MAX_DOCUMENT`].
    #[error("the agent's answer is not usable: {0}")]
    Malformed(String),
    /// The agent responded with an error.
    #[error("the agent refused: HTTP status {status}: {body}")]
    Refused {
        /// HTTP status code.
        status: u16,
        /// First 200 characters of the body.
        body: String,
    },
}

/// Returns the node's document: the agent's, if one runs, else one made without it.
///
/// # Errors
/// The document cannot be read, or is of another version.
pub fn obtain_report(settings: &DaemonSettings) -> Result<StateReport> {
    match fetch(&settings.debug_socket, STATE, LIMIT) {
        Ok(body) => Ok(StateReport::parse(&body)?),
        Err(error) => Ok(report_without_agent(settings, &error)),
    }
}

/// Returns a document made without the agent. An agent that runs, but does not answer, is unobserved.
fn report_without_agent(settings: &DaemonSettings, error: &FetchError) -> StateReport {
    let mut state = standalone::observe_without_agent(settings);
    if !matches!(error, FetchError::NoAgent { .. }) {
        state.observation.unobserved.push(Unobserved::new(StatePart::Agent, model::describe_error(error)));
    }
    state.fill_conclusions();
    state
}

/// Returns the agent's document, without a fallback.
///
/// # Errors
/// No agent runs, it does not answer, or its document is of another version.
pub fn from_agent(socket: &Path, limit: Duration) -> Result<StateReport> {
    Ok(StateReport::parse(&fetch(socket, STATE, limit)?)?)
}

/// Explains a pod: by the agent, which verifies this pod more closely than for the document; else by what can be determined without
/// an agent.
///
/// # Errors
/// As [`obtain_report`].
pub fn explain_pod(settings: &DaemonSettings, namespace: &str, name: &str) -> Result<Explanation> {
    let path = format!("/debug/explain?pod={namespace}/{name}");
    let state = match is_pod_name(namespace, name).then(|| fetch(&settings.debug_socket, &path, LIMIT)) {
        Some(Ok(body)) => {
            return serde_json::from_slice(&body).context("the agent's answer cannot be read");
        }
        // No pod has such a name, or the agent is of another version.
        None | Some(Err(FetchError::Refused { .. })) => obtain_report(settings)?,
        Some(Err(error)) => report_without_agent(settings, &error),
    };
    Ok(report::explain_pod(&state, namespace, name))
}

/// Returns the agent's proof of a pod, for which it sends packets. Impossible without an agent.
///
/// # Errors
/// The names of namespace and pod are invalid, or as [`from_agent`].
pub fn prove_pod(socket: &Path, namespace: &str, name: &str) -> Result<Proof> {
    ensure!(is_pod_name(namespace, name), "{namespace}/{name} is not a pod: expected NAMESPACE/POD");
    let body = send_put(socket, &format!("/debug/prove?pod={namespace}/{name}"), LIMIT)?;
    serde_json::from_slice(&body).context("the agent's answer cannot be read")
}

fn is_pod_name(namespace: &str, name: &str) -> bool {
    report::is_object_name(namespace) && report::is_object_name(name)
}

/// Returns the agent's simulation of a change of labels.
///
/// # Errors
/// No agent runs, it does not answer, or its version cannot simulate.
pub fn simulate_change(settings: &DaemonSettings, change: &SimulatedChange) -> Result<NodeSimulation> {
    let body = fetch(&settings.debug_socket, &change.debug_path(), LIMIT)?;
    serde_json::from_slice(&body).context("the agent's answer cannot be read")
}

/// Returns the body of a `GET`, sent on its own thread, which ends with the process if it is late: connecting has no timeout of its
/// own, and an occasional byte would restart a timeout of the socket.
///
/// # Errors
/// See [`FetchError`].
pub fn fetch(socket: &Path, path: &str, limit: Duration) -> Result<Vec<u8>, FetchError> {
    send_request(socket, "GET", path, limit)
}

/// Returns the body of the response to a `PUT` without a body, like [`fetch`].
///
/// # Errors
/// See [`FetchError`].
pub fn send_put(socket: &Path, path: &str, limit: Duration) -> Result<Vec<u8>, FetchError> {
    send_request(socket, "PUT", path, limit)
}

fn send_request(socket: &Path, method: &str, path: &str, limit: Duration) -> Result<Vec<u8>, FetchError> {
    let (sender, receiver) = mpsc::channel();
    let (socket, request) = (socket.to_owned(), format!("{method} {path} HTTP/1.0\r\nHost: unix\r\n\r\n"));
    let body = move || drop(sender.send(exchange_http(&socket, &request, limit)));
    thread::Builder::new().spawn(body).map_err(FetchError::Exchange)?;
    receiver.recv_timeout(limit).map_err(|_| FetchError::Late(limit))?
}

/// Uses HTTP/1.0, so that the agent closes the connection after the response.
fn exchange_http(socket: &Path, request: &str, limit: Duration) -> Result<Vec<u8>, FetchError> {
    let mut stream = UnixStream::connect(socket).map_err(|source| {
        let socket = socket.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                FetchError::NoAgent { socket, source }
            }
            _ => FetchError::Connect { socket, source },
        }
    })?;
    let response = request_on(&mut stream, request, limit).map_err(|error| match error {
        HttpError::Io(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => FetchError::Late(limit),
            _ => FetchError::Exchange(error),
        },
        HttpError::Malformed(what) => FetchError::Malformed(what),
    })?;
    match response.status {
        200 => Ok(response.body),
        status => Err(FetchError::Refused { status, body: report::excerpt(&response.body) }),
    }
}

fn request_on(stream: &mut UnixStream, request: &str, limit: Duration) -> Result<HttpResponse, HttpError> {
    stream.set_read_timeout(Some(limit))?; // ends a late thread, too
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(request.as_bytes())?;
    http_response::receive::<MAX_DOCUMENT>(stream)
}

#[cfg(test)]
mod tests;
