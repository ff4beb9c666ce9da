//! DNS, with and without capture.

use std::net::SocketAddr;

use kit::{Echo, Netns, Proto, Service, Via, connect};

use super::fixture::{Backend, Fixture, every};

const DNS: u16 = 53;

/// A DNS service with an external endpoint, as a cluster's has pods elsewhere.
fn resolver(fixture: &Fixture, v6: bool) -> SocketAddr {
    let text = if v6 { "[fd00:97::a]:53" } else { "10.97.0.10:53" };
    let address = text.parse().unwrap();
    fixture.base.node.service(&Service::new(address, (fixture.base.node.outside_ip(v6), DNS).into()));
    address
}

fn server(netns: &Netns, proto: Proto, target: SocketAddr) -> (String, std::net::IpAddr) {
    let seen = connect(netns, proto, target).unwrap_or_else(|error| panic!("{proto:?} {target}: {error}"));
    (seen.server, seen.peer.ip())
}

#[test]
fn questions_of_the_mesh_are_answered_by_a_ztunnel_that_wants_them() {
    every(&[true, false], |captured| {
        let fixture = if *captured { Fixture::with_dns(Backend::Nft) } else { Fixture::new(Backend::Nft) };
        let outside = fixture.base.node.outside();
        let _servers = [Echo::tcp(outside, DNS), Echo::udp(outside, DNS)];
        for v6 in [false, true] {
            let (client, plain) = (&fixture.client, &fixture.plain);
            let service = resolver(&fixture, v6);
            for target in [(fixture.base.node.outside_ip(v6), DNS).into(), service] {
                for proto in [Proto::Udp, Proto::Tcp] {
                    assert_eq!(server(&plain.sandbox.netns, proto, target), ("echo".into(), plain.ip(v6)));
                    fixture.watched.expect("a pod outside of the mesh", None, &[]);
                    let who = if *captured { "ztunnel-a" } else { "echo" };
                    let answered = server(&client.sandbox.netns, proto, target);
                    assert_eq!(answered, (who.into(), client.ip(v6)), "{proto:?} {target}");
                    let legs = match (proto, *captured) {
                        (Proto::Udp, true) => vec![(Via::Dns, "[::]:15053".parse().unwrap())],
                        (Proto::Udp, false) => vec![],
                        (Proto::Tcp, true) => vec![(Via::Dns, target)],
                        (Proto::Tcp, false) => vec![(Via::Outbound, target)],
                    };
                    fixture.watched.expect("DNS", Some(client.ip(v6)), &legs);
                }
            }
        }
    });
}
