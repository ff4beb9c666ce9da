//! In-pod capture beside kube-proxy, in each of its modes.

use std::net::SocketAddr;

use kit::{Echo, InpodOptions, NodeOptions, Proto, ProxyMode, Service};

use crate::fixtures::ambient::{PLAIN, PORT};
use crate::fixtures::inpod::{InPod, RELAYED, relayed, wait_relayed};

const FAMILIES: [bool; 2] = [false, true];

/// Service address with this last part.
fn vip(v6: bool, last: u8) -> SocketAddr {
    let text = if v6 { format!("[fd00:97::{last}]:80") } else { format!("10.97.0.{last}:80") };
    text.parse().unwrap()
}

/// ztunnel sees the service as a pod's destination, which the node translates to its endpoint afterwards; and the node's probes are
/// exempt, whichever component changes source addresses there.
#[test]
fn services_and_probes_work_in_each_mode_whoever_was_first() {
    let all = [ProxyMode::Iptables, ProxyMode::LegacyIptables, ProxyMode::Nftables];
    let modes = if kit::wants_ipvs() { vec![ProxyMode::Ipvs] } else { all.to_vec() };
    for mode in modes {
        let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
        let outside = |fixture: &InPod, v6| SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        for v6 in FAMILIES {
            fixture.node.service(&Service::new(vip(v6, 1), outside(&fixture, v6)).masqueraded().by(mode));
        }
        fixture.start();
        let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
        let _echo = Echo::tcp(fixture.node.outside(), PORT);
        let (one, two, plain) =
            (fixture.mesh_pod("one"), fixture.mesh_pod("two"), fixture.pod(PLAIN, "plain"));
        for v6 in FAMILIES {
            // kube-proxy adds further services after the agent has started.
            fixture.node.service(&Service::new(vip(v6, 2), two.at(v6)).by(mode));
            for (last, endpoint) in [(1, outside(&fixture, v6)), (2, two.at(v6))] {
                let service = vip(v6, last);
                let seen = one.tcp(service).unwrap_or_else(|error| panic!("{mode:?} {service}: {error}"));
                assert_eq!(seen.listener, endpoint.port(), "{mode:?} {service}");
                wait_relayed(&ztunnel, one.ip(v6), service);
                let _ = plain.tcp(service).unwrap_or_else(|error| panic!("{mode:?} {service}: {error}"));
                assert!(!relayed(&ztunnel, plain.ip(v6), service), "{mode:?} {service}");
            }
            // A client that reaches the mesh through a service passes its ztunnel, too.
            assert!(RELAYED.contains(&plain.tcp(vip(v6, 2)).unwrap().peer.port()), "{mode:?}");
            let probe = kit::connect(fixture.node.netns(), Proto::Tcp, two.at(v6)).unwrap();
            assert!(!RELAYED.contains(&probe.peer.port()), "{mode:?} {probe:?}");
            let from = if v6 { "fd16:9254:7127:1337:ffff:ffff:ffff:ffff" } else { "169.254.7.127" };
            assert_eq!(probe.peer.ip().to_string(), from, "{mode:?}");
        }
        assert_eq!(ztunnel.protocol_error(), None);
    }
}
