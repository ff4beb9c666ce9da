//! Other tables, other positions of rules, and links that cannot be created.

use kit::{
    FailureKind, Live, LiveConnections, NodeOptions, Proto, TrafficClient, Via, Ztunnel, ZtunnelOptions,
};
use serde_json::Value;

use super::{
    Backend, FAMILIES, every_way,
    fixture::{Fixture, OUTSIDE},
    oneself, undisturbed,
};
use crate::fixtures::ambient::{Ambient, MESH};

#[test]
fn numbers_of_the_operator_carry_every_way_through_a_switch() {
    let numbers = [("AMBIENT_TABLES", "1200,1201,1210,1220,1230"), ("AMBIENT_RULE_PRIORITY", "5000")];
    let mut fixture = Fixture::with_env(&numbers);
    every_way(&fixture, Backend::Nft);
    undisturbed(&fixture);
    oneself(&fixture, Backend::Nft);
    let node = fixture.base.node.netns();
    for family in FAMILIES.map(|v6| if v6 { "-6" } else { "-4" }) {
        let rules = node.sh(&format!("ip {family} rule"));
        let places = rules.lines().map(|line| line.split(':').next().unwrap().parse().unwrap());
        let ours: Vec<u32> = places.filter(|place| !matches!(place, 0 | 32766 | 32767)).collect();
        assert_eq!(ours, (5000..5010).collect::<Vec<_>>(), "{rules}");
        let routes = node.sh(&format!("ip -json {family} route show table all"));
        let routes: Vec<Value> = serde_json::from_str(&routes).unwrap();
        assert!(routes.iter().any(|route| route["table"] == "1201"), "{routes:?}");
        let tables = routes.iter().filter_map(|route| route["table"].as_str()?.parse::<u32>().ok());
        assert!(tables.into_iter().all(|table| !(100..200).contains(&table)), "{routes:?}");
    }
    let mut live = LiveConnections::start(&fixture.client.sandbox.netns, Live::default());
    let mut inbound = LiveConnections::start(fixture.base.node.outside(), Live::default());
    for v6 in FAMILIES {
        live.open(fixture.outside(v6), 2);
        live.open(fixture.server.at(v6), 2);
        inbound.open(fixture.server.at(v6), 2);
    }
    let successor = fixture.base.ztunnel("ztunnel-b");
    for v6 in FAMILIES {
        fixture.client.tcp(fixture.outside(v6)).unwrap();
        successor.wait_seen(|seen| seen.via == Via::Outbound && seen.src.ip() == fixture.client.ip(v6));
    }
    for mut client in [live, inbound] {
        client.wait_round();
        client.finish().assert_unbroken();
    }
}

#[test]
fn links_that_cannot_be_made_are_told_and_traffic_is_held() {
    let mut base = Ambient::stopped(NodeOptions::default(), &[]);
    base.node.netns().sh("ip link property add dev lo altname istioin0");
    base.start();
    let (client, server) = (base.pod(MESH, "client"), base.pod(MESH, "server"));
    let ztunnel = Ztunnel::start(&base.node, "ztunnel-a", ZtunnelOptions::default());
    base.announce(&ztunnel, true);
    let error = "create links istioin0 and pistioin: cannot create link istioin0 type veth peer pistioin in another netns: \
                 kernel: exists already (EEXIST)";
    base.daemon().wait_for("it is told", |daemon| {
        daemon.has_logged("reconcile failed", &[("error", error)])
            && daemon.get(8000, "/readyz").map(|(status, _)| status) == Some(503)
    });
    let held = TrafficClient::new(Proto::Tcp).within(std::time::Duration::from_millis(300));
    for v6 in FAMILIES {
        for target in [server.at(v6), (base.node.outside_ip(v6), OUTSIDE).into()] {
            let failure = held.connect(&client.sandbox.netns, target).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Timeout, "{target}: {failure}");
        }
    }
}
