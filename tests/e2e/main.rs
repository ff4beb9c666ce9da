//! `hack/e2e`: the agent and the plugin on a real node. etcd, the API server, controllers, the scheduler, kubelet, containerd and runc
//! run in the sandbox; the agent is deployed with our own manifests and as Istio's chart does it.
//!
//! `e2e PROGRAMS IMAGES [1.6|2]`. Each thing that is shown is also checked; the last line counts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test: what breaks shall stop it, in words"
)]

mod checks;
mod control;
mod machine;
mod wait;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::checks::Checks;
use crate::control::{API, ControlPlane, Places};
use crate::machine::{Flavour, Machine};

fn main() -> ExitCode {
    assert!(kit::sandboxed(), "run this as hack/e2e");
    let mut arguments = std::env::args().skip(1);
    let mut next = || PathBuf::from(arguments.next().expect("e2e PROGRAMS IMAGES [1.6|2]"));
    let places = Places { programs: next(), images: next(), work: "/run/e2e".into() };
    let mut checks = Checks::new();
    let line = format!("address add {API}/32 dev lo");
    assert!(Command::new("ip").args(line.split(' ')).status().is_ok_and(|status| status.success()));
    checks.chapter("a cluster with one node");
    let control = ControlPlane::start(&places);
    let machine = Machine::start(&places, &control, Flavour::One);
    checks.check(true, "the node is ready");
    checks.note(machine.sh("ps ax; cat /proc/self/cgroup; ctr -n k8s.io images ls"));
    checks.close()
}
