//! What is played on which node.

use crate::agent::Agent;
use crate::checks::Checks;
use crate::cluster_command;
use crate::control::Places;
use crate::fixture::Fixture;
use crate::helm::Helm;
use crate::kinds::{self, Expected};
use crate::machine::Flavour;
use crate::pods::{injected, injected_at_once, labelled, on_host, plain};
use crate::scenarios::{self, Pods};
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
    let mut fixture = Fixture::start(places, flavour, checks);
    fixture.namespace(SHOP, &[]);
    fixture.namespace(MESH, &[(MODE, "ambient")]);
    fixture.namespace(ztunnel::NAMESPACE, &[]);
    fixture.control.apply(
        "/api/v1/namespaces/istio-system/serviceaccounts",
        &serde_json::json!({"metadata": {"name": "ztunnel"}}),
    );
    match part {
        Part::Flavour(Flavour::One) => {
            sidecars(&mut fixture, places);
            ambient(&mut fixture, places, &Agent::manifest("istio-cni-ambient.yaml"), CaptureState::Node);
            chart(&mut fixture, places, &Agent::chart("1.20.8", "default"), None);
            let ambient = Agent::chart("1.20.8", "ambient");
            chart(&mut fixture, places, &ambient, Some(CaptureState::Node));
        }
        Part::Flavour(Flavour::Two) => {
            ambient(&mut fixture, places, &Agent::manifest("istio-cni-in-pod.yaml"), CaptureState::InPod);
            chart(&mut fixture, places, &Agent::chart("1.29.1", "default"), None);
            repaired(&mut fixture, places, &Agent::repairing("1.29.1"));
            migrated(&mut fixture, places, &Agent::chart("1.29.1", "ambient"));
            tainted(&mut fixture, places, &Agent::manifest("istio-cni.yaml"));
            chart(&mut fixture, places, &Agent::chart("1.29.1", "ambient"), Some(CaptureState::InPod));
        }
        Part::Charts => {
            for (version, case) in Agent::distinct_charts() {
                daemon_set(&mut fixture, places, &Agent::chart(version, &case));
            }
        }
    }
    fixture.stop()
}

/// Sidecars only.
fn sidecars(fixture: &mut Fixture, places: &Places) {
    let agent = Agent::manifest("istio-cni.yaml");
    fixture.checks.chapter(&agent.name);
    let before = scenarios::install(fixture, &agent);
    let make = |name: &str| (injected_at_once(SHOP, name), Expected::Sidecar);
    let pods = kinds::check(fixture, &sidecar_pods());
    fixture.checks.chapter(format!("{}: rollout, failures, reboot", agent.name));
    scenarios::rollout(fixture, &agent, SHOP, &make);
    scenarios::kills(fixture, &agent, &pods, &make);
    scenarios::api_down(fixture, &agent, &pods);
    scenarios::reboot(fixture, &agent, &pods);
    let clean = end(fixture, &agent, &before, pods);
    renew(fixture, places, clean);
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
fn ambient(fixture: &mut Fixture, places: &Places, agent: &Agent, capture: CaptureState) {
    fixture.checks.chapter(&agent.name);
    let before = scenarios::install(fixture, agent);
    ztunnel::deploy(fixture, capture);
    let mut pods = ambient_pods(capture);
    pods.push((injected(SHOP, "sidecar"), Expected::Sidecar));
    pods.push((plain(SHOP, "plain"), Expected::Direct));
    let pods = kinds::check(fixture, &pods);
    fixture.checks.chapter(format!("{}: rollout, failures, reboot", agent.name));
    let make = |name: &str| (plain(MESH, name), Expected::Ztunnel);
    scenarios::rollout(fixture, agent, MESH, &make);
    scenarios::kills(fixture, agent, &pods, &make);
    if capture == CaptureState::InPod {
        scenarios::api_down(fixture, agent, &pods);
        scenarios::many(fixture, agent, &[(MODE, "ambient")], Expected::Ztunnel);
    }
    scenarios::reboot(fixture, agent, &pods);
    let clean = end(fixture, agent, &before, pods);
    ztunnel::remove(fixture);
    renew(fixture, places, clean);
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
fn chart(fixture: &mut Fixture, places: &Places, agent: &Agent, capture: Option<CaptureState>) {
    fixture.checks.chapter(&agent.name);
    let before = scenarios::install(fixture, agent);
    let mut pods =
        vec![(injected(SHOP, "sidecar"), Expected::Sidecar), (plain(SHOP, "plain"), Expected::Direct)];
    if let Some(capture) = capture {
        ztunnel::deploy(fixture, capture);
        pods.push((plain(MESH, "by-namespace"), Expected::Ztunnel));
    }
    let pods = kinds::check(fixture, &pods);
    if capture == Some(CaptureState::InPod) {
        // In this layout the plugin's credential is on a tmpfs.
        scenarios::reboot(fixture, agent, &pods);
    }
    scenarios::upgrade(fixture, agent);
    let clean = end(fixture, agent, &before, pods);
    if capture.is_some() {
        ztunnel::remove(fixture);
    }
    renew(fixture, places, clean);
}

/// The plugin comes late, with Istio's chart and `repair.repairPods`, which is its default since 1.24.
fn repaired(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter(format!("{}: pods that were there before", agent.name));
    let (before, pods) = scenarios::repair(fixture, agent);
    let clean = end(fixture, agent, &before, pods);
    renew(fixture, places, clean);
}

/// A release of Istio's chart becomes one of ours, and Istio's again, under running pods.
fn migrated(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter(format!("{}: helm upgrade to our chart, and back", agent.name));
    let helm = Helm::new(places, &fixture.control, agent.namespace());
    let theirs = helm.chart_of(agent);
    let (before, pods) = scenarios::release(fixture, agent, &helm, &theirs);
    ztunnel::deploy(fixture, CaptureState::InPod);
    let pods = [pods, vec![(plain(MESH, "by-namespace"), Expected::Ztunnel)]].concat();
    let pods = kinds::check(fixture, &pods);
    cluster_command::check(fixture, &pods);
    let ours = Agent::our_chart();
    let values = ["profile=ambient", "pullPolicy=Never"];
    for (what, chart, set) in [
        ("to our chart", &ours, &values[..]),
        ("back to Istio's", &theirs, &[]),
        ("to ours again", &ours, &values),
    ] {
        scenarios::migrate(fixture, agent, what, &helm.upgrade(chart, set), &pods);
    }
    fixture.checks.chapter(format!("{}: helm uninstall", agent.name));
    let result = helm.uninstall();
    fixture.checks.check(result.is_ok(), format!("the release is uninstalled: {result:?}"));
    let clean = end(fixture, agent, &before, pods);
    ztunnel::remove(fixture);
    renew(fixture, places, clean);
}

/// `istio-cni-taint` keeps pods off the node until its agent is ready.
fn tainted(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    let controller = Agent::manifest("istio-cni-taint.yaml");
    fixture.checks.chapter(format!("{}: no agent, no pods", controller.name));
    let (before, pods) = scenarios::taint(fixture, &controller, agent);
    let clean = end(fixture, agent, &before, pods);
    renew(fixture, places, clean);
}

/// A DaemonSet of a chart on a node with the layout that its values are for: it installs, captures a pod, and goes.
fn daemon_set(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter(&agent.name);
    let layout = agent.layout();
    if layout.iter().any(|(path, _)| path == "/bin") {
        fixture.checks.note("not here: its plugins lie among the programs of the node");
        return;
    }
    let mounted = layout.iter().filter(|(_, usual)| agent.is_chained() || *usual != "/etc/cni/net.d");
    for (path, usual) in mounted.clone() {
        fixture.machine.sh(&format!("mkdir -p {path} && mount --bind {usual} {path}"));
    }
    let before = scenarios::install(fixture, agent);
    let pods = if agent.is_chained() {
        vec![(injected_at_once(SHOP, "sidecar"), Expected::Sidecar)]
    } else {
        vec![(plain(SHOP, "plain"), Expected::Direct)]
    };
    let pods = kinds::check(fixture, &pods);
    let clean = end(fixture, agent, &before, pods);
    for (path, _) in mounted {
        fixture.machine.sh(&format!("umount {path}"));
    }
    renew(fixture, places, clean);
}

fn end(fixture: &mut Fixture, agent: &Agent, before: &crate::footprint::Footprint, pods: Pods) -> bool {
    fixture.checks.chapter(format!("{}: uninstalled", agent.name));
    let clean = scenarios::uninstall(fixture, agent, before, &pods);
    let pods: Vec<_> = pods.into_iter().map(|(pod, _)| pod).collect();
    fixture.delete_pods(&pods);
    clean
}

/// What one installation has left must not be in the next one's place.
fn renew(fixture: &mut Fixture, places: &Places, clean: bool) {
    if !clean {
        fixture.machine.replace(places, &fixture.control);
    }
}
