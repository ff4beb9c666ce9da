//! `hack/bench`: what one ADD costs, as a whole process with its children, in turn with baselines.
//!
//! Absolute times are noise of the machine; the ratios and differences of one run are what counts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench: what breaks shall stop it, in words"
)]

mod contest;
mod measure;
mod stage;
mod table;

use std::{env, path::PathBuf, process::ExitCode};

use stage::Stage;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, command)) if first == "measure" => return measure::inside(command),
        _ => {}
    }
    let mut rounds = 30;
    let mut against = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--rounds", Some(count)) => rounds = count.parse().expect("--rounds takes a number"),
            ("--against", Some(path)) => against = Some(PathBuf::from(path)),
            _ => panic!("usage: hack/bench [--rounds N] [--against PLUGIN]"),
        }
    }
    let Some(stage) = Stage::set() else { return ExitCode::FAILURE };
    let contests = contest::all(&stage, against.as_deref());
    let results = contest::run(&stage, &contests, rounds);
    table::print(&results, rounds);
    ExitCode::SUCCESS
}
