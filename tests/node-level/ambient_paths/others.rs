//! Pods that are not enrolled are not affected.

use kit::{Live, LiveConnections, Proto, UplinkWatch, connect};

use super::fixture::{Backend, Fixture, OUTSIDE, every};

/// Except for the mark that means "new" on the first packet of a connection, which selects no route for it.
#[test]
fn a_pod_that_is_not_enrolled_is_never_touched() {
    every(&[Backend::Nft, Backend::Legacy], |backend| {
        let fixture = Fixture::new(*backend);
        let (node, outside, plain) = (fixture.base.node.netns(), fixture.base.node.outside(), &fixture.plain);
        node.pipe("nft -f -", &marks(&fixture));
        for v6 in [false, true] {
            let mut live = LiveConnections::start(&plain.sandbox.netns, Live::default());
            live.open((fixture.base.node.outside_ip(v6), OUTSIDE).into(), 2);
            live.wait_round();
            live.wait_round();
            live.finish().assert_unbroken();
            let mut live = LiveConnections::start(outside, Live::default());
            live.open(plain.at(v6), 2);
            live.wait_round();
            live.finish().assert_unbroken();
            connect(&plain.sandbox.netns, Proto::Udp, (fixture.base.node.outside_ip(v6), OUTSIDE).into())
                .unwrap();
        }
        fixture.watched.expect("others", None, &[]);
        let counters = node.sh("nft list table inet kit_marks");
        let count = |name: &str| -> u64 {
            let rest = counters.split(&format!("counter {name} {{")).nth(1).unwrap();
            rest.split("packets ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
        };
        assert!(count("every") > 20, "{counters}");
        assert_eq!((count("marked"), count("connmarked")), (0, 0), "{counters}");
    });
}

fn marks(fixture: &Fixture) -> String {
    let (v4, v6) = (fixture.plain.ip(false), fixture.plain.ip(true));
    let all = format!(
        "ip saddr {v4} counter name every jump looks\nip daddr {v4} counter name every jump looks\nip6 saddr {v6} counter name every jump looks\nip6 daddr {v6} counter name every jump looks"
    );
    format!(
        "table inet kit_marks {{\ncounter every {{ }}\ncounter marked {{ }}\ncounter connmarked {{ }}\n\
         chain looks {{\nct state established meta mark != 0 counter name marked\n\
         ct state new meta mark and 0xffffcfff != 0 counter name marked\nct mark != 0 counter name connmarked\n}}\n\
         chain last {{ type filter hook postrouting priority 500; {all}\n}}\n}}\n"
    )
}

/// As in clouds that give pods addresses of further links: a rule for their source selects the link.
#[test]
fn the_policy_rules_of_others_hold_for_who_is_not_enrolled() {
    let fixture = Fixture::new(Backend::Nft);
    let (node, outside, plain) = (fixture.base.node.netns(), fixture.base.node.outside(), &fixture.plain);
    node.sh(&format!("ip link add eth1 type veth peer name eth1 netns {}", outside.name()));
    for (netns, last) in [(&**node, 2), (outside, 1)] {
        netns.sh(&format!("ip address add 10.11.0.{last}/24 dev eth1"));
        netns.sh("ip link set eth1 up");
    }
    node.wait_until_running("eth1");
    node.sh("ip route add default via 10.11.0.1 dev eth1 table 77");
    node.sh(&format!("ip rule add pref 1500 from {} lookup 77", plain.ip(false)));
    node.sh(&format!("ip rule add pref 1501 iif lo to 10.10.0.1 dport {OUTSIDE} lookup 77"));
    let watch = UplinkWatch::start(&fixture.base.node, &[plain.ip(false), fixture.base.node.ip(false)]);
    for netns in [&plain.sandbox.netns, &**node] {
        let mut live = LiveConnections::start(netns, Live::default());
        live.open(fixture.outside(false), 2);
        live.wait_round();
        live.wait_round();
        live.finish().assert_unbroken();
    }
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
}
