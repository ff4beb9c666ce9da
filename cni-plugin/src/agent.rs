//! The node's agent: it knows the pods, and enrols ambient ones before it answers.

use std::{
    cell::OnceCell,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::IpAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use model::{Namespace, Pod, PodName};
use wire::{AgentAnswer, AgentRequest, MAX_ANSWER, Verb};

use crate::{
    call::Call,
    facts::{ApiServer, Facts, Unknown},
};

/// Where the agent listens, unless the configuration says otherwise.
pub const SOCKET: &str = "/var/run/istio-cni/agent.sock";
/// How long the agent may take for anything. It gives up before.
const PATIENCE: Duration = Duration::from_secs(10);

/// The agent's socket.
#[derive(Debug)]
pub struct Agent {
    socket: PathBuf,
}

impl Agent {
    /// Opens nothing.
    #[must_use]
    pub fn new(socket: Option<&str>) -> Agent {
        Agent { socket: Path::new(socket.unwrap_or(SOCKET)).to_owned() }
    }

    /// Asks; none: nobody answers there.
    #[must_use]
    pub fn ask(&self, request: &AgentRequest) -> Option<AgentAnswer> {
        self.exchange(request).ok()
    }

    fn exchange(&self, request: &AgentRequest) -> io::Result<AgentAnswer> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        stream.write_all(&text)?;
        let mut answer = Vec::new();
        BufReader::new(stream).take(MAX_ANSWER as u64).read_until(b'\n', &mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    }
}

/// A request about the pod of a call.
#[must_use]
pub fn request(verb: Verb, call: &Call, ips: Vec<IpAddr>) -> AgentRequest {
    let (namespace, name) =
        call.pod.as_ref().map_or_else(Default::default, |pod| (pod.namespace.clone(), pod.name.clone()));
    AgentRequest {
        namespace,
        name,
        uid: call.uid.clone().unwrap_or_default(),
        container: call
            .environment
            .container_id
            .as_ref()
            .map_or_else(String::new, |id| id.as_str().to_owned()),
        ips,
        ..AgentRequest::new(verb)
    }
}

/// First the agent, then the API server.
#[derive(Debug)]
pub struct Sources {
    agent: Agent,
    request: Option<AgentRequest>,
    answer: OnceCell<Option<AgentAnswer>>,
    api: ApiServer,
}

impl Sources {
    /// With a request, the agent is asked by it, once, when something is to be known.
    #[must_use]
    pub fn new(call: &Call, request: Option<AgentRequest>) -> Sources {
        let agent = Agent::new(call.conf.agent_socket.as_deref());
        Sources { agent, request, answer: OnceCell::new(), api: ApiServer::new(&call.conf) }
    }

    fn answer(&self) -> Option<&AgentAnswer> {
        let ask = || self.request.as_ref().and_then(|request| self.agent.ask(request));
        self.answer.get_or_init(ask).as_ref()
    }
}

impl Facts for Sources {
    fn pod(&self, name: &PodName, uid: Option<&str>) -> Result<Pod, Unknown> {
        match self.answer() {
            None => self.api.pod(name, uid),
            Some(AgentAnswer { pod: Some(pod), .. }) => Ok((**pod).clone()),
            Some(AgentAnswer { error: Some(error), .. }) => Err(Unknown::Agent(error.clone())),
            Some(_) => Err(Unknown::Agent("it knows nothing of the pod".to_owned())),
        }
    }

    fn namespace(&self, name: &str) -> Result<Namespace, Unknown> {
        match self.answer() {
            Some(AgentAnswer { namespace: Some(namespace), .. }) => Ok(namespace.clone()),
            _ => self.api.namespace(name),
        }
    }

    fn enrolled(&self) -> Option<bool> {
        self.answer.get()?.as_ref().map(|answer| answer.enrolled)
    }

    fn checked(&self) -> Option<Result<(), String>> {
        self.answer.get()?.as_ref().map(|answer| answer.error.clone().map_or(Ok(()), Err))
    }
}
