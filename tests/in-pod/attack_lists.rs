//! An API server that lists an earlier state, or nothing, but is correct about single objects: a stale cache, a failover, a
//! restored store. No pod leaves the mesh because of that, but a pod that was deleted does.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{
    Echo, FakeApi, FakeEvents, FakeReply, FakeRequest, InpodOptions, InpodZtunnel, NodeOptions, Pki, Pod,
    WorkloadState,
};
use report::PodVerdict;
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, PORT, Peer, starting};
use crate::fixtures::inpod::{InPod, relayed};
use crate::inpod_modern;

const OWN: &str = "agent-x7k2p";
/// Time without a wrong reaction, which takes less than 2 s without the tested code.
const WATCHED: Duration = Duration::from_secs(4);
const MINUTE: Duration = Duration::from_secs(60);

/// Store of the API server: the fixture's directory of manifests, and the objects that it lists instead.
struct Store {
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Content and version by file.
    versions: BTreeMap<PathBuf, (Value, u64)>,
    last: u64,
    /// False lists by kind.
    lies: BTreeMap<&'static str, Vec<Value>>,
    /// Last list by kind.
    listed: BTreeMap<&'static str, Vec<Value>>,
    asked: Vec<String>,
    /// Kind that cannot be listed or watched.
    refused: Option<&'static str>,
}

impl Store {
    /// All objects of a kind in their current state, each with its version.
    fn truth(&self, kind: &str) -> Vec<Value> {
        let mut state = self.state.lock().unwrap();
        let State { versions, last, .. } = &mut *state;
        // The fixture may have removed it before the last request.
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let objects = files.filter_map(|path| {
            let mut object: Value = serde_json::from_slice(&fs::read(&path).ok()?).unwrap();
            let known =
                versions.get(&path).filter(|(known, _)| *known == object).map(|(_, version)| *version);
            let version = known.unwrap_or_else(|| {
                *last += 1;
                versions.insert(path, (object.clone(), 1000 + *last));
                1000 + *last
            });
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            (object["kind"] == kind).then_some(object)
        });
        objects.collect()
    }

    fn picture(&self, kind: &'static str) -> Vec<Value> {
        let lie = self.state.lock().unwrap().lies.get(kind).cloned();
        lie.unwrap_or_else(|| self.truth(kind))
    }

    fn lie(&self, kind: &'static str, list: Vec<Value>) {
        self.state.lock().unwrap().lies.insert(kind, list);
    }

    fn refuse(&self, kind: Option<&'static str>) {
        self.state.lock().unwrap().refused = kind;
    }

    fn refuses(&self, kind: &str) -> bool {
        self.state.lock().unwrap().refused == Some(kind)
    }

    fn tell_the_truth(&self) {
        self.state.lock().unwrap().lies.clear();
    }

    /// Whether the last list of a kind was this one.
    fn has_listed(&self, kind: &'static str, list: &[Value]) -> bool {
        self.state.lock().unwrap().listed.get(kind).is_some_and(|listed| listed == list)
    }

    fn asked_for(&self, what: &str) -> usize {
        self.state.lock().unwrap().asked.iter().filter(|path| path.ends_with(what)).count()
    }

    fn answer(self: &Arc<Self>, request: &FakeRequest) -> FakeReply {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let kind = match path {
            "/api/v1/pods" => "Pod",
            "/api/v1/namespaces" => "Namespace",
            path => return self.single(&request.method, path),
        };
        if self.refuses(kind) {
            return FakeReply::Json(403, status(403));
        }
        if kit::is_streaming_list(query) {
            return FakeReply::Json(422, status(422));
        }
        if kit::is_watch(query) {
            return self.watched(kind);
        }
        let items = self.picture(kind);
        self.state.lock().unwrap().listed.insert(kind, items.clone());
        let metadata = json!({"resourceVersion": "999"});
        let list =
            json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": metadata, "items": items});
        FakeReply::Json(200, list)
    }

    /// A changed list ends the watch with 410 (too old).
    fn watched(self: &Arc<Self>, kind: &'static str) -> FakeReply {
        let store = Arc::clone(self);
        FakeReply::Watch(FakeEvents(Arc::new(move || {
            let is_old = || store.refuses(kind) || !store.has_listed(kind, &store.picture(kind));
            let _ = kit::found_within(Duration::from_secs(120), is_old);
            vec![json!({"type": "ERROR", "object": status(410)})]
        })))
    }

    fn single(&self, method: &str, path: &str) -> FakeReply {
        if method != "GET" {
            return FakeReply::Json(200, json!({}));
        }
        self.state.lock().unwrap().asked.push(path.to_owned());
        let names: Vec<&str> = path.split('/').skip(4).collect();
        let object = match names[..] {
            [namespace, "pods", name] => self
                .truth("Pod")
                .into_iter()
                .find(|pod| pod["metadata"]["namespace"] == namespace && pod["metadata"]["name"] == name),
            [name] => self.truth("Namespace").into_iter().find(|one| one["metadata"]["name"] == name),
            _ => None,
        };
        object.map_or_else(|| FakeReply::Json(404, status(404)), |object| FakeReply::Json(200, object))
    }
}

fn status(code: u16) -> Value {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        _ => "Invalid",
    };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code})
}

/// Makes the fixture's agent use such an API server, which knows the agent's own pod.
fn serve(fixture: &mut Ambient) -> (FakeApi, Arc<Store>) {
    let mut own = Pod::new("istio-system", OWN).manifest(&[]);
    own["spec"]["hostNetwork"] = json!(true);
    own["status"] = json!({"phase": "Running"});
    fixture.manifests.put_pod(&own);
    let store = Arc::new(Store { directory: fixture.manifests.path(), state: Mutex::default() });
    let address = SocketAddr::from((fixture.node.outside_ip(false), 6443));
    let serving = Arc::clone(&store);
    let api = FakeApi::start(fixture.node.outside(), address, move |request| serving.answer(request));
    fixture.container.set_account("token", Pki::shared().server_ca_pem());
    for (key, value) in [
        ("POD_SOURCE", "api"),
        ("KUBERNETES_SERVICE_HOST", &fixture.node.outside_ip(false).to_string()),
        ("KUBERNETES_SERVICE_PORT", "6443"),
        ("POD_NAMESPACE", "istio-system"),
        ("POD_NAME", OWN),
    ] {
        fixture.container.set_env(key, value);
    }
    (api, store)
}

/// All false lists: kind, description and objects.
fn lies(store: &Store) -> Vec<(&'static str, &'static str, Vec<Value>)> {
    let pods = store.truth("Pod");
    let but = |name: &str| {
        let all = pods.iter().filter(|pod| pod["metadata"]["name"] != name);
        all.cloned().collect::<Vec<_>>()
    };
    let mut before = pods.clone();
    for pod in before.iter_mut().filter(|pod| pod["metadata"]["name"] == "one") {
        pod["metadata"]["resourceVersion"] = json!("7");
        pod["metadata"]["labels"]["istio.io/dataplane-mode"] = json!("none");
    }
    let mut predecessor = before.clone();
    for pod in predecessor.iter_mut().filter(|pod| pod["metadata"]["name"] == "one") {
        pod["metadata"]["uid"] = json!("a-predecessor");
    }
    let mut namespaces = store.truth("Namespace");
    for namespace in &mut namespaces {
        namespace["metadata"]["resourceVersion"] = json!("7");
        namespace["metadata"]["labels"] = json!({});
    }
    vec![
        ("no pod at all", "Pod", Vec::new()),
        ("without the pod", "Pod", but("one")),
        ("the pod before it had its label", "Pod", before),
        ("a predecessor of its name", "Pod", predecessor),
        ("the namespace before it had its label", "Namespace", namespaces),
        ("no namespace", "Namespace", Vec::new()),
    ]
}

/// Asserts a state for several seconds after such a list.
fn hold(store: &Store, kind: &'static str, list: &[Value], still: impl Fn()) {
    store.lie(kind, list.to_vec());
    kit::until("it is listed", || store.has_listed(kind, list));
    kit::holds_for(WATCHED, "a state after a list", || {
        still();
        true
    });
}

fn unconfirmed(fixture: &Ambient) -> Option<f64> {
    fixture.daemon.as_ref().unwrap().metric("istio_cni_ambient_unconfirmed_objects")
}

/// The API server lists the true state again, and nothing is unconfirmed any more.
fn recovers(fixture: &Ambient, store: &Store) {
    store.tell_the_truth();
    fixture.eventually("nothing is unconfirmed", |fixture| unconfirmed(fixture) == Some(0.0));
}

/// The agent has received a complete true list: a pod known only from its ADD is kept anyway.
fn wait_listed(fixture: &Ambient, store: &Store) {
    fixture.eventually("all is listed", |_| store.has_listed("Pod", &store.truth("Pod")));
}

/// Asserts that the pod, which was connected, is served.
fn is_served(fixture: &InPod, ztunnel: &InpodZtunnel, peer: &Peer, what: &str) {
    let workload = ztunnel.workload(&peer.sandbox.pod.uid);
    let state = workload.map(|workload| workload.state);
    assert_eq!(state, Some(WorkloadState::Up), "{what}: ztunnel was told that it is gone\n{}", fixture.log());
}

fn is_released(ztunnel: &InpodZtunnel, peer: &Peer) -> bool {
    ztunnel.workload(&peer.sandbox.pod.uid).is_none_or(|workload| workload.state != WorkloadState::Up)
}

#[test]
fn in_pod_ztunnel_serves_on_whatever_is_listed() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    let (_api, store) = serve(&mut fixture);
    fixture.start();
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let (mut one, two) = (fixture.mesh_pod("one"), fixture.mesh_pod("two"));
    fixture.wait_captured(&one);
    fixture.wait_captured(&two);
    let outside: SocketAddr = (fixture.node.outside_ip(false), PORT).into();
    wait_listed(&fixture, &store);
    for (what, kind, list) in lies(&store) {
        hold(&store, kind, &list, || is_served(&fixture, &ztunnel, &one, what));
        let is_settled = what.contains("before it had") || what.contains("predecessor");
        fixture.eventually(what, |fixture| is_settled || unconfirmed(fixture) >= Some(1.0));
        let _ = one.tcp(outside).unwrap();
        let _ = ztunnel.wait_seen(|seen| seen.src.ip() == one.ip(false) && seen.dst == outside);
        recovers(&fixture, &store);
    }
    assert!(relayed(&ztunnel, one.ip(false), outside));
    // Few requests: one for each missing pod, without repetition.
    assert!((1..30).contains(&store.asked_for("/pods/one")), "{}", store.asked_for("/pods/one"));
    // A deleted pod whose DEL never arrived: the list lacks all pods, the API server returns 404 for this one only.
    hold(&store, "Pod", &[], || is_served(&fixture, &ztunnel, &two, "before it is gone"));
    let doubt = "Not confirmed by the API server: the API server's list lacks it, or shows it as it was before, and the API server has not \
                 reported that it is gone: it stays as it was.";
    fixture.eventually(doubt, |fixture| {
        fixture.explain("mesh/two").details.iter().any(|detail| detail == doubt)
    });
    fixture.manifests.remove_pod(MESH, "two");
    // The next request may be the third one, 10 s after the second.
    fixture.within(MINUTE, "it is released", |_| is_released(&ztunnel, &two));
    is_served(&fixture, &ztunnel, &one, "the other one");
    // An API server that also denies our own pod is not trusted; a DEL is.
    fixture.manifests.remove_pod("istio-system", OWN);
    fixture.manifests.remove_pod(MESH, "one");
    // The next request is after 10 s.
    kit::holds_for(Duration::from_secs(12), "it is served", || {
        is_served(&fixture, &ztunnel, &one, "an API server that lost everything");
        true
    });
    one.sandbox.delete().unwrap();
    fixture.eventually("it is released", |_| is_released(&ztunnel, &one));
}

#[test]
fn on_the_node_traffic_stays_captured_whatever_is_listed() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
    let (_api, store) = serve(&mut fixture);
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let one = fixture.pod(MESH, "one");
    fixture.wait_enrolled(&one, true);
    wait_listed(&fixture, &store);
    for (what, kind, list) in lies(&store) {
        hold(&store, kind, &list, || {
            assert!(fixture.is_captured(&one), "{what}: in the clear\n{}", fixture.log());
        });
        recovers(&fixture, &store);
    }
    fixture.assert_owned(&one);
    hold(&store, "Pod", &[], || assert!(fixture.is_captured(&one)));
    fixture.manifests.remove_pod(MESH, "one");
    fixture.wait_enrolled(&one, false);
}

/// At startup, a list can be compared with nothing except the agent's own pod.
#[test]
fn a_first_list_without_our_own_pod_is_not_used() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
    let (_api, store) = serve(&mut fixture);
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let one = fixture.pod(MESH, "one");
    fixture.wait_enrolled(&one, true);
    assert!(fixture.is_captured(&one));
    drop(fixture.daemon.take());
    store.lie("Pod", Vec::new());
    fixture.daemon = Some(fixture.container.start());
    hold(&store, "Pod", &[], || {
        assert!(fixture.is_captured(&one), "in the clear: {}", fixture.log());
        assert!(!fixture.daemon.as_ref().unwrap().is_ready());
    });
    let stale = "the API server's list of pods lacks the agent's own pod; ignoring the stale list";
    fixture.wait_logged(stale, "pod=");
    store.tell_the_truth();
    // The next list may be half a minute after such a one.
    fixture.within(MINUTE, "it is ready", |fixture| fixture.daemon().is_ready());
    assert!(fixture.is_captured(&one));
}

/// On a node that was just booted: without a list there was no pass yet, and there are no sets for the node's probes.
#[test]
fn a_pod_that_starts_before_the_first_list_waits_for_it() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    let (_api, store) = serve(&mut fixture);
    store.lie("Pod", Vec::new());
    // Before the agent, which waits longer after each such list, while the ADD waits for 9 s.
    let _ztunnel =
        InpodZtunnel::start(&fixture.node, "ztunnel-a", &fixture.socket(), InpodOptions::default());
    let (pod, conflist) = (Pod::new(MESH, "web"), fixture.node.conflist(&[fixture.plugin()]));
    fixture.manifests.put_pod(&starting(&pod));
    fixture.daemon = Some(fixture.container.start());
    let node = &fixture.node;
    kit::until("the agent serves the plugin", || node.run_dir().join("agent.sock").exists());
    let added = std::thread::scope(|scope| {
        let adding = scope.spawn(|| node.add_pod(&node.runtime(), &conflist, pod));
        kit::until("it is fetched", || store.asked_for("/pods/web") > 0);
        store.tell_the_truth();
        adding.join().unwrap()
    });
    let web = Peer::new(added.unwrap_or_else(|error| panic!("{error}\n{}", fixture.log())));
    assert!(fixture.is_ruled(&web) && fixture.is_probed(web.ip(false)), "{}", fixture.log());
}

/// The sandbox of a pod that was deleted by force starts late; another node may run its successor.
#[test]
fn a_successor_does_not_get_the_namespace_of_its_predecessor() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    let (_api, _store) = serve(&mut fixture);
    fixture.start();
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let [old, new] = [(); 2].map(|()| Pod::new(MESH, "web"));
    assert_ne!(old.uid, new.uid);
    fixture.manifests.put_pod(&starting(&new));
    let conflist = fixture.node.conflist(&[fixture.plugin()]);
    let refused = fixture.node.add_pod(&fixture.node.runtime(), &conflist, old);
    assert_eq!(refused.err().and_then(|error| error.code()), Some(11), "{}", fixture.log());
    assert_eq!(ztunnel.workload(&new.uid), None);
}

/// Istio's own plugin sends no UID, and the list may contain a predecessor that still runs.
#[test]
fn a_pod_without_a_uid_is_not_taken_for_its_predecessor() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    let (_api, store) = serve(&mut fixture);
    fixture.start();
    let mut ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let old = fixture.running_pod(MESH, "web");
    let _ = ztunnel.wait_for_workload(&old.sandbox.pod.uid);
    store.lie("Pod", store.truth("Pod"));
    let new = inpod_modern::unfinished(&fixture, MESH, "web");
    assert_ne!(new.sandbox.pod.uid, old.sandbox.pod.uid);
    let told = inpod_modern::tell(&inpod_modern::socket(&fixture), &new.sandbox);
    assert_eq!(told, (200, String::new()), "{}", fixture.log());
    ztunnel.catch_up();
    assert!(ztunnel.workload(&new.sandbox.pod.uid).is_some(), "{}", fixture.log());
    assert!(fixture.is_ruled(&new));
    is_served(&fixture, &ztunnel, &old, "its predecessor, until it ends");
}

/// As after a change of the role. The known state becomes stale without any event.
#[test]
fn a_watch_that_is_refused_is_reported_and_new_pods_are_decided_by_what_the_api_server_has() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    let (_api, store) = serve(&mut fixture);
    fixture.start();
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    fixture.manifests.put_namespace("idle", &[]);
    let before = fixture.running_pod(PLAIN, "before");
    let idle = fixture.running_pod("idle", "idle");
    for pod in ["plain/before", "idle/idle"] {
        fixture.eventually("it is outside", |fixture| fixture.explain(pod).code == "not-labelled");
    }
    store.refuse(Some("Namespace"));
    fixture.wait_logged("watch failed", "resource=namespaces");
    for namespace in [PLAIN, "idle"] {
        fixture.manifests.put_namespace(namespace, &[("istio.io/dataplane-mode", "ambient")]);
    }
    let (late, conflist) = (Pod::new(PLAIN, "late"), fixture.node.conflist(&[fixture.plugin()]));
    let late = fixture.add(late, &conflist).unwrap();
    fixture.manifests.put_pod(&late.sandbox.manifest());
    // The labels that the ADD was decided by count for its namespace from then on.
    fixture.wait_served(&ztunnel, &before);
    wait_listed(&fixture, &store);
    kit::holds_for(WATCHED, "it stays in the mesh", || fixture.is_ruled(&late));
    is_served(&fixture, &ztunnel, &late, "the API server's labels");
    for pod in ["idle/idle", "plain/none"] {
        fixture.eventually("it is not known", |fixture| {
            let told = fixture.explain(pod);
            (told.code.as_str(), told.verdict) == ("watch-failed", PodVerdict::Unknown)
        });
    }
    for unproven in [&["prove", "plain/none"][..], &["prove", "--all", "-n", "nowhere"]] {
        assert_eq!(fixture.container.exec(unproven).status.code(), Some(2), "{unproven:?}");
    }
    let failing = "istio_cni_ambient_watch_failure_seconds{resource=\"namespaces\"}";
    fixture.eventually("it is counted", |fixture| {
        fixture.daemon.as_ref().unwrap().metric(failing).is_some_and(|seconds| seconds >= 10.0)
    });
    store.refuse(None);
    // The watch is tried again half a minute after its last failure.
    fixture.within(MINUTE, "it is served", |_| !is_released(&ztunnel, &idle));
    fixture
        .eventually("it is known", |fixture| fixture.explain("plain/none").verdict == PodVerdict::NotFound);
}
