//! Scenarios on a node with an agent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, path};
use crate::fixture::{Fixture, START_LIMIT, place_of};
use crate::footprint::{self, Footprint, chain, entry};
use crate::helm::Helm;
use crate::kinds::{self, Expected};
use crate::machine;
use crate::pods::{BEYOND, SIDECAR, injected, injected_at_once, plain, validated};
use crate::ztunnel::{self, carried, carried_after};

/// Pods with the expected path of their connections.
pub(crate) type Pods = Vec<(Value, Expected)>;
/// Creates a pod of the kind that the agent must capture.
pub(crate) type Make<'make> = &'make dyn Fn(&str) -> (Value, Expected);

/// Number of pods created while the agent is replaced.
const CHURN: usize = 20;
/// Number of pods created before that, to measure their start on this machine at present.
const CALM: usize = 8;
/// Additional time allowed for the slowest, compared with the slowest of those.
const CHURN_LIMIT: Duration = Duration::from_secs(5);
const MANY: usize = 50;

/// Pods from before the plugin: one runs and bypasses its sidecar, one is blocked by its validation. Both are repaired in place
/// when the agent starts, and so is a pod whose rules another component removes.
pub(crate) fn repair(fixture: &mut Fixture, agent: &Agent) -> (Footprint, Pods) {
    let (runs, waits) = (injected_at_once("shop", "runs"), validated("shop", "waits"));
    fixture.create(&waits);
    let running = fixture.start_pod(&runs).unwrap_or_default();
    kinds::now(fixture, &running, Expected::Direct, "without the plugin, a connection");
    let ended = |fixture: &Fixture| {
        let pod = fixture.control.find(&path(&waits))?;
        let status = &pod["status"]["initContainerStatuses"][0];
        let ended = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
        ended.into_iter().find_map(|ended| ended["exitCode"].as_u64())
    };
    let code = kit::found_within(START_LIMIT, || ended(fixture));
    fixture
        .checks
        .check(code == Some(126), format!("its validation keeps a pod from running: exit code {code:?}"));
    let before = install(fixture, agent);
    let start = Instant::now();
    let answer = |fixture: &Fixture, pod: &Value| {
        fixture.connect(pod)["server"].as_str().unwrap_or("nobody").to_owned()
    };
    let redirected = |fixture: &Fixture, pod: &Value| (answer(fixture, pod) == SIDECAR).then_some(());
    let repaired = kit::found_within(START_LIMIT, || redirected(fixture, &running));
    fixture.checks.check(
        repaired.is_some(),
        format!("the pod that runs is redirected after {:.1} s", start.elapsed().as_secs_f32()),
    );
    // The kubelet restarts the init container after its back-off.
    let ready = kit::found_within(Duration::from_secs(120), || {
        fixture.control.find(&path(&waits)).filter(Fixture::is_ready)
    });
    fixture.checks.check(
        ready.is_some(),
        format!("the pod that waited is ready after {:.1} s", start.elapsed().as_secs_f32()),
    );
    let waited = ready.unwrap_or_else(|| waits.clone());
    let attempts = fixture.first_answers(&waited);
    fixture.checks.check(
        attempts.iter().all(|line| line["server"] != BEYOND),
        format!("none of its connections was answered by the service itself: {attempts:?}"),
    );
    kinds::now(fixture, &waited, Expected::Sidecar, "after the repair, a connection");
    fixture.flush_rules(&running);
    // The kernel reports it to the agent: the rules may be restored before a first connection.
    let repaired = kit::found_within(Duration::from_secs(60), || redirected(fixture, &running));
    fixture.checks.check(repaired.is_some(), "its rules were removed, and are restored");
    let pods = vec![(running, Expected::Sidecar), (waited, Expected::Sidecar)];
    let restarted: Vec<_> = pods.iter().filter(|(pod, _)| restarts(fixture, pod) > 0).collect();
    fixture.checks.check(restarted.is_empty(), format!("no container was restarted for that {restarted:?}"));
    (before, pods)
}

/// The taint controller starts before the agent: no pod is scheduled until the agent is ready, and then the first connection of a
/// pod that has waited goes through its sidecar.
pub(crate) fn taint(fixture: &mut Fixture, controller: &Agent, agent: &Agent) -> (Footprint, Pods) {
    controller.apply(&fixture.control);
    let tainted = kit::found_within(START_LIMIT, || is_tainted(fixture).then_some(()));
    fixture.checks.check(tainted.is_some(), "without an agent, the node has the taint");
    let mut pod = injected_at_once("shop", "early");
    pod["spec"]["tolerations"] = json!([]);
    fixture.create(&pod);
    let refused = kit::found_within(START_LIMIT, || refusal(&fixture.control.find(&path(&pod))?));
    fixture.checks.check(
        refused.as_deref().is_some_and(|why| why.contains("untolerated taint")),
        format!("the scheduler keeps a pod off the node: {refused:?}"),
    );
    let before = install(fixture, agent);
    let start = Instant::now();
    let removed = kit::found_within(START_LIMIT, || (!is_tainted(fixture)).then_some(()));
    fixture.checks.check(
        removed.is_some(),
        format!("the taint goes {:.1} s after the agent is ready", start.elapsed().as_secs_f32()),
    );
    let ready = fixture.wait_ready(&pod).unwrap_or(pod);
    let attempts = fixture.first_answers(&ready);
    fixture.checks.check(
        !attempts.is_empty() && attempts.iter().all(|line| line["server"] != BEYOND),
        format!("the pod starts, and none of its connections bypasses its sidecar: {attempts:?}"),
    );
    controller.uninstall(&fixture.control);
    (before, vec![(ready, Expected::Sidecar)])
}

const TAINT: &str = "NodeReadiness";

fn is_tainted(fixture: &Fixture) -> bool {
    let node = fixture.control.find(&format!("/api/v1/nodes/{}", machine::NAME)).unwrap_or_default();
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.any(|taint| taint["key"] == TAINT && taint["effect"] == "NoSchedule")
}

/// The scheduler's reason why no node is available for a pod.
fn refusal(pod: &Value) -> Option<String> {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut refused = conditions.filter(|one| one["type"] == "PodScheduled" && one["status"] == "False");
    refused.find_map(|one| one["message"].as_str().map(str::to_owned))
}

/// Installs the agent; returns the node's previous state.
pub(crate) fn install(fixture: &mut Fixture, agent: &Agent) -> Footprint {
    let before = footprint::of(&fixture.machine);
    let start = Instant::now();
    agent.apply(&fixture.control);
    let ready = agent.wait_ready(&fixture.control);
    fixture.checks.check(ready, format!("the agent is ready after {:.1} s", start.elapsed().as_secs_f32()));
    if !ready {
        fixture.checks.note(agent.logs(&fixture.control, &fixture.machine));
        agent.pods(&fixture.control).iter().for_each(|pod| fixture.explain(pod));
    }
    if agent.is_chained() {
        installed(fixture);
    } else {
        installed_alone(fixture, agent);
    }
    before
}

/// A separate network configuration, which a meta plugin calls.
fn installed_alone(fixture: &mut Fixture, agent: &Agent) {
    let directory = |usual: &str| {
        let place = agent.layout().into_iter().find(|(_, one)| *one == usual);
        place.map_or_else(|| usual.to_owned(), |(path, _)| path)
    };
    let networks = directory("/etc/cni/net.d");
    let files = fixture.machine.sh(&format!("grep -l '\"type\": *\"istio-cni\"' {networks}/* || true"));
    let plugin = fixture.machine.path(&format!("{}/istio-cni", directory("/opt/cni/bin"))).is_file();
    fixture.checks.check(
        plugin && files.lines().count() == 1 && entry(&fixture.machine).is_null(),
        format!("the plugin has a configuration of its own ({}), and its binary is there", files.trim()),
    );
}

fn installed(fixture: &mut Fixture) {
    let entry = entry(&fixture.machine);
    let last = chain(&fixture.machine)["plugins"].as_array().and_then(|plugins| plugins.last().cloned());
    let named = entry["kubernetes"]["kubeconfig"].as_str().map(str::to_owned);
    // Entries of newer versions have only the directory.
    let in_run_dir = || Some(format!("{}/istio-cni-kubeconfig", entry["cni_agent_run_dir"].as_str()?));
    let kubeconfig = named.or_else(in_run_dir).unwrap_or_else(|| format!("/none in {entry}"));
    let there = fixture.machine.path(&kubeconfig).is_file()
        && fixture.machine.path("/opt/cni/bin/istio-cni").is_file();
    fixture.checks.check(
        there && last == Some(entry.clone()),
        format!(
            "the plugin is the last of the chain, its binary and its kubeconfig ({kubeconfig}) are there"
        ),
    );
}

/// Installs a chart as a release; returns the node's previous state, and a pod to start.
pub(crate) fn release(
    fixture: &mut Fixture,
    agent: &Agent,
    helm: &Helm<'_>,
    chart: &Path,
) -> (Footprint, Pods) {
    let before = footprint::of(&fixture.machine);
    let result = helm.upgrade(chart, &[]);
    let ready = agent.wait_ready(&fixture.control);
    fixture.checks.check(result.is_ok() && ready, format!("a release of Istio's chart is ready: {result:?}"));
    installed(fixture);
    (before, vec![(injected("shop", "sidecar"), Expected::Sidecar)])
}

/// Checks an upgrade of the release: the agent becomes ready, no container was restarted, and every pod is captured as before.
pub(crate) fn migrate(
    fixture: &mut Fixture,
    agent: &Agent,
    what: &str,
    upgraded: &Result<(), String>,
    pods: &Pods,
) {
    let ready = agent.wait_ready(&fixture.control);
    let is_well = fixture
        .checks
        .check(upgraded.is_ok() && ready, format!("{what}: upgraded, and the agent is ready: {upgraded:?}"));
    if !is_well {
        fixture.checks.note(agent.logs(&fixture.control, &fixture.machine));
        agent.pods(&fixture.control).iter().for_each(|pod| fixture.explain(pod));
    }
    installed(fixture);
    let restarted: Vec<_> = pods.iter().filter(|(pod, _)| restarts(fixture, pod) > 0).collect();
    fixture.checks.check(restarted.is_empty(), format!("{what}: no container was restarted {restarted:?}"));
    for (pod, expected) in pods {
        kinds::now(fixture, pod, *expected, &format!("{what}: a connection"));
    }
}

/// Replaces the agent by one of another generation: the installation stays.
pub(crate) fn upgrade(fixture: &mut Fixture, agent: &Agent) {
    agent.restart(&fixture.control, "upgrade");
    let ready = agent.wait_ready(&fixture.control);
    fixture.checks.check(ready, "upgraded: the new agent is ready");
    installed(fixture);
}

/// Removes the installation in Helm's order; the node must then have its previous state. False if it has not.
pub(crate) fn uninstall(fixture: &mut Fixture, agent: &Agent, before: &Footprint, pods: &Pods) -> bool {
    let start = Instant::now();
    agent.uninstall(&fixture.control);
    let gone =
        kit::found_within(Duration::from_secs(60), || agent.pods(&fixture.control).is_empty().then_some(()));
    fixture.checks.check(
        gone.is_some(),
        format!("uninstalled: the agent's pods are gone after {:.1} s", start.elapsed().as_secs_f32()),
    );
    let machine = &fixture.machine;
    let keeps = machine.runtime.keeps_plugin() || machine.network.is_multus();
    let left = || footprint::left(machine, before, keeps);
    kit::found_within(Duration::from_secs(5), || Some(left()).filter(String::is_empty));
    let left = left();
    let clean = fixture
        .checks
        .check(left.is_empty(), format!("the node is as it was before the installation: {left}"));
    for (pod, _) in pods.iter().filter(|(_, expected)| *expected == Expected::Ztunnel) {
        let rules = fixture.rules_in(pod);
        fixture
            .checks
            .check(rules.is_empty(), format!("{} has no rules any more: {rules}", pod["metadata"]["name"]));
        kinds::now(fixture, pod, Expected::Direct, "after the uninstallation, a connection");
    }
    let after = plain("shop", "after-uninstall");
    if fixture.start_pod(&after).is_some() {
        fixture.checks.check(true, "a pod starts without the agent");
    }
    fixture.delete_pods(&[after]);
    clean
}

/// Deletes pods; the state in [`footprint::of_pods`] must then be the previous one.
pub(crate) fn delete(fixture: &mut Fixture, pods: &Pods, before: &Footprint) {
    delete_all(fixture, pods);
    let left = |fixture: &Fixture| footprint::left_of_pods(&fixture.machine, before);
    kit::found_within(Duration::from_secs(10), || left(fixture).is_empty().then_some(()));
    let left = left(fixture);
    fixture.checks.check(
        left.is_empty(),
        format!("{} pods were deleted, and nothing of them is left {left}", pods.len()),
    );
    check_ends(fixture, pods);
}

pub(crate) fn delete_all(fixture: &mut Fixture, pods: &Pods) {
    let pods: Vec<_> = pods.iter().map(|(pod, _)| pod.clone()).collect();
    fixture.delete_pods(&pods);
}

/// Checks that each of these deleted pods ended without delay: the kubelet reports others in Events.
pub(crate) fn check_ends(fixture: &mut Fixture, pods: &Pods) {
    let failures = |(pod, _): &(Value, Expected)| {
        let events = fixture.events(pod).into_iter().filter(|event| event["reason"] == "FailedKillPod");
        events.map(|event| format!("{}: {}", place_of(pod), event["message"])).collect::<Vec<_>>()
    };
    let failed: Vec<_> = pods.iter().flat_map(failures).collect();
    fixture.checks.check(failed.is_empty(), format!("nothing kept a pod from ending {failed:?}"));
}

/// Replaces the agent while pods are created: all start soon, none of them uncaptured.
pub(crate) fn rollout(fixture: &mut Fixture, agent: &Agent, namespace: &str, make: Make<'_>) {
    let (calm, usual) = start_one_by_one(fixture, namespace, CALM, &|number| make(&format!("calm-{number}")));
    fixture.delete_pods(&calm.into_iter().map(|(pod, _)| pod).collect::<Vec<_>>());
    let usual = usual.last().copied().unwrap_or_default();
    agent.restart(&fixture.control, &format!("churn-{namespace}"));
    let (pods, times) =
        start_one_by_one(fixture, namespace, CHURN, &|number| make(&format!("churn-{number}")));
    let replaced = agent.wait_ready(&fixture.control);
    fixture.checks.check(replaced, format!("{}: rolled out while pods came", agent.name));
    let (median, last) =
        (times.get(times.len() / 2).copied().unwrap_or_default(), times.last().copied().unwrap_or_default());
    fixture.checks.check(
        times.len() == CHURN && last.saturating_sub(usual) < CHURN_LIMIT,
        format!(
            "{} of {CHURN} pods started during the rollout, half of them within {:.1} s, all within {:.1} s; before it {CALM} within {:.1} s",
            times.len(),
            median.as_secs_f32(),
            last.as_secs_f32(),
            usual.as_secs_f32()
        ),
    );
    let escaped = escaped(fixture, &pods);
    fixture.checks.check(
        escaped.is_empty(),
        format!("every one of them is captured from its first packet {escaped:?}"),
    );
    let pods: Vec<_> = pods.into_iter().map(|(pod, _)| pod).collect();
    fixture.delete_pods(&pods);
}

fn name_of(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// Starts pods at the runtime's pace. Returns them, and, in order, the start time of each that became ready.
fn start_one_by_one(
    fixture: &mut Fixture,
    namespace: &str,
    count: usize,
    make: &dyn Fn(usize) -> (Value, Expected),
) -> (Pods, Vec<Duration>) {
    let (mut created, mut ready) = (BTreeMap::new(), BTreeMap::new());
    let mut pods = Vec::new();
    let start = Instant::now();
    while ready.len() < count && start.elapsed() < Duration::from_secs(60) {
        let due = fixture.machine.runtime.pod_interval() * u32::try_from(pods.len()).expect("few pods");
        if pods.len() < count && start.elapsed() >= due {
            let (pod, expected) = make(pods.len());
            fixture.create(&pod);
            created.insert(name_of(&pod), Instant::now());
            pods.push((pod, expected));
        }
        for pod in fixture.pods(namespace).iter().filter(|pod| Fixture::is_ready(pod)) {
            let name = name_of(pod);
            if let Some(since) = created.get(&name) {
                ready.entry(name).or_insert_with(|| since.elapsed());
            }
        }
        thread::sleep(Duration::from_millis(30)); // the precision of the measured times
    }
    let mut times: Vec<_> = ready.into_values().collect();
    times.sort();
    (pods, times)
}

/// Pods of which any first connection had another path than expected.
fn escaped(fixture: &mut Fixture, pods: &Pods) -> Vec<String> {
    let mut escaped = Vec::new();
    for (pod, expected) in pods {
        let Some(pod) = fixture.control.find(&path(pod)) else { continue };
        let attempts = fixture.first_answers(&pod);
        let by = |name: &str| attempts.iter().filter(|line| line["server"] == name).count();
        let fine = match expected {
            Expected::Direct => by(BEYOND) == 1,
            Expected::Sidecar => by(SIDECAR) == 1 && by(BEYOND) == 0,
            // One without an answer in time may have been relayed, too.
            Expected::Ztunnel => by(BEYOND) == 1 && (1..=attempts.len()).contains(&carried(fixture, &pod)),
        };
        if !fine {
            escaped.push(format!("{}: {attempts:?}", pod["metadata"]["name"]));
        }
    }
    escaped
}

/// Kills the agent, the container runtime and the kubelet: running pods are not affected, and new ones are captured.
pub(crate) fn kills(fixture: &mut Fixture, agent: &Agent, pods: &Pods, make: Make<'_>) {
    for program in ["install-cni", fixture.machine.runtime.process(), "kubelet"] {
        fixture.machine.kill(program);
        for (pod, expected) in pods {
            kinds::now(fixture, pod, *expected, &format!("{program} killed; a connection"));
        }
        let (pod, expected) = make(&format!("after-{program}"));
        let started = kinds::check(fixture, &[(pod, expected)]);
        let started: Vec<_> = started.into_iter().map(|(pod, _)| pod).collect();
        fixture.delete_pods(&started);
        let ready = agent.wait_ready(&fixture.control);
        fixture.checks.check(ready, format!("the agent is ready after {program} was killed"));
    }
    let restarted: Vec<_> = pods
        .iter()
        .filter(|(pod, _)| restarts(fixture, pod) > 0)
        .map(|(pod, _)| &pod["metadata"]["name"])
        .collect();
    fixture.checks.check(restarted.is_empty(), format!("no pod was restarted {restarted:?}"));
}

/// Restarts of a pod's containers.
pub(crate) fn restarts(fixture: &Fixture, pod: &Value) -> u64 {
    let pod = fixture.control.find(&path(pod)).unwrap_or_default();
    pod["status"]["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["restartCount"].as_u64())
        .sum()
}

/// Without the API server, running pods keep their network, and start again with the same capture when their sandbox is killed.
pub(crate) fn api_down(fixture: &mut Fixture, agent: &Agent, pods: &Pods) {
    fixture.control.kill_apiserver();
    for (pod, expected) in pods {
        kinds::now(fixture, pod, *expected, "API server down; a connection");
    }
    let mark = ztunnel::log(fixture).len();
    let known: Vec<_> = pods.iter().map(|(pod, _)| answered(fixture, pod).len()).collect();
    let on_node = |pod: &Value| pod["spec"]["hostNetwork"] != true;
    pods.iter().filter(|(pod, _)| on_node(pod)).for_each(|(pod, _)| fixture.machine.kill_sandbox(pod));
    let deadline = Instant::now() + Duration::from_secs(25);
    let again: Vec<_> = pods.iter().zip(known).filter(|((pod, _), _)| on_node(pod)).collect();
    for ((pod, _), known) in again.iter().filter(|((_, expected), _)| *expected != Expected::Sidecar) {
        let new = answered_after(fixture, pod, *known, deadline);
        let name = &pod["metadata"]["name"];
        fixture.checks.check(
            new == [BEYOND],
            format!("API server down; {name} starts again, and is answered by {new:?}"),
        );
    }
    // A sidecar pod's settings are in the API server only; those of ambient mode the agent knows, too.
    for ((pod, _), known) in again.iter().filter(|((_, expected), _)| *expected == Expected::Sidecar) {
        let new = answered_after(fixture, pod, *known, Instant::now());
        let name = &pod["metadata"]["name"];
        fixture.checks.check(
            new.iter().all(|who| who == SIDECAR),
            format!("API server down; {name} does not escape: {new:?}"),
        );
    }
    let ours = pods.iter().filter(|(_, expected)| *expected == Expected::Ztunnel).count();
    let log = ztunnel::log(fixture);
    let new = log[mark..].iter().filter(|line| line["via"] == "outbound" && line["error"].is_null()).count();
    fixture.checks.check(new == ours, format!("{new} of {ours} first connections were carried by ztunnel"));
    fixture.control.start_apiserver();
    let deadline = Instant::now() + START_LIMIT;
    for ((pod, _), known) in again.iter().filter(|((_, expected), _)| *expected == Expected::Sidecar) {
        let new = answered_after(fixture, pod, *known, deadline);
        let name = &pod["metadata"]["name"];
        fixture.checks.check(new == [SIDECAR], format!("API server back; {name} is answered by {new:?}"));
    }
    let ready = agent.wait_ready(&fixture.control);
    fixture.checks.check(ready, "the agent is ready when the API server is back");
}

/// Names of the servers that answered the application, in all runs of its container.
fn answered(fixture: &Fixture, pod: &Value) -> Vec<String> {
    let attempts = fixture.attempts(pod, "app");
    attempts.iter().filter_map(|line| line["server"].as_str().map(str::to_owned)).collect()
}

/// As [`answered`], without the first `known` ones, once there are further ones or the deadline has passed.
fn answered_after(fixture: &Fixture, pod: &Value, known: usize, deadline: Instant) -> Vec<String> {
    let left = deadline.saturating_duration_since(Instant::now());
    let new = kit::found_within(left, || {
        answered(fixture, pod).get(known..).filter(|new| !new.is_empty()).map(<[_]>::to_vec)
    });
    new.unwrap_or_default()
}

/// Fifty pods of a namespace start and end.
pub(crate) fn many(fixture: &mut Fixture, agent: &Agent, labels: &[(&str, &str)], expected: Expected) {
    let name = "many";
    fixture.namespace(name, labels);
    let live = |fixture: &Fixture| {
        fs::read_dir(fixture.machine.disk.join("lib/cni/networks/e2e")).map_or(0, Iterator::count)
    };
    let (before, start) = (live(fixture), Instant::now());
    (0..MANY).for_each(|number| fixture.create(&plain(name, &format!("pod-{number}"))));
    let ready = |fixture: &Fixture| fixture.pods(name).iter().filter(|pod| Fixture::is_ready(pod)).count();
    kit::found_within(Duration::from_secs(90), || (ready(fixture) == MANY).then_some(()));
    let count = ready(fixture);
    fixture.checks.check(
        count == MANY,
        format!("{count} of {MANY} pods are ready after {:.1} s", start.elapsed().as_secs_f32()),
    );
    let pods: Pods = fixture.pods(name).into_iter().map(|pod| (pod, expected)).collect();
    let escaped = escaped(fixture, &pods);
    fixture
        .checks
        .check(escaped.is_empty(), format!("each of them: {expected:?} from the first packet {escaped:?}"));
    let start = Instant::now();
    fixture.control.delete(&format!("/api/v1/namespaces/{name}"));
    let gone = kit::found_within(Duration::from_secs(60), || fixture.pods(name).is_empty().then_some(()));
    fixture.checks.check(
        gone.is_some(),
        format!("all are gone {:.1} s after their namespace was deleted", start.elapsed().as_secs_f32()),
    );
    let after =
        kit::found_within(Duration::from_secs(20), || (live(fixture) == before).then_some(())).is_some();
    fixture
        .checks
        .check(after, format!("their addresses are free: {} in use as before, {before}", live(fixture)));
    let ready = agent.wait_ready(&fixture.control);
    fixture.checks.check(ready, "the agent is ready");
}

/// A power failure of the node and its next boot: all pods start again, none of them uncaptured.
pub(crate) fn reboot(fixture: &mut Fixture, agent: &Agent, pods: &Pods) {
    let before: Vec<_> = pods.iter().map(|(pod, _)| restarts(fixture, pod)).collect();
    let agents = agent.pods(&fixture.control);
    let agents_before: Vec<_> = agents.iter().map(|pod| restarts(fixture, pod)).collect();
    let known = ztunnel::log(fixture).len();
    fixture.machine.crash();
    fixture.machine.boot();
    let start = Instant::now();
    let back = |fixture: &Fixture, pod: &Value, before: u64| {
        restarts(fixture, pod) > before
            && fixture.control.find(&path(pod)).is_some_and(|pod| Fixture::is_ready(&pod))
    };
    let limit = Duration::from_secs(90);
    for (pod, before) in agents.iter().zip(&agents_before) {
        let ready = kit::found_within(limit, || back(fixture, pod, *before).then_some(())).is_some();
        if !fixture.checks.check(
            ready,
            format!("rebooted: the agent is ready after {:.1} s", start.elapsed().as_secs_f32()),
        ) {
            fixture.explain(pod);
            let node = fixture.control.find("/api/v1/nodes/node-1").unwrap_or_default();
            fixture.checks.note(&node["status"]["conditions"]);
            let logs = fixture.machine.logs();
            fixture.checks.note(logs);
        }
    }
    for ((pod, expected), before) in pods.iter().zip(before) {
        let left = limit.saturating_sub(start.elapsed());
        let ready = kit::found_within(left, || back(fixture, pod, before).then_some(())).is_some();
        let name = &pod["metadata"]["name"];
        if !fixture
            .checks
            .check(ready, format!("rebooted: {name} is ready after {:.1} s", start.elapsed().as_secs_f32()))
        {
            fixture.explain(pod);
            continue;
        }
        let pod = &fixture.control.find(&path(pod)).expect("it is ready");
        let is_answered = |attempts: &Vec<Value>| attempts.iter().any(|line| line["server"].is_string());
        let attempts =
            kit::found_within(START_LIMIT, || Some(fixture.last_attempts(pod, "app")).filter(is_answered));
        let attempts = attempts.unwrap_or_default();
        let by = |name: &str| attempts.iter().filter(|line| line["server"] == name).count();
        let fine = match expected {
            Expected::Direct => by(BEYOND) == 1,
            Expected::Sidecar => by(SIDECAR) == 1 && by(BEYOND) == 0,
            Expected::Ztunnel => {
                by(BEYOND) == 1 && (1..=attempts.len()).contains(&carried_after(fixture, pod, known))
            }
        };
        fixture
            .checks
            .check(fine, format!("rebooted: {name} is as before ({expected:?}), from the first packet"));
        kinds::now(fixture, pod, *expected, "rebooted; a later connection");
    }
}
