//! `agent.sock`: serves the plugin's requests. Each connection has a thread, which waits so that the reconciler need not.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use agent_protocol::{AgentAnswer, AgentRequest, CniVerb, MAX_REQUEST};
use enrolment::{EnrolmentPolicy, ambient::evaluate_membership};
use model::{ContainerId, Namespace, Pod, PodName, PodUid, Reason};
use netns::Netns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use socketfile::{Accompanying, SocketError, SocketFile, receive_with_descriptor};
use tracing::{info, warn};

use crate::{
    capture_mode::CaptureReply,
    ledger::PodAttachment,
    plugin_metrics::PluginMetrics,
    reconciler::{
        AddDecision, AgentHandle, PodArrival, PodWaiter, PodWithNamespace, ReconcilerMessage, SandboxEnd,
    },
    status::{AgentStatus, NO_DESCRIPTORS, NO_THREADS},
};

/// Mode of the socket. Only root may connect: a response contains pods, and a request changes the node.
const MODE: u32 = 0o600;
/// Size of the stack of a connection's thread.
const STACK: usize = 256 * 1024;
/// Maximum number of concurrent requests; more wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 512;
/// Time for receiving a whole request: the plugin has it ready when it connects.
const REQUEST: Duration = Duration::from_secs(2);
/// Timeout of sending the response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Wait for a pod that the API has not shown, before the API server is queried.
const WATCH_DELAY: Duration = Duration::from_millis(300);
/// Timeout of the API server's confirmation of a known pod while the watch of namespaces fails.
const CONFIRMATION: Duration = Duration::from_secs(2);
/// Time limit of a request, from accepting its connection: the plugin waits 10 s. The agent may be switching ztunnels, or starting.
const ANSWER: Duration = Duration::from_secs(9);
/// Minimum interval between log lines about failures to accept connections.
const REMINDER: Duration = Duration::from_secs(60);
/// Time before the deadline at which a pod's capture is given up, so that the response can contain the reason.
const MARGIN: Duration = Duration::from_millis(200);

const LATE: &str = "the agent did not complete the request in time";
const UNDELIVERABLE: &str = "the agent cannot receive the pod's network namespace: it has no file descriptors left, or a security module forbids it";

/// A pod from the API server, with its namespace where needed.
pub type FetchedPod = (Pod, Option<Namespace>);

/// Fetches a pod from the API server, by the UID that the runtime passed, which may be empty; returns by the deadline.
pub type PodFetcher = Box<dyn Fn(&PodName, &PodUid, Instant) -> Result<FetchedPod, Reason> + Send + Sync>;

/// Server of the plugin's requests.
#[derive(Debug)]
pub struct AgentServer {
    listener: UnixListener,
    _file: SocketFile,
}

/// Answers the plugin's requests, from any socket; clones share one state.
#[derive(Clone)]
pub struct AgentService(Arc<ConnectionContext>);

impl AgentService {
    /// Returns a service. `lookup`: fetches a pod that no fact has shown. `status` records requests that fail for lack of file
    /// descriptors or threads.
    pub fn new(
        owner: AgentHandle,
        policy: EnrolmentPolicy,
        lookup: PodFetcher,
        plugin: PluginMetrics,
        status: Arc<AgentStatus>,
    ) -> AgentService {
        let connections = AtomicUsize::new(0);
        AgentService(Arc::new(ConnectionContext { owner, policy, lookup, plugin, status, connections }))
    }

    /// Answers one request; blocks until it is done, at most until the deadline: otherwise it has failed, and the response has the
    /// reason. `netns`: for an ADD or a DEL, the pod's network namespace.
    pub fn answer_by(&self, request: AgentRequest, netns: Option<Netns>, deadline: Instant) -> AgentAnswer {
        answer_request(request, RequestContext { netns, deadline }, || false, &self.0)
    }
}

/// Context of a request, besides its text.
struct RequestContext {
    netns: Option<Netns>,
    deadline: Instant,
}

/// State shared by the threads of all connections.
struct ConnectionContext {
    owner: AgentHandle,
    policy: EnrolmentPolicy,
    lookup: PodFetcher,
    plugin: PluginMetrics,
    status: Arc<AgentStatus>,
    connections: AtomicUsize,
}

impl AgentServer {
    /// Listens at the path.
    ///
    /// # Errors
    /// Another agent serves it, or the system refuses.
    pub fn bind(path: &Path) -> Result<AgentServer, SocketError> {
        let (listener, file) = socketfile::bind(path, MODE)?;
        Ok(AgentServer { listener, _file: file })
    }

    /// Serves until the process ends. Blocks.
    pub fn serve(&self, AgentService(shared): &AgentService) {
        // Closed when no other descriptor is left, so that the plugin gets a response instead of waiting for one.
        let mut reserve = None;
        let mut logged: Option<Instant> = None;
        loop {
            reserve = reserve.or_else(|| fcntl_dupfd_cloexec(&self.listener, 0).ok());
            let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
            let full = shared.connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS;
            if full {
                thread::sleep(Duration::from_millis(1)); // a connection must end first
                continue;
            }
            // No timeout: nothing else is waited for.
            if let Err(error) = poll(&mut ready, None::<&Timespec>) {
                warn!(target: "ambient", %error, "cannot wait for the plugin");
                thread::sleep(PATIENCE); // no better remedy
                continue;
            }
            let accepted = self.accept_with(&mut reserve, &shared.status);
            match accepted.and_then(|(client, _)| spawn_connection(client, Arc::clone(shared), STACK)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Ten lines a second would drown all others.
                    if logged.is_none_or(|logged| logged.elapsed() >= REMINDER) {
                        warn!(target: "ambient", %error, "cannot accept a connection of the plugin");
                        logged = Some(Instant::now());
                    }
                    thread::sleep(Duration::from_millis(100)); // most likely out of descriptors or threads
                }
            }
        }
    }

    fn accept_with(
        &self,
        reserve: &mut Option<OwnedFd>,
        status: &AgentStatus,
    ) -> io::Result<(UnixStream, SocketAddr)> {
        let accepted = self.listener.accept();
        let errno = accepted.as_ref().err().and_then(Errno::from_io_error);
        if !matches!(errno, Some(Errno::MFILE | Errno::NFILE)) {
            return accepted;
        }
        status.report_shortage(NO_DESCRIPTORS);
        match reserve.take() {
            Some(reserve) => {
                drop(reserve);
                self.listener.accept()
            }
            None => accepted,
        }
    }
}

/// One of at most [`MAX_CONNECTIONS`], counted until it is dropped, including by a panic.
struct CountedConnection(Arc<ConnectionContext>);

impl CountedConnection {
    fn new(shared: Arc<ConnectionContext>) -> CountedConnection {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        CountedConnection(shared)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection on a thread with a stack of this size.
///
/// # Errors
/// The thread cannot be started. The client's connection is closed, and it connects again.
fn spawn_connection(client: UnixStream, shared: Arc<ConnectionContext>, stack: usize) -> io::Result<()> {
    let (status, counted) = (Arc::clone(&shared.status), CountedConnection::new(shared));
    let body = move || serve_or_warn(&client, &counted);
    let spawned = thread::Builder::new().name("plugin".to_owned()).stack_size(stack).spawn(body);
    spawned.map(drop).map_err(|error| {
        status.report_shortage(NO_THREADS);
        // As text: the kernel's error is that of a connection that has ended before it was accepted.
        io::Error::other(format!("cannot start a thread for it: {error}"))
    })
}

fn serve_or_warn(client: &UnixStream, CountedConnection(shared): &CountedConnection) {
    if let Err(error) = serve_connection(client, shared) {
        warn!(target: "ambient", %error, "a request of the plugin was not answered");
        shared.status.record_failed_request(client);
    }
}

fn serve_connection(client: &UnixStream, shared: &ConnectionContext) -> io::Result<()> {
    let deadline = Instant::now() + ANSWER;
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let user = socketfile::peer_user(client)?;
    if user != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("rejected a request of user {user}: root only"),
        ));
    }
    let (line, accompanying) = read_line(client, Instant::now() + REQUEST)?;
    let request = serde_json::from_slice::<AgentRequest>(&line);
    let is_add = request.as_ref().is_ok_and(|request| request.verb == CniVerb::Add);
    let netns = match accompanying {
        Accompanying::Descriptor(descriptor) => {
            Ok(Some(Netns::from_fd(descriptor).map_err(io::Error::other)?))
        }
        Accompanying::Undeliverable if is_add => Err(UNDELIVERABLE),
        // A known container is released without it, which makes descriptors available.
        Accompanying::Nothing | Accompanying::Undeliverable => Ok(None),
    };
    let (answer, failure) = match (request, netns) {
        (Err(error), _) => (AgentAnswer::from_error(format!("the request cannot be read: {error}")), 400),
        (Ok(_), Err(error)) => (AgentAnswer::from_error(error), 500),
        (Ok(request), Ok(netns)) => {
            (answer_request(request, RequestContext { netns, deadline }, || is_gone(client), shared), 500)
        }
    };
    shared.plugin.count_response(if answer.error.is_some() { failure } else { 200 });
    if answer.error.is_some() {
        shared.status.record_failed_request(client);
    }
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    let mut client = client;
    client.write_all(&text)
}

/// Reads a line, or as much of one as a request may contain; and the descriptor attached to it.
fn read_line(client: &UnixStream, deadline: Instant) -> io::Result<(Vec<u8>, Accompanying)> {
    let (mut line, mut piece, mut accompanying) = (Vec::new(), [0; 4096], Accompanying::Nothing);
    while line.len() < MAX_REQUEST && !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the request is not complete"));
        }
        client.set_read_timeout(Some(left))?;
        let (length, with_piece) = receive_with_descriptor(client, &mut piece)?;
        if !matches!(with_piece, Accompanying::Nothing) {
            accompanying = with_piece;
        }
        match length {
            0 => break,
            length => line.extend(piece.iter().take(length)),
        }
    }
    Ok((line, accompanying))
}

/// Whether the client no longer waits: its time is up, or it was killed. Its result is then irrelevant.
fn is_gone(client: &UnixStream) -> bool {
    let mut end = [PollFd::new(client, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut end, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Answers one request. `is_gone`: whether the client no longer waits for the response.
fn answer_request(
    request: AgentRequest,
    with: RequestContext,
    is_gone: impl Fn() -> bool,
    shared: &ConnectionContext,
) -> AgentAnswer {
    let began = Instant::now();
    match request.verb {
        CniVerb::Add => {
            let answer = answer_add(request, with, is_gone, shared);
            shared.plugin.observe_add_phase("total", began.elapsed());
            answer
        }
        CniVerb::Del => {
            let end = SandboxEnd {
                name: PodName { namespace: request.namespace, name: request.name },
                container: request.container,
                attachment: PodAttachment { uid: request.uid, ips: request.ips, network: request.network },
                netns: with.netns.map(|netns| netns.id()),
            };
            request_operation(shared, with.deadline, |reply| ReconcilerMessage::Release(end, reply))
        }
        CniVerb::Check => answer_check(request, with.deadline, shared),
        CniVerb::Gc => {
            let attachments: BTreeSet<ContainerId> = request.attachments.into_iter().collect();
            request_operation(shared, with.deadline, |reply| {
                ReconcilerMessage::Collect(request.network, attachments, reply)
            })
        }
    }
}

/// Answers with the reconciler's result of an operation.
fn request_operation(
    shared: &ConnectionContext,
    deadline: Instant,
    message: impl FnOnce(CaptureReply) -> ReconcilerMessage,
) -> AgentAnswer {
    let done = ask_reconciler(shared, deadline, message).and_then(|done| done);
    AgentAnswer { error: done.err().map(String::from), ..AgentAnswer::default() }
}

fn ask_reconciler<T>(
    shared: &ConnectionContext,
    deadline: Instant,
    message: impl FnOnce(mpsc::Sender<T>) -> ReconcilerMessage,
) -> Result<T, Reason> {
    let (reply, answer) = mpsc::channel();
    shared.owner.send(message(reply));
    receive_reply(&answer, deadline)
}

fn receive_reply<T>(answer: &mpsc::Receiver<T>, deadline: Instant) -> Result<T, Reason> {
    answer.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|_| LATE.into())
}

/// Fetches facts, decides and enrols: by one message, if the reconciler knows the pod.
fn answer_add(
    request: AgentRequest,
    with: RequestContext,
    is_gone: impl Fn() -> bool,
    shared: &ConnectionContext,
) -> AgentAnswer {
    let name = PodName { namespace: request.namespace, name: request.name };
    let AgentRequest { uid, container, ips, network, .. } = request;
    let RequestContext { netns, deadline } = with;
    let give_up = deadline.checked_sub(MARGIN).unwrap_or(deadline);
    let arrival = PodArrival {
        name: name.clone(),
        uid,
        container,
        ips,
        network,
        netns,
        deadline: give_up,
        known: None,
        outdated: false,
    };
    let (reply, done) = mpsc::channel();
    let began = Instant::now();
    let decided = decide_add(Box::new(arrival), &reply, is_gone, deadline, shared);
    shared.plugin.observe_add_phase("facts", began.elapsed());
    let AddDecision { known: (pod, namespace), membership } = match decided {
        Ok(decided) => decided,
        Err(error) => return AgentAnswer::from_error(error),
    };
    let began = Instant::now();
    let done = receive_reply(&done, deadline).and_then(|done| done);
    match (membership, done) {
        (Ok(reason), Ok(())) => {
            info!(target: "ambient", namespace = %name.namespace, pod = %name.name, %reason, "pod enrolled");
        }
        (Ok(_), Err(error)) => return AgentAnswer::from_error(error),
        (Err(_), Ok(())) => {}
        (Err(_), Err(error)) => {
            warn!(target: "ambient", namespace = %name.namespace, pod = %name.name, %error, "addresses of the pod may still be captured");
        }
    }
    shared.plugin.observe_add_phase("enrol", began.elapsed());
    let enrolled = membership.is_ok();
    AgentAnswer { pod: Some(pod), namespace, enrolled, error: None }
}

/// Makes the reconciler decide on a pod and begin its enrolment. If the pod is unknown, waits for it, and queries the API server.
fn decide_add(
    arrival: Box<PodArrival>,
    reply: &CaptureReply,
    is_gone: impl Fn() -> bool,
    deadline: Instant,
    shared: &ConnectionContext,
) -> Result<AddDecision, Reason> {
    let decided = |arrival| {
        if is_gone() {
            return Err("the client no longer waits for the answer".into());
        }
        ask_reconciler(shared, deadline, |decision| ReconcilerMessage::Add(arrival, decision, reply.clone()))
    };
    let mut unknown = match decided(arrival)? {
        Ok(decided) => return Ok(decided),
        Err(arrival) => arrival,
    };
    // Without a UID, a known pod of this name may be a predecessor; the API server has only the current one. The known one is used
    // if the server does not respond soon: pods start while the API server is unavailable.
    let is_asked = unknown.uid.is_empty() || unknown.outdated;
    let limit = if unknown.outdated { deadline.min(Instant::now() + CONFIRMATION) } else { deadline };
    let asked = is_asked.then(|| look_up(&unknown.name, &unknown.uid, limit, shared));
    unknown.known = Some(match asked {
        Some(Err(error)) if !shared.policy.ambient => return Err(error),
        Some(Ok(known)) => known,
        _ => find_pod_facts(&unknown.name, &unknown.uid, deadline, shared)?,
    });
    decided(unknown)?.map_err(|_| LATE.into())
}

/// Returns facts, and checks that a pod that belongs to ambient mode is captured.
fn answer_check(request: AgentRequest, deadline: Instant, shared: &ConnectionContext) -> AgentAnswer {
    let name = PodName { namespace: request.namespace, name: request.name };
    let (pod, namespace) = match find_pod_facts(&name, &request.uid, deadline, shared) {
        Ok(known) => known,
        Err(error) => return AgentAnswer::from_error(error),
    };
    let mut answer = AgentAnswer::default();
    if evaluate_membership(&pod, namespace.as_ref(), &shared.policy).is_ok() {
        let uid = pod.metadata.uid.clone();
        let message = |reply| ReconcilerMessage::Check(uid, request.ips, reply);
        answer = request_operation(shared, deadline, message);
        answer.enrolled = answer.error.is_none();
    }
    AgentAnswer { pod: Some(pod), namespace, ..answer }
}

fn find_pod_facts(
    name: &PodName,
    uid: &PodUid,
    deadline: Instant,
    shared: &ConnectionContext,
) -> Result<PodWithNamespace, Reason> {
    let (reply, answer) = mpsc::channel();
    let waiter = PodWaiter { name: name.clone(), uid: uid.clone(), since: Instant::now(), reply };
    shared.owner.send(ReconcilerMessage::Pod(waiter));
    let left = deadline.saturating_duration_since(Instant::now());
    if let Ok(known) = answer.recv_timeout(WATCH_DELAY.min(left)) {
        return Ok(known);
    }
    drop(answer); // without a receiver, the reconciler forgets the request at the next fact
    look_up(name, uid, deadline, shared)
}

/// Fetches a pod, trimmed like those of the index.
fn look_up(
    name: &PodName,
    uid: &PodUid,
    deadline: Instant,
    shared: &ConnectionContext,
) -> Result<PodWithNamespace, Reason> {
    let (mut pod, mut namespace) = (shared.lookup)(name, uid, deadline)?;
    enrolment::facts::trim_pod(&mut pod);
    namespace.iter_mut().for_each(enrolment::facts::trim_namespace);
    Ok((Box::new(pod), namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;

    use crate::ReconcilerInbox;

    /// The reconciler does not answer, and `lookup` returns immediately.
    fn unanswered_service(lookup: PodFetcher) -> (AgentService, ReconcilerInbox) {
        let (handle, inbox) = ReconcilerInbox::new();
        let plugin = PluginMetrics::register(&mut Registry::default());
        (AgentService::new(handle, EnrolmentPolicy::default(), lookup, plugin, Arc::default()), inbox)
    }

    #[test]
    fn a_request_that_ends_in_a_panic_is_not_counted_any_more() {
        let (service, _inbox) = unanswered_service(Box::new(|_, _, _| panic!("a defect")));
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut request = serde_json::to_vec(&AgentRequest::new(CniVerb::Check)).unwrap();
        request.push(b'\n');
        client.write_all(&request).unwrap();
        spawn_connection(server, Arc::clone(&service.0), STACK).unwrap();
        assert_eq!(io::Read::read(&mut client, &mut [0]).ok(), Some(0), "no answer");
        let began = Instant::now();
        while service.0.connections.load(Ordering::Relaxed) > 0 {
            assert!(began.elapsed() < Duration::from_secs(10));
            thread::yield_now();
        }
    }

    #[test]
    fn an_agent_that_can_start_no_thread_for_a_request_is_not_ready() {
        let (service, _inbox) = unanswered_service(Box::new(|_, _, _| Err("no such pod".into())));
        let (shared, (mut client, server)) = (service.0, UnixStream::pair().unwrap());
        shared.status.set_problem(None);
        assert_eq!(shared.status.check_readiness(), Ok(()));
        let no_room = 1 << 50; // bytes, more than any address space has
        let refused = spawn_connection(server, Arc::clone(&shared), no_room).unwrap_err();
        assert_ne!(refused.kind(), io::ErrorKind::WouldBlock, "it is logged, and followed by a pause");
        assert!(shared.status.check_readiness().is_err());
        assert_eq!(io::Read::read(&mut client, &mut [0]).ok(), Some(0), "the client connects again");
        assert_eq!(shared.connections.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_deadline_shorter_than_the_wait_for_a_pod_is_kept() {
        let (service, _inbox) = unanswered_service(Box::new(|_, _, _| Err("no such pod".into())));
        let wait = WATCH_DELAY / 6;
        // The best of several: something else may stop this process.
        let took = (0..5).map(|_| {
            let began = Instant::now();
            let answer = service.answer_by(AgentRequest::new(CniVerb::Check), None, began + wait);
            assert!(answer.error.is_some());
            began.elapsed()
        });
        let best = took.min().unwrap();
        assert!((wait..WATCH_DELAY).contains(&best), "{best:?}");
    }

    /// The reconciler is busy, and does not answer.
    #[test]
    fn one_deadline_holds_for_the_look_up_and_all_that_follows() {
        let (send, asked) = mpsc::channel();
        let send = std::sync::Mutex::new(send);
        let lookup: PodFetcher = Box::new(move |name, _, deadline| {
            drop(send.lock().map(|send| send.send(deadline)));
            let mut pod = Pod::default();
            pod.metadata.namespace.clone_from(&name.namespace);
            pod.metadata.name.clone_from(&name.name);
            pod.metadata.labels.insert("istio.io/dataplane-mode".to_owned(), "ambient".to_owned());
            Ok((pod, Some(Namespace::default())))
        });
        let (service, _inbox) = unanswered_service(lookup);
        let request = AgentRequest {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            ..AgentRequest::new(CniVerb::Check)
        };
        let wait = Duration::from_secs(1);
        // Not each time: something else may stop this process.
        assert!((0..5).any(|_| {
            let began = Instant::now();
            let answer = service.answer_by(request.clone(), None, began + wait);
            let took = began.elapsed();
            assert!(answer.error.is_some() && took >= wait, "{took:?}");
            let asked = asked.try_iter().last();
            took < 2 * wait && asked == Some(began + wait) && answer.error.as_deref() == Some(LATE)
        }));
    }
}
