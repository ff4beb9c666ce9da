//! In-pod capture: cost of an ADD compared with a bare restore of the same rules, time until a ztunnel has all pods after a
//! restart of the agent, and cost of maintaining the pods' rules.

mod add;
mod agent;
mod cluster;
mod crowd;
mod fixture;
mod thousand;

pub(crate) use fixture::{Fixture, MESH, plugin};

use crate::{base::BenchNode, peer::Peer};

/// Parts that can be selected.
pub(crate) const PARTS: [&str; 5] =
    ["in-pod-add", "in-pod-agent", "in-pod-announce", "in-pod-rest", "in-pod-thousand"];

/// Measures the parts for which `wanted` holds.
pub(crate) fn run(
    base: Option<&BenchNode>,
    peer: Option<&Peer>,
    rounds: usize,
    wanted: impl Fn(&str) -> bool,
) {
    println!("In-pod capture.\n");
    if let (true, Some(base)) = (wanted("in-pod-add"), base) {
        add::run(base, peer, rounds);
    }
    if let (true, Some(base)) = (wanted("in-pod-agent"), base) {
        agent::run(base, peer, rounds);
    }
    let (announce, rest) = (wanted("in-pod-announce"), wanted("in-pod-rest"));
    if announce || rest {
        crowd::run(rounds, announce, rest);
    }
    if wanted("in-pod-thousand") {
        thousand::run();
    }
}
