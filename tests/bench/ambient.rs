//! The ambient node: cost of an ADD, a switch, an enrolment and a packet, each beside a baseline in the same run.

mod add;
mod crowd;
pub(crate) mod fixture;
mod flow;
mod packets;
mod rest;
mod sampler;
mod switch;
mod talk;
mod upstream;
mod ways;

pub(crate) use fixture::fake_ip;

use crate::base::BenchNode;

/// Parts that can be selected.
pub(crate) const PARTS: [&str; 6] =
    ["ambient-add", "ambient-switch", "ambient-crowd", "ambient-rest", "ambient-packets", "ambient-ways"];

/// Measures the parts for which `wanted` holds.
pub(crate) fn run(base: Option<&BenchNode>, rounds: usize, wanted: impl Fn(&str) -> bool) {
    println!("The ambient node.\n");
    if let (true, Some(base)) = (wanted("ambient-add"), base) {
        add::run(base, rounds);
    }
    if wanted("ambient-switch") {
        switch::run(rounds);
    }
    if wanted("ambient-crowd") {
        crowd::run(rounds);
    }
    if wanted("ambient-rest") {
        rest::run();
    }
    if wanted("ambient-packets") {
        packets::run(rounds);
    }
    if wanted("ambient-ways") {
        ways::run(rounds);
    }
}

/// Median, minimum and maximum.
pub(crate) fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// Median of the ratios within each round, and its standard error.
struct Ratio {
    median: f64,
    error: f64,
}

impl Ratio {
    fn of(ratios: impl Iterator<Item = f64>) -> Ratio {
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        let at = |part: f64| ratios[((ratios.len() - 1) as f64 * part) as usize];
        // Half of the values are between the quartiles; 1.349 deviations of a normal distribution are.
        let error = 1.253 * (at(0.75) - at(0.25)) / 1.349 / (ratios.len() as f64).sqrt();
        Ratio { median: at(0.5), error }
    }
}
