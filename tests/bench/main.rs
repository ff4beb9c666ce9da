//! `hack/bench`: cost of one ADD, as a whole process with its children, alternating with baselines; cost of the daemon; the same
//! for the ambient node in each capture mode; cost of the debug state; ADDs on a node under attack; and duration of drift.
//!
//! Absolute times depend on the machine; the ratios and differences of one run are meaningful.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a bench: what breaks shall stop it, in words"
)]

mod ambient;
mod attacked;
mod base;
mod contest;
mod daemon;
mod debug;
mod drift;
mod inpod;
mod measure;
mod peer;
mod results;
mod sidecar_node;
mod table;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use base::BenchNode;
use peer::Peer;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, command)) if first == "measure" => return measure::inside(command),
        _ => {}
    }
    let mut rounds = 30;
    let mut against = None;
    let mut peer = None;
    let mut kept = None;
    let mut only: Vec<String> = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--rounds", Some(count)) => rounds = count.parse().expect("--rounds takes a number"),
            ("--against", Some(path)) => against = Some(copy_beside_ours(Path::new(path))),
            ("--peer", Some(directory)) => peer = Some(Peer::found_in(Path::new(directory))),
            ("--results", Some(directory)) => kept = Some(directory),
            ("--only", Some(part)) if is_part(part) => only.push(part.clone()),
            _ => panic!(
                "usage: hack/bench [--rounds N] [--against PLUGIN_OR_DAEMON] [--peer DIRECTORY] [--results DIRECTORY] [--only PART]; parts: {}",
                parts()
            ),
        }
    }
    if let Some(directory) = kept {
        results::keep(Path::new(directory), if peer.is_some() { "peers-" } else { "" });
    }
    // A name selects all parts that begin with it.
    let wanted = |part: &str| only.is_empty() || only.iter().any(|name| part.starts_with(name.as_str()));
    // Takes ten minutes and more for what others measure in one: selected by name only.
    let has_drift = !only.is_empty() && drift::PARTS.into_iter().any(wanted);
    let base = if has_drift
        || ["daemon", "add", "ambient-add", "in-pod-add", "in-pod-agent"].into_iter().any(wanted)
    {
        let Some(base) = BenchNode::set() else { return ExitCode::FAILURE };
        Some(base)
    } else {
        None
    };
    let (plugin, other) = match against {
        Some(path) if is_plugin(&path) => (Some(path), None),
        other => (None, other),
    };
    if let (true, Some(base)) = (wanted("daemon"), &base) {
        daemon::run(base, other.as_deref(), peer.as_ref(), rounds);
    }
    if let (true, Some(base)) = (wanted("add"), &base) {
        let contests = contest::all(base, plugin.as_deref(), peer.as_ref());
        let _agent = contest::agent(base);
        let results = contest::run(base, &contests, rounds);
        table::print("add", &results, rounds);
        contest::at_once(base, peer.as_ref(), rounds);
    }
    if ambient::PARTS.into_iter().any(wanted) {
        ambient::run(base.as_ref(), rounds, wanted);
    }
    if inpod::PARTS.into_iter().any(wanted) {
        inpod::run(base.as_ref(), peer.as_ref(), rounds, wanted);
    }
    if debug::PARTS.into_iter().any(wanted) {
        debug::run(rounds, wanted);
    }
    if attacked::PARTS.into_iter().any(wanted) {
        attacked::run();
    }
    if let (true, Some(base)) = (has_drift, &base) {
        drift::run(base, rounds, wanted);
    }
    ExitCode::SUCCESS
}

fn parts() -> String {
    let [ambient, inpod, debug] = [&ambient::PARTS[..], &inpod::PARTS, &debug::PARTS];
    let [attacked, drift] = [&attacked::PARTS[..], &drift::PARTS];
    let groups = [
        &["daemon", "add", "ambient"],
        ambient,
        &["in-pod"],
        inpod,
        &["debug"],
        debug,
        attacked,
        &["drift"],
        drift,
    ];
    groups.concat().join(", ")
}

fn is_part(name: &str) -> bool {
    parts().split(", ").any(|part| part == name)
}

/// Whether a program answers as a CNI plugin does.
fn is_plugin(path: &Path) -> bool {
    let output = Command::new(path).env_clear().env("CNI_COMMAND", "VERSION").stdin(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("supportedVersions"))
}

/// Copies a program into the directory of ours: the pages of a program from elsewhere may be cached in other sizes, which is worth
/// up to a tenth of a millisecond at each start.
fn copy_beside_ours(program: &Path) -> PathBuf {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let copy = kit::binary("empty").with_file_name(format!("against-{name}"));
    kit::copy_program(program, &copy);
    copy
}
