//! `hack/e2e`: the agent and the plugin on a real node. etcd, the API server, controllers, the scheduler, kubelet, containerd and runc
//! run in the sandbox; the agent is deployed with our own manifests and as Istio's chart does it.
//!
//! `e2e PROGRAMS IMAGES [--all|PART...]`, with the parts of `hack/e2e`. Each thing that is shown is also checked; the last line counts.
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
use std::time::Instant;

use crate::control::{API, Places};
use crate::runs::Part;
use crate::runtime::Runtime;
use crate::verdict::Verdict;

fn main() -> ExitCode {
    assert!(kit::sandboxed(), "run this as hack/e2e");
    let mut arguments = std::env::args().skip(1);
    let mut next = || PathBuf::from(arguments.next().expect("e2e PROGRAMS IMAGES [--all|PART...]"));
    let mut places = Places { programs: next(), images: next(), work: "/run/e2e".into() };
    let words: Vec<String> = arguments.collect();
    let short = words.is_empty();
    let parts = match &words[..] {
        [] => Part::SHORT.to_vec(),
        [all] if all == "--all" => Part::ALL.to_vec(),
        words => words.iter().map(|word| part(word)).collect(),
    };
    let line = format!("address add {API}/32 dev lo");
    assert!(Command::new("ip").args(line.split(' ')).status().is_ok_and(|status| status.success()));
    let start = Instant::now();
    let mut played = runs::play(&places, &parts, short, start);
    if let Some(programs) = std::env::var_os("MILLRACE_SECOND_KUBERNETES") {
        places.programs = programs.into();
        played.extend(runs::play(&places, &[Part::Runtime(Runtime::Containerd2)], short, start));
    }
    let verdict = Verdict::new(&played);
    println!("\n{} s\n{verdict}", start.elapsed().as_secs());
    if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn part(word: &str) -> Part {
    match word {
        "1.6" => Part::Runtime(Runtime::Containerd1),
        "2" => Part::Runtime(Runtime::Containerd2),
        "crio" => Part::Runtime(Runtime::Crio),
        "crio-restart" => Part::Restart(Runtime::Crio),
        "crio-infra" => Part::Runtime(Runtime::CrioInfra),
        "charts" => Part::Charts,
        "tour" => Part::Tour,
        "multus" => Part::Multus,
        "registry" => Part::Registry,
        "canary" => Part::Canary,
        "chains" => Part::Chains,
        other => panic!("no part {other} here: see hack/e2e"),
    }
}
