//! Traffic within the pod: the proxy calls its own application, and the application itself (docs/sidecar-rules.md).

use kit::{Proto, Serve, TrafficClient};
use rules::sidecar::SidecarConfig;

use super::fixture::{
    APP, FAMILIES, PROXY,
    To::{App, Inbound, Outbound, Proxy},
    fixtures, ip,
};
use crate::sidecar_kernel::cases::{injected, networks};

#[test]
fn the_application_reaches_its_own_pod_directly() {
    fixtures(&injected(), |fixture| {
        fixture.app(&[8080]);
        for v6 in FAMILIES {
            for owner in [APP, (0, 0), (1000, 1337)] {
                fixture.pod_calls(owner, (fixture.pod_ip(v6), 8080).into(), App);
                fixture.pod_calls(owner, (ip(v6, "127.0.0.1", "::1"), 8080).into(), App);
            }
        }
    });
}

/// A call of the application that the proxy's outbound listener sends to its own pod must enter through the inbound listener.
#[test]
fn the_proxy_reaches_its_own_pod_through_the_inbound_listener() {
    fixtures(&injected(), |fixture| {
        fixture.app(&[8080]);
        fixture.proxy(Serve::new(Proto::Tcp, 15008));
        for v6 in FAMILIES {
            for owner in [PROXY, (1337, 1000)] {
                fixture.pod_calls(owner, (fixture.pod_ip(v6), 8080).into(), Inbound);
            }
            fixture.pod_calls(PROXY, (fixture.pod_ip(v6), 15008).into(), Proxy);
            fixture.pod_calls(PROXY, (ip(v6, "127.0.0.1", "::1"), 8080).into(), App);
        }
    });
}

/// The inbound listener calls the application from an address of its own, and is not redirected back to itself.
#[test]
fn calls_from_the_passthrough_address_reach_the_application() {
    fixtures(&injected(), |fixture| {
        fixture.app(&[8080]);
        for v6 in FAMILIES {
            let source = ip(v6, "127.0.0.6", "::6");
            let client = TrafficClient::new(Proto::Tcp).owned_by(PROXY.0, PROXY.1).from((source, 0).into());
            let seen = fixture.expect(&fixture.pod, &client, (fixture.pod_ip(v6), 8080).into(), App);
            assert_eq!(seen.peer.ip(), source);
        }
    });
}

/// The operator defines the IPv4 loopback network: traffic that the proxy sends there is not redirected again.
#[test]
fn the_loopback_network_is_left_alone() {
    let wide = SidecarConfig { loopback: "127.0.0.0/8".parse().unwrap(), ..injected() };
    for (config, to) in [(injected(), Inbound), (wide, App)] {
        fixtures(&config, |fixture| {
            fixture.app(&[8080]);
            fixture.pod_calls(PROXY, "127.0.0.1:8080".parse().unwrap(), App);
            fixture.pod_calls(PROXY, "127.0.0.9:8080".parse().unwrap(), to);
            fixture.pod_calls(PROXY, "[::1]:8080".parse().unwrap(), App);
            for v6 in FAMILIES {
                fixture.pod_calls(PROXY, (fixture.pod_ip(v6), 8080).into(), Inbound);
            }
        });
    }
}

/// With a loopback network among the captured ones, calls within the pod are captured, except to 127.0.0.1 and ::1.
#[test]
fn a_captured_loopback_network_captures_calls_within_the_pod() {
    let include_networks = networks(&["127.1.2.3/32", "10.0.0.0/8", "::1/128", "fd00::/8"]);
    fixtures(&SidecarConfig { include_networks, ..injected() }, |fixture| {
        fixture.app(&[8080]);
        fixture.pod_calls(APP, "127.1.2.3:8080".parse().unwrap(), Outbound);
        fixture.pod_calls(APP, "127.1.2.4:8080".parse().unwrap(), App);
        for v6 in FAMILIES {
            fixture.pod_calls(APP, (fixture.pod_ip(v6), 8080).into(), Outbound);
            fixture.pod_calls(PROXY, (fixture.pod_ip(v6), 8080).into(), Inbound);
            fixture.pod_calls((1000, 1337), (fixture.pod_ip(v6), 8080).into(), Inbound);
            fixture.pod_calls(APP, (ip(v6, "127.0.0.1", "::1"), 8080).into(), App);
            fixture.pod_calls(PROXY, (ip(v6, "127.0.0.1", "::1"), 8080).into(), App);
        }
    });
}
