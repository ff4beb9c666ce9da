//! An agent that starts late, and the requests that it receives.

use std::fs;
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use agent_protocol::{AgentAnswer, AgentRequest, CniVerb};
use kit::{FakeReply, FakeRequest};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, PluginFixture, V4, bare_pod};
use crate::plugin_agent::with_least_wait;

/// An agent's reaction to a request.
#[derive(Clone, Copy)]
pub(super) enum Does {
    /// Answers that the pod is enrolled.
    Enrols,
    /// Answers that it cannot enrol the pod.
    Fails,
    /// Closes the connection.
    Ends,
}

pub(super) fn socket(fixture: &PluginFixture) -> PathBuf {
    fixture.node.run_dir().join("agent.sock")
}

/// An ADD with ambient mode, on a node where no agent left a path.
pub(super) fn ambient<'s>(fixture: &'s PluginFixture, pod: &kit::Netns) -> Call<'s> {
    let call = fixture.call("ADD", pod).with("ambient_enabled", json!(true));
    let nothing = fixture.node.run_dir().join("no-config.json");
    call.with("agent_socket", json!(socket(fixture))).with("ambient_config", json!(nothing))
}

/// Reads one request, with the namespace that an agent needs to capture a pod.
fn read(client: &UnixStream) -> AgentRequest {
    let (mut line, mut piece, mut descriptors) = (Vec::new(), [0; 4096], 0);
    while !line.ends_with(b"\n") {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut piece)];
        let received = recvmsg(client, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
        assert!(received > 0, "half a request: {}", String::from_utf8_lossy(&line));
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors += some.count();
            }
        }
        line.extend(&piece[..received]);
    }
    let request: AgentRequest = serde_json::from_slice(&line).unwrap();
    assert_eq!((request.verb, descriptors), (CniVerb::Add, 1), "an ADD, with the pod's namespace");
    request
}

/// Starts an agent at the socket, which handles one request in each of these manners, and then ends. Sends the requests that it
/// received.
pub(super) fn agent(path: &Path, does: Vec<Does>) -> mpsc::Receiver<AgentRequest> {
    drop(fs::remove_file(path)); // the previous one may have left it
    let listener = UnixListener::bind(path).unwrap();
    let (asked, requests) = mpsc::channel();
    thread::spawn(move || {
        for does in does {
            let (mut client, _) = listener.accept().unwrap();
            let request = read(&client);
            let pod = json!({"metadata": {"namespace": request.namespace, "name": request.name}});
            let answer = match does {
                Does::Ends => None,
                Does::Fails => Some(AgentAnswer::from_error("the kernel refuses")),
                Does::Enrols => {
                    let pod = Some(serde_json::from_value(pod).unwrap());
                    let labels = json!({"istio.io/dataplane-mode": "ambient"});
                    let namespace = json!({"metadata": {"name": request.namespace, "labels": labels}});
                    let namespace = Some(serde_json::from_value(namespace).unwrap());
                    Some(AgentAnswer { pod, namespace, enrolled: true, error: None })
                }
            };
            asked.send(request).unwrap();
            if let Some(answer) = answer {
                client.write_all(&[serde_json::to_vec(&answer).unwrap(), b"\n".to_vec()].concat()).unwrap();
            }
        }
    });
    requests
}

/// Pods of ambient mode by their namespace's label.
pub(super) fn of_the_mesh(request: &FakeRequest) -> FakeReply {
    member(request, "ambient")
}

pub(super) fn outside_of_the_mesh(request: &FakeRequest) -> FakeReply {
    member(request, "none")
}

fn member(request: &FakeRequest, mode: &str) -> FakeReply {
    let words: Vec<&str> = request.path.split(['/', '?']).collect();
    let object = match words.get(5) {
        Some(&"pods") => json!({"metadata": {"namespace": words[4], "name": words[6], "uid": "u"}}),
        _ => json!({"metadata": {"name": words[4], "labels": {"istio.io/dataplane-mode": mode}}}),
    };
    FakeReply::Json(200, object)
}

fn status(code: u16, message: &str) -> impl Fn(&FakeRequest) -> FakeReply + Send + Sync + 'static {
    let body = json!({"kind": "Status", "code": code, "message": message});
    move |_| FakeReply::Json(code, body.clone())
}

/// Delay until the agent is started.
const LATE: Duration = Duration::from_secs(1);

#[test]
fn an_add_that_needs_the_agent_waits_for_its_successor() {
    let refusing = || PluginFixture::answering(status(401, "Unauthorized"));
    for (what, fixture, credential) in [
        ("a token bound to a pod that is gone", refusing(), true),
        ("an API server that is broken", PluginFixture::answering(status(503, "no leader")), true),
        ("no credential", refusing(), false),
        ("a pod of ambient mode", PluginFixture::answering(of_the_mesh), true),
    ] {
        let pod = bare_pod(V4);
        let call = ambient(&fixture, &pod);
        let call = if credential { call } else { call.kubernetes("kubeconfig", Value::Null) };
        // A stalled machine takes longer, but not each time.
        let is_prompt = (0..3).any(|_| {
            // The previous agent left its socket.
            drop(fs::remove_file(socket(&fixture)));
            drop(UnixListener::bind(socket(&fixture)).unwrap());
            let (outcome, took, requests) = thread::scope(|scope| {
                let add = scope.spawn(|| (call.run(), Instant::now()));
                thread::sleep(LATE); // a waiting call shows no sign
                let began = Instant::now();
                let requests = agent(&socket(&fixture), vec![Does::Enrols, Does::Enrols]);
                let (outcome, ended) = add.join().unwrap();
                (outcome, ended - began, requests)
            });
            assert!(outcome.0.status.success(), "{what}: {outcome}");
            let label = "its namespace is labelled istio.io/dataplane-mode=ambient";
            let enrolled = format!("enrolled in ambient mode: {label}; the agent did it");
            assert!(outcome.has_logged(&enrolled), "{what}: {outcome}");
            let usual = call.run();
            usual.ok();
            for request in requests {
                assert_eq!((request.namespace.as_str(), request.name.as_str()), ("shop", "web"), "{what}");
            }
            println!("{what}: {took:?} after the agent's start, usually {:?}", usual.wall());
            took < usual.wall() + Duration::from_millis(700)
        });
        assert!(is_prompt, "{what}");
    }
}

#[test]
fn an_agent_that_ends_before_it_answers_leaves_the_question_to_the_next() {
    let fixture = PluginFixture::answering(status(401, "Unauthorized"));
    let pod = bare_pod(V4);
    let requests = agent(&socket(&fixture), vec![Does::Ends, Does::Ends, Does::Enrols]);
    ambient(&fixture, &pod).run().ok();
    assert_eq!(requests.iter().count(), 3);
    let requests = agent(&socket(&fixture), vec![Does::Ends, Does::Fails]);
    let error = ambient(&fixture, &pod).run().refused();
    assert_eq!(error.code, 11);
    assert_eq!(error.msg, "the node agent failed to handle pod shop/web: the kernel refuses");
    assert_eq!(requests.iter().count(), 2, "an answer is an answer");
}

#[test]
fn a_pod_that_needs_no_agent_does_not_wait_for_one() {
    let fixture = PluginFixture::answering(outside_of_the_mesh);
    let pod = bare_pod(V4);
    let outcome = ambient(&fixture, &pod).run();
    outcome.ok();
    assert!(outcome.wall() < Duration::from_secs(6), "{:?}", outcome.wall()); // it would wait for eight
}

#[test]
fn an_add_whose_agent_does_not_come_fails_in_time_and_says_how_long_it_waited() {
    let fixture = PluginFixture::answering(status(401, "Unauthorized"));
    let outcome = ambient(&fixture, &bare_pod(V4)).run();
    let error = outcome.refused();
    assert_eq!(error.code, 11);
    let unavailable = |waited: &str, fixture: &PluginFixture| {
        let socket = socket(fixture);
        format!(
            "the node agent is unavailable (nothing is listening on {}, waited {waited})",
            socket.display()
        )
    };
    let expected = format!(
        "cannot determine whether pod shop/web belongs to the mesh: {}, and cannot GET pods shop/web at the API server \
         https://{}:6443: it does not accept our credential (401): Unauthorized; which pods belong to ambient mode, only the \
         API server and the node agent know; reinstall the node agent, or remove what it left on this node with `install-cni \
         uninstall`",
        unavailable("8 s", &fixture),
        fixture.node.outside_ip(false)
    );
    assert_eq!(with_least_wait(&error.cause(), 8), expected);
    let wall = outcome.wall();
    assert!(wall >= Duration::from_secs(8) && wall < Duration::from_secs(20), "{wall:?}");
    let fixture = PluginFixture::answering(of_the_mesh);
    let outcome = ambient(&fixture, &bare_pod(V4)).kubernetes("api_timeout_seconds", json!(1)).run();
    let error = outcome.refused();
    let expected = format!(
        "pod shop/web belongs to ambient mode (its namespace is labelled istio.io/dataplane-mode=ambient) and could not be \
         enrolled: {}, and the plugins before this one gave the pod no address",
        unavailable("1 s", &fixture)
    );
    assert_eq!((error.code, with_least_wait(&error.msg, 1)), (11, expected));
    assert!(outcome.wall() < Duration::from_secs(6), "{:?}", outcome.wall());
}
