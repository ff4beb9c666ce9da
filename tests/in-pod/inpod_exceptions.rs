//! Traffic that annotations exclude from redirection, as far as the administrator allows it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use kit::{
    Echo, Failure, InpodOptions, InpodZtunnel, Live, LiveConnections, Netns, Pod, Proto, TrafficClient, Via,
};
use report::{Explanation, PodState, Proof, ProofResult};
use serde_json::json;

use crate::fixtures::ambient::{MESH, PLAIN, PORT, Peer};
use crate::fixtures::inpod::InPod;

const FAMILIES: [bool; 2] = [false, true];
/// Ports of external servers, and of the pod, that are excluded.
const OUTBOUND: u16 = 9101;
const INBOUND: u16 = 9102;
const OUTBOUND_PORTS: &str = "cni.istio.io/excludeOutboundPorts";
const NETWORKS: &str = "cni.istio.io/excludeOutboundIPRanges";
const INBOUND_PORTS: &str = "cni.istio.io/excludeInboundPorts";
const INTERFACES: &str = "cni.istio.io/excludeInterfaces";
const DNS: &str = "cni.istio.io/dnsCapture";
const WITHOUT: &str = "cni.istio.io/withoutZtunnel";

/// Addresses of the pod and of a server in a second network.
const SECOND_OWN: [&str; 2] = ["10.99.0.1", "fd99::1"];
const SECOND: [&str; 2] = ["10.99.0.2", "fd99::2"];

struct Exceptions {
    fixture: InPod,
    ztunnel: InpodZtunnel,
    _servers: [Echo; 2],
}

impl Exceptions {
    fn new(allowed: &str) -> Self {
        let mut fixture =
            InPod::new(&[("AMBIENT_ALLOWED_EXCEPTIONS", allowed), ("AMBIENT_DNS_CAPTURE", "true")]);
        let ztunnel =
            fixture.ztunnel("ztunnel-a", InpodOptions { dns_capture: true, ..InpodOptions::default() });
        let outside = fixture.node.outside();
        let servers = [Echo::tcp(outside, PORT), Echo::tcp(outside, OUTBOUND)];
        Self { fixture, ztunnel, _servers: servers }
    }

    /// Starts a pod with these annotations through the plugin.
    fn pod(&self, name: &str, annotations: &[(&str, &str)]) -> Peer {
        let pod =
            annotations.iter().fold(Pod::new(MESH, name), |pod, (key, value)| pod.annotation(key, value));
        let peer = self.fixture.starting(pod);
        self.fixture.manifests.put_pod(&peer.sandbox.manifest());
        peer
    }

    /// Replaces the annotations of a running pod.
    fn annotate(&self, peer: &Peer, annotations: &[(&str, &str)]) {
        let mut manifest = peer.sandbox.manifest();
        manifest["metadata"]["annotations"] = json!(BTreeMap::from_iter(annotations.iter().copied()));
        self.fixture.manifests.put_pod(&manifest);
    }

    fn annotate_namespace(&self, annotations: &[(&str, &str)]) {
        let labels = [("istio.io/dataplane-mode", "ambient")];
        let annotations = annotations.iter().copied().collect();
        self.fixture.manifests.put_annotated_namespace(MESH, &labels, &annotations);
    }

    fn outside(&self, v6: bool, port: u16) -> SocketAddr {
        (self.fixture.node.outside_ip(v6), port).into()
    }

    /// Whether the pod's connection reaches a server with its own source port: ztunnel's connections have other ports.
    fn is_direct(&self, peer: &Peer, server: SocketAddr) -> bool {
        self.try_direct(peer, server).unwrap()
    }

    /// As `is_direct`, where the connection may fail.
    fn try_direct(&self, peer: &Peer, server: SocketAddr) -> Result<bool, Failure> {
        /// Below the ephemeral ports.
        static PORTS: AtomicU16 = AtomicU16::new(20_000);
        let is_second = SECOND.contains(&server.ip().to_string().as_str());
        let own = match is_second {
            true => SECOND_OWN[usize::from(server.is_ipv6())].parse().unwrap(),
            false => peer.ip(server.is_ipv6()),
        };
        let source = SocketAddr::new(own, PORTS.fetch_add(1, Ordering::Relaxed));
        let client = TrafficClient::new(Proto::Tcp).from(source).within(Duration::from_secs(20));
        Ok(client.connect(&peer.sandbox.netns, server)?.peer == source)
    }

    /// Waits until connections to this external port are direct, or go through ztunnel, in both families.
    fn wait_outbound(&self, peer: &Peer, port: u16, direct: bool) {
        self.fixture.eventually(&format!("port {port} is reached directly: {direct}"), |_| {
            FAMILIES.iter().all(|v6| self.is_direct(peer, self.outside(*v6, port)) == direct)
        });
    }

    fn explain(&self, peer: &Peer) -> Explanation {
        self.fixture.explain(&format!("{MESH}/{}", peer.sandbox.pod.name))
    }

    /// Results of all packets that the agent sends in the pod; `Err` is the reason why it sends none.
    fn proof(&self, peer: &Peer) -> Result<Vec<ProofResult>, String> {
        let output = self.fixture.container.exec(&[
            "prove",
            &format!("{MESH}/{}", peer.sandbox.pod.name),
            "-o",
            "json",
        ]);
        let proof: Proof = serde_json::from_slice(&output.stdout).unwrap();
        proof.message.map_or_else(|| Ok(proof.paths.iter().map(|path| path.result).collect()), Err)
    }

    fn wait_excepted(&mut self, pods: f64) {
        let metric = "istio_cni_ambient_excepted_pods";
        self.fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(metric) == Some(pods));
    }
}

/// Adds a second network to the pod, with a server at both of its addresses.
fn second_network(peer: &Peer) -> (Netns, Echo) {
    let other = Netns::new("second");
    peer.sandbox.netns.sh(&format!("ip link add net1 type veth peer name eth0 netns {}", other.name()));
    for (netns, link, [v4, v6]) in [(&peer.sandbox.netns, "net1", SECOND_OWN), (&other, "eth0", SECOND)] {
        netns.sh(&format!("ip address add {v4}/24 dev {link}"));
        netns.sh(&format!("ip address add {v6}/64 dev {link}"));
        netns.sh(&format!("ip link set {link} up"));
    }
    [&peer.sandbox.netns, &other].into_iter().for_each(Netns::wait_until_addresses_are_usable);
    let echo = Echo::tcp(&other, PORT);
    (other, echo)
}

/// Messages about exceptions.
fn said(answer: &Explanation) -> Vec<&str> {
    let about = ["Outside by intent", "Not applied"];
    let details = answer.details.iter().map(String::as_str);
    details.filter(|detail| about.iter().any(|begin| detail.starts_with(begin))).collect()
}

#[test]
fn what_is_excepted_goes_straight_and_everything_else_through_ztunnel() {
    let mut mesh = Exceptions::new("all");
    let (outbound, inbound) = (OUTBOUND.to_string(), INBOUND.to_string());
    let web = mesh.pod("web", &[(OUTBOUND_PORTS, &outbound), (INBOUND_PORTS, &inbound), (DNS, "false")]);
    let _own = Echo::tcp(&web.sandbox.netns, INBOUND);
    for v6 in FAMILIES {
        // From the first packet.
        assert!(mesh.is_direct(&web, mesh.outside(v6, OUTBOUND)), "{v6}");
        assert!(!mesh.is_direct(&web, mesh.outside(v6, PORT)), "{v6}");
        let node = mesh.fixture.node.outside();
        let seen = kit::connect(node, Proto::Tcp, (web.ip(v6), INBOUND).into()).unwrap();
        assert_eq!(seen.peer.ip(), mesh.fixture.node.outside_ip(v6));
        let _ = kit::connect(node, Proto::Tcp, web.at(v6)).unwrap();
        let seen = mesh.ztunnel.wait_seen(|one| one.via == Via::Inbound && one.dst == web.at(v6));
        assert_eq!(seen.src.ip(), mesh.fixture.node.outside_ip(v6));
    }
    assert!(!mesh.ztunnel.seen().iter().any(|one| [INBOUND, OUTBOUND].contains(&one.dst.port())));
    let answer = mesh.explain(&web);
    let intended = "outbound TCP ports 9101; inbound TCP ports 9102; DNS";
    let expected = format!("Outside by intent, as annotations ask for it: {intended}.");
    assert_eq!((answer.code.as_str(), said(&answer)), ("captured", vec![expected.as_str()]), "{answer}");
    let listed = mesh.fixture.container.exec(&["list", "-o", "json"]);
    let listed: Vec<PodState> = serde_json::from_slice(&listed.stdout).unwrap();
    let shown = listed.iter().find(|pod| pod.name == "web").unwrap();
    assert_eq!(shown.exceptions.join("; "), intended);
    let message = &shown.message;
    assert!(message.ends_with(&format!("; outside by intent: {intended}")), "{message}");
    mesh.wait_excepted(1.0);
    assert!(mesh.proof(&web).unwrap().iter().all(|result| *result == ProofResult::Proven));

    // Changes take effect while the pod runs.
    let nets =
        FAMILIES.map(|v6| format!("{}/{}", mesh.fixture.node.outside_ip(v6), if v6 { 128 } else { 32 }));
    // Includes the destinations of the proof's packets.
    let nets = [nets.join(","), "192.0.2.0/24,2001:db8::/32".to_owned()].join(",");
    mesh.annotate(&web, &[(NETWORKS, &nets)]);
    mesh.wait_outbound(&web, PORT, true);
    assert!(!mesh.proof(&web).unwrap().contains(&ProofResult::Bypasses));
    mesh.annotate(&web, &[]);
    mesh.wait_outbound(&web, PORT, false);
    mesh.wait_outbound(&web, OUTBOUND, false);
    mesh.wait_excepted(0.0);
    assert_eq!(said(&mesh.explain(&web)), [""; 0]);
    assert_eq!(mesh.ztunnel.protocol_error(), None);
}

#[test]
fn a_second_network_of_a_pod_can_stay_outside_as_a_whole() {
    let mut mesh = Exceptions::new("interfaces,dns");
    let web = mesh.pod("web", &[]);
    let (other, _echo) = second_network(&web);
    let servers = SECOND.map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT));
    for server in servers {
        assert!(!mesh.is_direct(&web, server), "{server}");
    }
    // DNS is redirected on all other interfaces.
    mesh.annotate(&web, &[(INTERFACES, "net1"), (DNS, "true")]);
    mesh.fixture.eventually("it is outside", |_| servers.iter().all(|server| mesh.is_direct(&web, *server)));
    mesh.wait_outbound(&web, PORT, false);
    // Inbound connections, too, bypass ztunnel.
    let _own = Echo::tcp(&web.sandbox.netns, INBOUND);
    for (own, peer) in SECOND_OWN.iter().zip(SECOND) {
        let to = SocketAddr::new(own.parse().unwrap(), INBOUND);
        assert_eq!(kit::connect(&other, Proto::Tcp, to).unwrap().peer.ip().to_string(), peer);
    }
    assert!(!mesh.ztunnel.seen().iter().any(|one| one.dst.port() == INBOUND));
    let _named = Echo::udp(&other, 53);
    for ip in SECOND {
        let server = SocketAddr::new(ip.parse().unwrap(), 53);
        let seen = kit::connect(&web.sandbox.netns, Proto::Udp, server).unwrap();
        assert_ne!(seen.server, "ztunnel-a");
    }
    // The cluster network cannot be excluded: the whole annotation has no effect.
    mesh.annotate(&web, &[(INTERFACES, "net1,eth0")]);
    mesh.fixture.eventually("it is in", |_| !servers.iter().any(|server| mesh.is_direct(&web, *server)));
    mesh.wait_outbound(&web, PORT, false);
    mesh.wait_excepted(0.0);
}

#[test]
fn dns_goes_to_ztunnel_unless_a_pod_or_its_namespace_leaves_it_outside() {
    let mut fixture = InPod::new(&[("AMBIENT_ALLOWED_EXCEPTIONS", "dns"), ("AMBIENT_DNS_CAPTURE", "true")]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions { dns_capture: true, ..InpodOptions::default() });
    let servers = [Echo::tcp(fixture.node.outside(), 53), Echo::udp(fixture.node.outside(), 53)];
    let mesh = Exceptions { fixture, ztunnel, _servers: servers };
    let (plain, without) = (mesh.pod("plain", &[]), mesh.pod("without", &[(DNS, "false")]));
    let answers = |peer: &Peer| -> Vec<Option<bool>> {
        let questions = FAMILIES.iter().flat_map(|v6| [Proto::Udp, Proto::Tcp].map(|proto| (*v6, proto)));
        let asked =
            questions.map(|(v6, proto)| kit::connect(&peer.sandbox.netns, proto, mesh.outside(v6, 53)));
        asked.map(|seen| seen.ok().map(|seen| seen.server == "ztunnel-a")).collect()
    };
    assert_eq!(answers(&plain), [Some(true); 4]);
    assert_eq!(answers(&without), [Some(false); 4]);
    mesh.annotate_namespace(&[(DNS, "false")]);
    mesh.annotate(&without, &[(DNS, "true")]);
    mesh.fixture.eventually("the namespace counts for the one that does not say", |_| {
        answers(&plain) == [Some(false); 4] && answers(&without) == [Some(true); 4]
    });
}

/// Traffic that is not redirected is not reset either.
#[test]
fn a_pod_that_joins_with_reset_keeps_its_connections_over_an_excepted_interface() {
    let env = [("AMBIENT_ALLOWED_EXCEPTIONS", "interfaces"), ("EXISTING_CONNECTIONS", "reset")];
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&env);
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let web = fixture.running_pod(PLAIN, "web");
    let (_other, _echo) = second_network(&web);
    let mut manifest = web.sandbox.manifest();
    manifest["metadata"]["annotations"][INTERFACES] = "net+".into();
    fixture.manifests.put_pod(&manifest);
    let [mut closed, mut kept] =
        [(); 2].map(|()| LiveConnections::start(&web.sandbox.netns, Live::default()));
    for v6 in FAMILIES {
        drop(closed.open((fixture.node.outside_ip(v6), PORT).into(), 2));
        drop(kept.open(SocketAddr::new(SECOND[usize::from(v6)].parse().unwrap(), PORT), 2));
    }
    fixture.manifests.put_namespace(PLAIN, &[("istio.io/dataplane-mode", "ambient")]);
    fixture.wait_served(&ztunnel, &web);
    fixture.wait_captured(&web);
    assert_eq!(closed.wait_broken(4).len(), 4);
    kept.wait_round();
    kept.report().assert_unbroken();
}

#[test]
fn a_namespace_speaks_for_its_pods_and_a_pod_for_itself() {
    let mut mesh = Exceptions::new("outbound-ports");
    let outbound = OUTBOUND.to_string();
    mesh.annotate_namespace(&[(OUTBOUND_PORTS, &outbound)]);
    let (web, own) = (mesh.pod("web", &[]), mesh.pod("own", &[(OUTBOUND_PORTS, "")]));
    mesh.wait_outbound(&web, OUTBOUND, true);
    mesh.wait_outbound(&own, OUTBOUND, false);
    mesh.annotate_namespace(&[(OUTBOUND_PORTS, &PORT.to_string())]);
    mesh.wait_outbound(&web, PORT, true);
    mesh.wait_outbound(&web, OUTBOUND, false);
    mesh.annotate_namespace(&[]);
    mesh.wait_outbound(&web, PORT, false);
    mesh.wait_excepted(0.0);
}

#[test]
fn without_the_administrators_word_a_pod_is_captured_as_a_whole() {
    let mut mesh = Exceptions::new("outbound-ports");
    let (outbound, inbound) = (OUTBOUND.to_string(), INBOUND.to_string());
    let refused =
        mesh.pod("refused", &[(INBOUND_PORTS, &inbound), (NETWORKS, "10.0.0.0/8"), (OUTBOUND_PORTS, "*")]);
    let _own = Echo::tcp(&refused.sandbox.netns, INBOUND);
    for v6 in FAMILIES {
        for port in [PORT, OUTBOUND] {
            assert!(!mesh.is_direct(&refused, mesh.outside(v6, port)), "{port} {v6}");
        }
        let to = SocketAddr::new(refused.ip(v6), INBOUND);
        let _ = kit::connect(mesh.fixture.node.outside(), Proto::Tcp, to).unwrap();
        let _ = mesh.ztunnel.wait_seen(|one| one.via == Via::Inbound && one.dst == to);
    }
    let answer = mesh.explain(&refused);
    let expected = [
        "Not applied: annotation cni.istio.io/excludeOutboundPorts of the pod has no effect: \"*\" is not a comma-separated list of ports from 1 to 65535.",
        "Not applied: annotation cni.istio.io/excludeOutboundIPRanges of the pod has no effect: AMBIENT_ALLOWED_EXCEPTIONS does not contain outbound-networks.",
        "Not applied: annotation cni.istio.io/excludeInboundPorts of the pod has no effect: AMBIENT_ALLOWED_EXCEPTIONS does not contain inbound-ports.",
    ];
    assert_eq!((answer.code.as_str(), said(&answer)), ("captured", expected.to_vec()), "{answer}");
    mesh.wait_excepted(0.0);
    // The default allows none.
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-b", InpodOptions { dns_capture: true, ..InpodOptions::default() });
    let servers = [Echo::tcp(fixture.node.outside(), PORT), Echo::tcp(fixture.node.outside(), OUTBOUND)];
    let strict = Exceptions { fixture, ztunnel, _servers: servers };
    let web = strict.pod("web", &[(OUTBOUND_PORTS, &outbound)]);
    assert!(!strict.is_direct(&web, strict.outside(false, OUTBOUND)));
}

#[test]
fn a_pod_that_may_goes_on_without_ztunnel_and_is_captured_again_with_it() {
    let mut mesh = Exceptions::new("without-ztunnel");
    let (open, closed) = (mesh.pod("open", &[(WITHOUT, "open")]), mesh.pod("closed", &[(WITHOUT, "closed")]));
    let host = Arc::clone(&mesh.fixture.node);
    let node = host.outside();
    let goes_on = |mesh: &Exceptions, peer: &Peer| {
        FAMILIES.iter().all(|v6| {
            let way_out = mesh.try_direct(peer, mesh.outside(*v6, PORT));
            way_out.is_ok_and(|direct| direct) && kit::connect(node, Proto::Tcp, peer.at(*v6)).is_ok()
        })
    };
    let is_cut_off = |mesh: &Exceptions, peer: &Peer| {
        FAMILIES.iter().all(|v6| {
            peer.tcp(mesh.outside(*v6, PORT)).is_err()
                && kit::connect(node, Proto::Tcp, peer.at(*v6)).is_err()
        })
    };
    mesh.wait_excepted(1.0);
    for peer in [&open, &closed] {
        mesh.wait_outbound(peer, PORT, false);
    }
    mesh.ztunnel.kill();
    mesh.fixture.eventually("it goes on", |_| goes_on(&mesh, &open));
    assert!(is_cut_off(&mesh, &closed));
    let answer = mesh.explain(&open);
    let expected = "Outside by intent, as annotations ask for it: everything while no ztunnel is connected.";
    assert_eq!((answer.code.as_str(), said(&answer)), ("ztunnel-not-connected", vec![expected]), "{answer}");
    assert_eq!(mesh.explain(&closed).code, "ztunnel-not-connected");
    let why = "no ztunnel is available, and the pod is not captured without one";
    assert_eq!(mesh.proof(&open), Err(why.to_owned()));
    // Also pods that start meanwhile.
    let late = mesh.pod("late", &[(WITHOUT, "open")]);
    assert!(goes_on(&mesh, &late));
    let conflist = mesh.fixture.node.conflist(&[mesh.fixture.plugin()]);
    assert!(mesh.fixture.add(Pod::new(MESH, "never"), &conflist).is_err());

    // Connections open when a ztunnel connects are kept, as when a pod joins; later ones are redirected.
    let mut kept = LiveConnections::start(&open.sandbox.netns, Live::default());
    drop(kept.open(mesh.outside(false, PORT), 5));
    mesh.ztunnel.restart();
    mesh.ztunnel.wait_for_snapshots(1);
    for peer in [&open, &late] {
        mesh.fixture.eventually("it is captured again", |_| mesh.explain(peer).code == "captured");
        for v6 in FAMILIES {
            assert!(!mesh.is_direct(peer, mesh.outside(v6, PORT)), "{v6}");
            let _ = kit::connect(node, Proto::Tcp, peer.at(v6)).unwrap();
            let _ = mesh.ztunnel.wait_seen(|one| one.via == Via::Inbound && one.dst == peer.at(v6));
        }
    }
    kept.wait_round();
    kept.report().assert_unbroken();
    let history = mesh.fixture.container.exec(&["history", "mesh/open", "-o", "json"]).stdout;
    let history: Vec<serde_json::Value> = serde_json::from_slice(&history).unwrap();
    let applied = history.iter().filter(|change| change["cause"] != "ztunnel");
    let causes: Vec<&str> = applied.filter_map(|change| change["cause"].as_str()).collect();
    assert_eq!(causes, ["ADD", "no ztunnel", "ztunnel is back"], "{history:#?}");

    // A ztunnel that is unavailable for a moment, as between two of them, opens nothing.
    mesh.ztunnel.restart();
    mesh.ztunnel.wait_for_snapshots(1);
    assert!(FAMILIES.iter().all(|v6| !mesh.is_direct(&open, mesh.outside(*v6, PORT))));
    // Changes take effect while there is none.
    mesh.ztunnel.kill();
    mesh.fixture.eventually("it goes on", |_| goes_on(&mesh, &open));
    mesh.annotate(&open, &[]);
    mesh.fixture.eventually("it is cut off", |_| is_cut_off(&mesh, &open));
    mesh.annotate(&closed, &[(WITHOUT, "open")]);
    mesh.fixture.eventually("the other one goes on", |_| goes_on(&mesh, &closed));
}
