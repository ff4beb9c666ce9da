//! What is played on which node.

use crate::agent::Agent;
use crate::checks::Checks;
use crate::control::Places;
use crate::kinds::{self, Expected};
use crate::lab::Lab;
use crate::machine::Flavour;
use crate::pods::{injected, injected_at_once, labelled, on_host, plain};
use crate::scenes::{self, Pods};
use crate::ztunnel::{self, CaptureState};

const MODE: &str = "istio.io/dataplane-mode";
const SHOP: &str = "shop";
const MESH: &str = "mesh";

/// A part of the test, with a cluster of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// All that belongs to a version of containerd.
    Flavour(Flavour),
    /// Every DaemonSet that Istio's charts make.
    Charts,
}

impl Part {
    pub(crate) const ALL: [Self; 3] =
        [Self::Flavour(Flavour::One), Self::Flavour(Flavour::Two), Self::Charts];
}

/// Boots a cluster, plays a part, and takes it down.
pub(crate) fn play(places: &Places, part: Part, checks: Checks) -> Checks {
    let flavour = if let Part::Flavour(flavour) = part { flavour } else { Flavour::Two };
    checks.chapter(format!("a cluster with one node and {}", flavour.name()));
    let mut lab = Lab::start(places, flavour, checks);
    lab.namespace(SHOP, &[]);
    lab.namespace(MESH, &[(MODE, "ambient")]);
    lab.namespace(ztunnel::NAMESPACE, &[]);
    lab.control.apply(
        "/api/v1/namespaces/istio-system/serviceaccounts",
        &serde_json::json!({"metadata": {"name": "ztunnel"}}),
    );
    match part {
        Part::Flavour(Flavour::One) => {
            sidecars(&mut lab, places);
            ambient(&mut lab, places, &Agent::manifest("istio-cni-ambient.yaml"), CaptureState::Node);
            chart(&mut lab, places, &Agent::chart("1.20.8", "default"), None);
            let ambient = Agent::chart("1.20.8", "ambient");
            chart(&mut lab, places, &ambient, Some(CaptureState::Node));
        }
        Part::Flavour(Flavour::Two) => {
            ambient(&mut lab, places, &Agent::manifest("istio-cni-in-pod.yaml"), CaptureState::InPod);
            chart(&mut lab, places, &Agent::chart("1.29.1", "default"), None);
            repaired(&mut lab, places, &Agent::repairing("1.29.1"));
            chart(&mut lab, places, &Agent::chart("1.29.1", "ambient"), Some(CaptureState::InPod));
        }
        Part::Charts => {
            for (version, case) in Agent::distinct_charts() {
                daemon_set(&mut lab, places, &Agent::chart(version, &case));
            }
        }
    }
    lab.stop()
}

/// Sidecars only.
fn sidecars(lab: &mut Lab, places: &Places) {
    let agent = Agent::manifest("istio-cni.yaml");
    lab.checks.chapter(&agent.name);
    let before = scenes::install(lab, &agent);
    let make = |name: &str| (injected_at_once(SHOP, name), Expected::Sidecar);
    let pods = kinds::check(lab, &sidecar_pods());
    lab.checks.chapter(format!("{}: rollout, failures, reboot", agent.name));
    scenes::rollout(lab, &agent, SHOP, &make);
    scenes::kills(lab, &agent, &pods, &make);
    scenes::api_down(lab, &agent, &pods);
    scenes::reboot(lab, &agent, &pods);
    let clean = end(lab, &agent, &before, pods);
    renew(lab, places, clean);
}

fn sidecar_pods() -> Pods {
    vec![
        (injected(SHOP, "sidecar"), Expected::Sidecar),
        (plain(SHOP, "plain"), Expected::Direct),
        (on_host(plain(SHOP, "host")), Expected::Direct),
        (injected("kube-system", "excluded"), Expected::Direct),
    ]
}

/// Sidecars and ambient mode.
fn ambient(lab: &mut Lab, places: &Places, agent: &Agent, capture: CaptureState) {
    lab.checks.chapter(&agent.name);
    let before = scenes::install(lab, agent);
    ztunnel::deploy(lab, capture);
    let mut pods = ambient_pods(capture);
    pods.push((injected(SHOP, "sidecar"), Expected::Sidecar));
    pods.push((plain(SHOP, "plain"), Expected::Direct));
    let pods = kinds::check(lab, &pods);
    lab.checks.chapter(format!("{}: rollout, failures, reboot", agent.name));
    let make = |name: &str| (plain(MESH, name), Expected::Ztunnel);
    scenes::rollout(lab, agent, MESH, &make);
    scenes::kills(lab, agent, &pods, &make);
    if capture == CaptureState::InPod {
        scenes::api_down(lab, agent, &pods);
        scenes::many(lab, agent, &[(MODE, "ambient")], Expected::Ztunnel);
    }
    scenes::reboot(lab, agent, &pods);
    let clean = end(lab, agent, &before, pods);
    ztunnel::remove(lab);
    renew(lab, places, clean);
}

fn ambient_pods(capture: CaptureState) -> Pods {
    let mut pods = vec![
        (plain(MESH, "by-namespace"), Expected::Ztunnel),
        (on_host(plain(MESH, "host")), Expected::Direct),
        (injected(MESH, "sidecar-in-mesh"), Expected::Sidecar),
    ];
    // Istio 1.20 knows namespaces only.
    if capture == CaptureState::InPod {
        pods.push((labelled(plain(SHOP, "by-label"), MODE, "ambient"), Expected::Ztunnel));
        pods.push((labelled(plain(MESH, "none"), MODE, "none"), Expected::Direct));
    }
    pods
}

/// Istio's own chart: installed, upgraded, uninstalled.
fn chart(lab: &mut Lab, places: &Places, agent: &Agent, capture: Option<CaptureState>) {
    lab.checks.chapter(&agent.name);
    let before = scenes::install(lab, agent);
    let mut pods =
        vec![(injected(SHOP, "sidecar"), Expected::Sidecar), (plain(SHOP, "plain"), Expected::Direct)];
    if let Some(capture) = capture {
        ztunnel::deploy(lab, capture);
        pods.push((plain(MESH, "by-namespace"), Expected::Ztunnel));
    }
    let pods = kinds::check(lab, &pods);
    if capture == Some(CaptureState::InPod) {
        // In this layout the plugin's credential is on a tmpfs.
        scenes::reboot(lab, agent, &pods);
    }
    scenes::upgrade(lab, agent);
    let clean = end(lab, agent, &before, pods);
    if capture.is_some() {
        ztunnel::remove(lab);
    }
    renew(lab, places, clean);
}

/// The plugin comes late, with Istio's chart and `repair.repairPods`, which is its default since 1.24.
fn repaired(lab: &mut Lab, places: &Places, agent: &Agent) {
    lab.checks.chapter(format!("{}: pods that were there before", agent.name));
    let (before, pods) = scenes::repair(lab, agent);
    let clean = end(lab, agent, &before, pods);
    renew(lab, places, clean);
}

/// A DaemonSet of a chart on a node with the layout that its values are for: it installs, captures a pod, and goes.
fn daemon_set(lab: &mut Lab, places: &Places, agent: &Agent) {
    lab.checks.chapter(&agent.name);
    let layout = agent.layout();
    if layout.iter().any(|(path, _)| path == "/bin") {
        lab.checks.note("not here: its plugins lie among the programs of the node");
        return;
    }
    let mounted = layout.iter().filter(|(_, usual)| agent.is_chained() || *usual != "/etc/cni/net.d");
    for (path, usual) in mounted.clone() {
        lab.machine.sh(&format!("mkdir -p {path} && mount --bind {usual} {path}"));
    }
    let before = scenes::install(lab, agent);
    let pods = if agent.is_chained() {
        vec![(injected_at_once(SHOP, "sidecar"), Expected::Sidecar)]
    } else {
        vec![(plain(SHOP, "plain"), Expected::Direct)]
    };
    let pods = kinds::check(lab, &pods);
    let clean = end(lab, agent, &before, pods);
    for (path, _) in mounted {
        lab.machine.sh(&format!("umount {path}"));
    }
    renew(lab, places, clean);
}

fn end(lab: &mut Lab, agent: &Agent, before: &crate::footprint::Footprint, pods: Pods) -> bool {
    lab.checks.chapter(format!("{}: uninstalled", agent.name));
    let clean = scenes::uninstall(lab, agent, before, &pods);
    let pods: Vec<_> = pods.into_iter().map(|(pod, _)| pod).collect();
    lab.delete_pods(&pods);
    clean
}

/// What one installation has left must not be in the next one's place.
fn renew(lab: &mut Lab, places: &Places, clean: bool) {
    if !clean {
        lab.machine.replace(places, &lab.control);
    }
}
