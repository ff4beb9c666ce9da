//! What happens to a node with an agent, one thing after the other.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::agent::{Agent, path};
use crate::footprint::{self, Footprint, chain, difference, entry};
use crate::kinds::{self, Expected};
use crate::lab::{Lab, START_LIMIT};
use crate::pods::{BEYOND, SIDECAR, injected_at_once, plain, validated};
use crate::wait::until;
use crate::ztunnel::{self, carried, carried_after};

/// Pods with what must become of their connections.
pub(crate) type Pods = Vec<(Value, Expected)>;
/// Makes a pod of the kind that the agent must capture.
pub(crate) type Make<'make> = &'make dyn Fn(&str) -> (Value, Expected);

/// Pods that are created while the agent is replaced, and how far apart.
const CHURN: usize = 20;
const CHURN_EVERY: Duration = Duration::from_millis(400);
/// What 99 of 100 of them may take.
const CHURN_LIMIT: Duration = Duration::from_secs(5);
const MANY: usize = 50;

/// Pods that are there before the plugin: one runs and bypasses its sidecar, one is kept from that by its validation. Both are
/// repaired where they are when the agent comes, and so is a pod whose rules somebody removes.
pub(crate) fn repair(lab: &mut Lab, agent: &Agent) -> (Footprint, Pods) {
    let (runs, waits) = (injected_at_once("shop", "runs"), validated("shop", "waits"));
    lab.create(&waits);
    let running = lab.start_pod(&runs).unwrap_or_default();
    kinds::now(lab, &running, Expected::Direct, "without the plugin, a connection");
    let ended = |lab: &Lab| {
        let pod = lab.control.find(&path(&waits))?;
        let status = &pod["status"]["initContainerStatuses"][0];
        let ended = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
        ended.into_iter().find_map(|ended| ended["exitCode"].as_u64())
    };
    let code = until(START_LIMIT, || ended(lab));
    lab.checks
        .check(code == Some(126), format!("its validation keeps a pod from running: exit code {code:?}"));
    let before = install(lab, agent);
    let start = Instant::now();
    let answer = |lab: &Lab, pod: &Value| lab.connect(pod)["server"].as_str().unwrap_or("nobody").to_owned();
    let redirected = |lab: &Lab, pod: &Value| (answer(lab, pod) == SIDECAR).then_some(());
    let repaired = until(START_LIMIT, || redirected(lab, &running));
    lab.checks.check(
        repaired.is_some(),
        format!("the pod that runs is redirected after {:.1} s", start.elapsed().as_secs_f32()),
    );
    // The kubelet starts the init container again when its back-off ends.
    let ready = until(Duration::from_secs(120), || lab.control.find(&path(&waits)).filter(Lab::is_ready));
    lab.checks.check(
        ready.is_some(),
        format!("the pod that waited is ready after {:.1} s", start.elapsed().as_secs_f32()),
    );
    let waited = ready.unwrap_or_else(|| waits.clone());
    let attempts = lab.first_answers(&waited);
    lab.checks.check(
        attempts.iter().all(|line| line["server"] != BEYOND),
        format!("none of its connections was answered by the service itself: {attempts:?}"),
    );
    kinds::now(lab, &waited, Expected::Sidecar, "after the repair, a connection");
    lab.flush_rules(&running);
    kinds::now(lab, &running, Expected::Direct, "its rules removed; a connection");
    let repaired = until(Duration::from_secs(60), || redirected(lab, &running));
    lab.checks.check(repaired.is_some(), "its rules are restored");
    let pods = vec![(running, Expected::Sidecar), (waited, Expected::Sidecar)];
    let restarted: Vec<_> = pods.iter().filter(|(pod, _)| restarts(lab, pod) > 0).collect();
    lab.checks.check(restarted.is_empty(), format!("no container was restarted for that {restarted:?}"));
    (before, pods)
}

/// Installs; returns what the node was like before.
pub(crate) fn install(lab: &mut Lab, agent: &Agent) -> Footprint {
    let before = footprint::of(&lab.machine);
    let start = Instant::now();
    agent.apply(&lab.control);
    let ready = agent.wait_ready(&lab.control);
    lab.checks.check(ready, format!("the agent is ready after {:.1} s", start.elapsed().as_secs_f32()));
    if !ready {
        lab.checks.note(agent.logs(&lab.control, &lab.machine));
        agent.pods(&lab.control).iter().for_each(|pod| lab.explain(pod));
    }
    if agent.is_chained() {
        installed(lab);
    } else {
        installed_alone(lab, agent);
    }
    before
}

/// A network configuration of its own, which a meta plugin calls.
fn installed_alone(lab: &mut Lab, agent: &Agent) {
    let directory = agent.layout().into_iter().find(|(_, usual)| *usual == "/etc/cni/net.d");
    let directory = directory.map_or_else(|| "/etc/cni/net.d".into(), |(path, _)| path);
    let files = lab.machine.sh(&format!("grep -l '\"type\": *\"istio-cni\"' {directory}/* || true"));
    let plugin = lab.machine.path("/opt/cni/bin/istio-cni").is_file();
    lab.checks.check(
        plugin && files.lines().count() == 1 && entry(&lab.machine).is_null(),
        format!("the plugin has a configuration of its own ({}), and its binary is there", files.trim()),
    );
}

fn installed(lab: &mut Lab) {
    let entry = entry(&lab.machine);
    let last = chain(&lab.machine)["plugins"].as_array().and_then(|plugins| plugins.last().cloned());
    let named = entry["kubernetes"]["kubeconfig"].as_str().map(str::to_owned);
    // Entries of newer versions name only the directory.
    let in_run_dir = || Some(format!("{}/istio-cni-kubeconfig", entry["cni_agent_run_dir"].as_str()?));
    let kubeconfig = named.or_else(in_run_dir).unwrap_or_else(|| format!("/none in {entry}"));
    let there =
        lab.machine.path(&kubeconfig).is_file() && lab.machine.path("/opt/cni/bin/istio-cni").is_file();
    lab.checks.check(
        there && last == Some(entry.clone()),
        format!(
            "the plugin is the last of the chain, its binary and its kubeconfig ({kubeconfig}) are there"
        ),
    );
}

/// The agent is replaced by one of another generation: the installation stays.
pub(crate) fn upgrade(lab: &mut Lab, agent: &Agent) {
    agent.restart(&lab.control, "upgrade");
    let ready = agent.wait_ready(&lab.control);
    lab.checks.check(ready, "upgraded: the new agent is ready");
    installed(lab);
}

/// Removes the installation in Helm's order; the node must then be as it was. False if it is not.
pub(crate) fn uninstall(lab: &mut Lab, agent: &Agent, before: &Footprint, pods: &Pods) -> bool {
    let start = Instant::now();
    agent.uninstall(&lab.control);
    let gone = until(Duration::from_secs(60), || agent.pods(&lab.control).is_empty().then_some(()));
    lab.checks.check(
        gone.is_some(),
        format!("uninstalled: the agent's pods are gone after {:.1} s", start.elapsed().as_secs_f32()),
    );
    let same = || Some(difference(before, &footprint::of(&lab.machine))).filter(String::is_empty);
    until(Duration::from_secs(5), same);
    let left = difference(before, &footprint::of(&lab.machine));
    let clean =
        lab.checks.check(left.is_empty(), format!("the node is as it was before the installation: {left}"));
    for (pod, _) in pods.iter().filter(|(_, expected)| *expected == Expected::Ztunnel) {
        let rules = lab.rules_in(pod);
        lab.checks
            .check(rules.is_empty(), format!("{} has no rules any more: {rules}", pod["metadata"]["name"]));
        kinds::now(lab, pod, Expected::Direct, "after the uninstallation, a connection");
    }
    let after = plain("shop", "after-uninstall");
    if lab.start_pod(&after).is_some() {
        lab.checks.check(true, "a pod starts without the agent");
    }
    lab.delete_pods(&[after]);
    clean
}

/// The agent is replaced while pods come: all start soon, none of them uncaptured.
pub(crate) fn rollout(lab: &mut Lab, agent: &Agent, namespace: &str, make: Make<'_>) {
    let mut created = BTreeMap::new();
    let mut ready = BTreeMap::new();
    let mut pods = Vec::new();
    agent.restart(&lab.control, &format!("churn-{namespace}"));
    let start = Instant::now();
    while ready.len() < CHURN && start.elapsed() < Duration::from_secs(60) {
        let due = CHURN_EVERY * u32::try_from(pods.len()).expect("few pods");
        if pods.len() < CHURN && start.elapsed() >= due {
            let name = format!("churn-{}", pods.len());
            let (pod, expected) = make(&name);
            lab.create(&pod);
            created.insert(name, Instant::now());
            pods.push((pod, expected));
        }
        for pod in lab.pods(namespace).iter().filter(|pod| Lab::is_ready(pod)) {
            let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
            if let Some(since) = created.get(&name) {
                ready.entry(name).or_insert_with(|| since.elapsed());
            }
        }
        thread::sleep(Duration::from_millis(30));
    }
    let replaced = agent.wait_ready(&lab.control);
    lab.checks.check(replaced, format!("{}: rolled out while pods came", agent.name));
    let mut times: Vec<_> = ready.values().copied().collect();
    times.sort();
    let at = |percent: usize| {
        times
            .get((times.len() * percent / 100).min(times.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    };
    let (median, p99) = (at(50), at(99));
    lab.checks.check(
        times.len() == CHURN && p99 < CHURN_LIMIT,
        format!(
            "{} of {CHURN} pods started during the rollout, p50 {:.1} s, p99 {:.1} s",
            times.len(),
            median.as_secs_f32(),
            p99.as_secs_f32()
        ),
    );
    let escaped = escaped(lab, &pods);
    lab.checks.check(
        escaped.is_empty(),
        format!("every one of them is captured from its first packet {escaped:?}"),
    );
    let pods: Vec<_> = pods.into_iter().map(|(pod, _)| pod).collect();
    lab.delete_pods(&pods);
}

/// Those of whose first connections any was not carried as it must be.
fn escaped(lab: &mut Lab, pods: &Pods) -> Vec<String> {
    let mut escaped = Vec::new();
    for (pod, expected) in pods {
        let Some(pod) = lab.control.find(&path(pod)) else { continue };
        let attempts = lab.first_answers(&pod);
        let by = |name: &str| attempts.iter().filter(|line| line["server"] == name).count();
        let fine = match expected {
            Expected::Direct => by(BEYOND) == 1,
            Expected::Sidecar => by(SIDECAR) == 1 && by(BEYOND) == 0,
            // One that had no answer in time may have been carried, too.
            Expected::Ztunnel => by(BEYOND) == 1 && (1..=attempts.len()).contains(&carried(lab, &pod)),
        };
        if !fine {
            escaped.push(format!("{}: {attempts:?}", pod["metadata"]["name"]));
        }
    }
    escaped
}

/// SIGKILL for the agent, for containerd and for the kubelet: running pods do not notice, and new ones are captured.
pub(crate) fn kills(lab: &mut Lab, agent: &Agent, pods: &Pods, make: Make<'_>) {
    for program in ["install-cni", "containerd", "kubelet"] {
        lab.machine.kill(program);
        for (pod, expected) in pods {
            kinds::now(lab, pod, *expected, &format!("{program} killed; a connection"));
        }
        let (pod, expected) = make(&format!("after-{program}"));
        let started = kinds::check(lab, &[(pod, expected)]);
        let started: Vec<_> = started.into_iter().map(|(pod, _)| pod).collect();
        lab.delete_pods(&started);
        let ready = agent.wait_ready(&lab.control);
        lab.checks.check(ready, format!("the agent is ready after {program} was killed"));
    }
    let restarted: Vec<_> = pods
        .iter()
        .filter(|(pod, _)| restarts(lab, pod) > 0)
        .map(|(pod, _)| &pod["metadata"]["name"])
        .collect();
    lab.checks.check(restarted.is_empty(), format!("no pod was restarted {restarted:?}"));
}

fn restarts(lab: &Lab, pod: &Value) -> u64 {
    let pod = lab.control.find(&path(pod)).unwrap_or_default();
    pod["status"]["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["restartCount"].as_u64())
        .sum()
}

/// Without the API server, running pods keep their network, and start again as they were when their sandbox has died.
pub(crate) fn api_down(lab: &mut Lab, agent: &Agent, pods: &Pods) {
    lab.control.kill_apiserver();
    for (pod, expected) in pods {
        kinds::now(lab, pod, *expected, "API server down; a connection");
    }
    let mark = ztunnel::log(lab).len();
    let known: Vec<_> = pods.iter().map(|(pod, _)| answered(lab, pod).len()).collect();
    let on_node = |pod: &Value| pod["spec"]["hostNetwork"] != true;
    pods.iter().filter(|(pod, _)| on_node(pod)).for_each(|(pod, _)| lab.machine.kill_sandbox(pod));
    let deadline = Instant::now() + Duration::from_secs(25);
    let again: Vec<_> = pods.iter().zip(known).filter(|((pod, _), _)| on_node(pod)).collect();
    for ((pod, _), known) in again.iter().filter(|((_, expected), _)| *expected != Expected::Sidecar) {
        let new = answered_after(lab, pod, *known, deadline);
        let name = &pod["metadata"]["name"];
        lab.checks.check(
            new == [BEYOND],
            format!("API server down; {name} starts again, and is answered by {new:?}"),
        );
    }
    // How the sidecar's pod wants it is known to the API server; an agent of ambient mode knows it, too.
    for ((pod, _), known) in again.iter().filter(|((_, expected), _)| *expected == Expected::Sidecar) {
        let new = answered_after(lab, pod, *known, Instant::now());
        let name = &pod["metadata"]["name"];
        lab.checks.check(
            new.iter().all(|who| who == SIDECAR),
            format!("API server down; {name} does not escape: {new:?}"),
        );
    }
    let ours = pods.iter().filter(|(_, expected)| *expected == Expected::Ztunnel).count();
    let log = ztunnel::log(lab);
    let new = log[mark..].iter().filter(|line| line["via"] == "outbound" && line["error"].is_null()).count();
    lab.checks.check(new == ours, format!("{new} of {ours} first connections were carried by ztunnel"));
    lab.control.start_apiserver();
    let deadline = Instant::now() + START_LIMIT;
    for ((pod, _), known) in again.iter().filter(|((_, expected), _)| *expected == Expected::Sidecar) {
        let new = answered_after(lab, pod, *known, deadline);
        let name = &pod["metadata"]["name"];
        lab.checks.check(new == [SIDECAR], format!("API server back; {name} is answered by {new:?}"));
    }
    let ready = agent.wait_ready(&lab.control);
    lab.checks.check(ready, "the agent is ready when the API server is back");
}

/// Who answered the application, in all that its container has run.
fn answered(lab: &Lab, pod: &Value) -> Vec<String> {
    let attempts = lab.attempts(pod, "app");
    attempts.iter().filter_map(|line| line["server"].as_str().map(str::to_owned)).collect()
}

/// The same without so many first ones, when there is any or it is too late.
fn answered_after(lab: &Lab, pod: &Value, known: usize, deadline: Instant) -> Vec<String> {
    let left = deadline.saturating_duration_since(Instant::now());
    let new =
        until(left, || answered(lab, pod).get(known..).filter(|new| !new.is_empty()).map(<[_]>::to_vec));
    new.unwrap_or_default()
}

/// Fifty pods of a namespace come and go.
pub(crate) fn many(lab: &mut Lab, agent: &Agent, labels: &[(&str, &str)], expected: Expected) {
    let name = "many";
    lab.namespace(name, labels);
    let live =
        |lab: &Lab| fs::read_dir(lab.machine.disk.join("lib/cni/networks/e2e")).map_or(0, Iterator::count);
    let (before, start) = (live(lab), Instant::now());
    (0..MANY).for_each(|number| lab.create(&plain(name, &format!("pod-{number}"))));
    let ready = |lab: &Lab| lab.pods(name).iter().filter(|pod| Lab::is_ready(pod)).count();
    until(Duration::from_secs(90), || (ready(lab) == MANY).then_some(()));
    let count = ready(lab);
    lab.checks.check(
        count == MANY,
        format!("{count} of {MANY} pods are ready after {:.1} s", start.elapsed().as_secs_f32()),
    );
    let pods: Pods = lab.pods(name).into_iter().map(|pod| (pod, expected)).collect();
    let escaped = escaped(lab, &pods);
    lab.checks
        .check(escaped.is_empty(), format!("each of them: {expected:?} from the first packet {escaped:?}"));
    let start = Instant::now();
    lab.control.delete(&format!("/api/v1/namespaces/{name}"));
    let gone = until(Duration::from_secs(60), || lab.pods(name).is_empty().then_some(()));
    lab.checks.check(
        gone.is_some(),
        format!("all are gone {:.1} s after their namespace was deleted", start.elapsed().as_secs_f32()),
    );
    let after = until(Duration::from_secs(20), || (live(lab) == before).then_some(())).is_some();
    lab.checks.check(after, format!("their addresses are free: {} in use as before, {before}", live(lab)));
    let ready = agent.wait_ready(&lab.control);
    lab.checks.check(ready, "the agent is ready");
}

/// The node's power fails, and comes back: all pods do, too, and none of them uncaptured.
pub(crate) fn reboot(lab: &mut Lab, agent: &Agent, pods: &Pods) {
    let before: Vec<_> = pods.iter().map(|(pod, _)| restarts(lab, pod)).collect();
    let agents = agent.pods(&lab.control);
    let agents_before: Vec<_> = agents.iter().map(|pod| restarts(lab, pod)).collect();
    let known = ztunnel::log(lab).len();
    lab.machine.crash();
    lab.machine.boot();
    let start = Instant::now();
    let back = |lab: &Lab, pod: &Value, before: u64| {
        restarts(lab, pod) > before && lab.control.find(&path(pod)).is_some_and(|pod| Lab::is_ready(&pod))
    };
    let limit = Duration::from_secs(90);
    for (pod, before) in agents.iter().zip(&agents_before) {
        let ready = until(limit, || back(lab, pod, *before).then_some(())).is_some();
        if !lab.checks.check(
            ready,
            format!("rebooted: the agent is ready after {:.1} s", start.elapsed().as_secs_f32()),
        ) {
            lab.explain(pod);
            let node = lab.control.find("/api/v1/nodes/node-1").unwrap_or_default();
            lab.checks.note(&node["status"]["conditions"]);
        }
    }
    for ((pod, expected), before) in pods.iter().zip(before) {
        let left = limit.saturating_sub(start.elapsed());
        let ready = until(left, || back(lab, pod, before).then_some(())).is_some();
        let name = &pod["metadata"]["name"];
        if !lab
            .checks
            .check(ready, format!("rebooted: {name} is ready after {:.1} s", start.elapsed().as_secs_f32()))
        {
            lab.explain(pod);
            continue;
        }
        let pod = &lab.control.find(&path(pod)).expect("it is ready");
        // The log of the attempt before is there, too.
        let enough =
            |attempts: &Vec<Value>| attempts.iter().filter(|line| line["server"].is_string()).count() == 2;
        let attempts = until(START_LIMIT, || Some(lab.attempts(pod, "app")).filter(enough));
        let attempts = attempts.unwrap_or_default();
        let by = |name: &str| attempts.iter().filter(|line| line["server"] == name).count();
        let fine = match expected {
            Expected::Direct => by(BEYOND) == 2,
            Expected::Sidecar => by(SIDECAR) == 2,
            Expected::Ztunnel => {
                by(BEYOND) == 2 && (1..=attempts.len()).contains(&carried_after(lab, pod, known))
            }
        };
        lab.checks
            .check(fine, format!("rebooted: {name} is as before ({expected:?}), from the first packet"));
        kinds::now(lab, pod, *expected, "rebooted; a later connection");
    }
}
