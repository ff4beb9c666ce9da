//! Restarts of a container runtime that then calls CHECK for every pod (CRI-O): no pod is replaced, whichever plugin created its
//! rules, and whether the agent is available or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kit::plugin_rules::{NATIVE, iptables};
use serde_json::Value;

use crate::agent::{Agent, path};
use crate::fixture::{Fixture, place_of};
use crate::kinds::{self, Expected};
use crate::pods::{injected_at_once, on_host, plain};
use crate::scenarios::{Make, Pods};

/// Number of pods of each kind: with those that have rules of Istio's plugin, fifty.
const EACH: usize = 4;
/// Time limit for the runtime to call CHECK for all of them, one after another, and for an agent to end.
const LIMIT: Duration = Duration::from_secs(60);

/// Identity of a pod, which is constant until it is replaced: its UID, its sandboxes, restarts of its containers, and its
/// addresses.
type Identity = [String; 4];

/// Starts pods with a sidecar, and gives them the state that versions of Istio's plugin leave, while no agent could repair it: each
/// has the rules of another version. No pod of the node has a record from then on.
pub(crate) fn start_pods_of_istio(fixture: &mut Fixture, namespace: &str) -> Pods {
    let sets = iptables().into_iter().chain([("native tables", NATIVE.to_owned())]);
    let sets: Vec<_> = sets.collect();
    let pods: Vec<_> =
        (0..sets.len()).map(|index| injected_at_once(namespace, &format!("istio-{index}"))).collect();
    pods.iter().for_each(|pod| fixture.create(pod));
    let mut started = Vec::new();
    for (index, (pod, (_, rules))) in pods.iter().zip(&sets).enumerate() {
        let Some(pod) = fixture.wait_ready(pod) else { continue };
        let tool = match index {
            _ if rules == NATIVE => "nft -f -",
            _ if index % 2 == 0 => "iptables-nft-restore",
            _ => "iptables-legacy-restore",
        };
        replace_rules(&pod, tool, rules);
        // One of them redirects inbound traffic only.
        let is_redirect =
            |rule: &str| ["-j ISTIO_REDIRECT", "jump istio-redirect"].iter().any(|jump| rule.ends_with(jump));
        let expected = if rules.lines().any(is_redirect) { Expected::Sidecar } else { Expected::Direct };
        started.push((pod, expected));
    }
    fixture.machine.sh("rm -rf /var/run/istio-cni/pods");
    let versions: Vec<_> = sets.iter().map(|(version, _)| *version).collect();
    fixture.checks.check(
        started.len() == sets.len(),
        format!("{} pods have rules of Istio's plugin: {}", started.len(), versions.join("; ")),
    );
    started
}

fn replace_rules(pod: &Value, tool: &str, rules: &str) {
    let line = format!("nft flush ruleset && exec {tool}");
    let mut command = Command::new("nsenter");
    command.arg(Fixture::net_of(pod).expect("it is ready")).args(["sh", "-c", &line]).stdin(Stdio::piped());
    let mut child = command.spawn().expect("nsenter can be run");
    child.stdin.take().expect("a pipe").write_all(rules.as_bytes()).expect("it reads");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{tool} does not take the rules for {}", place_of(pod));
}

/// Starts `EACH` pods of each kind.
pub(crate) fn start_pods(fixture: &mut Fixture, makes: &[Make<'_>]) -> Pods {
    let numbered = |(kind, make): (usize, &Make<'_>)| {
        (0..EACH).map(|number| make(&format!("kind-{kind}-{number}"))).collect::<Pods>()
    };
    let pods: Pods = makes.iter().enumerate().flat_map(numbered).collect();
    pods.iter().for_each(|(pod, _)| fixture.create(pod));
    pods.iter().filter_map(|(pod, expected)| Some((fixture.wait_ready(pod)?, *expected))).collect()
}

/// Kills the runtime, and the kubelet once the runtime has called CHECK for all pods with their own network, so that the kubelet
/// lists each of them again. `situation` is for messages.
pub(crate) fn restart(fixture: &mut Fixture, pods: &[Value], situation: &str) {
    let sign = plain("default", "sign-of-life");
    restart_until(fixture, pods, situation, &sign);
}

/// As [`restart`], while the agent's pod is deleted and no other has started. The plugin's credential expires with that pod, once
/// the API server's cache does, so pods with their own network can start only for a short time.
pub(crate) fn restart_without_agent(fixture: &mut Fixture, pods: &[Value], situation: &str) {
    restart_until(fixture, pods, situation, &sign_on_host());
}

fn restart_until(fixture: &mut Fixture, pods: &[Value], situation: &str, sign: &Value) {
    let before = identities(fixture, pods);
    let mark = fixture.machine.runtime_log().len();
    kill_runtime(fixture, pods, mark, situation);
    fixture.machine.kill("kubelet");
    compare(fixture, pods, &before, mark, situation, sign);
}

fn sign_on_host() -> Value {
    on_host(plain("default", "sign-of-life"))
}

/// As [`restart_without_agent`], also without an API server, from which the kubelet reads its pods. It starts a static pod, so it
/// works, and everything is compared when the API server is back.
pub(crate) fn restart_without_api(fixture: &mut Fixture, pods: &[Value], situation: &str) {
    let before = identities(fixture, pods);
    let mark = fixture.machine.runtime_log().len();
    fixture.control.kill_apiserver();
    kill_runtime(fixture, pods, mark, situation);
    fixture.machine.kill("kubelet");
    let (name, file) = ("from-file", fixture.machine.path("/etc/kubernetes/manifests/from-file.json"));
    fs::write(&file, on_host(plain("default", name)).to_string()).expect("the node is there");
    let lives = kit::found_within(LIMIT, || {
        Some(fixture.machine.logs_of("default", name, "app")).filter(|log| !log.is_empty())
    });
    fixture
        .checks
        .check(lives.is_some(), format!("{situation}: the kubelet restarted, and a static pod starts"));
    fs::remove_file(file).expect("it is there");
    fixture.control.start_apiserver();
    compare(fixture, pods, &before, mark, situation, &sign_on_host());
}

/// Checks, once the kubelet starts pods, that all pods are unchanged, and that no CHECK failed since this offset in the runtime's
/// log.
fn compare(
    fixture: &mut Fixture,
    pods: &[Value],
    before: &BTreeMap<String, Identity>,
    mark: usize,
    situation: &str,
    sign: &Value,
) {
    let lives = fixture.start_pod(sign).is_some();
    fixture.checks.check(lives, format!("{situation}: the kubelet restarted, and a pod starts"));
    fixture.delete_pods(std::slice::from_ref(sign));
    let refused = refused(fixture, before, mark);
    fixture.checks.check(refused.is_empty(), format!("{situation}: no CHECK failed {refused:?}"));
    let after = identities(fixture, pods);
    let replaced: Vec<_> = before.iter().filter(|(name, was)| after.get(*name) != Some(*was)).collect();
    fixture.checks.check(
        replaced.is_empty() && before.len() == pods.len(),
        format!(
            "{situation}: none of {} pods was replaced, restarted or has another address {replaced:?}",
            before.len()
        ),
    );
}

/// Kills the runtime; returns when it has restarted and called CHECK for all pods with their own network, which it logs after this
/// offset.
fn kill_runtime(fixture: &mut Fixture, pods: &[Value], mark: usize, situation: &str) {
    let start = Instant::now();
    fixture.machine.kill(fixture.machine.runtime.process());
    kit::found_within(LIMIT, || unchecked(fixture, pods, mark).is_empty().then_some(()));
    let left = unchecked(fixture, pods, mark);
    let expected = pods.iter().filter(|pod| has_own_network(pod)).count();
    fixture.checks.check(
        left.is_empty(),
        format!(
            "{situation}: CRI-O restarted, and asked CHECK of {} pods within {:.1} s {left:?}",
            expected - left.len(),
            start.elapsed().as_secs_f32()
        ),
    );
}

fn has_own_network(pod: &Value) -> bool {
    pod["spec"]["hostNetwork"] != true
}

/// Pods with their own network for which the runtime has not called CHECK since this offset in its log.
fn unchecked(fixture: &Fixture, pods: &[Value], mark: usize) -> BTreeSet<String> {
    let log = fixture.machine.runtime_log();
    let is_checked = |pod: &Value| {
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or("?").to_owned();
        log[mark..].contains(&format!("Checking pod {}_{} for CNI network", text("namespace"), text("name")))
    };
    pods.iter().filter(|pod| has_own_network(pod) && !is_checked(pod)).map(place_of).collect()
}

/// Lines of the runtime's log that report a failed CHECK of these pods. Stopped sandboxes are checked, too, and fail.
fn refused(fixture: &Fixture, pods: &BTreeMap<String, Identity>, mark: usize) -> Vec<String> {
    let log = fixture.machine.runtime_log();
    let failed = log[mark..].lines().filter(|line| line.contains("Could not restore sandbox IP"));
    let concerns_pod = |line: &&str| pods.values().any(|[_, sandbox, ..]| line.contains(sandbox));
    failed.filter(concerns_pod).map(str::to_owned).collect()
}

fn identities(fixture: &Fixture, pods: &[Value]) -> BTreeMap<String, Identity> {
    let identity = |pod: &Value| {
        let uid = pod["metadata"]["uid"].as_str()?.to_owned();
        let sandboxes = fixture.machine.sandboxes(&uid).join(" ");
        let now = fixture.control.find(&path(pod))?;
        let containers = now["status"]["containerStatuses"].as_array()?;
        let restarts = containers.iter().map(|one| one["restartCount"].to_string()).collect::<Vec<_>>();
        let uid = now["metadata"]["uid"].as_str()?.to_owned();
        Some((place_of(pod), [uid, sandboxes, restarts.join(" "), now["status"]["podIPs"].to_string()]))
    };
    pods.iter().filter_map(identity).collect()
}

/// Checks that each captured pod has a record of its ADD, by which the plugin answers CHECK.
pub(crate) fn check_records(fixture: &mut Fixture, pods: &Pods) {
    let captured = pods.iter().filter(|(_, expected)| *expected != Expected::Direct).count();
    let records = fixture.machine.sh("ls /run/istio-cni/pods").lines().count();
    fixture.checks.check(records >= captured, format!("{captured} captured pods have a record: {records}"));
}

/// Checks one connection of the first pod of each kind, and of each pod with rules of Istio's plugin.
pub(crate) fn check_traffic(fixture: &mut Fixture, pods: &Pods, situation: &str) {
    let is_distinct = |pod: &Value| {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        name.starts_with("istio-") || name.ends_with("-0")
    };
    for (pod, expected) in pods.iter().filter(|(pod, _)| is_distinct(pod)) {
        kinds::now(fixture, pod, *expected, &format!("{situation}; a connection"));
    }
}

/// Replaces the agent by one whose image is not on the node: the installation stays. Returns the previous image.
pub(crate) fn withdraw(fixture: &mut Fixture, agent: &Agent) -> String {
    let image = agent.set_image(&fixture.control, "registry.invalid/missing:none");
    let is_away = |pods: Vec<Value>| pods.len() == 1 && !pods.iter().any(Fixture::is_ready);
    let away = kit::found_within(LIMIT, || is_away(agent.pods(&fixture.control)).then_some(()));
    fixture.checks.check(away.is_some(), "the agent is unavailable");
    image
}

/// Restores the agent's image.
pub(crate) fn readmit(fixture: &mut Fixture, agent: &Agent, image: &str) {
    agent.set_image(&fixture.control, image);
    let ready = agent.wait_ready(&fixture.control);
    fixture.checks.check(ready, "the agent is back, and ready");
}
