//! What stays in the pod: the proxy calls its own application, and the application itself (docs/sidecar-rules.md).

use kit::{Proto, Serve, TrafficClient};
use rules::sidecar::SidecarConfig;

use super::scene::{
    APP, FAMILIES, PROXY,
    To::{App, Inbound, Outbound, Proxy},
    ip, scenes,
};
use crate::sidecar_kernel::cases::{injected, networks};

#[test]
fn the_application_reaches_its_own_pod_directly() {
    scenes(&injected(), |scene| {
        scene.app(&[8080]);
        for v6 in FAMILIES {
            for owner in [APP, (0, 0), (1000, 1337)] {
                scene.pod_calls(owner, (scene.pod_ip(v6), 8080).into(), App);
                scene.pod_calls(owner, (ip(v6, "127.0.0.1", "::1"), 8080).into(), App);
            }
        }
    });
}

/// A call of the application that the proxy's outbound side sends to this very pod must come in by the inbound side.
#[test]
fn the_proxy_reaches_its_own_pod_through_the_inbound_listener() {
    scenes(&injected(), |scene| {
        scene.app(&[8080]);
        scene.proxy(Serve::new(Proto::Tcp, 15008));
        for v6 in FAMILIES {
            for owner in [PROXY, (1337, 1000)] {
                scene.pod_calls(owner, (scene.pod_ip(v6), 8080).into(), Inbound);
            }
            scene.pod_calls(PROXY, (scene.pod_ip(v6), 15008).into(), Proxy);
            scene.pod_calls(PROXY, (ip(v6, "127.0.0.1", "::1"), 8080).into(), App);
        }
    });
}

/// The inbound side calls the application from an address of its own, and is not sent back to itself.
#[test]
fn calls_from_the_passthrough_address_reach_the_application() {
    scenes(&injected(), |scene| {
        scene.app(&[8080]);
        for v6 in FAMILIES {
            let source = ip(v6, "127.0.0.6", "::6");
            let client = TrafficClient::new(Proto::Tcp).owned_by(PROXY.0, PROXY.1).from((source, 0).into());
            let seen = scene.expect(&scene.pod, &client, (scene.pod_ip(v6), 8080).into(), App);
            assert_eq!(seen.peer.ip(), source);
        }
    });
}

/// With a loopback network among the captured ones, calls within the pod are captured, except to 127.0.0.1 and ::1.
#[test]
fn a_captured_loopback_network_captures_calls_within_the_pod() {
    let include_networks = networks(&["127.1.2.3/32", "10.0.0.0/8", "::1/128", "fd00::/8"]);
    scenes(&SidecarConfig { include_networks, ..injected() }, |scene| {
        scene.app(&[8080]);
        scene.pod_calls(APP, "127.1.2.3:8080".parse().unwrap(), Outbound);
        scene.pod_calls(APP, "127.1.2.4:8080".parse().unwrap(), App);
        for v6 in FAMILIES {
            scene.pod_calls(APP, (scene.pod_ip(v6), 8080).into(), Outbound);
            scene.pod_calls(PROXY, (scene.pod_ip(v6), 8080).into(), Inbound);
            scene.pod_calls((1000, 1337), (scene.pod_ip(v6), 8080).into(), Inbound);
            scene.pod_calls(APP, (ip(v6, "127.0.0.1", "::1"), 8080).into(), App);
            scene.pod_calls(PROXY, (ip(v6, "127.0.0.1", "::1"), 8080).into(), App);
        }
    });
}
