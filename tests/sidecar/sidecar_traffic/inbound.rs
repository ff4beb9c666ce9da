//! Inbound traffic of the pod.

use kit::{Proto, Serve, TrafficClient};
use model::{IfName, Port};
use rules::sidecar::{PortSelection, SidecarConfig};

use super::fixture::{
    APP, FAMILIES,
    To::{App, Inbound, Outbound, Outside, Proxy},
    fixtures, ip, network_ip,
};
use crate::sidecar_kernel::cases::{injected, ports};

#[test]
fn all_ports_but_the_excluded_ones_and_the_tunnel_go_to_the_inbound_listener() {
    fixtures(&injected(), |fixture| {
        fixture.app(&[8080, 15020, 15021, 15090]);
        fixture.app_udp(8080);
        fixture.proxy(Serve::new(Proto::Tcp, 15008));
        for v6 in FAMILIES {
            let pod = fixture.pod_ip(v6);
            let seen = fixture.outside_calls((pod, 8080).into(), Inbound);
            assert_eq!(seen.peer.ip(), fixture.outside_ip(v6), "the proxy knows the client");
            fixture.outside_calls((pod, 9).into(), Inbound); // even if the port is closed
            for excluded in [15020, 15021, 15090] {
                fixture.outside_calls((pod, excluded).into(), App);
            }
            fixture.outside_calls((pod, 15008).into(), Proxy);
            let datagram = TrafficClient::new(Proto::Udp);
            fixture.expect(&fixture.outside, &datagram, (pod, 8080).into(), App);
        }
    });
}

#[test]
fn listed_ports_only() {
    fixtures(&SidecarConfig { include_inbound: ports(&[80, 8080]), ..injected() }, |fixture| {
        fixture.app(&[80, 8080, 9090]);
        for v6 in FAMILIES {
            let pod = fixture.pod_ip(v6);
            fixture.outside_calls((pod, 80).into(), Inbound);
            fixture.outside_calls((pod, 8080).into(), Inbound);
            fixture.outside_calls((pod, 9090).into(), App);
        }
    });
}

#[test]
fn no_port_at_all() {
    for include in [PortSelection::NONE, PortSelection::All] {
        // Including all and excluding all has the same effect as none.
        let exclude = if include.is_none() { PortSelection::NONE } else { PortSelection::All };
        fixtures(
            &SidecarConfig { include_inbound: include.clone(), exclude_inbound: exclude, ..injected() },
            |fixture| {
                fixture.app(&[8080]);
                fixture.outside(&[80]);
                for v6 in FAMILIES {
                    fixture.outside_calls((fixture.pod_ip(v6), 8080).into(), App);
                    fixture.pod_calls(APP, (fixture.outside_ip(v6), 80).into(), Outbound);
                }
            },
        );
    }
}

#[test]
fn an_excluded_interface_is_left_alone_both_ways() {
    let net1 = vec![IfName::new("net1").unwrap()];
    fixtures(&SidecarConfig { exclude_interfaces: net1, ..injected() }, |fixture| {
        fixture.app(&[8080]);
        fixture.outside(&[80]);
        for v6 in FAMILIES {
            fixture.outside_calls((ip(v6, "10.9.0.2", "fd00:9::2"), 8080).into(), App);
            fixture.pod_calls(APP, (network_ip(v6, 9), 80).into(), Outside);
            fixture.outside_calls((fixture.pod_ip(v6), 8080).into(), Inbound);
            fixture.pod_calls(APP, (network_ip(v6, 1), 80).into(), Outbound);
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
    fixtures(&config, |fixture| {
        fixture.outside(&[80]);
        fixture.proxy(Serve::new(Proto::Tcp, 16008));
        for v6 in FAMILIES {
            fixture.outside_calls((fixture.pod_ip(v6), 8080).into(), Inbound);
            fixture.outside_calls((fixture.pod_ip(v6), 15008).into(), Inbound);
            fixture.outside_calls((fixture.pod_ip(v6), 16008).into(), Proxy);
            fixture.pod_calls(APP, (fixture.outside_ip(v6), 80).into(), Outbound);
        }
    });
}
