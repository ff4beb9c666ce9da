//! `hack/bench`: what one ADD costs, as a whole process with its children, in turn with baselines; and what the daemon costs.
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
mod daemon;
mod measure;
mod stage;
mod table;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

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
            _ => panic!("usage: hack/bench [--rounds N] [--against PLUGIN_OR_DAEMON]"),
        }
    }
    let Some(stage) = Stage::set() else { return ExitCode::FAILURE };
    let (plugin, other) = match against {
        Some(path) if is_plugin(&path) => (Some(path), None),
        other => (None, other),
    };
    daemon::run(&stage, other.as_deref(), rounds);
    let contests = contest::all(&stage, plugin.as_deref());
    let results = contest::run(&stage, &contests, rounds);
    table::print(&results, rounds);
    ExitCode::SUCCESS
}

/// Whether a program answers as a CNI plugin does.
fn is_plugin(path: &Path) -> bool {
    let output = Command::new(path).env_clear().env("CNI_COMMAND", "VERSION").stdin(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("supportedVersions"))
}
