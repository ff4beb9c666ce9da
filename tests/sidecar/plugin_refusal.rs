//! An agent was killed before it could clean up, and its credential is invalid: which pods start nevertheless, and which do not.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use kit::{ApiServer, Auth, FakeReply, Netns, istio};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, Outcome, PluginFixture, V4, bare_pod, injected, tables, undetermined};

/// UID of the calls.
const UID: &str = "1f0e9a5e-9e5b-4f8e-a1b5-0d8b7f2a6c11";
/// Volume that the kubelet creates for every pod with a service account.
const PLAIN: &str = "kubernetes.io~projected/kube-api-access-x2x4z";

/// A node with a kubelet's directory, and an API server whose response status can be changed.
struct Dead {
    fixture: PluginFixture,
    status: Arc<AtomicU16>,
    pod: Netns,
}

impl Dead {
    fn new() -> Self {
        let status = Arc::new(AtomicU16::new(401));
        let answers = Arc::clone(&status);
        let fixture = PluginFixture::answering(move |request| match answers.load(Ordering::Relaxed) {
            200 => FakeReply::Json(200, injected(request)),
            code => FakeReply::Json(code, json!({"kind": "Status", "code": code, "message": "no"})),
        });
        Self { fixture, status, pod: bare_pod(V4) }
    }

    fn answers(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    fn socket(&self) -> PathBuf {
        self.fixture.node.run_dir().join("log.sock")
    }

    fn file(&self) -> PathBuf {
        self.fixture.node.run_dir().join("credential-refused")
    }

    fn volumes(&self) -> PathBuf {
        self.fixture.node.dir().join("kubelet/pods").join(UID).join("volumes")
    }

    /// Replaces the pod's volumes.
    fn mount(&self, volumes: &[&str]) {
        drop(fs::remove_dir_all(self.volumes()));
        fs::create_dir_all(self.volumes()).unwrap();
        volumes.iter().for_each(|volume| fs::create_dir_all(self.volumes().join(volume)).unwrap());
    }

    /// A call for a pod, with a timeout of a second for the API server.
    fn call(&self, command: &str) -> Call<'_> {
        let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID={UID}");
        let call = self.fixture.call(command, &self.pod).env("CNI_ARGS", &args);
        let call = call.with("log_uds_address", json!(self.socket()));
        let call = call.kubernetes("kubelet_root_dir", json!(self.fixture.node.dir().join("kubelet")));
        call.kubernetes("api_timeout_seconds", json!(1))
    }

    /// Records a first refusal, this many seconds ago.
    fn refused_since(&self, seconds: i64) {
        drop(fs::remove_file(self.file()));
        blocked(&self.call("ADD"), "by now 0 s");
        self.age(seconds);
    }

    /// Cause of a refusal that is the first one recorded.
    fn refused_now(&self) -> String {
        format!(
            "{}:6443: it does not accept our credential (401): no; no node agent listens at {}; when this has lasted 300 s (by \
             now 0 s), pods without a sidecar start",
            self.fixture.node.outside_ip(false),
            self.socket().display()
        )
    }

    /// Makes the record older.
    fn age(&self, seconds: i64) {
        self.change(|line| {
            let (since, rest) = line.split_once(' ').unwrap();
            format!("{} {rest}", since.parse::<i64>().unwrap() - seconds)
        });
    }

    /// Changes the record.
    fn change(&self, change: impl FnOnce(String) -> String) {
        let line = fs::read_to_string(self.file()).unwrap();
        fs::write(self.file(), change(line)).unwrap();
    }

    fn starts(&self, call: &Call<'_>) -> Outcome {
        let outcome = call.run();
        outcome.ok();
        assert_eq!(tables(&self.pod), "");
        outcome
    }
}

fn blocked(call: &Call<'_>, part: &str) {
    let error = call.run().refused();
    assert!(error.code == 11 && error.msg.contains("cannot determine whether pod shop/web"), "{error:?}");
    assert!(error.msg.contains(part), "no {part:?}: {error:?}");
}

/// Longer than five minutes.
const LONG: i64 = 301;

#[test]
fn a_pod_without_a_sidecar_starts_when_the_credential_was_refused_for_five_minutes() {
    let dead = Dead::new();
    dead.mount(&[PLAIN]);
    for status in [401, 403] {
        dead.answers(status);
        dead.refused_since(200);
        let mode = fs::metadata(dead.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        blocked(&dead.call("ADD"), "when this has lasted 300 s (by now 20");
        dead.refused_since(LONG);
        let outcome = dead.starts(&dead.call("ADD"));
        let log = outcome.0.stderr_text();
        for part in ["\"warn\"", "starts outside of the mesh", "install-cni uninstall", "\"not-injected\""] {
            assert!(log.contains(part), "no {part:?}: {log}");
        }
        dead.call("CHECK").run().ok();
    }
    dead.mount(&[]);
    dead.starts(&dead.call("ADD"));
}

#[test]
fn without_proof_that_it_has_no_sidecar_a_pod_stays_blocked() {
    let dead = Dead::new();
    dead.mount(&[PLAIN]);
    dead.refused_since(LONG);
    let call = || dead.call("ADD");
    for volume in ["kubernetes.io~empty-dir/istio-envoy", "kubernetes.io~csi/workload-socket"] {
        dead.mount(&[PLAIN, volume]);
        blocked(&call(), volume.split_once('/').unwrap().1);
    }
    dead.mount(&[PLAIN]);
    let injected = json!({"sidecar.istio.io/status": "{}"});
    blocked(&call().annotations(&injected), "this pod was injected");
    blocked(&call().pod("shop", "web"), "does not give this pod's UID");
    blocked(&call().kubernetes("kubelet_root_dir", json!("/nonexistent")), "cannot be read");
    fs::remove_dir_all(dead.volumes()).unwrap();
    blocked(&call(), "cannot be read");
    fs::write(dead.volumes(), "").unwrap();
    blocked(&call(), "cannot be read");
    fs::remove_file(dead.volumes()).unwrap();
    dead.mount(&[PLAIN]);
    dead.starts(&call());
}

/// The refusals must be of one credential, without an interruption, as far as the records show.
#[test]
fn whatever_ends_the_refusal_lets_the_time_begin_anew() {
    let dead = Dead::new();
    dead.mount(&[PLAIN]);
    let call = || dead.call("ADD");
    let kubeconfig = &dead.fixture.kubeconfig;
    let rewrite = || {
        let new = kubeconfig.with_extension("new");
        fs::copy(kubeconfig, &new).unwrap();
        fs::rename(&new, kubeconfig).unwrap();
    };
    let earlier_boot = |line: String| line.replace('-', "+");
    let later = |line: String| format!("99999{line}");
    let agent = || drop(UnixListener::bind(dead.socket()).unwrap());
    for (what, end) in [
        ("another credential", Box::new(rewrite) as Box<dyn Fn()>),
        ("an agent that came and was killed", Box::new(agent)),
        ("another boot", Box::new(|| dead.change(earlier_boot))),
        ("a time that is to come", Box::new(|| dead.change(later))),
        ("nothing that can be read", Box::new(|| dead.change(|_| "x".repeat(4096)))),
        ("the file is gone", Box::new(|| fs::remove_file(dead.file()).unwrap())),
    ] {
        dead.refused_since(LONG);
        end();
        let error = call().run().refused();
        assert_eq!(error.cause(), undetermined(&dead.refused_now()), "{what}");
    }

    // The API server accepts the credential: for this pod, or for one that does not exist.
    for status in [200, 404] {
        dead.refused_since(LONG);
        dead.answers(status);
        let outcome = call().run();
        assert_eq!(outcome.0.status.success(), status == 200, "{outcome}");
        assert!(!dead.file().exists(), "{status}");
        dead.answers(401);
    }
}

#[test]
fn a_living_agent_or_an_api_server_that_does_not_refuse_lets_nobody_pass() {
    let dead = Dead::new();
    dead.mount(&[PLAIN]);
    dead.refused_since(LONG);
    for status in [500, 503, 418] {
        dead.answers(status);
        blocked(&dead.call("ADD"), &status.to_string());
    }
    let address = dead.fixture.node.outside_ip(false);
    dead.fixture.node.netns().sh(&format!("ip route add unreachable {address}"));
    blocked(&dead.call("ADD"), "no connection");
    dead.fixture.node.netns().sh(&format!("ip route del unreachable {address}"));
    dead.answers(401);
    dead.starts(&dead.call("ADD"));

    let agent = UnixListener::bind(dead.socket()).unwrap();
    blocked(&dead.call("ADD"), "(401)");
    assert!(!dead.file().exists(), "an agent is there");
    drop(agent);
    blocked(&dead.call("ADD"), "by now 0 s");
    dead.refused_since(LONG);
    dead.starts(&dead.call("ADD")); // its socket remains, without a listener
    let call = dead.call("ADD").with("log_uds_address", Value::Null);
    blocked(&call, "(401)");
}

/// A directory that a reboot removed is recreated with the record; ambient pods are identified by labels alone.
#[test]
fn it_is_noted_where_the_sockets_would_be_and_not_with_ambient_mode() {
    let dead = Dead::new();
    dead.mount(&[PLAIN]);
    let directory = dead.fixture.node.run_dir().join("gone");
    let call = dead.call("ADD").with("log_uds_address", json!(directory.join("log.sock")));
    blocked(&call, "by now 0 s");
    assert!(directory.join("credential-refused").is_file());
    dead.refused_since(LONG);
    let socket = dead.fixture.node.run_dir().join("agent.sock");
    let ambient = dead.call("ADD").with("ambient_enabled", json!(true)).with("agent_socket", json!(socket));
    blocked(&ambient, "only the API server and the node agent know");
    let excluded = ambient.kubernetes("exclude_namespaces", json!(["shop"]));
    dead.starts(&excluded);
}

/// The kernel kills a process that exceeds its limit of a file's size.
#[test]
fn a_plugin_killed_while_it_notes_a_refusal_leaves_a_file_only_where_the_agent_removes_it() {
    let dead = Dead::new();
    let script = dead.fixture.node.dir().join("limited");
    let plugin = kit::binary("istio-cni");
    kit::write_script(&script, &format!("#!/bin/sh\nulimit -f 0\nexec {}\n", plugin.display()));
    let call = dead.call("ADD");
    let output = dead.fixture.node.runtime().exec(&script, &call.environment(), &call.input());
    assert_eq!(output.status.signal(), Some(Signal::XFSZ.as_raw()));
    let run_dir = dead.fixture.node.run_dir();
    assert_eq!(list_names(&run_dir), ["pods"]);
    assert!(list_names(&run_dir.join("pods")).iter().all(|name| name.starts_with(".staged-")));
}

fn list_names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn the_real_api_server_refuses_the_token_of_an_account_that_is_gone() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("refusal");
    let token = api.service_account("refusal", "istio-cni", &istio::plugin_rules());
    let dead = Dead::new();
    let kubeconfig = istio::write_file(&dead.fixture.node, "real", &api.kubeconfig(&Auth::Token(token)));
    api.create_pod(&ApiServer::pod("refusal", "web"));
    dead.mount(&[PLAIN]);
    let args = format!("K8S_POD_NAMESPACE=refusal;K8S_POD_NAME=web;K8S_POD_UID={UID}");
    let call = dead.call("ADD").kubeconfig(&kubeconfig).env("CNI_ARGS", &args);
    dead.starts(&call);
    assert!(!dead.file().exists());
    api.admin().delete("/api/v1/namespaces/refusal/serviceaccounts/istio-cni");
    // The server caches the result for a token for several seconds.
    let refused = kit::until_within(Duration::from_secs(40), "a refusal, for the account is gone", || {
        Some(call.run()).filter(|outcome| !outcome.0.status.success())
    });
    let error = refused.refused();
    let fake = dead.fixture.node.outside_ip(false);
    let cause = dead
        .refused_now()
        .replace(&format!("{fake}:"), "10.96.0.1:")
        .replace("(401): no;", "(401): Unauthorized;");
    assert_eq!(error.cause(), undetermined(&cause).replace("shop/web", "refusal/web"));
    dead.age(LONG);
    dead.starts(&call);
}
