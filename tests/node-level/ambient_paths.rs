//! Connections between all kinds of peers and their paths, on a node with services, with each backend of the firewall, and with
//! strict reverse-path filtering.

mod dns;
mod fixture;
mod links;
mod others;

use kit::{Proto, Via};

use crate::fixtures::ambient::PORT;
pub(crate) use fixture::every;
use fixture::{Backend, Fixture, HBONE, OUTSIDE, VIP};

const FAMILIES: [bool; 2] = [false, true];

/// TCP on every path.
fn every_way(fixture: &Fixture, backend: Backend) {
    for v6 in FAMILIES {
        let Fixture { client, server, plain, base, .. } = fixture;
        let outside = fixture.outside(v6);
        let from_client = Some(client.ip(v6));
        let at = |via, dst| vec![(via, dst)];
        // From pods of the mesh.
        for (target, real) in [
            (outside, outside),
            (server.at(v6), server.at(v6)),
            (plain.at(v6), plain.at(v6)),
            (fixture.vip(v6, VIP.mesh), server.at(v6)),
            (fixture.vip(v6, VIP.plain), plain.at(v6)),
            (fixture.vip(v6, VIP.masqueraded), server.at(v6)),
            (fixture.vip(v6, VIP.outside), outside),
        ] {
            let masqueraded = target == fixture.vip(v6, VIP.masqueraded);
            if masqueraded && !backend.can_masquerade() {
                continue;
            }
            let client_ip = from_client.filter(|_| !masqueraded);
            fixture.tcp(
                "client",
                &client.sandbox.netns,
                target,
                client_ip,
                real,
                &at(Via::Outbound, backend.seen_at(target, real)),
                from_client,
            );
        }
        // To pods of the mesh.
        let tunnel = (server.ip(v6), HBONE).into();
        for (name, netns, ip) in [
            ("outside", base.node.outside(), base.node.outside_ip(v6)),
            ("plain", &plain.sandbox.netns, plain.ip(v6)),
        ] {
            let ip = Some(ip);
            fixture.tcp(name, netns, server.at(v6), ip, server.at(v6), &at(Via::Inbound, server.at(v6)), ip);
            fixture.tcp(name, netns, tunnel, ip, tunnel, &at(Via::Hbone, tunnel), ip);
            let vip = fixture.vip(v6, VIP.mesh);
            fixture.tcp(name, netns, vip, ip, server.at(v6), &at(Via::Inbound, server.at(v6)), ip);
            if !backend.can_masquerade() {
                continue;
            }
            let vip = fixture.vip(v6, VIP.masqueraded);
            fixture.tcp(name, netns, vip, None, server.at(v6), &at(Via::Inbound, server.at(v6)), ip);
        }
        // The node's own processes, such as the kubelet with its probes, and the node's servers.
        let node = base.node.netns();
        fixture.tcp("node", node, server.at(v6), None, server.at(v6), &[], None);
        fixture.tcp("node", node, fixture.vip(v6, VIP.mesh), None, server.at(v6), &[], None);
        let here = (base.node.ip(v6), OUTSIDE).into();
        fixture.tcp("client", &client.sandbox.netns, here, from_client, here, &[], None);
        fixture.tcp("client", &client.sandbox.netns, client.at(v6), None, client.at(v6), &[], None);
    }
}

/// A pod's own service: kube-proxy masquerades hairpin connections.
fn oneself(fixture: &Fixture, backend: Backend) {
    for v6 in FAMILIES {
        let (server, vip) = (&fixture.server, fixture.vip(v6, VIP.mesh));
        let legs = [(Via::Outbound, backend.seen_at(vip, server.at(v6)))];
        fixture.tcp("server", &server.sandbox.netns, vip, None, server.at(v6), &legs, Some(server.ip(v6)));
    }
}

/// Protocols other than TCP.
fn undisturbed(fixture: &Fixture) {
    for v6 in FAMILIES {
        let Fixture { client, server, plain, base, .. } = fixture;
        for (netns, ip) in [
            (&client.sandbox.netns, client.ip(v6)),
            (base.node.outside(), base.node.outside_ip(v6)),
            (&plain.sandbox.netns, plain.ip(v6)),
        ] {
            fixture.ping(netns, server.ip(v6));
            let seen = kit::connect(netns, Proto::Udp, server.at(v6)).unwrap();
            assert_eq!((seen.peer.ip(), seen.listener), (ip, PORT));
        }
        fixture.ping(&client.sandbox.netns, base.node.outside_ip(v6));
        let seen = kit::connect(&client.sandbox.netns, Proto::Udp, fixture.outside(v6)).unwrap();
        assert_eq!(seen.peer.ip(), client.ip(v6));
        let seen = kit::connect(&client.sandbox.netns, Proto::Udp, fixture.vip(v6, VIP.mesh)).unwrap();
        assert_eq!(seen.peer.ip(), client.ip(v6));
        fixture.ping(base.node.netns(), server.ip(v6));
    }
    fixture.watched.expect("no TCP", None, &[]);
}

#[test]
fn pods_of_the_mesh_talk_through_ztunnel_whatever_the_firewall() {
    every(&Backend::all(), |backend| {
        let fixture = Fixture::new(*backend);
        every_way(&fixture, *backend);
        undisturbed(&fixture);
        if backend.can_masquerade() {
            oneself(&fixture, *backend);
        }
        fixture.is_in_its_backend(*backend);
    });
}

#[test]
fn the_strict_check_of_sources_changes_nothing() {
    every(&[(Backend::Nft, "0"), (Backend::Legacy, "0"), (Backend::Nft, "1")], |(backend, by_mark)| {
        let fixture = Fixture::strict(*backend, by_mark);
        every_way(&fixture, *backend);
        undisturbed(&fixture);
        oneself(&fixture, *backend);
    });
}
