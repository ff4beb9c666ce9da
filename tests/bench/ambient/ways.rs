//! Captured traffic: through the agent's veth links, and to the same proxy over its own link alone, with rules written by hand for
//! one pod. Each node has the links and routes of 250 pods.

use std::sync::Arc;

use kit::{Netns, Node, NodeOptions, Pod, PodSandbox, Ztunnel, ZtunnelOptions};

use super::{
    Ratio,
    fixture::{Fixture, MESH, with_links, with_other_users},
    flow::{Flow, Load, pin, unpin, wall_time},
    spread,
};

/// Number of pods beside the captured one.
const OTHERS: u32 = 249;
const UNITS: [(Load, usize); 3] = [(Load::RoundTrips, 60), (Load::Small, 20), (Load::Big, 60)];
/// Rounds for each requested one: they are short, so that few of them are interrupted.
const SHORT: usize = 10;

/// A capture mode, with one connection through it.
struct Way {
    name: &'static str,
    flow: Flow,
    costs: Vec<[f64; 3]>,
    // Dropped last: the connection goes through it.
    ztunnel: Ztunnel,
    _pod: PodSandbox,
    _lab: Option<Fixture>,
    _node: Arc<Node>,
    _peers: Option<Netns>,
}

pub(crate) fn run(rounds: usize) {
    let mut ways = [by_hand(), by_agent()];
    pin(None);
    ways.iter().for_each(|way| pin(Some(way.ztunnel.pid())));
    for _ in 0..rounds * SHORT {
        for way in &mut ways {
            way.costs.push(UNITS.map(|(load, units)| way.flow.carry(load, units, wall_time)));
        }
    }
    unpin();
    println!(
        "Captured traffic, {} rounds; microseconds with the proxy's own, median (least), all on one processor; more \
         than the first, by the median of the ratios within each round, and how far it would lie from that in two of \
         three repetitions.",
        rounds * SHORT
    );
    for (place, (load, _)) in UNITS.iter().enumerate() {
        for way in &ways {
            let (median, least, _) = spread(&way.costs.iter().map(|costs| costs[place]).collect::<Vec<_>>());
            let pairs = ways[0].costs.iter().zip(&way.costs);
            let ratio = Ratio::of(pairs.map(|(one, other)| other[place] / one[place]));
            println!(
                "  {:<20} {:<32} {median:>8.2} ({least:.2}) {:+.1} % (±{:.1})",
                load.name(),
                way.name,
                (ratio.median - 1.0) * 100.0,
                ratio.error * 100.0
            );
        }
    }
    println!();
}

fn by_agent() -> Way {
    let node = Arc::new(Node::new(NodeOptions::default()));
    with_other_users(&node);
    let mut fixture = Fixture::on(Arc::clone(&node), &[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    fixture.fill_with_links(MESH, OTHERS);
    let pod = fixture.pod(MESH, "captured");
    fixture.wait_members(OTHERS as usize + 1);
    Way::new("veth links", node, pod, ztunnel, Some(fixture), None)
}

/// The minimum rules for a transparent proxy in another network namespace.
fn by_hand() -> Way {
    let node = Arc::new(Node::new(NodeOptions::default()));
    with_other_users(&node);
    let peers = Netns::new("peers");
    with_links(&node, &peers, OTHERS);
    let ztunnel = Ztunnel::start(&node, "ztunnel-a", ZtunnelOptions::default());
    let pod = node.pod(Pod::new(MESH, "captured"), &[]);
    let (ip, proxy) = (pod.ip(false), ztunnel.ip(false));
    let [pod_link, link] = [&pod, ztunnel.pod()].map(outer_link);
    node.netns().pipe(
        "ip -batch -",
        &format!(
            "route add table 101 default via {proxy} dev {link} onlink\n\
             rule add priority 100 iif {pod_link} lookup 101\n\
             rule add priority 101 iif eth0 to {ip} lookup 101\n"
        ),
    );
    let inside = &ztunnel.pod().netns;
    inside.pipe(
        "ip -batch -",
        "route add table 100 local default dev lo\nrule add fwmark 0x400/0xfff lookup 100\n",
    );
    let rule = "iptables-nft -t mangle -A PREROUTING -i eth0 -p tcp";
    inside.sh(&format!("{rule} -s {ip} -j TPROXY --on-port 15001 --tproxy-mark 0x400/0xfff"));
    inside.sh(&format!("{rule} -d {ip} -j MARK --set-mark 0x400/0xfff"));
    Way::new("by hand, no links", node, pod, ztunnel, None, Some(peers))
}

/// The node's end of a pod's link.
fn outer_link(sandbox: &PodSandbox) -> String {
    let interfaces = sandbox.result["interfaces"].as_array().cloned().unwrap_or_default();
    let outer = interfaces.iter().find(|interface| interface["sandbox"].as_str().unwrap_or("").is_empty());
    outer.and_then(|interface| interface["name"].as_str()).unwrap().to_owned()
}

impl Way {
    fn new(
        name: &'static str,
        node: Arc<Node>,
        pod: PodSandbox,
        ztunnel: Ztunnel,
        fixture: Option<Fixture>,
        peers: Option<Netns>,
    ) -> Way {
        let flow = Flow::open(&pod.netns, &node, false);
        let relayed = ztunnel.wait_seen(|relayed| relayed.src.ip() == pod.ip(false));
        assert_eq!(relayed.error, None, "{name}");
        Way { name, flow, costs: Vec::new(), ztunnel, _pod: pod, _lab: fixture, _node: node, _peers: peers }
    }
}
