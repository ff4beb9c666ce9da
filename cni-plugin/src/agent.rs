//! Client of the node's agent, which knows the pods, and enrols ambient ones before it answers.

use std::{
    cell::{Cell, OnceCell},
    fmt,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::IpAddr,
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use agent_protocol::{AgentAnswer, AgentRequest, CniVerb, MAX_ANSWER};
use cni_types::CniError;
use model::{Namespace, Pod, PodName, PodUid};
use netns::Netns;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    sockopt::{self, Timeout},
};
use socketfile::send_with_descriptor;

use crate::{
    call::PluginCall,
    facts::{ApiServer, LookupError},
};

/// Default path of the agent's socket.
pub const SOCKET: &str = "/var/run/istio-cni/agent.sock";
/// Timeout of the agent, which itself gives up earlier.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout for identifying a pod, if the API server can do so as well.
const PATIENCE_BEFORE_API: Duration = Duration::from_secs(2);

/// Timeout at CHECK and GC for accepting a request, and again for the response.
const PATIENCE_OF_CHECK: Duration = Duration::from_millis(500);

/// Reason why the agent did not answer: it is unavailable, too busy, or gave up.
#[derive(Debug)]
pub struct AgentUnavailable {
    socket: PathBuf,
    patience: Duration,
    error: io::Error,
}

impl fmt::Display for AgentUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use io::ErrorKind::{ConnectionRefused, NotFound, TimedOut, UnexpectedEof, WouldBlock};
        let socket = self.socket.display();
        match self.error.kind() {
            NotFound | ConnectionRefused => write!(f, "nothing is listening on {socket}"),
            WouldBlock | TimedOut => {
                write!(f, "no answer from {socket} within {} s", self.patience.as_secs_f32())
            }
            UnexpectedEof => write!(f, "{socket} was closed before the answer was complete"),
            _ => write!(f, "{socket}: {}", self.error),
        }
    }
}

impl AgentUnavailable {
    /// Whether no agent runs, or it ended before it answered: its successor will answer.
    fn is_gap(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
        let kind = self.error.kind();
        matches!(kind, NotFound | ConnectionRefused | UnexpectedEof | ConnectionReset | BrokenPipe)
    }
}

/// Client of the agent's socket.
#[derive(Debug)]
pub struct AgentClient {
    socket: PathBuf,
    patience: Duration,
}

impl AgentClient {
    /// Returns a client, without connecting yet.
    pub fn new(socket: Option<&str>) -> AgentClient {
        AgentClient { socket: Path::new(socket.unwrap_or(SOCKET)).to_owned(), patience: PATIENCE }
    }

    /// Returns a client like [`Self::new`], for a call that must not wait: CHECK and GC.
    pub fn for_check(socket: Option<&str>) -> AgentClient {
        AgentClient { patience: PATIENCE_OF_CHECK, ..AgentClient::new(socket) }
    }

    /// Sends a request, with the pod's network namespace, if any, and returns the response.
    ///
    /// # Errors
    /// No agent answers there.
    pub fn send_request(
        &self,
        request: &AgentRequest,
        netns: Option<&Netns>,
    ) -> Result<AgentAnswer, AgentUnavailable> {
        let unavailable =
            |error| AgentUnavailable { socket: self.socket.clone(), patience: self.patience, error };
        self.exchange_messages(request, netns).map_err(unavailable)
    }

    /// Connects. An agent that no longer accepts blocks clients in connect(); the send timeout applies to that, too.
    fn connect_socket(&self) -> io::Result<UnixStream> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(self.patience))?;
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        Ok(socket.into())
    }

    fn exchange_messages(&self, request: &AgentRequest, netns: Option<&Netns>) -> io::Result<AgentAnswer> {
        let mut stream = self.connect_socket()?;
        stream.set_read_timeout(Some(self.patience))?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        let sent = match netns {
            Some(netns) => send_with_descriptor(&stream, &text, Some(netns.as_fd()), SendFlags::empty())?,
            None => 0,
        };
        stream.write_all(text.get(sent..).unwrap_or_default())?;
        let mut answer = Vec::new();
        BufReader::new(stream).take(MAX_ANSWER as u64).read_until(b'\n', &mut answer)?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&answer)?)
    }
}

/// Reason why the agent's answer is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSilence {
    /// Clause with the reason.
    pub message: String,
    /// Whether no agent runs: its successor will answer.
    pub is_gap: bool,
}

/// Reply of the agent to a call: whether it has enrolled the pod, or its error; or why the reply is not used.
pub type AgentReply = Result<Result<bool, String>, AgentSilence>;

/// The pod of a call that was submitted.
#[derive(Debug)]
pub struct Submitted {
    /// The pod, as the agent or else the API server knows it.
    pub pod: Pod,
    /// Reply of the agent.
    pub reply: AgentReply,
}

/// Reason why neither the agent nor the API server told what was asked.
#[derive(Debug)]
pub struct Unanswered {
    /// Error of the last one that was asked.
    pub error: LookupError,
    silence: Option<AgentSilence>,
}

impl Unanswered {
    /// Describes the failure for the pod of the call.
    pub fn describe(&self, pod: &PodName) -> String {
        match (&self.error, &self.silence) {
            // The agent may know the pod, but have failed at a later step.
            (LookupError::Agent(why), _) => format!("the node agent failed to handle pod {pod}: {why}"),
            (error, None) => format!("cannot determine whether pod {pod} belongs to the mesh: {error}"),
            (error, Some(AgentSilence { message, .. })) => {
                format!("cannot determine whether pod {pod} belongs to the mesh: {message}, and {error}")
            }
        }
    }
}

/// Returns a request about the pod of a call.
pub fn request_for_call(verb: CniVerb, call: &PluginCall, ips: Vec<IpAddr>) -> AgentRequest {
    let (namespace, name) =
        call.pod.as_ref().map_or_else(Default::default, |pod| (pod.namespace.clone(), pod.name.clone()));
    AgentRequest {
        namespace,
        name,
        uid: call.uid.clone().unwrap_or_default(),
        container: call.environment.container_id.clone().unwrap_or_default(),
        ips,
        network: call.conf.name.clone(),
        ..AgentRequest::new(verb)
    }
}

/// Authority that a call is submitted to: the node's agent, or else the API server, which can only identify the pod. While an agent
/// is being replaced, the first of the two to become available.
#[derive(Debug)]
pub struct AgentOrApi {
    agent: AgentClient,
    request: AgentRequest,
    /// Whether the API server is queried for what the agent cannot answer: without ambient mode, and with a kubeconfig.
    falls_back: bool,
    /// Network namespace of the pod, in ambient mode; `None` for a verb that does nothing in it, or if it cannot be opened.
    netns: Option<Netns>,
    /// Reason why the request lacks the pod's namespace or its addresses, which is reported when they are needed.
    incomplete: Option<CniError>,
    answer: OnceCell<AgentAnswer>,
    /// Pod returned by the first successful query, for the record.
    pod: OnceCell<Pod>,
    /// Reason why the first request was not answered.
    silence: OnceCell<AgentUnavailable>,
    /// Whether to send the request again: at ADD, while no agent runs.
    asks_again: Cell<bool>,
    api: ApiServer,
}

impl AgentOrApi {
    /// Returns an authority. The request, with this namespace and these addresses, is sent to the agent when a fact is first needed:
    /// once if an agent runs, whether it answers or not.
    pub fn new(
        call: &PluginCall,
        verb: CniVerb,
        netns: Result<Option<Netns>, CniError>,
        ips: Result<Vec<IpAddr>, CniError>,
    ) -> AgentOrApi {
        let ambient = call.conf.ambient_enabled;
        // An unusable namespace is the cause of unreadable addresses, too.
        let incomplete = netns.as_ref().err().or(ips.as_ref().err()).cloned();
        let (netns, request) =
            (netns.unwrap_or_default(), request_for_call(verb, call, ips.unwrap_or_default()));
        let is_check = request.verb == CniVerb::Check;
        let api = if is_check { ApiServer::for_check(&call.conf) } else { ApiServer::new(&call.conf) };
        let falls_back = !ambient && api.has_kubeconfig();
        let socket = call.conf.agent_socket.as_deref();
        let agent = match (is_check, falls_back) {
            (true, _) => AgentClient::for_check(socket),
            (false, true) => AgentClient { patience: PATIENCE_BEFORE_API, ..AgentClient::new(socket) },
            (false, false) => AgentClient::new(socket),
        };
        AgentOrApi {
            agent,
            request,
            falls_back,
            netns,
            incomplete,
            answer: OnceCell::new(),
            pod: OnceCell::new(),
            silence: OnceCell::new(),
            asks_again: Cell::new(true),
            api,
        }
    }

    /// Sends the request to the agent, unless it has answered or must not be asked again; returns whether it has answered.
    fn is_answered(&self) -> bool {
        if self.answer.get().is_none() && self.asks_again.get() {
            match self.agent.send_request(&self.request, self.netns.as_ref()) {
                Ok(answer) => drop(self.answer.set(answer)), // was unset
                Err(silence) => {
                    self.asks_again.set(self.request.verb == CniVerb::Add && silence.is_gap());
                    self.silence.get_or_init(|| silence);
                }
            }
        }
        self.answer.get().is_some()
    }

    /// Returns a fact from the agent's answer, or else from the API server. Retries when an agent or another credential is
    /// available.
    fn find_fact<T>(
        &self,
        answered: impl Fn(&AgentAnswer) -> Option<Result<T, LookupError>>,
        ask_api: impl Fn(&dyn Fn() -> bool) -> Result<T, LookupError>,
    ) -> Result<T, LookupError> {
        loop {
            if self.is_answered()
                && let Some(answer) = self.answer.get()
            {
                let reply = answered(answer).filter(|reply| reply.is_ok() || !self.falls_back);
                return reply.unwrap_or_else(|| ask_api(&|| false));
            }
            match ask_api(&|| self.is_answered()) {
                Err(error) if !error.is_not_found() && self.has_changed() => {}
                found => return found,
            }
        }
    }

    /// Waits until the agent or another credential is available; returns false if neither is expected.
    fn has_changed(&self) -> bool {
        let is_answered = || self.is_answered();
        is_answered() || self.expects_agent() && self.api.await_change(&is_answered)
    }

    fn expects_agent(&self) -> bool {
        self.asks_again.get() && !self.falls_back
    }

    /// Submits the call and returns the pod of that name; with `uid`, as passed by the runtime, exactly that pod or the newest of
    /// its name. An agent to which an ADD is submitted enrols a pod of ambient mode before it answers.
    ///
    /// # Errors
    /// The pod could not be determined.
    pub fn submit_call(&self, name: &PodName, uid: Option<&PodUid>) -> Result<Submitted, Unanswered> {
        let answered = |answer: &AgentAnswer| Some(extract_pod(answer));
        let found = self.find_fact(answered, |is_answered| self.api.fetch_pod(name, uid, is_answered));
        let (reply, pod) = (self.agent_reply(), self.explain_failure(found)?);
        Ok(Submitted { pod: self.pod.get_or_init(|| pod).clone(), reply })
    }

    /// Returns a namespace in its current state.
    ///
    /// # Errors
    /// The namespace could not be determined.
    pub fn find_namespace(&self, name: &str) -> Result<Namespace, Unanswered> {
        let ask_api = |is_answered: &dyn Fn() -> bool| self.api.fetch_namespace(name, is_answered);
        self.explain_failure(self.find_fact(extract_namespace, ask_api))
    }

    /// Waits for the successor of an agent that did not answer, as long as one is expected; returns what it did.
    pub fn await_successor(&self) -> AgentReply {
        while self.has_changed() && !self.is_answered() {} // another credential does not help, the pod being known
        self.agent_reply()
    }

    fn explain_failure<T>(&self, found: Result<T, LookupError>) -> Result<T, Unanswered> {
        found.map_err(|error| Unanswered { error, silence: self.agent_reply().err() })
    }

    fn agent_reply(&self) -> AgentReply {
        if let Some(answer) = self.answer.get() {
            return match &answer.error {
                Some(error) if self.falls_back => {
                    Err(AgentSilence { message: format!("the node agent failed ({error})"), is_gap: false })
                }
                Some(error) => Ok(Err(error.clone())),
                None => Ok(Ok(answer.enrolled)),
            };
        }
        let silence = self.silence.get();
        let waited = self.api.elapsed().as_secs();
        let waited = match self.expects_agent() && waited > 0 {
            true => format!(", waited {waited} s"),
            false => String::new(),
        };
        let why = silence.map_or_else(|| "it was not asked".to_owned(), ToString::to_string);
        let message = format!("the node agent is unavailable ({why}{waited})");
        Err(AgentSilence { message, is_gap: silence.is_some_and(AgentUnavailable::is_gap) })
    }

    /// Returns the error of a refused pod: what the request lacked, with the refusal as its details, else the refusal.
    pub fn explain_refusal(&self, refusal: CniError) -> CniError {
        match self.incomplete.clone() {
            Some(error) => error.with_details(refusal.msg),
            None => refusal,
        }
    }

    /// Returns the addresses of the request, and the pod, if it was queried and found.
    pub fn into_facts(self) -> (Vec<IpAddr>, Option<Pod>) {
        (self.request.ips, self.pod.into_inner())
    }
}

fn extract_pod(answer: &AgentAnswer) -> Result<Pod, LookupError> {
    match (&answer.pod, &answer.error) {
        (Some(pod), _) => Ok((**pod).clone()),
        (None, Some(error)) => Err(LookupError::Agent(error.clone())),
        (None, None) => Err(LookupError::Agent("it knows nothing of the pod".to_owned())),
    }
}

/// Returns the namespace; `None`: not in the answer.
fn extract_namespace(answer: &AgentAnswer) -> Option<Result<Namespace, LookupError>> {
    match (&answer.namespace, &answer.error) {
        (Some(namespace), _) => Some(Ok(namespace.clone())),
        (None, Some(error)) if answer.pod.is_none() => Some(Err(LookupError::Agent(error.clone()))),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::net::UnixListener, thread};

    use super::*;

    #[test]
    fn an_agent_that_does_not_answer_is_told_from_one_that_is_not_there() {
        let socket = std::env::temp_dir().join(format!("agent-{}.sock", std::process::id()));
        let agent = AgentClient { socket: socket.clone(), patience: PATIENCE };
        let silence =
            || agent.send_request(&AgentRequest::new(CniVerb::Check), None).unwrap_err().to_string();
        let at = socket.display();
        assert_eq!(silence(), format!("nothing is listening on {at}"));
        let listener = UnixListener::bind(&socket).unwrap();
        for (answer, words) in [
            ("", format!("{at} was closed before the answer was complete")),
            ("{", format!("{at} was closed before the answer was complete")),
            ("?\n", format!("{at}: expected value at line 1 column 1")),
        ] {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut client, _) = listener.accept().unwrap();
                    BufReader::new(client.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
                    client.write_all(answer.as_bytes()).unwrap();
                });
                assert_eq!(silence(), words);
            });
        }
        drop(listener);
        assert_eq!(silence(), format!("nothing is listening on {at}"));
        fs::remove_file(&socket).unwrap();
        let error = io::ErrorKind::WouldBlock.into();
        assert_eq!(
            AgentUnavailable { socket, patience: PATIENCE, error }.to_string(),
            format!("no answer from {} within 10 s", agent.socket.display())
        );
    }
}
