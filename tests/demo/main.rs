//! `hack/demo`: shows and checks agent and plugin on nodes made of network namespaces.
//!
//! By default an ambient node that needs no API server; with `--in-pod` one with in-pod capture; with `--repair` a pod that
//! started before the plugin; with `--api` installation, sidecars and the ambient node with a real one. Everything shown is also
//! checked; the last line is the summary. `--keep` leaves a shell inside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a demo: what breaks shall stop it, in words"
)]

mod ambient;
mod cluster;
mod inpod;
mod installation;
mod repair;
mod scenes;
mod show;

use std::{
    env,
    io::{self, IsTerminal},
    process::{Command, ExitCode},
};

use cluster::Cluster;
use show::Show;

fn main() -> ExitCode {
    let has = |word: &str| env::args().any(|argument| argument == word);
    let (keep, with_api) = (has("--keep"), has("--api"));
    let mut show = Show::default();
    if has("--in-pod") {
        inpod::play(&mut show, |namespaces| {
            if keep {
                stay(namespaces);
            }
        });
        return close(show, keep);
    }
    if has("--repair") {
        return repair::play(&mut show).map_or(ExitCode::FAILURE, |()| close(show, true));
    }
    if !with_api {
        ambient::play(&mut show, None, |fixture| {
            if keep {
                stay(&[fixture.node.netns().name()]);
            }
        });
        show.note(
            "\n   Installation, sidecars, and all of this against a real API server: ./hack/demo --api\n   In-pod \
             capture, for ztunnel 1.23 and newer: ./hack/demo --in-pod",
        );
        return close(show, keep);
    }
    let Some(cluster) = Cluster::start(&mut show) else { return ExitCode::FAILURE };
    let mut daemon = installation::install(&cluster, &mut show);
    installation::damage(&cluster, &mut daemon, &mut show);
    installation::reconfigure(&cluster, &mut daemon, &mut show);
    let pods = scenes::decisions(&cluster, &mut daemon, &mut show);
    scenes::traffic(&cluster, &pods, &mut show);
    scenes::repetition(&pods, &mut show);
    scenes::mistakes(&cluster, &mut show);
    installation::log(&mut daemon, &mut show);
    if keep {
        stay(&[pods.sidecar.netns.name(), pods.plain.netns.name()]);
    }
    scenes::end(pods, &mut show);
    installation::end(&cluster, daemon, &mut show);
    ambient::play(&mut show, Some(cluster.api), |_| ());
    close(show, keep)
}

fn close(show: Show, kept: bool) -> ExitCode {
    if !kept {
        show.note("   To stay inside and look around: --keep");
    }
    show.close()
}

/// Opens a shell in the sandbox; the sandbox ends with it.
fn stay(namespaces: &[&str]) {
    println!("\nEverything is kept. Namespaces: `ip netns`. For instance:");
    for name in namespaces {
        println!("  ip netns exec {name} iptables-save");
    }
    if io::stdin().is_terminal() {
        println!("This shell is inside; leave it (exit) to clean up.");
        drop(Command::new("bash").args(["--norc", "-i"]).env("PS1", "millrace demo \\w # ").status());
    } else {
        println!("Press Enter (or close stdin) to clean up.");
        drop(io::stdin().read_line(&mut String::new()));
    }
}
