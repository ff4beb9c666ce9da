//! Packets of a pod that is not enrolled, with all our rules on the node and without.
//!
//! Two nodes that are made alike carry the same load in turn, first both without us, then one with us. A node is not
//! compared with itself: the kernel looks routes up in another way for ever once a namespace had a policy rule.

use std::{sync::Arc, time::Duration};

use kit::{Node, NodeOptions, Pod, PodSandbox};

use super::{
    flow::{Flow, Load, own_time, pin, unpin},
    lab::{Lab, MESH, PLAIN, with_other_users},
    spread,
    talk::{Speech, Talk},
};

const PODS: u32 = 250;
/// Units of each load in one round.
const UNITS: [(Load, usize); 3] = [(Load::RoundTrips, 120), (Load::Small, 30), (Load::Big, 120)];
/// Rounds for each that was asked for: they are short, so that few of them are interrupted.
const SHORT: usize = 20;

/// A node with a pod, and connections of both families.
struct Place {
    // Dropped first: an end that nobody hears would wait for ever.
    talks: [Talk; 2],
    flows: [Flow; 2],
    _pod: PodSandbox,
    node: Arc<Node>,
}

impl Place {
    fn new() -> Place {
        let node = Arc::new(Node::new(NodeOptions::default()));
        with_other_users(&node);
        node.netns().sh("ip6tables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        let pod = node.pod(Pod::new(PLAIN, "plain"), &[]);
        let flows = [false, true].map(|v6| Flow::open(&pod.netns, &node, v6));
        let talks = [false, true].map(|v6| Talk::open(&pod.netns, &node, v6));
        Place { node, _pod: pod, flows, talks }
    }
}

pub(crate) fn run(rounds: usize) {
    let mut places = [Place::new(), Place::new()];
    let spoken_before = converse(&mut places, rounds);
    pin(None);
    let before = compare(&mut places, rounds);
    unpin();
    let mut lab = Lab::on(Arc::clone(&places[1].node), &[]);
    lab.fill_with_links(MESH, PODS);
    let _ztunnels = [lab.ztunnel("ztunnel-a"), lab.ztunnel("ztunnel-b")];
    lab.wait_members(PODS as usize);
    std::thread::sleep(Duration::from_secs(1)); // until the agent rests
    let spoken_after = converse(&mut places, rounds);
    show_spoken(&spoken_before, &spoken_after, rounds);
    pin(None);
    let after = compare(&mut places, rounds);
    unpin();
    println!(
        "A pod that is not enrolled, {} rounds; microseconds of processor time, median (least), without us and with us.",
        rounds * SHORT
    );
    for (before, after) in before.iter().zip(&after) {
        let (alone, bare) = (spread(&after.one), spread(&after.other));
        let [was, is] = [before, after].map(|rows| rows.ratio());
        println!(
            "  {:<5} {:<20} {:>8.2} ({:.2}) {:>8.2} ({:.2})   ratio {:.3}, of the two nodes before {:.3}: {:+.1} %",
            if after.v6 { "IPv6" } else { "IPv4" },
            after.load.name(),
            alone.0,
            alone.1,
            bare.0,
            bare.1,
            is,
            was,
            (is / was - 1.0) * 100.0
        );
    }
    println!();
}

/// The same load on two places.
struct Rows {
    load: Load,
    v6: bool,
    one: Vec<f64>,
    other: Vec<f64>,
}

impl Rows {
    /// Median of the ratios within each round.
    fn ratio(&self) -> f64 {
        let ratios: Vec<f64> = self.one.iter().zip(&self.other).map(|(one, other)| other / one).collect();
        spread(&ratios).0
    }
}

fn compare(places: &mut [Place; 2], rounds: usize) -> Vec<Rows> {
    let mut rows: Vec<Rows> = [false, true]
        .iter()
        .flat_map(|v6| UNITS.map(|(load, _)| Rows { load, v6: *v6, one: Vec::new(), other: Vec::new() }))
        .collect();
    for round in 0..rounds * SHORT {
        for row in &mut rows {
            let units = UNITS.iter().find(|(load, _)| *load == row.load).unwrap().1;
            let mut carry =
                |place: usize| places[place].flows[usize::from(row.v6)].carry(row.load, units, own_time);
            let first = round % 2;
            let (here, there) = (carry(first), carry(1 - first));
            let (one, other) = if first == 0 { (here, there) } else { (there, here) };
            row.one.push(one);
            row.other.push(other);
        }
    }
    rows
}

/// What is said on two places: the ratios within each round, by speech and family.
struct Spoken {
    speech: Speech,
    v6: bool,
    one: Vec<f64>,
    other: Vec<f64>,
}

fn converse(places: &mut [Place; 2], rounds: usize) -> Vec<Spoken> {
    let mut rows: Vec<Spoken> = [false, true]
        .iter()
        .flat_map(|v6| {
            [Speech::RoundTrips, Speech::Stream].map(|speech| Spoken {
                speech,
                v6: *v6,
                one: Vec::new(),
                other: Vec::new(),
            })
        })
        .collect();
    for round in 0..rounds * SHORT {
        for row in &mut rows {
            let mut carry = |place: usize| places[place].talks[usize::from(row.v6)].carry(row.speech);
            let first = round % 2;
            let (here, there) = (carry(first), carry(1 - first));
            let (one, other) = if first == 0 { (here, there) } else { (there, here) };
            row.one.push(one);
            row.other.push(other);
        }
    }
    rows
}

fn show_spoken(before: &[Spoken], after: &[Spoken], rounds: usize) {
    println!("The same between two threads, {} rounds; microseconds by the clock.", rounds * SHORT);
    for (before, after) in before.iter().zip(after) {
        let ratio = |row: &Spoken| {
            let ratios: Vec<f64> = row.one.iter().zip(&row.other).map(|(one, other)| other / one).collect();
            let least = |values: &[f64]| spread(values).1;
            (spread(&ratios).0, least(&row.other) / least(&row.one))
        };
        let (was, is) = (ratio(before), ratio(after));
        println!(
            "  {:<5} {:<20} {:>8.2} {:>8.2}   {:+.1} % (of least values {:+.1} %)",
            if after.v6 { "IPv6" } else { "IPv4" },
            after.speech.name(),
            spread(&after.one).0,
            spread(&after.other).0,
            (is.0 / was.0 - 1.0) * 100.0,
            (is.1 / was.1 - 1.0) * 100.0
        );
    }
}
