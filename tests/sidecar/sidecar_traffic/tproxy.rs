//! Inbound capture that preserves the client's address.

use std::{
    io::{BufRead, BufReader},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use kit::{Proto, Serve, TrafficClient};
use model::IfName;
use redirect::FamilyChoice;
use rules::sidecar::SidecarConfig;
use socket2::{Domain, Socket, Type};

use super::fixture::{
    APP, FAMILIES, Fixture, PROXY,
    To::{App, Inbound, Outbound, Outside, Proxy},
    fixtures, ip,
};
use crate::sidecar_kernel::cases::{TPROXY, injected, ports};

fn tproxy() -> SidecarConfig {
    SidecarConfig { inbound_mode: TPROXY, ..injected() }
}

/// The proxy accepts the connection at the application's own address, from the client's.
fn is_taken_transparently(fixture: &Fixture, v6: bool, port: u16) {
    let target = (fixture.pod_ip(v6), port).into();
    let seen = fixture.outside_calls(target, Inbound);
    assert_eq!((seen.local, seen.peer.ip()), (target, fixture.outside_ip(v6)), "{}", fixture.backend);
}

#[test]
fn client_and_destination_are_kept() {
    fixtures(&tproxy(), |fixture| {
        fixture.app(&[8080, 15020, 15021, 15090]);
        fixture.proxy(Serve::new(Proto::Tcp, 15008));
        for v6 in FAMILIES {
            is_taken_transparently(fixture, v6, 8080);
            is_taken_transparently(fixture, v6, 9);
            for excluded in [15020, 15021, 15090] {
                fixture.outside_calls((fixture.pod_ip(v6), excluded).into(), App);
            }
            fixture.outside_calls((fixture.pod_ip(v6), 15008).into(), Proxy);
        }
    });
}

/// A pod inherits the setting from its node, where WireGuard makes the kernel look up sources with their mark.
#[test]
fn a_check_of_sources_with_their_mark_is_turned_off() {
    fixtures(&tproxy(), |fixture| {
        fixture.pod.sysctl("net/ipv4/conf/all/src_valid_mark", "1");
        fixture.redirect(FamilyChoice::Dual);
        for v6 in FAMILIES {
            is_taken_transparently(fixture, v6, 8080);
        }
    });
}

#[test]
fn listed_ports_only() {
    fixtures(&SidecarConfig { include_inbound: ports(&[80, 8080]), ..tproxy() }, |fixture| {
        fixture.app(&[8080, 9090]);
        for v6 in FAMILIES {
            is_taken_transparently(fixture, v6, 80);
            is_taken_transparently(fixture, v6, 8080);
            fixture.outside_calls((fixture.pod_ip(v6), 9090).into(), App);
        }
    });
}

#[test]
fn no_port_at_all() {
    fixtures(&SidecarConfig { include_inbound: ports(&[]), ..tproxy() }, |fixture| {
        fixture.app(&[8080]);
        for v6 in FAMILIES {
            fixture.outside_calls((fixture.pod_ip(v6), 8080).into(), App);
        }
    });
}

/// Traffic within the pod is as with REDIRECT, and the proxy's calls to its application are not redirected again.
#[test]
fn calls_within_the_pod_find_their_way() {
    fixtures(&tproxy(), |fixture| {
        fixture.app(&[8080]);
        for v6 in FAMILIES {
            let (app, localhost) = (SocketAddr::from((fixture.pod_ip(v6), 8080)), ip(v6, "127.0.0.1", "::1"));
            fixture.pod_calls(APP, app, App);
            fixture.pod_calls(APP, (localhost, 8080).into(), App);
            fixture.pod_calls(PROXY, (localhost, 8080).into(), App);
            fixture.pod_calls(PROXY, app, Inbound);
            // Istio runs a TPROXY proxy as root, identified by its group: its call is redirected transparently.
            let seen = fixture.pod_calls((0, PROXY.1), app, Inbound);
            assert_eq!((seen.local, seen.peer.ip()), (app, fixture.pod_ip(v6)), "{}", fixture.backend);
            let source = ip(v6, "127.0.0.6", "::6");
            let proxy = TrafficClient::new(Proto::Tcp).owned_by(PROXY.0, PROXY.1);
            let seen = fixture.expect(&fixture.pod, &proxy.clone().from((source, 0).into()), app, App);
            assert_eq!(seen.peer.ip(), source);
            let marked = proxy.marked(1337);
            fixture.expect(&fixture.pod, &marked, (localhost, 8080).into(), App);
        }
    });
}

/// Does what a TPROXY proxy (user root, group 1337) does for a client: calls the application from the client's address, with the
/// mark.
fn call_as(fixture: &Fixture, client: IpAddr, target: SocketAddr) -> serde_json::Value {
    let answer = fixture.pod.run(|| {
        let group = rustix::thread::Gid::from_raw(PROXY.1);
        rustix::thread::set_thread_res_gid(group, group, group).unwrap(); // of this thread only
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None).unwrap();
        socket.set_ip_transparent_v4(true).unwrap(); // one bit for both families
        socket.set_mark(1337).unwrap();
        socket.bind(&SocketAddr::new(client, 0).into()).unwrap();
        socket.connect_timeout(&target.into(), Duration::from_secs(20)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut line = String::new();
        BufReader::new(TcpStream::from(socket)).read_line(&mut line).unwrap();
        line
    });
    serde_json::from_str(&answer).unwrap()
}

/// The mark routes the answers, which are addressed to the client, back to the proxy.
#[test]
fn the_application_answers_the_proxy_that_calls_from_the_clients_address() {
    fixtures(&tproxy(), |fixture| {
        fixture.app(&[8080]);
        for v6 in FAMILIES {
            let client = fixture.outside_ip(v6);
            let seen = call_as(fixture, client, (fixture.pod_ip(v6), 8080).into());
            let peer: SocketAddr = seen["peer"].as_str().unwrap().parse().unwrap();
            assert_eq!(
                (seen["server"].as_str(), peer.ip()),
                (Some("app"), client),
                "{}: {seen}",
                fixture.backend
            );
        }
    });
}

#[test]
fn outbound_is_as_ever() {
    fixtures(&tproxy(), |fixture| {
        fixture.outside(&[80]);
        for v6 in FAMILIES {
            fixture.pod_calls(APP, (fixture.outside_ip(v6), 80).into(), Outbound);
            fixture.pod_calls(PROXY, (fixture.outside_ip(v6), 80).into(), Outside);
        }
    });
}

#[test]
fn an_excluded_interface_is_left_alone_both_ways() {
    let net1 = vec![IfName::new("net1").unwrap()];
    fixtures(&SidecarConfig { exclude_interfaces: net1, ..tproxy() }, |fixture| {
        fixture.app(&[8080]);
        fixture.outside(&[80]);
        for v6 in FAMILIES {
            fixture.outside_calls((ip(v6, "10.9.0.2", "fd00:9::2"), 8080).into(), App);
            fixture.pod_calls(APP, (ip(v6, "10.9.0.1", "fd00:9::1"), 80).into(), Outside);
            is_taken_transparently(fixture, v6, 8080);
        }
    });
}
