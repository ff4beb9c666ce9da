//! `hack/demo`: installation and the sidecar path, shown and checked, on a node made of network namespaces.
//!
//! Each thing that is shown is also checked; the last line counts. `--keep` leaves a shell inside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a demo: what breaks shall stop it, in words"
)]

mod cluster;
mod installation;
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
    let keep = env::args().any(|argument| argument == "--keep");
    let mut show = Show::default();
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
        look_around(&pods);
    }
    scenes::end(pods, &mut show);
    installation::end(&cluster, daemon, &mut show);
    if !keep {
        show.note("\n   To stay inside and look around: ./hack/demo --keep");
    }
    show.close()
}

/// A shell where everything is; it ends with the shell.
fn look_around(pods: &scenes::Pods) {
    println!("\nEverything is kept. Namespaces: `ip netns`. For instance:");
    println!("  ip netns exec {} iptables-save", pods.sidecar.netns.name());
    println!("  ip netns exec {} ip address", pods.plain.netns.name());
    if io::stdin().is_terminal() {
        println!("This shell is inside; leave it (exit) to clean up.");
        drop(Command::new("bash").args(["--norc", "-i"]).env("PS1", "millrace demo \\w # ").status());
    } else {
        println!("Press Enter (or close stdin) to clean up.");
        drop(io::stdin().read_line(&mut String::new()));
    }
}
