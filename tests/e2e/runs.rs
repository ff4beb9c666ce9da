//! What is played on which node.

use crate::agent::Agent;
use crate::checks::Checks;
use crate::control::Places;
use crate::kinds::{self, Expected};
use crate::lab::Lab;
use crate::machine::Flavour;
use crate::pods::{injected, on_host, plain};

/// Boots a cluster, plays all that belongs to this version of containerd, and takes it down.
pub(crate) fn play(places: &Places, flavour: Flavour, checks: Checks) -> Checks {
    checks.chapter(format!("a cluster with one node, containerd {flavour:?}"));
    let mut lab = Lab::start(places, flavour, checks);
    lab.namespace("shop", &[]);
    sidecars(&mut lab);
    lab.stop()
}

fn sidecars(lab: &mut Lab) {
    let agent = Agent::manifest("istio-cni.yaml");
    lab.checks.chapter(&agent.name);
    agent.apply(&lab.control);
    let ready = agent.wait_ready(&lab.control);
    lab.checks.check(ready, "the agent is ready");
    lab.checks.note(agent.logs(&lab.control, &lab.machine));
    let pods = [
        (injected("shop", "sidecar"), Expected::Sidecar),
        (plain("shop", "plain"), Expected::Direct),
        (on_host(plain("shop", "host")), Expected::Direct),
        (injected("kube-system", "excluded"), Expected::Direct),
    ];
    kinds::check(lab, &pods);
    lab.checks.note(agent.logs(&lab.control, &lab.machine));
    lab.checks.note(lab.machine.logs());
}
