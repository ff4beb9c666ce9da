//! Packets of a pod that is not enrolled, with all our rules on the node and without.
//!
//! Three equal nodes, each with the links and routes of 250 other pods, carry the same load in turn, first all without our rules;
//! then one has a foreign policy rule, the minimum of a node with policy routing, and one has our rules. A node is not compared
//! with itself: once a network namespace had a policy rule, the kernel permanently uses another route lookup.

use std::{sync::Arc, time::Duration};

use kit::{Netns, Node, NodeOptions, Pod, PodSandbox};

use super::{
    Ratio,
    fixture::{Fixture, MESH, PLAIN, with_links, with_other_users},
    flow::{Flow, Load, own_time, pin, step_aside, unpin},
    spread,
    talk::{Speech, Talk},
};
use crate::results;

const PODS: u32 = 250;
/// Units of each load in one round.
const UNITS: [(Load, usize); 3] = [(Load::RoundTrips, 120), (Load::Small, 30), (Load::Big, 120)];
/// Rounds for each requested one: they are short, so that few of them are interrupted.
const SHORT: usize = 20;

const BARE: usize = 0;
const RULE: usize = 1;
const OURS: usize = 2;

/// A node with a pod, and connections of both families.
struct Place {
    // Dropped first: an end without its peer would wait forever.
    talks: [Talk; 2],
    flows: [Flow; 2],
    _pod: PodSandbox,
    node: Arc<Node>,
    _peers: Netns,
}

impl Place {
    fn new() -> Place {
        let node = Arc::new(Node::new(NodeOptions::default()));
        with_other_users(&node);
        node.netns().sh("ip6tables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        let peers = Netns::new("peers");
        with_links(&node, &peers, PODS);
        let pod = node.pod(Pod::new(PLAIN, "plain"), &[]);
        let flows = [false, true].map(|v6| Flow::open(&pod.netns, &node, v6));
        let talks = [false, true].map(|v6| Talk::open(&pod.netns, &node, v6));
        Place { node, _pod: pod, flows, talks, _peers: peers }
    }
}

type Places = [Place; 3];
/// Cost of a load at each place in one round.
type Round = [f64; 3];

pub(crate) fn run(rounds: usize) {
    let mut places: Places = std::array::from_fn(|_| Place::new());
    let before = all(&mut places, rounds);
    for family in ["-4", "-6"] {
        let rule = format!("ip {family} rule add priority 100 fwmark 0x80000/0x80000 lookup 100");
        places[RULE].node.netns().sh(&rule);
    }
    let mut fixture = Fixture::on(Arc::clone(&places[OURS].node), &[]);
    fixture.fill(MESH, PODS);
    let _ztunnels = [fixture.ztunnel("ztunnel-a"), fixture.ztunnel("ztunnel-b")];
    fixture.wait_members(PODS as usize);
    std::thread::sleep(Duration::from_secs(1)); // until the agent is idle
    let after = all(&mut places, rounds);
    println!(
        "A pod that is not enrolled, {} rounds. Microseconds without us: median (least), of processor time on the \
         whole way, by the clock between two threads that take turns on it, and by the clock between two that have a \
         processor each. With one policy rule, and with us: more than that, by the median of the ratios within each \
         round; in brackets, how far it would lie from that in two of three repetitions.",
        rounds * SHORT
    );
    for (before, after) in before.iter().zip(&after) {
        let (median, least, _) = spread(&after.rounds.iter().map(|round| round[BARE]).collect::<Vec<_>>());
        let more = |place: usize| {
            let (before, after) = (before.ratio(place), after.ratio(place));
            let error = (before.error.powi(2) + after.error.powi(2)).sqrt();
            format!("{:+.1} % (±{:.1})", (after.median / before.median - 1.0) * 100.0, error * 100.0)
        };
        println!(
            "  {:<5} {:<32} {median:>8.2} ({least:.2})   one rule {}   with us {}",
            after.family(),
            after.name,
            more(RULE),
            more(OURS),
        );
    }
    println!();
    let rows = before.iter().zip(&after).map(|(before, after)| {
        let rounds = before.rounds.iter().zip(&after.rounds);
        let samples =
            rounds.map(|([one, two, three], [bare, rule, ours])| [*one, *two, *three, *bare, *rule, *ours]);
        (format!("{}, {}", after.name, after.family()), samples.collect())
    });
    let columns = ["bare_before", "one_rule_before", "millrace_before", "bare", "one_rule", "millrace"];
    results::write("ambient-packets", columns, rows);
}

/// One load, round by round.
#[derive(Clone)]
struct Row {
    name: String,
    v6: bool,
    rounds: Vec<Round>,
}

impl Row {
    fn family(&self) -> &'static str {
        if self.v6 { "IPv6" } else { "IPv4" }
    }

    /// Ratio to a place, from the ratios within each round.
    fn ratio(&self, place: usize) -> Ratio {
        Ratio::of(self.rounds.iter().map(|round| round[place] / round[BARE]))
    }
}

fn all(places: &mut Places, rounds: usize) -> Vec<Row> {
    [work(places, rounds), talk(places, rounds, Ends::Together), talk(places, rounds, Ends::Apart)].concat()
}

/// CPUs of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// On one CPU, which they share.
    Together,
    /// On a CPU each, which has to wake up.
    Apart,
}

/// Measures CPU time of the whole path.
fn work(places: &mut Places, rounds: usize) -> Vec<Row> {
    let rows = UNITS.map(|(load, units)| {
        let carry =
            move |place: &mut Place, v6: bool| place.flows[usize::from(v6)].carry(load, units, own_time);
        (format!("{}, processor time", load.name()), carry)
    });
    pin(None);
    measure(places, rounds, &rows)
}

/// Measures elapsed time.
fn talk(places: &mut Places, rounds: usize, ends: Ends) -> Vec<Row> {
    let words = if ends == Ends::Apart { "two processors" } else { "by the clock" };
    let rows = Speech::ALL.map(|speech| {
        let carry = move |place: &mut Place, v6: bool| place.talks[usize::from(v6)].carry(speech);
        (format!("{}, {words}", speech.name()), carry)
    });
    pin(None);
    if ends == Ends::Apart {
        step_aside();
    }
    measure(places, rounds, &rows)
}

/// Measures each load of each family at each place, alternating, and beginning with another place each time.
fn measure(
    places: &mut Places,
    rounds: usize,
    loads: &[(String, impl Fn(&mut Place, bool) -> f64)],
) -> Vec<Row> {
    let mut rows = Vec::new();
    for v6 in [false, true] {
        rows.extend(loads.iter().map(|(name, _)| Row { name: name.clone(), v6, rounds: Vec::new() }));
    }
    for first in 0..rounds * SHORT {
        for (place, row) in rows.iter_mut().enumerate() {
            let carry = &loads[place % loads.len()].1;
            let mut round = Round::default();
            for turn in 0..places.len() {
                let place = (first + turn) % places.len();
                round[place] = carry(&mut places[place], row.v6);
            }
            row.rounds.push(round);
        }
    }
    unpin();
    rows
}
