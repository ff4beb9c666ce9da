//! The agent beside components of Istio 1.29 to 1.31: its plugin, and its chart.

mod alone;
mod chart;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kit::{Echo, InpodOptions, NodeOptions, Pod, PodSandbox, WorkloadState};
use serde_json::{Value, json};

use crate::fixtures::ambient::{MESH, PLAIN, PORT, Peer, starting};
use crate::fixtures::inpod::{InPod, wait_relayed};

/// Timeout of Istio's plugin for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends one request on a new connection, as Go's client does; returns status and body.
fn request(socket: &Path, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: unix\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {}\r\n\
         Content-Type: application/json\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // A client that is refused early may fail to send the rest.
    let _ = stream.write_all(body);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Event that Istio's plugin sends about a pod.
fn event(namespace: &str, name: &str, netns: &str, ips: &[IpAddr]) -> Value {
    let config = |ip: &IpAddr| {
        let mask = if ip.is_ipv4() { "////AA==" } else { "//////////8AAAAAAAAAAA==" };
        json!({"Interface": 2, "Address": {"IP": ip.to_string(), "Mask": mask}, "Gateway": ""})
    };
    let ips = if ips.is_empty() { Value::Null } else { ips.iter().map(config).collect() };
    json!({"Netns": netns, "PodName": name, "PodNamespace": namespace, "IPs": ips, "Later": 1})
}

fn post(socket: &Path, event: &Value) -> (u16, String) {
    request(socket, "POST", "/cmdadd", event.to_string().as_bytes())
}

/// Sends the event for a pod whose sandbox has its addresses.
pub(crate) fn tell(socket: &Path, sandbox: &PodSandbox) -> (u16, String) {
    let Pod { namespace, name, .. } = &sandbox.pod;
    post(socket, &event(namespace, name, &sandbox.netns_path(), &sandbox.ips()))
}

pub(crate) fn socket(fixture: &InPod) -> PathBuf {
    fixture.node.run_dir().join("pluginevent.sock")
}

/// A pod for which the runtime has called all plugins except Istio's.
pub(crate) fn unfinished(fixture: &InPod, namespace: &str, name: &str) -> Peer {
    let pod = Pod::new(namespace, name);
    fixture.manifests.put_pod(&starting(&pod));
    Peer::new(fixture.node.pod(pod, &[]))
}

#[test]
fn a_pod_that_istios_own_plugin_tells_of_is_in_the_mesh_when_it_is_answered() {
    let (mut fixture, mut ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let peer = unfinished(&fixture, MESH, "one");
    let began = Instant::now();
    assert_eq!(tell(&socket(&fixture), &peer.sandbox), (200, String::new()), "{}", fixture.log());
    assert!(began.elapsed() < PATIENCE);
    let answered = fixture.daemon().metric("istio_cni_plugin_requests_total{response_code=\"200\"}");
    assert_eq!(answered, Some(1.0));
    assert!(fixture.is_ruled(&peer));
    ztunnel.catch_up();
    assert!(ztunnel.workload(&peer.sandbox.pod.uid).is_some(), "before the answer");
    assert!(peer.sandbox.ips().iter().all(|ip| fixture.is_probed(*ip)));
    for v6 in [false, true] {
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        assert_eq!(peer.tcp(outside).unwrap().peer.ip(), peer.ip(v6));
        wait_relayed(&ztunnel, peer.ip(v6), outside);
    }
    fixture.manifests.put_pod(&peer.sandbox.manifest());
    fixture.wait_captured(&peer);
    // A second ADD of the same pod changes nothing.
    assert_eq!(tell(&socket(&fixture), &peer.sandbox), (200, String::new()));
    // There is no DEL: the pod ends when it disappears from the API.
    fixture.manifests.remove_pod(MESH, "one");
    ztunnel.wait_for_state(&peer.sandbox.pod.uid, WorkloadState::Gone);
    for ip in peer.sandbox.ips() {
        fixture.eventually("its probes count no more", |_| !fixture.is_probed(ip));
    }
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn what_cannot_be_done_is_told_with_its_reason() {
    let mut fixture = InPod::new(&[]);
    let socket = socket(&fixture);
    let peer = unfinished(&fixture, MESH, "one");
    // The agent answers after 4.5 s at most; the machine may stall meanwhile.
    let is_in_time = (0..3).any(|_| {
        let began = Instant::now();
        let (status, why) = tell(&socket, &peer.sandbox);
        let took = began.elapsed();
        let expected = "pod mesh/one: no ztunnel is connected to the agent on this node";
        assert_eq!((status, why.as_str()), (500, expected));
        took < PATIENCE
    });
    assert!(is_in_time, "the plugin would have heard nothing");
    let mut ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    ztunnel.refuse(&peer.sandbox.pod.uid);
    let (status, why) = tell(&socket, &peer.sandbox);
    let expected = "pod mesh/one: ztunnel refused it: failure to start proxy : the test wants it so";
    assert_eq!((status, why.as_str()), (500, expected));

    let plain = unfinished(&fixture, PLAIN, "plain");
    let (status, why) = tell(&socket, &plain.sandbox);
    let expected = "pod plain/plain is not eligible: it does not belong to ambient mode";
    assert_eq!((status, why.as_str()), (500, expected));
    assert!(!fixture.is_ruled(&plain));

    let (netns, ips) = (peer.sandbox.netns_path(), peer.sandbox.ips());
    let node = format!("/var/run/netns/{}", fixture.node.netns().name());
    for (event, reason) in [
        (event(MESH, "none", &netns, &ips), "there is no pod mesh/none"),
        (event(MESH, "one", &netns, &[]), "no address"),
        (
            event(MESH, "one", "/var/run/netns/none", &ips),
            "there is no network namespace /var/run/netns/none",
        ),
        (event(MESH, "one", "/dev/null", &ips), "not a network namespace"),
        (event(MESH, "one", "/proc/self/ns/net", &ips), "names no process"),
        (event(MESH, "one", "netns", &ips), "not an absolute path"),
        (event(MESH, "one", &node, &ips), "is the network namespace of the node"),
    ] {
        let (status, why) = post(&socket, &event);
        assert!(status == 500 && why.contains(reason), "{event}: {status} {why}");
    }
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn what_is_no_event_is_refused() {
    let mut fixture = InPod::new(&[]);
    let socket = socket(&fixture);
    assert_eq!(request(&socket, "POST", "/cmdadd", b""), (400, "no body".to_owned()));
    let (status, why) = request(&socket, "POST", "/cmdadd", b"{\"Netns\": 1}");
    let mistyped = "cannot read the event: invalid type: integer `1`, expected a string at line 1 column 11";
    assert_eq!((status, why.as_str()), (400, mistyped));
    let unnamed = post(&socket, &event(MESH, "", "/var/run/netns/x", &[]));
    assert_eq!(unnamed, (400, "cannot read the event: it has no PodName".to_owned()));
    for name in ["../x", "a/b", "A"] {
        let refusal = post(&socket, &event(MESH, name, "/var/run/netns/x", &[]));
        assert_eq!(refusal, (400, format!("PodName: {name:?} is not a DNS-1123 subdomain")));
    }
    let long = vec![b' '; (1 << 20) + 1];
    let refusal = request(&socket, "POST", "/cmdadd", &long);
    assert_eq!(refusal, (400, "no body: length limit exceeded".to_owned()));
    assert_eq!(request(&socket, "GET", "/cmdadd", b"").0, 405);
    assert_eq!(request(&socket, "PUT", "/cmdadd", b"{}").0, 405);
    assert_eq!(request(&socket, "POST", "/cmddel", b"{}").0, 404);
    assert_eq!(request(&socket, "GET", "/", b"").0, 404);
    fixture.refuses_others(&socket, b"GET / HTTP/1.1\r\nHost: unix\r\nConnection: close\r\n\r\n");
    assert_eq!(request(&socket, "GET", "/", b"").0, 404, "root is answered all the same");
    let answered = fixture.daemon().metric("istio_cni_plugin_requests_total{response_code=\"400\"}");
    assert_eq!(answered, Some(7.0), "those that were no events; other paths and methods are no requests");
}

/// Istio's agent with `NATIVE_NFTABLES` has its own table on the node.
#[test]
fn the_native_table_of_istios_agent_on_the_node_is_removed() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[("NATIVE_NFTABLES", "true")]);
    let table = "table inet istio-ambient-nat {
        set istio-inpod-probes-v4 { type ipv4_addr; elements = { 10.1.0.77 } }
        chain postrouting {
            type nat hook postrouting priority 100; policy accept;
            meta l4proto tcp meta skuid 0 ip daddr @istio-inpod-probes-v4 counter snat ip to 169.254.7.127
        }
    }
    table inet foreign { }";
    let _ = fixture.node.netns().pipe("nft -f -", table);
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let _peer = fixture.captured_pod("one");
    fixture.eventually("the native table is gone", |fixture| {
        let tables = fixture.node.netns().sh("nft list tables inet");
        tables == "table inet foreign\n"
    });
}

#[test]
fn where_pods_are_captured_on_the_node_istios_own_plugin_is_not_served() {
    let fixture = InPod::new(&[("AMBIENT_CAPTURE", "node")]);
    assert!(fixture.node.run_dir().join("agent.sock").exists());
    assert!(!socket(&fixture).exists());
}
