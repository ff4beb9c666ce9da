//! The entries of each part, with their nodes.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::agent::Agent;
use crate::canary;
use crate::chains;
use crate::checks::Checks;
use crate::cluster_command;
use crate::control::Places;
use crate::fixture::Fixture;
use crate::helm::Helm;
use crate::kinds::{self, Expected};
use crate::multus;
use crate::network::Network;
use crate::pods::{in_user_namespace, injected, injected_at_once, labelled, native, on_host, plain};
use crate::registry;
use crate::runtime::Runtime;
use crate::runtime_restart;
use crate::scenarios::{self, Pods};
use crate::tour::tour;
use crate::verdict::{Outcome, Played, to_play_again};
use serde_json::{Value, json};

use crate::ztunnel::{self, CaptureState};

pub(crate) const MODE: &str = "istio.io/dataplane-mode";
pub(crate) const SHOP: &str = "shop";
pub(crate) const MESH: &str = "mesh";

/// A part of the test, with a cluster of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All entries of a container runtime.
    Runtime(Runtime),
    /// Restarts of a container runtime that then calls CHECK for every pod.
    Restart(Runtime),
    /// Every DaemonSet that Istio's charts render.
    Charts,
    /// `hack/demo --cluster`.
    Tour,
    /// Two releases from a registry, by the commands of the documentation.
    Registry,
    /// Two releases of the chart on two nodes, by the commands of the documentation.
    Canary,
    /// Multus sets up pods' networks.
    Multus,
    /// Plugins of other networks before ours.
    Chains,
}

impl Part {
    /// All parts, by their names in `hack/e2e`.
    const NAMES: [(&str, Self); 11] = [
        ("1.6", Self::Runtime(Runtime::Containerd1)),
        ("2", Self::Runtime(Runtime::Containerd2)),
        ("charts", Self::Charts),
        ("crio", Self::Runtime(Runtime::Crio)),
        ("crio-infra", Self::Runtime(Runtime::CrioInfra)),
        ("crio-restart", Self::Restart(Runtime::Crio)),
        ("tour", Self::Tour),
        ("multus", Self::Multus),
        ("registry", Self::Registry),
        ("canary", Self::Canary),
        ("chains", Self::Chains),
    ];

    /// Returns the part of this name. Panics if there is none.
    pub(crate) fn named(name: &str) -> Self {
        let named = Self::NAMES.into_iter().find(|(known, _)| *known == name);
        named.unwrap_or_else(|| panic!("no part {name} here: see hack/e2e")).1
    }

    fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, part)| *part == self).expect("each part is named").0
    }
}

pub(crate) type Play = fn(&mut Fixture, &Places, &Agent);

/// From an installation to its end: the smallest unit that can be run alone, on its own cluster.
pub(crate) struct Entry {
    name: String,
    node: Node,
    agent: Agent,
    play: Play,
    /// Whether the shortest path leaves it out: another entry covers most of it.
    is_extra: bool,
}

/// Runtime and network of a node.
type Node = (Runtime, Network);

impl Part {
    fn entries(self) -> Vec<Entry> {
        let entry = |agent, play| self.entry(agent, play);
        match self {
            Self::Multus => multus::entries(),
            Self::Chains => chains::entries(),
            Self::Runtime(Runtime::Containerd1 | Runtime::CrioInfra) => vec![
                entry(Agent::manifest("istio-cni.yaml"), sidecars).extra_with_crio(),
                entry(Agent::manifest("istio-cni-ambient.yaml"), |fixture, places, agent| {
                    ambient(fixture, places, agent, CaptureState::Node);
                }),
                entry(Agent::chart("1.20.8", "default"), chart_of_sidecars).extra(),
                entry(Agent::chart("1.20.8", "ambient"), |fixture, places, agent| {
                    chart(fixture, places, agent, Some(CaptureState::Node));
                })
                .extra(),
            ],
            Self::Restart(_) => vec![entry(Agent::manifest("istio-cni-in-pod.yaml"), restarted)],
            Self::Runtime(Runtime::Containerd2 | Runtime::Crio) => vec![
                entry(Agent::manifest("istio-cni-in-pod.yaml"), |fixture, places, agent| {
                    ambient(fixture, places, agent, CaptureState::InPod);
                }),
                entry(Agent::chart("1.29.1", "default"), chart_of_sidecars).extra(),
                entry(Agent::repairing("1.29.1"), repaired).extra_with_crio(),
                entry(Agent::chart("1.29.1", "ambient"), migrated)
                    .called("helm upgrade to our chart")
                    .extra_with_crio(),
                entry(Agent::manifest("istio-cni.yaml"), tainted).called("istio-cni-taint").extra_with_crio(),
                entry(Agent::chart("1.29.1", "ambient"), |fixture, places, agent| {
                    chart(fixture, places, agent, Some(CaptureState::InPod));
                })
                .extra(),
            ],
            Self::Tour => vec![entry(Agent::ours(&["profile=ambient"]), tour)],
            Self::Registry => vec![entry(Agent::ours(&["profile=ambient"]), registry::follow_page)],
            Self::Canary => vec![entry(Agent::ours(&["profile=ambient"]), canary::follow_page)],
            Self::Charts => Agent::distinct_charts()
                .into_iter()
                .map(|(version, case)| {
                    let is_extra = case != "default";
                    Entry { is_extra, ..entry(Agent::chart(version, &case), daemon_set as Play) }
                })
                .collect(),
        }
    }

    fn entry(self, agent: Agent, play: Play) -> Entry {
        let (part, runtime) = match self {
            Self::Runtime(runtime) | Self::Restart(runtime) => (runtime.name(), runtime),
            Self::Tour => ("a cluster to try things on", Runtime::Containerd2),
            Self::Registry => ("from a registry", Runtime::Containerd2),
            Self::Canary => ("two releases on two nodes", Runtime::Containerd2),
            _ => ("DaemonSet of a chart", Runtime::Containerd2),
        };
        Entry {
            name: format!("{part}: {}", agent.name),
            node: (runtime, Network::Ptp),
            agent,
            play,
            is_extra: false,
        }
    }
}

impl Entry {
    /// An installation on a node with another network.
    pub(crate) fn behind(network: Network, runtime: Runtime, agent: Agent, play: Play) -> Self {
        let name = format!("{}, {}: {}", runtime.name(), network.name(), agent.name);
        Self { name, node: (runtime, network), agent, play, is_extra: false }
    }

    pub(crate) fn extra(self) -> Self {
        Self { is_extra: true, ..self }
    }

    /// Leaves it out of the shortest path through CRI-O: the one through containerd has it.
    fn extra_with_crio(self) -> Self {
        Self { is_extra: self.is_extra || self.node.0.is_crio(), ..self }
    }

    fn called(mut self, what: &str) -> Self {
        self.name = format!("{}, {what}", self.name);
        self
    }
}

/// Runs all entries of a part, or only those on the shortest path, and writes the results of each to a file, for [`conclude`].
pub(crate) fn play(places: &Places, part: Part, short: bool, result: &Path) {
    let (start, kubernetes) = (Instant::now(), places.kubernetes());
    // Entries that need the same node share one cluster until a check fails.
    let mut cluster: Option<Fixture> = None;
    let mut played = Vec::new();
    for (index, entry) in part.entries().iter().enumerate().filter(|(_, entry)| !(short && entry.is_extra)) {
        cluster = cluster.filter(|fixture| (fixture.machine.runtime, fixture.machine.network) == entry.node);
        let Outcome { passed, failed } = attempt(places, entry, &mut cluster, start);
        played.push(json!({
            "name": format!("{kubernetes}, {}", entry.name), "passed": passed, "failed": failed,
            "programs": places.programs, "part": part.name(), "index": index,
        }));
    }
    fs::write(result, Value::from(played).to_string()).expect("cannot write what came of it");
}

/// Repeats failed entries of all parts alone, and returns all, in the order of the result files.
pub(crate) fn conclude(images: &Path, results: &[PathBuf]) -> Vec<Played> {
    let start = Instant::now();
    let read =
        |file: &PathBuf| serde_json::from_slice::<Vec<Value>>(&fs::read(file).expect("cannot read a result"));
    let all: Vec<Value> = results.iter().flat_map(|file| read(file).expect("a result is a list")).collect();
    let texts =
        |value: &Value| serde_json::from_value::<Vec<String>>(value.clone()).expect("claims are texts");
    let number = |value: &Value| usize::try_from(value.as_u64().expect("a number")).expect("a small one");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let outcome = |one: &Value| Outcome { passed: number(&one["passed"]), failed: texts(&one["failed"]) };
    let first = |one: &Value| Played { name: text(&one["name"]), first: outcome(one), again: None };
    let mut played: Vec<Played> = all.iter().map(first).collect();
    for index in to_play_again(&played) {
        Checks::new(start).chapter(format!("once more, alone: {}", played[index].name));
        let places = Places::new(text(&all[index]["programs"]).into(), images.to_owned());
        let entry = &Part::named(&text(&all[index]["part"])).entries()[number(&all[index]["index"])];
        played[index].again = Some(attempt(&places, entry, &mut None, start));
    }
    played
}

/// Runs an entry on the existing cluster, or on a new one. A panic is a failed check, after which the cluster is removed: leftovers
/// of one entry must not affect the next one.
fn attempt(places: &Places, entry: &Entry, cluster: &mut Option<Fixture>, start: Instant) -> Outcome {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let fixture = cluster.get_or_insert_with(|| boot(places, entry.node, start));
        (entry.play)(fixture, places, &entry.agent);
    }));
    let mut outcome = cluster.as_mut().map(|fixture| fixture.checks.take()).unwrap_or_default();
    if let Err(cause) = ended {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or(cause.downcast_ref::<&str>().copied()).unwrap_or("?");
        println!(" ✗ NOT SO: panicked: {text}");
        outcome.failed.push(format!("panicked: {text}"));
    }
    if !outcome.is_good() {
        *cluster = None;
    }
    outcome
}

/// Boots a cluster with the objects that every entry needs.
fn boot(places: &Places, (runtime, network): Node, start: Instant) -> Fixture {
    let checks = Checks::new(start);
    checks.chapter(format!("a cluster with one node and {}; {}", runtime.name(), network.name()));
    let fixture = Fixture::start(places, runtime, network, checks);
    fixture.namespace(SHOP, &[]);
    fixture.namespace(MESH, &[(MODE, "ambient")]);
    fixture.namespace(ztunnel::NAMESPACE, &[]);
    fixture.control.apply(
        "/api/v1/namespaces/istio-system/serviceaccounts",
        &serde_json::json!({"metadata": {"name": "ztunnel"}}),
    );
    if network.is_multus() {
        multus::define_attachments(&fixture);
    }
    fixture
}

/// Sidecars alone.
fn sidecars(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter(&agent.name);
    let before = scenarios::install(fixture, agent);
    let make = |name: &str| (injected_at_once(SHOP, name), Expected::Sidecar);
    let pods = kinds::check(fixture, &sidecar_pods());
    fixture.checks.chapter(format!("{}: rollout, failures, reboot", agent.name));
    scenarios::rollout(fixture, agent, SHOP, &make);
    scenarios::kills(fixture, agent, &pods, &make);
    scenarios::api_down(fixture, agent, &pods);
    scenarios::reboot(fixture, agent, &pods);
    let clean = end(fixture, agent, &before, pods);
    renew(fixture, places, clean);
}

fn sidecar_pods() -> Pods {
    vec![
        (injected(SHOP, "sidecar"), Expected::Sidecar),
        (native(injected(SHOP, "sidecar-native")), Expected::Sidecar),
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
    pods.push((native(injected(SHOP, "sidecar-native")), Expected::Sidecar));
    pods.push((plain(SHOP, "plain"), Expected::Direct));
    if fixture.machine.runtime.has_user_namespaces() {
        pods.push((in_user_namespace(plain(MESH, "mesh-userns")), Expected::Ztunnel));
        pods.push((in_user_namespace(injected(SHOP, "sidecar-userns")), Expected::Sidecar));
    }
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
    // Istio 1.20 reads namespaces' labels only.
    if capture == CaptureState::InPod {
        pods.push((labelled(plain(SHOP, "by-label"), MODE, "ambient"), Expected::Ztunnel));
        pods.push((labelled(plain(MESH, "none"), MODE, "none"), Expected::Direct));
    }
    pods
}

fn chart_of_sidecars(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    chart(fixture, places, agent, None);
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

/// The plugin is installed late, with Istio's chart and `repair.repairPods`, which is its default since 1.24.
fn repaired(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter(format!("{}: pods that were there before", agent.name));
    let (before, pods) = scenarios::repair(fixture, agent);
    let clean = end(fixture, agent, &before, pods);
    renew(fixture, places, clean);
}

/// A release of Istio's chart is replaced by one of ours, and that by Istio's, while pods run.
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
    let values = ["profile=ambient", "pullPolicy=Never", "millrace.image.hub=registry.invalid"];
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

/// The container runtime restarts: while the agent runs, with the plugin's records of all pods; then without them: right after the
/// agent has replaced Istio's plugin, while it runs, while it is unavailable, while the API server is, too, and after its
/// uninstallation.
fn restarted(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter(format!("{}: restarts of {}", agent.name, fixture.machine.runtime.name()));
    let before = scenarios::install(fixture, agent);
    ztunnel::deploy(fixture, CaptureState::InPod);
    let mut pods = runtime_restart::start_pods(
        fixture,
        &[
            &|name| (injected_at_once(SHOP, &format!("sidecar-{name}")), Expected::Sidecar),
            &|name| (native(injected(SHOP, &format!("native-{name}"))), Expected::Sidecar),
            &|name| (plain(SHOP, &format!("plain-{name}")), Expected::Direct),
            &|name| (plain(MESH, &format!("mesh-{name}")), Expected::Ztunnel),
            &|name| (labelled(plain(MESH, &format!("none-{name}")), MODE, "none"), Expected::Direct),
            &|name| (in_user_namespace(plain(MESH, &format!("userns-{name}"))), Expected::Ztunnel),
            &|name| {
                let pod = injected_at_once(SHOP, &format!("sidecar-userns-{name}"));
                (in_user_namespace(pod), Expected::Sidecar)
            },
            &|name| (injected_at_once(MESH, &format!("sidecar-in-mesh-{name}")), Expected::Sidecar),
            &|name| (injected_at_once("kube-system", &format!("excluded-{name}")), Expected::Direct),
            &|name| (on_host(plain(MESH, &format!("host-{name}"))), Expected::Direct),
        ],
    );
    let ours: Vec<_> = pods.iter().map(|(pod, _)| pod.clone()).collect();
    runtime_restart::check_records(fixture, &pods);
    runtime_restart::restart(fixture, &ours, "with the agent and its records");
    runtime_restart::check_traffic(fixture, &pods, "with the agent and its records");
    let image = runtime_restart::withdraw(fixture, agent);
    let theirs = runtime_restart::start_pods_of_istio(fixture, SHOP);
    pods.extend(theirs);
    let all: Vec<_> = pods.iter().map(|(pod, _)| pod.clone()).collect();
    runtime_restart::readmit(fixture, agent, &image);
    runtime_restart::restart(fixture, &all, "just upgraded from Istio's plugin");
    runtime_restart::check_traffic(fixture, &pods, "just upgraded from Istio's plugin");
    runtime_restart::restart(fixture, &all, "with the agent, without records");
    runtime_restart::check_traffic(fixture, &pods, "with the agent, without records");
    runtime_restart::withdraw(fixture, agent);
    runtime_restart::restart_without_agent(fixture, &all, "without the agent");
    runtime_restart::check_traffic(fixture, &pods, "without the agent");
    runtime_restart::restart_without_api(fixture, &all, "without the agent and the API server");
    runtime_restart::check_traffic(fixture, &pods, "without the agent and the API server");
    runtime_restart::readmit(fixture, agent, &image);
    let clean = scenarios::uninstall(fixture, agent, &before, &pods);
    runtime_restart::restart(fixture, &all, "uninstalled");
    fixture.delete_pods(&all);
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

/// A DaemonSet of a chart on a node with the layout of its values: it installs, captures a pod, and is removed.
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

/// Uninstalls, and deletes the pods.
pub(crate) fn end(
    fixture: &mut Fixture,
    agent: &Agent,
    before: &crate::footprint::Footprint,
    pods: Pods,
) -> bool {
    fixture.checks.chapter(format!("{}: uninstalled", agent.name));
    let clean = scenarios::uninstall(fixture, agent, before, &pods);
    let pods: Vec<_> = pods.into_iter().map(|(pod, _)| pod).collect();
    fixture.delete_pods(&pods);
    clean
}

/// Leftovers of one installation must not affect the next one: replaces the node unless it is clean.
pub(crate) fn renew(fixture: &mut Fixture, places: &Places, clean: bool) {
    if !clean {
        fixture.machine.replace(places, &fixture.control);
    }
}
