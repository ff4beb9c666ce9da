//! Who talks to whom through what, on a node with services, with each backend of the firewall, and with the strict
//! check of source addresses.

#[path = "ambient_paths/dns.rs"]
mod dns;
#[path = "ambient_paths/links.rs"]
mod links;
#[path = "ambient_paths/others.rs"]
mod others;
#[path = "ambient_paths/scene.rs"]
mod scene;

use kit::{Proto, Via};

use crate::ambient_stage::PORT;
pub(crate) use scene::every;
use scene::{Backend, HBONE, OUTSIDE, Scene, VIP};

const FAMILIES: [bool; 2] = [false, true];

/// TCP by every way there is.
fn every_way(scene: &Scene) {
    for v6 in FAMILIES {
        let Scene { client, server, plain, stage, .. } = scene;
        let outside = scene.outside(v6);
        let from_client = Some(client.ip(v6));
        let at = |via, dst| vec![(via, dst)];
        // Out of the mesh's pods.
        for (target, real) in [
            (outside, outside),
            (server.at(v6), server.at(v6)),
            (plain.at(v6), plain.at(v6)),
            (scene.vip(v6, VIP.mesh), server.at(v6)),
            (scene.vip(v6, VIP.plain), plain.at(v6)),
            (scene.vip(v6, VIP.masqueraded), server.at(v6)),
            (scene.vip(v6, VIP.outside), outside),
        ] {
            let masqueraded = target == scene.vip(v6, VIP.masqueraded);
            let client_ip = from_client.filter(|_| !masqueraded);
            scene.tcp(
                "client",
                &client.sandbox.netns,
                target,
                client_ip,
                real,
                &at(Via::Outbound, target),
                from_client,
            );
        }
        // Into them.
        let tunnel = (server.ip(v6), HBONE).into();
        for (name, netns, ip) in [
            ("outside", stage.node.outside(), stage.node.outside_ip(v6)),
            ("plain", &plain.sandbox.netns, plain.ip(v6)),
        ] {
            let ip = Some(ip);
            scene.tcp(name, netns, server.at(v6), ip, server.at(v6), &at(Via::Inbound, server.at(v6)), ip);
            scene.tcp(name, netns, tunnel, ip, tunnel, &at(Via::Hbone, tunnel), ip);
            let vip = scene.vip(v6, VIP.mesh);
            scene.tcp(name, netns, vip, ip, server.at(v6), &at(Via::Inbound, server.at(v6)), ip);
            let vip = scene.vip(v6, VIP.masqueraded);
            scene.tcp(name, netns, vip, None, server.at(v6), &at(Via::Inbound, server.at(v6)), ip);
        }
        // The node's own processes, such as the kubelet with its probes, and what the node offers.
        let node = stage.node.netns();
        scene.tcp("node", node, server.at(v6), None, server.at(v6), &[], None);
        scene.tcp("node", node, scene.vip(v6, VIP.mesh), None, server.at(v6), &[], None);
        let here = (stage.node.ip(v6), OUTSIDE).into();
        scene.tcp("client", &client.sandbox.netns, here, from_client, here, &[], None);
        scene.tcp("client", &client.sandbox.netns, client.at(v6), None, client.at(v6), &[], None);
    }
}

/// Its own service: kube-proxy masquerades what comes back to its sender.
fn oneself(scene: &Scene) {
    for v6 in FAMILIES {
        let (server, vip) = (&scene.server, scene.vip(v6, VIP.mesh));
        let legs = [(Via::Outbound, vip)];
        scene.tcp("server", &server.sandbox.netns, vip, None, server.at(v6), &legs, Some(server.ip(v6)));
    }
}

/// What is not TCP.
fn undisturbed(scene: &Scene) {
    for v6 in FAMILIES {
        let Scene { client, server, plain, stage, .. } = scene;
        for (netns, ip) in [
            (&client.sandbox.netns, client.ip(v6)),
            (stage.node.outside(), stage.node.outside_ip(v6)),
            (&plain.sandbox.netns, plain.ip(v6)),
        ] {
            scene.ping(netns, server.ip(v6));
            let seen = kit::connect(netns, Proto::Udp, server.at(v6)).unwrap();
            assert_eq!((seen.peer.ip(), seen.listener), (ip, PORT));
        }
        scene.ping(&client.sandbox.netns, stage.node.outside_ip(v6));
        let seen = kit::connect(&client.sandbox.netns, Proto::Udp, scene.outside(v6)).unwrap();
        assert_eq!(seen.peer.ip(), client.ip(v6));
        let seen = kit::connect(&client.sandbox.netns, Proto::Udp, scene.vip(v6, VIP.mesh)).unwrap();
        assert_eq!(seen.peer.ip(), client.ip(v6));
        scene.ping(stage.node.netns(), server.ip(v6));
    }
    scene.watched.expect("no TCP", None, &[]);
}

#[test]
fn pods_of_the_mesh_talk_through_ztunnel_whatever_the_firewall() {
    every(&Backend::ALL, |backend| {
        let scene = Scene::new(*backend);
        every_way(&scene);
        undisturbed(&scene);
        oneself(&scene);
        scene.is_in_its_backend(*backend);
    });
}

#[test]
fn the_strict_check_of_sources_changes_nothing() {
    every(&[Backend::Nft, Backend::Legacy], |backend| {
        let scene = Scene::strict(*backend);
        every_way(&scene);
        undisturbed(&scene);
        oneself(&scene);
    });
}
