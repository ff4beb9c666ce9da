//! Pod authors who fill their pods' annotations and labels up to the API's limit: other pods start as before, and neither memory
//! nor log of the agent grow.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kit::{FakeApi, FakeReply, FakeRequest, NodeOptions, Pki, Pod};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH};
use crate::fixtures::inpod::InPod;

const REROUTE: &str = "istio.io/reroute-virtual-interfaces";
/// The API allows 256 KiB for all annotations of a pod.
const BYTES: usize = 250_000;
/// Memory limit of the agent in KiB, whatever pod authors write.
const MEMORY: u64 = 64 * 1024;

/// Memory of a process and its children, in KiB.
fn resident(pid: u32) -> u64 {
    let of = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.flat_map(|task| {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()).collect::<Vec<_>>()
    });
    of(pid) + children.map(of).sum::<u64>()
}

fn hostile(name: &str, value: &str) -> Pod {
    let mut pod = Pod::new(MESH, name);
    pod.annotations = BTreeMap::from([(REROUTE.to_owned(), value.repeat(BYTES / value.len()))]);
    pod
}

/// Eight such pods run and change continuously; meanwhile five other pods start, one after another.
fn attack(value: &str) {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _calm = fixture.captured_pod("calm");
    let pid = fixture.daemon().pid();
    let lines = fixture.log().lines().count();
    let mut hostile: Vec<_> = (0..8)
        .map(|number| {
            let sandbox = fixture.node.pod(hostile(&format!("hostile-{number}"), value), &[]);
            fixture.processes.add(&sandbox.pod.uid, &sandbox.netns);
            sandbox
        })
        .collect();
    let (mut peak, mut took) = (0, Vec::new());
    for round in 0..5 {
        for sandbox in &mut hostile {
            let length = (BYTES / value.len() - round) * value.len();
            sandbox.pod.annotations.get_mut(REROUTE).unwrap().truncate(length);
            fixture.manifests.put_pod(&sandbox.manifest());
        }
        let began = Instant::now();
        let victim = fixture.mesh_pod(&format!("victim-{round}"));
        took.push(began.elapsed());
        fixture.wait_served(&ztunnel, &victim);
        peak = peak.max(resident(pid));
    }
    took.sort();
    // The median: the machine may have stalled in one.
    assert!(took[2] < Duration::from_secs(4), "{took:?}: {}", tail(&fixture.log()));
    for sandbox in &hostile {
        let _ = ztunnel.wait_for_workload(&sandbox.pod.uid);
        peak = peak.max(resident(pid));
    }
    assert!(peak < MEMORY, "{peak} KiB");
    let log = fixture.log();
    let of_hostile = log.lines().skip(lines).filter(|line| line.contains("hostile-"));
    let (number, bytes) = of_hostile.fold((0, 0), |(number, bytes), line| (number + 1, bytes + line.len()));
    assert!(number < 8 * 20 && bytes < 64 * 1024, "{number} lines, {bytes} bytes: {}", tail(&log));
    println!("{number} lines, {bytes} bytes, {peak} KiB");
}

fn tail(log: &str) -> String {
    log.chars().rev().take(4000).collect::<Vec<_>>().into_iter().rev().collect()
}

#[test]
fn names_without_end_stop_nobody_else() {
    attack("a,");
}

#[test]
fn different_names_without_end_stop_nobody_else() {
    let names: String = (0..125).map(|number| format!("v{number:03},")).collect();
    attack(&names);
}

#[test]
fn what_is_no_name_is_told_once() {
    attack("!,");
}

/// 250 such pods on one node: a list of 62 MB, of which almost nothing is kept.
fn list_of(pods: &[Value], streamed: bool) -> impl Fn(&FakeRequest) -> FakeReply + Send + Sync + use<> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let raw = |body: &str| format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let metadata = json!({"resourceVersion": "999", "annotations": {"k8s.io/initial-events-end": "true"}});
    let mark =
        json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}});
    let added = pods.iter().map(|pod| json!({"type": "ADDED", "object": pod}));
    let stream: String = added.chain([mark]).map(|event| format!("{event}\n")).collect();
    let list =
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "999"}, "items": pods});
    let (list, stream) = (raw(&list.to_string()), raw(&stream));
    let namespaces = json!([{"metadata": {"name": MESH, "uid": "m", "resourceVersion": "1",
        "labels": {"istio.io/dataplane-mode": "ambient"}}}]);
    let namespaces = json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"},
        "items": namespaces});
    let invalid =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 422});
    move |request| {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        match path {
            "/api/v1/pods" if kit::is_streaming_list(query) && streamed => FakeReply::Raw(stream.clone()),
            "/api/v1/pods" | "/api/v1/namespaces" if kit::is_streaming_list(query) => {
                FakeReply::Json(422, invalid.clone())
            }
            _ if kit::is_watch(query) => FakeReply::Hang,
            "/api/v1/pods" => FakeReply::Raw(list.clone()),
            "/api/v1/namespaces" => FakeReply::Json(200, namespaces.clone()),
            _ => FakeReply::Json(404, json!({"kind": "Status", "status": "Failure", "code": 404})),
        }
    }
}

#[test]
fn a_node_full_of_them_needs_no_more_memory() {
    let pods: Vec<Value> = (0..250)
        .map(|number| {
            let mut pod = hostile(&format!("hostile-{number}"), "a,").manifest(&[]);
            pod["status"] = json!({"phase": "Pending"});
            pod["metadata"]["resourceVersion"] = json!((number + 1).to_string());
            let extra: BTreeMap<String, String> =
                (0..20).map(|n| (format!("l{n}"), "x".repeat(63))).collect();
            pod["metadata"]["labels"] = json!(extra);
            pod
        })
        .collect();
    for streamed in [true, false] {
        let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
        let address = SocketAddr::from((fixture.node.outside_ip(false), 6443));
        let _api = FakeApi::start(fixture.node.outside(), address, list_of(&pods, streamed));
        fixture.container.set_account("token", Pki::shared().server_ca_pem());
        fixture.container.set_env("POD_SOURCE", "api");
        fixture.container.set_env("KUBERNETES_SERVICE_HOST", &fixture.node.outside_ip(false).to_string());
        fixture.container.set_env("KUBERNETES_SERVICE_PORT", "6443");
        fixture.daemon = Some(fixture.container.start_with(&fixture.arguments, &[]));
        let limit = Duration::from_secs(120); // for 62 MB
        fixture.within(limit, "the agent is ready", |fixture| fixture.daemon().is_ready());
        let last = fixture.explain("mesh/hostile-249");
        assert!(last.found, "all are known: {last}");
        let status = fs::read_to_string(format!("/proc/{}/status", fixture.daemon().pid())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().to_owned();
        let kib: u64 = peak.split(' ').next().unwrap().parse().unwrap();
        println!("streamed: {streamed}, at most {kib} KiB");
        assert!(kib < MEMORY, "streamed: {streamed}: {kib} KiB");
    }
}
