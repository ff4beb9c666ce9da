//! The plugin without ambient mode, and agents that answer incorrectly, late or not at all.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::{FakeReply, Netns};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, PluginFixture, V4, bare_pod};

/// Allowance for a busy machine, up to the longer of the times for which the plugin waits.
const BUSY: Duration = Duration::from_secs(8);
/// Time for which the plugin waits for an agent if the API server can answer instead, and if it cannot.
const BEFORE_API: Duration = Duration::from_secs(2);
const ALONE: Duration = Duration::from_secs(10);
const UID: &str = "1f0e9a5e-9e5b-4f8e-a1b5-0d8b7f2a6c11";

/// An agent that reads each request and sends this answer, or keeps the connection without answering. It ends with the test
/// process.
struct FakeAgent {
    socket: PathBuf,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl FakeAgent {
    fn start(fixture: &PluginFixture, answer: Option<Value>) -> Self {
        let socket = fixture.node.run_dir().join("agent.sock");
        let (listener, requests) = (UnixListener::bind(&socket).unwrap(), Arc::default());
        let seen: Arc<Mutex<Vec<Value>>> = Arc::clone(&requests);
        thread::spawn(move || {
            let mut held = Vec::new();
            while let Ok((client, _)) = listener.accept() {
                seen.lock().unwrap().push(request(&client));
                match &answer {
                    Some(answer) => drop(writeln!(&client, "{answer}")), // the plugin may have disconnected
                    None => held.push(client),
                }
            }
        });
        Self { socket, requests }
    }

    fn call<'f>(&self, fixture: &'f PluginFixture, command: &str, netns: &Netns) -> Call<'f> {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID={UID}");
        fixture.call(command, netns).env("CNI_ARGS", &args).with("agent_socket", json!(self.socket))
    }

    fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }
}

fn request(client: &UnixStream) -> Value {
    let mut line = String::new();
    drop(BufReader::new(client).read_line(&mut line)); // an empty line is a request, too
    serde_json::from_str(&line).unwrap_or_default()
}

fn is_redirected(netns: &Netns) -> bool {
    kit::plugin_rules::is_redirected(netns, "iptables-save")
}

/// Configured, but the file does not exist: as with a generated entry and `WRITE_KUBECONFIG=false`.
fn without_kubeconfig(call: Call<'_>) -> Call<'_> {
    call.kubeconfig("/nonexistent/kubeconfig".as_ref())
}

#[test]
fn an_agent_that_never_answers_costs_an_add_two_seconds() {
    let fixture = PluginFixture::new();
    let agent = FakeAgent::start(&fixture, None);
    let netns = bare_pod(V4);
    let outcome = agent.call(&fixture, "ADD", &netns).run();
    outcome.ok();
    assert!(is_redirected(&netns), "{outcome}");
    assert!(outcome.wall() >= BEFORE_API && outcome.wall() < BEFORE_API + BUSY, "{outcome}");
    let why = format!("no answer from {} within 2 s", agent.socket.display());
    let message = format!("the node agent is unavailable ({why}); asked the API server");
    assert!(outcome.has_logged(&message), "{outcome}");
    assert_eq!(agent.requests().len(), 1, "it is asked once");
}

/// A stopped process accepts no connections: the kernel blocks connecting clients.
#[test]
fn nor_does_one_that_accepts_no_more_connections_cost_more() {
    let fixture = PluginFixture::new();
    let socket = fixture.node.run_dir().join("agent.sock");
    let address = SocketAddrUnix::new(&socket).unwrap();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let new = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let listener = new();
    bind(&listener, &address).unwrap();
    listen(&listener, 1).unwrap();
    let fill = || -> Option<OwnedFd> {
        let socket = new();
        connect(&socket, &address).ok().map(|()| socket)
    };
    let waiting: Vec<OwnedFd> = std::iter::from_fn(fill).collect();
    let netns = bare_pod(V4);
    let outcome = fixture.call("ADD", &netns).with("agent_socket", json!(socket)).run();
    outcome.ok();
    assert!(is_redirected(&netns), "{outcome}");
    assert!(outcome.wall() >= BEFORE_API && outcome.wall() < BEFORE_API + BUSY, "{outcome}");
    drop(waiting);
}

#[test]
fn alone_it_may_take_longer_and_the_error_says_so() {
    let fixture = PluginFixture::new();
    let agent = FakeAgent::start(&fixture, None);
    let netns = bare_pod(V4);
    let outcome = without_kubeconfig(agent.call(&fixture, "ADD", &netns)).run();
    let refusal = outcome.refused();
    assert_eq!(refusal.code, 11, "{outcome}");
    let agent =
        format!("the node agent is unavailable (no answer from {} within 10 s)", agent.socket.display());
    let file = "cannot use the file /nonexistent/kubeconfig: No such file or directory (os error 2)";
    let expected = format!(
        "cannot determine whether pod shop/web belongs to the mesh: {agent}, and cannot GET pods shop/web: the kubeconfig \
         cannot be used: {file}"
    );
    assert_eq!(refusal.cause(), expected);
    assert!(outcome.wall() >= ALONE && outcome.wall() < ALONE + BUSY, "{outcome}");
    assert!(kit::plugin_rules::is_bare(&netns, "iptables-save"));
    assert!(fixture.api.requests().is_empty());
}

#[test]
fn neither_an_end_nor_a_question_about_the_plugin_waits_for_an_agent() {
    let fixture = PluginFixture::new();
    let agent = FakeAgent::start(&fixture, None);
    let netns = bare_pod(V4);
    let gc = agent.call(&fixture, "GC", &netns).with("cni.dev/valid-attachments", json!([]));
    let status = agent.call(&fixture, "STATUS", &netns);
    for call in [
        agent.call(&fixture, "DEL", &netns),
        gc.with("cniVersion", json!("1.1.0")),
        status.with("cniVersion", json!("1.1.0")),
    ] {
        let is_quick = (0..3).any(|_| {
            let outcome = call.run();
            outcome.ok();
            outcome.wall() < BEFORE_API
        });
        assert!(is_quick, "{:?}", call.environment());
    }
    assert_eq!(agent.requests(), Vec::<Value>::new());
}

#[test]
fn an_agents_error_leaves_the_decision_to_the_api_server() {
    let fixture = PluginFixture::new();
    let agent = FakeAgent::start(&fixture, Some(json!({"error": "cannot get pod shop/web: no (403)"})));
    let netns = bare_pod(V4);
    let outcome = agent.call(&fixture, "ADD", &netns).run();
    outcome.ok();
    assert!(is_redirected(&netns), "{outcome}");
    let message = "the node agent failed (cannot get pod shop/web: no (403)); asked the API server";
    assert!(outcome.has_logged(message), "{outcome}");
    assert_eq!(agent.requests().len(), 1);
    assert!(!fixture.api.requests().is_empty());

    let netns = bare_pod(V4);
    let refusal = without_kubeconfig(agent.call(&fixture, "ADD", &netns)).run().refused();
    assert_eq!(refusal.code, 11);
    assert_eq!(
        refusal.msg,
        "the node agent failed to handle pod shop/web: cannot get pod shop/web: no (403)"
    );
}

#[test]
fn when_both_fail_the_error_has_both_reasons() {
    let fixture = PluginFixture::answering(|_| FakeReply::Json(400, json!({"message": "broken"})));
    let agent = FakeAgent::start(&fixture, Some(json!({"error": "its list is not there"})));
    let refusal = agent.call(&fixture, "ADD", &bare_pod(V4)).run().refused();
    assert_eq!(refusal.code, 11);
    for words in ["the node agent failed (its list is not there), and cannot GET", "it answered 400: broken"]
    {
        assert!(refusal.msg.contains(words), "{}", refusal.msg);
    }
}

/// Whether a call sends no request to the API server; it is repeated, because the plugin does not wait long for an agent's answer.
fn spares_api(fixture: &PluginFixture, call: impl Fn()) -> bool {
    (0..3).any(|_| {
        let before = fixture.api.requests().len();
        call();
        fixture.api.requests().len() == before
    })
}

/// The agent's answer decides, whatever fields it has that this version does not know.
#[test]
fn an_agents_answer_spares_the_api_server() {
    let fixture = PluginFixture::new();
    let pod = kit::istio::injected_pod("shop", "web");
    let agent = FakeAgent::start(&fixture, Some(json!({"pod": pod, "enrolled": false, "later": [1]})));
    let netns = bare_pod(V4);
    assert!(spares_api(&fixture, || drop(agent.call(&fixture, "ADD", &netns).run().ok())));
    assert!(is_redirected(&netns));
    agent.call(&fixture, "CHECK", &netns).run().ok();
    let requests = agent.requests();
    let are_adds = requests.iter().all(|request| request["verb"] == "add");
    assert!(are_adds && !requests.is_empty(), "a CHECK of rules that redirect asks nobody: {requests:?}");
    let other = bare_pod(V4);
    let check = agent.call(&fixture, "CHECK", &other).env("CNI_CONTAINERID", "other");
    assert!(spares_api(&fixture, || {
        let error = check.run().refused();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (999, "pod shop/web bypasses the mesh: its traffic is not redirected")
        );
    }));
    assert_eq!(agent.requests().last().unwrap()["verb"], "check");
}

/// Answer of an agent that has enrolled the pod in ambient mode.
fn enrolled() -> Value {
    json!({
        "pod": {"metadata": {"name": "web", "namespace": "shop", "uid": UID}, "spec": {}, "status": {}},
        "namespace": {"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}}},
        "enrolled": true,
    })
}

/// As with Multus, whose networks have no plugin before this one, and with CNI 0.3, whose DEL has no result.
#[test]
fn record_and_del_have_the_addresses_of_an_add_without_a_result_before_it() {
    let fixture = PluginFixture::new();
    let agent = FakeAgent::start(&fixture, Some(enrolled()));
    let netns = bare_pod(V4);
    let call = |command| {
        let mut call = agent.call(&fixture, command, &netns).with("ambient_enabled", json!(true));
        call.conf.as_object_mut().unwrap().remove("prevResult");
        call
    };
    call("ADD").run().ok();
    let file = agent.socket.with_file_name(agent_protocol::RECORDS).join("0123456789abcdef");
    let record = agent_protocol::PodRecord::decode(&std::fs::read(&file).unwrap()).unwrap();
    call("DEL").pod("shop", "web").with("cniVersion", json!("0.3.1")).run().ok();
    assert!(!record.ips.is_empty() && !file.exists());
    let [add, del] = agent.requests().try_into().unwrap();
    let ips = json!(record.ips);
    assert_eq!([&add["verb"], &add["uid"], &add["ips"]], [&json!("add"), &json!(UID), &ips]);
    assert_eq!([&del["verb"], &del["uid"], &del["ips"]], [&json!("del"), &json!(UID), &ips]);
}

#[test]
fn an_ambient_pod_whose_namespace_cannot_be_opened_is_refused_for_that_reason() {
    let (refused, done) = (PluginFixture::new(), PluginFixture::new());
    let why = "the request has no network namespace: the plugin is of another version";
    let netns = bare_pod(V4);
    let add = |fixture: &PluginFixture, answer: Value| {
        let agent = FakeAgent::start(fixture, Some(answer));
        let call = agent.call(fixture, "ADD", &netns).with("ambient_enabled", json!(true));
        call.env("CNI_NETNS", "/run/netns/gone").run()
    };
    let error = add(&refused, json!({"error": why})).refused();
    let cause = error.msg.strip_prefix("cannot redirect pod shop/web: CNI_NETNS: ");
    assert!(error.code == 4 && cause.is_some(), "{error:?}");
    assert_eq!(error.details, format!("the node agent failed to handle pod shop/web: {why}"));
    add(&done, enrolled()).ok(); // an agent with node-level capture needs only the addresses
}

/// The message with the least number of seconds for which the plugin may wait for an agent: a stalled machine makes it wait longer.
pub(crate) fn with_least_wait(message: &str, least: u64) -> String {
    let (before, rest) = message.split_once(", waited ").unwrap_or_else(|| panic!("no wait: {message}"));
    let (seconds, rest) = rest.split_once(" s").unwrap();
    assert!(seconds.parse::<u64>().unwrap() >= least, "{message}");
    format!("{before}, waited {least} s{rest}")
}
