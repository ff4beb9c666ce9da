//! `hack/e2e`: the agent and the plugin on a real node. etcd, the API server, controllers, the scheduler, kubelet, containerd and
//! runc run in the sandbox; the agent is deployed with our own manifests and as Istio's chart does it.
//!
//! `e2e play IMAGES PROGRAMS RESULT [--short] PART`, with a part of `hack/e2e`, writes the results to the file RESULT; `e2e end
//! IMAGES RESULT...` repeats failed entries once, and prints the summary. Everything shown is also checked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test: what breaks shall stop it, in words"
)]

mod agent;
mod canary;
mod chains;
mod checks;
mod cluster_command;
mod control;
mod fixture;
mod footprint;
mod helm;
mod kinds;
mod live;
mod machine;
mod multus;
mod network;
mod page;
mod pods;
mod registry;
mod running;
mod runs;
mod runtime;
mod runtime_restart;
mod scenarios;
mod tour;
mod verdict;
mod workplace;
mod ztunnel;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::control::{API, Places};
use crate::runs::Part;
use crate::verdict::Verdict;

fn main() -> ExitCode {
    assert!(kit::sandboxed(), "run this as hack/e2e");
    let line = format!("address add {API}/32 dev lo");
    assert!(Command::new("ip").args(line.split(' ')).status().is_ok_and(|status| status.success()));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        ["play", images, programs, result, short @ .., part] => {
            let places = Places::new(programs.into(), images.into());
            runs::play(&places, Part::named(part), short == ["--short"], result.as_ref());
            ExitCode::SUCCESS
        }
        ["end", images, results @ ..] => {
            let results: Vec<PathBuf> = results.iter().map(PathBuf::from).collect();
            let verdict = Verdict::new(&runs::conclude(images.as_ref(), &results));
            println!("\n{verdict}");
            if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        _ => panic!("e2e play IMAGES PROGRAMS RESULT [--short] PART, or e2e end IMAGES RESULT..."),
    }
}
