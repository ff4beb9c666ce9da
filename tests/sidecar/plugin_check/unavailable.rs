//! Agent, API server, kubeconfig and records are unavailable, in every combination: CHECK stays within its time limit, and does not
//! wait where rules or a record decide.

use std::{
    fs::{self, File},
    os::unix::net::UnixListener,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use kit::{FakeReply, Netns};
use serde_json::json;

use crate::fixtures::plugin::{Call, PluginFixture, V4, bare_pod, injected};

use super::{bypasses, call, succeeds};

/// A known decision costs no waiting; a busy machine needs time to start a process, at most twice as long as when nobody is away.
const AT_ONCE: Duration = Duration::from_millis(200);
/// Time limit in total. A busy machine needs time to start a process.
const PROMISE: Duration = Duration::from_secs(2);

/// How the agent is unavailable: without a socket, without a listener, or with one that does not answer.
const AGENTS: [&str; 3] = ["gone", "dead", "hanging"];
/// How the API server, or its credential, is unavailable.
const SERVERS: [&str; 6] = ["hanging", "closing", "failing", "refusing", "no listener", "no kubeconfig"];

struct Away {
    fixture: PluginFixture,
    agent: PathBuf,
    kubeconfig: PathBuf,
    _listener: Option<UnixListener>,
}

impl Away {
    fn new(agent: &str, server: &str) -> Away {
        let reply = match server {
            "closing" => FakeReply::Close,
            "failing" => FakeReply::Json(503, json!({"message": "etcd has no leader"})),
            "refusing" => FakeReply::Json(401, json!({"message": "Unauthorized"})),
            _ => FakeReply::Hang,
        };
        let fixture = PluginFixture::answering(move |_| reply.clone());
        let socket = fixture.node.run_dir().join("agent.sock");
        let listener = (agent != "gone").then(|| UnixListener::bind(&socket).unwrap());
        let listener = listener.filter(|_| agent == "hanging");
        let mut kubeconfig = fixture.kubeconfig.clone();
        if server == "no kubeconfig" {
            kubeconfig = fixture.node.net_d().join("gone");
        } else if server == "no listener" {
            let text = fs::read_to_string(&kubeconfig).unwrap();
            fs::write(&kubeconfig, text.replace(":6443", ":6444")).unwrap();
        }
        Away { fixture, agent: socket, kubeconfig, _listener: listener }
    }

    fn call<'f>(&'f self, command: &str, pod: &Netns) -> Call<'f> {
        let call = call(&self.fixture, command, pod).kubeconfig(&self.kubeconfig);
        call.with("agent_socket", json!(self.agent))
    }
}

#[test]
fn whoever_is_unavailable_a_pod_of_which_nothing_is_known_is_in_order_within_two_seconds() {
    for agent in AGENTS {
        for server in SERVERS {
            for ambient in [false, true] {
                let (away, pod) = (Away::new(agent, server), bare_pod(V4));
                let check = away.call("CHECK", &pod).with("ambient_enabled", json!(ambient));
                let what = format!("agent {agent}, API server {server}, ambient {ambient}");
                // A stalled machine takes longer, but not each time.
                let limit = PROMISE + 5 * away.call("VERSION", &pod).run().wall();
                let outcome = (0..3).map(|_| check.run()).find(|outcome| {
                    succeeds(&what, outcome);
                    outcome.wall() < limit
                });
                let outcome = outcome.unwrap_or_else(|| panic!("{what}: not within {limit:?}"));
                let log = outcome.0.stderr_text();
                assert!(log.contains("cannot determine whether pod shop/web"), "{what}: {log}");
                for command in ["STATUS", "GC"] {
                    let call =
                        away.call(command, &pod).unset("CNI_NETNS").with("ambient_enabled", json!(ambient));
                    let call =
                        call.with("cniVersion", json!("1.1.0")).with("cni.dev/valid-attachments", json!([]));
                    succeeds(&format!("{command}, {what}"), &call.run());
                }
            }
        }
    }
}

/// One hundred sandboxes, one after another, as a runtime checks at its start.
#[test]
fn a_hundred_pods_whose_rules_or_records_decide_take_no_time_while_everybody_is_unavailable() {
    let is_away = Arc::new(AtomicBool::new(false));
    let hangs = Arc::clone(&is_away);
    let fixture = PluginFixture::answering(move |request| match hangs.load(Ordering::Relaxed) {
        true => FakeReply::Hang,
        false => FakeReply::Json(200, injected(request)),
    });
    let [redirected, outside, damaged] = [bare_pod(V4), bare_pod(V4), bare_pod(V4)];
    let call_of = |command: &str, pod: &Netns, number: usize| {
        call(&fixture, command, pod).env("CNI_CONTAINERID", &format!("pod-{number:03}"))
    };
    for number in 0..100 {
        match number % 4 {
            0 => drop(call_of("ADD", &redirected, number).run().ok()),
            1 => {} // only its rules exist
            2 => drop(call_of("ADD", &outside, number).annotations(&json!({"note": "plain"})).run().ok()),
            _ => drop(call_of("ADD", &damaged, number).run().ok()),
        }
    }
    damaged.sh("iptables -t nat -F OUTPUT");
    let began = Instant::now();
    for (number, pod) in [&redirected, &redirected, &outside, &damaged].into_iter().enumerate() {
        drop(call_of("CHECK", pod, number).run());
    }
    let usual = began.elapsed() / 4;
    is_away.store(true, Ordering::Relaxed);
    let agent = fixture.node.run_dir().join("agent.sock");
    let _hanging = UnixListener::bind(&agent).unwrap();
    let before = fixture.api.requests().len();
    let began = Instant::now();
    for number in 0..100 {
        let checked = |pod| call_of("CHECK", pod, number).with("agent_socket", json!(agent)).run();
        let what = format!("pod {number}");
        match number % 4 {
            0 | 1 => succeeds(&what, &checked(&redirected)),
            2 => succeeds(&what, &checked(&outside)),
            _ => bypasses(&what, &checked(&damaged), "outbound"),
        }
    }
    let took = began.elapsed();
    assert!(took < 100 * AT_ONCE.max(2 * usual), "{took:?}, usually {usual:?} each");
    println!("100 CHECKs: {took:?}");
    assert_eq!(fixture.api.requests().len(), before, "nobody is asked");
}

/// Another process holds the lock of legacy tables, as a tool of the pod's own does: CHECK only reads.
#[test]
fn a_lock_of_legacy_tables_that_somebody_holds_does_not_matter() {
    let (fixture, pod) = (PluginFixture::new(), bare_pod(V4));
    pod.pipe("iptables-legacy-restore -w", "*nat\n:ISTIO_OUTPUT - [0:0]\nCOMMIT\n");
    call(&fixture, "ADD", &pod).run().ok();
    let locks = fixture.node.run_dir().join("locks");
    let files = fs::read_dir(&locks).into_iter().flatten().map(|entry| entry.unwrap().path());
    let held: Vec<File> = files
        .chain([PathBuf::from("/run/xtables.lock")])
        .filter_map(|path| File::options().write(true).create(true).truncate(false).open(path).ok())
        .collect();
    held.iter().for_each(|file| drop(file.try_lock()));
    succeeds("locked", &call(&fixture, "CHECK", &pod).run());
    drop(held);
    pod.sh("iptables-legacy -w -t nat -F OUTPUT");
    bypasses("damaged", &call(&fixture, "CHECK", &pod).run(), "IPv4 outbound");
}
