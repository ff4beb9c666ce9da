//! What comes to the pod.

use kit::{Proto, Serve, TrafficClient};
use model::{IfName, Port};
use rules::sidecar::{PortSelection, SidecarConfig};

use super::scene::{
    APP, FAMILIES,
    To::{App, Inbound, Outbound, Outside, Proxy},
    ip, network_ip, scenes,
};
use crate::sidecar_kernel::cases::{injected, ports};

#[test]
fn all_ports_but_the_excluded_ones_and_the_tunnel_go_to_the_inbound_listener() {
    scenes(&injected(), |scene| {
        scene.app(&[8080, 15020, 15021, 15090]);
        scene.app_udp(8080);
        scene.proxy(Serve::new(Proto::Tcp, 15008));
        for v6 in FAMILIES {
            let pod = scene.pod_ip(v6);
            let seen = scene.outside_calls((pod, 8080).into(), Inbound);
            assert_eq!(seen.peer.ip(), scene.outside_ip(v6), "the proxy knows the client");
            scene.outside_calls((pod, 9).into(), Inbound); // where nobody listens, too
            for excluded in [15020, 15021, 15090] {
                scene.outside_calls((pod, excluded).into(), App);
            }
            scene.outside_calls((pod, 15008).into(), Proxy);
            let datagram = TrafficClient::new(Proto::Udp);
            scene.expect(&scene.outside, &datagram, (pod, 8080).into(), App);
        }
    });
}

#[test]
fn listed_ports_only() {
    scenes(&SidecarConfig { include_inbound: ports(&[80, 8080]), ..injected() }, |scene| {
        scene.app(&[80, 8080, 9090]);
        for v6 in FAMILIES {
            let pod = scene.pod_ip(v6);
            scene.outside_calls((pod, 80).into(), Inbound);
            scene.outside_calls((pod, 8080).into(), Inbound);
            scene.outside_calls((pod, 9090).into(), App);
        }
    });
}

#[test]
fn no_port_at_all() {
    for include in [PortSelection::NONE, PortSelection::All] {
        // To include all and to exclude all is the same as none.
        let exclude = if include.is_none() { PortSelection::NONE } else { PortSelection::All };
        scenes(
            &SidecarConfig { include_inbound: include.clone(), exclude_inbound: exclude, ..injected() },
            |scene| {
                scene.app(&[8080]);
                scene.outside(&[80]);
                for v6 in FAMILIES {
                    scene.outside_calls((scene.pod_ip(v6), 8080).into(), App);
                    scene.pod_calls(APP, (scene.outside_ip(v6), 80).into(), Outbound);
                }
            },
        );
    }
}

#[test]
fn an_excluded_interface_is_left_alone_both_ways() {
    let net1 = vec![IfName::new("net1").unwrap()];
    scenes(&SidecarConfig { exclude_interfaces: net1, ..injected() }, |scene| {
        scene.app(&[8080]);
        scene.outside(&[80]);
        for v6 in FAMILIES {
            scene.outside_calls((ip(v6, "10.9.0.2", "fd00:9::2"), 8080).into(), App);
            scene.pod_calls(APP, (network_ip(v6, 9), 80).into(), Outside);
            scene.outside_calls((scene.pod_ip(v6), 8080).into(), Inbound);
            scene.pod_calls(APP, (network_ip(v6, 1), 80).into(), Outbound);
        }
    });
}

#[test]
fn another_proxy_may_use_other_ports() {
    let config = SidecarConfig {
        outbound_port: Port(16001),
        inbound_port: Port(16006),
        tunnel_port: Port(16008),
        ..injected()
    };
    scenes(&config, |scene| {
        scene.outside(&[80]);
        scene.proxy(Serve::new(Proto::Tcp, 16008));
        for v6 in FAMILIES {
            scene.outside_calls((scene.pod_ip(v6), 8080).into(), Inbound);
            scene.outside_calls((scene.pod_ip(v6), 15008).into(), Inbound);
            scene.outside_calls((scene.pod_ip(v6), 16008).into(), Proxy);
            scene.pod_calls(APP, (scene.outside_ip(v6), 80).into(), Outbound);
        }
    });
}
