//! The node's agent: it knows the pods, and enrols ambient ones before it answers.

use std::{
    cell::OnceCell,
    io::{self, BufRead as _, BufReader, IoSlice, Read as _, Write as _},
    mem::MaybeUninit,
    net::IpAddr,
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use model::{Namespace, Pod, PodName};
use netns::Netns;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
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
        self.exchange(request, None).ok()
    }

    /// Asks, and hands over the pod's network namespace.
    #[must_use]
    pub fn ask_with(&self, request: &AgentRequest, netns: &Netns) -> Option<AgentAnswer> {
        self.exchange(request, Some(netns)).ok()
    }

    fn exchange(&self, request: &AgentRequest, netns: Option<&Netns>) -> io::Result<AgentAnswer> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        let sent = netns.map_or(Ok(0), |netns| send_with(&stream, &text, netns))?;
        stream.write_all(text.get(sent..).unwrap_or_default())?;
        let mut answer = Vec::new();
        BufReader::new(stream).take(MAX_ANSWER as u64).read_until(b'\n', &mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    }
}

/// Sends the beginning of a text along with an open namespace; tells how much of it.
fn send_with(stream: &UnixStream, text: &[u8], netns: &Netns) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [netns.as_fd()];
    // There is room for exactly this.
    let _ = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    Ok(sendmsg(stream, &[IoSlice::new(text)], &mut ancillary, SendFlags::NOSIGNAL)?)
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
    /// The pod's network namespace; none for a verb that does nothing in it, or if it cannot be opened, which is told
    /// when it is needed.
    netns: Option<Netns>,
    answer: OnceCell<Option<AgentAnswer>>,
    api: ApiServer,
}

impl Sources {
    /// With a request, the agent is asked by it, once, when something is to be known.
    #[must_use]
    pub fn new(call: &Call, request: Option<AgentRequest>) -> Sources {
        let agent = Agent::new(call.conf.agent_socket.as_deref());
        let adds = request.as_ref().is_some_and(|request| request.verb == Verb::Add);
        let path = call.environment.netns.as_ref().filter(|_| adds);
        let netns = path.and_then(|path| Netns::open(path.as_path()).ok());
        Sources { agent, request, netns, answer: OnceCell::new(), api: ApiServer::new(&call.conf) }
    }

    fn answer(&self) -> Option<&AgentAnswer> {
        let ask = || {
            let request = self.request.as_ref()?;
            self.netns
                .as_ref()
                .map_or_else(|| self.agent.ask(request), |netns| self.agent.ask_with(request, netns))
        };
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
