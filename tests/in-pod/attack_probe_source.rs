//! A neighbour of the node on the network uses the source address of the node's probes, which captured pods trust: it must reach no
//! pod, and no pod may reach it, without ztunnel.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kit::{Echo, Failure, FailureKind, Proto, Seen, TrafficClient};
use serde_json::Value;

use crate::fixtures::ambient::{Ambient, MESH, PORT, Peer, RELAYED};
use crate::fixtures::inpod::{InPod, wait_relayed};

const PROBES: [&str; 2] = ["169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"];

/// Assigns the addresses to the external host. The node has the zeroconf route and strict reverse-path filtering; for IPv6 the
/// neighbour already is its router.
fn take(fixture: &Ambient, addresses: [&str; 2]) {
    let [v4, v6] = addresses;
    let (node, outside) = (fixture.node.netns(), fixture.node.outside());
    outside.sh(&format!("ip address add {v4}/32 dev eth0"));
    outside.sh(&format!("ip address add {v6}/128 dev eth0"));
    outside.wait_until_addresses_are_usable();
    node.sh(&format!("ip route add {v4}/16 dev eth0").replace(v4, &zeroconf(v4)));
    for name in ["all", "eth0"] {
        node.sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "1");
    }
}

fn zeroconf(v4: &str) -> String {
    let mut parts = v4.split('.');
    format!("{}.{}.0.0", parts.next().unwrap(), parts.next().unwrap())
}

/// Connects to the pod's application from the address.
fn attack(fixture: &Ambient, from: &str, pod: SocketAddr) -> Result<Seen, Failure> {
    let from = SocketAddr::new(from.parse().unwrap(), 0);
    TrafficClient::new(Proto::Tcp)
        .from(from)
        .within(Duration::from_secs(1))
        .connect(fixture.node.outside(), pod)
}

/// A process of the pod connects to the owner of the address.
fn flee(pod: &Peer, to: &str) -> Result<Seen, Failure> {
    let to = SocketAddr::new(to.parse::<IpAddr>().unwrap(), PORT);
    TrafficClient::new(Proto::Tcp).within(Duration::from_secs(1)).connect(&pod.sandbox.netns, to)
}

fn is_dropped(result: &Result<Seen, Failure>) -> bool {
    matches!(result, Err(Failure { kind: FailureKind::Timeout, .. }))
}

fn probe(fixture: &Ambient, pod: SocketAddr) -> String {
    kit::connect(fixture.node.netns(), Proto::Tcp, pod).unwrap().peer.ip().to_string()
}

#[test]
fn who_takes_the_probes_address_reaches_no_pod_and_is_reached_by_none() {
    for backend in ["nft", "legacy"] {
        let (mut fixture, ztunnel) = InPod::with_ztunnel(&[("FORCE_IPTABLES_BINARY", backend)]);
        let _echo = Echo::tcp(fixture.node.outside(), PORT);
        let pod = fixture.mesh_pod("app");
        take(&fixture, PROBES);
        for (v6, from) in [(false, PROBES[0]), (true, PROBES[1])] {
            assert!(is_dropped(&attack(&fixture, from, pod.at(v6))), "{backend} {from}\n{}", fixture.dump());
            assert!(is_dropped(&flee(&pod, from)), "{backend} {from}\n{}", fixture.dump());
            assert_eq!(probe(&fixture, pod.at(v6)), from, "{backend}");
            // Its other addresses reach the pod through ztunnel, as before. It may have sent its neighbour solicitation from the
            // address, which is dropped likewise; so it sends another one.
            fixture.node.outside().sh("ip neighbour flush dev eth0");
            let _ = kit::connect(fixture.node.outside(), Proto::Tcp, pod.at(v6)).unwrap();
            wait_relayed(&ztunnel, fixture.node.outside_ip(v6), pod.at(v6));
        }
        // Without the guard both connections succeed: otherwise the above proves nothing.
        drop(fixture.daemon.take());
        for (v6, tool, from) in [(false, "iptables", PROBES[0]), (true, "ip6tables", PROBES[1])] {
            fixture.node.netns().sh(&format!("{tool}-{backend} -w -t mangle -F ISTIO_PROBES"));
            let seen = kit::until("the attack succeeds", || attack(&fixture, from, pod.at(v6)).ok());
            assert_eq!(seen.peer.ip().to_string(), from);
            let _ = kit::until("the pod gets out", || flee(&pod, from).ok());
        }
        // The guard is repaired with everything else on the node.
        fixture.start();
        for (v6, from) in [(false, PROBES[0]), (true, PROBES[1])] {
            assert!(is_dropped(&attack(&fixture, from, pod.at(v6))), "{backend} {from}\n{}", fixture.dump());
            assert!(is_dropped(&flee(&pod, from)), "{backend} {from}\n{}", fixture.dump());
        }
        // The agent repairs it, possibly before the check.
        let found = (0..20).find_map(|_| {
            fixture.node.netns().sh(&format!("iptables-{backend} -w -t mangle -F ISTIO_PROBES"));
            let shown = fixture.container.exec(&["verify", "-o", "json"]);
            (!shown.status.success()).then(|| serde_json::from_slice::<Value>(&shown.stdout).unwrap())
        });
        let found = found.expect("verify notices nothing");
        let differences = found["differences"].as_array().unwrap();
        let drop = "firewall: missing: iptables -t mangle -A ISTIO_PROBES -j DROP";
        assert!(differences.iter().any(|one| one == drop), "{found}");
    }
}

#[test]
fn an_address_of_the_operators_choice_is_guarded_and_others_may_come_first() {
    let own = ["169.254.9.9", "fd00:9::9"];
    let env = [("HOST_PROBE_SNAT_IP", own[0]), ("HOST_PROBE_SNAT_IPV6", own[1])];
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&env);
    let pod = fixture.mesh_pod("app");
    take(&fixture, own);
    for (v6, from) in [(false, own[0]), (true, own[1])] {
        assert!(is_dropped(&attack(&fixture, from, pod.at(v6))), "{from}\n{}", fixture.dump());
        assert_eq!(probe(&fixture, pod.at(v6)), from);
    }
    // Another component that insists on the first place gets it: the guard works nevertheless.
    let tool = fixture.tables.iptables();
    let iptables = |words: &str| fixture.node.netns().sh(&format!("{tool} {words}"));
    iptables("-t mangle -I PREROUTING 1 -j MARK --set-xmark 0/0");
    iptables("-t nat -F ISTIO_POSTRT");
    let described = std::fmt::from_fn(|f| write!(f, "the rules are back: {}", fixture.log()));
    kit::until_within(Duration::from_secs(60), described, || {
        let probes = "-p tcp -m owner --socket-exists -m set --match-set istio-inpod-probes-v4 dst";
        let rule = format!("-A ISTIO_POSTRT {probes} -j SNAT --to-source {}", own[0]);
        kit::has_line(&iptables("-t nat -S ISTIO_POSTRT"), &rule)
    });
    let chain = iptables("-t mangle -S PREROUTING");
    assert_eq!(chain.lines().nth(1), Some("-A PREROUTING -j MARK --set-xmark 0x0/0x0"), "{chain}");
    assert!(is_dropped(&attack(&fixture, own[0], pod.at(false))));
}

/// Node-level capture redirects a pod's traffic by its own address and identifies probes by their socket on the node: it trusts no
/// address of probes.
#[test]
fn capture_on_the_node_trusts_no_address_of_probes() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "app");
    fixture.wait_enrolled(&pod, true);
    take(&fixture, PROBES);
    for (v6, from) in [(false, PROBES[0]), (true, PROBES[1])] {
        // If it is answered at all, then through ztunnel.
        let seen = attack(&fixture, from, pod.at(v6));
        assert!(seen.is_err() || RELAYED.contains(&seen.unwrap().peer.port()), "{from}");
    }
    drop(ztunnel);
}
