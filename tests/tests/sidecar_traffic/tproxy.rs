//! Inbound capture with the client's address kept.

use std::{
    io::{BufRead, BufReader},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use kit::{Proto, Serve, TrafficClient};
use model::IfName;
use rules::sidecar::SidecarConfig;
use socket2::{Domain, Socket, Type};

use super::scene::{
    APP, FAMILIES, PROXY, Scene,
    To::{App, Inbound, Outbound, Outside, Proxy},
    ip, scenes,
};
use crate::sidecar_kernel::cases::{TPROXY, injected, ports};

fn tproxy() -> SidecarConfig {
    SidecarConfig { inbound_mode: TPROXY, ..injected() }
}

/// The proxy takes the connection at the application's own address, from the client's.
fn is_taken_transparently(scene: &Scene, v6: bool, port: u16) {
    let target = (scene.pod_ip(v6), port).into();
    let seen = scene.outside_calls(target, Inbound);
    assert_eq!((seen.local, seen.peer.ip()), (target, scene.outside_ip(v6)), "{}", scene.backend);
}

#[test]
fn client_and_destination_are_kept() {
    scenes(&tproxy(), |scene| {
        scene.app(&[8080, 15020, 15021, 15090]);
        scene.proxy(Serve::new(Proto::Tcp, 15008));
        for v6 in FAMILIES {
            is_taken_transparently(scene, v6, 8080);
            is_taken_transparently(scene, v6, 9);
            for excluded in [15020, 15021, 15090] {
                scene.outside_calls((scene.pod_ip(v6), excluded).into(), App);
            }
            scene.outside_calls((scene.pod_ip(v6), 15008).into(), Proxy);
        }
    });
}

#[test]
fn listed_ports_only() {
    scenes(&SidecarConfig { include_inbound: ports(&[80, 8080]), ..tproxy() }, |scene| {
        scene.app(&[8080, 9090]);
        for v6 in FAMILIES {
            is_taken_transparently(scene, v6, 80);
            is_taken_transparently(scene, v6, 8080);
            scene.outside_calls((scene.pod_ip(v6), 9090).into(), App);
        }
    });
}

#[test]
fn no_port_at_all() {
    scenes(&SidecarConfig { include_inbound: ports(&[]), ..tproxy() }, |scene| {
        scene.app(&[8080]);
        for v6 in FAMILIES {
            scene.outside_calls((scene.pod_ip(v6), 8080).into(), App);
        }
    });
}

/// What stays in the pod is as with REDIRECT, and the proxy's calls to its application are not taken again.
#[test]
fn calls_within_the_pod_find_their_way() {
    scenes(&tproxy(), |scene| {
        scene.app(&[8080]);
        for v6 in FAMILIES {
            let (app, localhost) = (SocketAddr::from((scene.pod_ip(v6), 8080)), ip(v6, "127.0.0.1", "::1"));
            scene.pod_calls(APP, app, App);
            scene.pod_calls(APP, (localhost, 8080).into(), App);
            scene.pod_calls(PROXY, (localhost, 8080).into(), App);
            scene.pod_calls(PROXY, app, Inbound);
            // Istio runs a TPROXY proxy as root, known by its group: its call comes in transparently.
            let seen = scene.pod_calls((0, PROXY.1), app, Inbound);
            assert_eq!((seen.local, seen.peer.ip()), (app, scene.pod_ip(v6)), "{}", scene.backend);
            let source = ip(v6, "127.0.0.6", "::6");
            let proxy = TrafficClient::new(Proto::Tcp).owned_by(PROXY.0, PROXY.1);
            let seen = scene.expect(&scene.pod, &proxy.clone().from((source, 0).into()), app, App);
            assert_eq!(seen.peer.ip(), source);
            let marked = proxy.marked(1337);
            scene.expect(&scene.pod, &marked, (localhost, 8080).into(), App);
        }
    });
}

/// What a TPROXY proxy (user root, group 1337) does for a client: it calls the application from the client's address,
/// with the mark.
fn call_as(scene: &Scene, client: IpAddr, target: SocketAddr) -> serde_json::Value {
    let answer = scene.pod.run(|| {
        let group = rustix::thread::Gid::from_raw(PROXY.1);
        rustix::thread::set_thread_res_gid(group, group, group).unwrap(); // of this thread only
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None).unwrap();
        socket.set_ip_transparent_v4(true).unwrap(); // one bit for both families
        socket.set_mark(1337).unwrap();
        socket.bind(&SocketAddr::new(client, 0).into()).unwrap();
        socket.connect_timeout(&target.into(), Duration::from_secs(5)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut line = String::new();
        BufReader::new(TcpStream::from(socket)).read_line(&mut line).unwrap();
        line
    });
    serde_json::from_str(&answer).unwrap()
}

/// The mark leads the answers, which are for the client's address, back to the proxy.
#[test]
fn the_application_answers_the_proxy_that_calls_from_the_clients_address() {
    scenes(&tproxy(), |scene| {
        scene.app(&[8080]);
        for v6 in FAMILIES {
            let client = scene.outside_ip(v6);
            let seen = call_as(scene, client, (scene.pod_ip(v6), 8080).into());
            let peer: SocketAddr = seen["peer"].as_str().unwrap().parse().unwrap();
            assert_eq!(
                (seen["server"].as_str(), peer.ip()),
                (Some("app"), client),
                "{}: {seen}",
                scene.backend
            );
        }
    });
}

#[test]
fn outbound_is_as_ever() {
    scenes(&tproxy(), |scene| {
        scene.outside(&[80]);
        for v6 in FAMILIES {
            scene.pod_calls(APP, (scene.outside_ip(v6), 80).into(), Outbound);
            scene.pod_calls(PROXY, (scene.outside_ip(v6), 80).into(), Outside);
        }
    });
}

#[test]
fn an_excluded_interface_is_left_alone_both_ways() {
    let net1 = vec![IfName::new("net1").unwrap()];
    scenes(&SidecarConfig { exclude_interfaces: net1, ..tproxy() }, |scene| {
        scene.app(&[8080]);
        scene.outside(&[80]);
        for v6 in FAMILIES {
            scene.outside_calls((ip(v6, "10.9.0.2", "fd00:9::2"), 8080).into(), App);
            scene.pod_calls(APP, (ip(v6, "10.9.0.1", "fd00:9::1"), 80).into(), Outside);
            is_taken_transparently(scene, v6, 8080);
        }
    });
}
