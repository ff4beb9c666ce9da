//! Existing connections of a pod that joins the mesh, with a ztunnel that serves it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kit::{Echo, InpodZtunnel, Live, LiveConnections, Proto, WorkloadState};
use report::StateReport;

use crate::fixtures::ambient::{PLAIN, PORT, Peer};
use crate::fixtures::inpod::{InPod, RELAYED};

const AMBIENT: [(&str, &str); 1] = [("istio.io/dataplane-mode", "ambient")];
/// Addresses of services, which the node translates to those of the pod and of the external server.
const SERVICES: [[&str; 2]; 2] = [["10.96.0.10", "10.96.0.11"], ["fd96::10", "fd96::11"]];

/// A running pod with connections in both directions, of both families, and through services.
struct Busy {
    fixture: InPod,
    ztunnel: InpodZtunnel,
    peer: Peer,
    out: LiveConnections,
    inward: LiveConnections,
    _echo: Echo,
}

impl Busy {
    /// Opens four times `count` connections to addresses, and four times `by_service` through services.
    fn new(env: &[(&str, &str)], count: usize, by_service: usize) -> Busy {
        let (mut fixture, ztunnel) = InPod::with_ztunnel(env);
        let echo = Echo::tcp(fixture.node.outside(), PORT);
        let peer = fixture.running_pod(PLAIN, "app");
        let live = Live { every: Duration::from_millis(200), ..Live::default() };
        let mut out = LiveConnections::start(&peer.sandbox.netns, live);
        let mut inward = LiveConnections::start(fixture.node.outside(), live);
        for (v6, services) in [false, true].into_iter().zip(SERVICES) {
            let targets = [fixture.node.outside_ip(v6), peer.ip(v6)];
            for ((client, target), service) in [&mut out, &mut inward].into_iter().zip(targets).zip(services)
            {
                drop(client.open((target, PORT).into(), count));
                add_service(&fixture, service.parse().unwrap(), (target, PORT).into());
                drop(client.open((service.parse::<IpAddr>().unwrap(), 80).into(), by_service));
            }
        }
        Busy { fixture, ztunnel, peer, out, inward, _echo: echo }
    }

    fn join(&mut self) {
        self.fixture.manifests.put_namespace(PLAIN, &AMBIENT);
        self.fixture.wait_served(&self.ztunnel, &self.peer);
        self.fixture.wait_captured(&self.peer);
    }

    fn leave(&mut self) {
        self.fixture.manifests.put_namespace(PLAIN, &[]);
        let _ = self.ztunnel.wait_for_state(&self.peer.sandbox.pod.uid, WorkloadState::Gone);
        self.fixture.eventually("nothing of it is left", |_| self.stage_is_bare());
    }

    fn stage_is_bare(&self) -> bool {
        self.fixture.is_bare(&self.peer)
    }

    /// Asserts that each connection exchanges messages from now on, and none is broken.
    fn assert_alive(&mut self, count: usize) {
        for client in [&mut self.out, &mut self.inward] {
            client.wait_round();
            let report = client.report();
            assert_eq!((report.connections, report.broken), (count, Vec::new()));
        }
    }

    /// Asserts that new connections in all four directions go through ztunnel.
    fn assert_in_mesh(&self) {
        for v6 in [false, true] {
            let outside = SocketAddr::new(self.fixture.node.outside_ip(v6), PORT);
            let before = self.ztunnel.seen().len();
            let _ = self.peer.tcp(outside).unwrap();
            let seen = kit::connect(self.fixture.node.outside(), Proto::Tcp, self.peer.at(v6)).unwrap();
            assert!(RELAYED.contains(&seen.peer.port()), "{seen:?}");
            let _ = self.ztunnel.wait_seen_count(before + 2);
        }
    }

    /// Number of connections older than the pod's capture, from the debug state.
    fn bypassing_connections(&self) -> usize {
        let output = self.fixture.container.exec(&["state", "-o", "json"]);
        let state: StateReport = serde_json::from_slice(&output.stdout).unwrap();
        let pod = state.pods.iter().find(|pod| pod.name == "app").unwrap();
        pod.kernel.bypassing_connections.count
    }
}

fn add_service(fixture: &InPod, service: IpAddr, target: SocketAddr) {
    let tool = if service.is_ipv4() { "iptables" } else { "ip6tables" };
    let rule = format!("-d {service} -p tcp --dport 80 -j DNAT --to-destination {target}");
    fixture.node.netns().sh(&format!("{tool} -w -t nat -A PREROUTING {rule}"));
    // The external host reaches services through the node, as it does pods.
    let outside = fixture.node.outside();
    let way = outside.sh(&format!("ip route get {}", target.ip()));
    let words: Vec<&str> = way.split_whitespace().collect();
    if let Some(at) = words.iter().position(|word| *word == "via") {
        outside.sh(&format!("ip route add {service} {}", words[at..at + 4].join(" ")));
    }
}

#[test]
fn a_thousand_connections_survive_and_all_later_ones_are_in_the_mesh() {
    let mut busy = Busy::new(&[], 225, 25);
    for round in 1..=2 {
        busy.join();
        busy.assert_in_mesh();
        busy.assert_alive(500);
        let outside = "istio_cni_ambient_bypassing_connections";
        let is_known = |fixture: &InPod| fixture.daemon.as_ref().unwrap().metric(outside) == Some(1000.0);
        busy.fixture.eventually(&format!("round {round}: they are counted"), |_| is_known(&busy.fixture));
        busy.fixture.eventually("the state has them", |_| busy.bypassing_connections() == 1000);
        if round == 1 {
            busy.leave();
            busy.assert_alive(500);
        }
    }
    assert_eq!(busy.ztunnel.protocol_error(), None);
}

/// The pod's annotation overrides the setting for all.
#[test]
fn where_that_is_wanted_they_are_closed_at_once() {
    for (setting, annotation, is_kept) in
        [("reset", None, false), ("keep", Some("reset"), false), ("reset", Some("keep"), true)]
    {
        let mut busy = Busy::new(&[("EXISTING_CONNECTIONS", setting)], 5, 1);
        if let Some(annotation) = annotation {
            let mut manifest = busy.peer.sandbox.manifest();
            manifest["metadata"]["annotations"]["cni.istio.io/existing-connections"] = annotation.into();
            busy.fixture.manifests.put_pod(&manifest);
        }
        busy.join();
        busy.assert_in_mesh();
        if is_kept {
            busy.assert_alive(12);
            continue;
        }
        assert_eq!((busy.out.wait_broken(12).len(), busy.inward.wait_broken(12).len()), (12, 12));
        assert_eq!(busy.bypassing_connections(), 0);
        busy.fixture.wait_logged("pod joined with open connections", "24 existing connections closed");
    }
}
