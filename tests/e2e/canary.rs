//! Two releases of the chart on two nodes, by the commands and files of `docs/canary.md` alone: a node is moved to the second
//! release and back, under traffic.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{AGENT_IMAGE, Agent};
use crate::control::Places;
use crate::fixture::{Fixture, START_LIMIT};
use crate::kinds::{self, Expected};
use crate::live::OpenConnections;
use crate::page::{self, Page};
use crate::pods::{injected, plain};
use crate::runs::{MESH, SHOP};
use crate::scenarios::{self, Pods};
use crate::workplace::Workplace;
use crate::ztunnel::{self, CaptureState};

const PAGE: &str = "docs/canary.md";
/// Image of the second release: the same image under another name.
const CANARY_IMAGE: &str = "registry.invalid/install-cni:canary";
const NODES: [&str; 2] = ["node-1", "node-2"];
/// Namespace and image of each release.
const FIRST: (&str, &str) = ("istio-system", AGENT_IMAGE);
const SECOND: (&str, &str) = ("istio-cni-canary", CANARY_IMAGE);
const VALUES: &str = "profile: ambient
pullPolicy: Never
repair: {repairPods: true}
millrace: {image: {hub: registry.invalid}}
";
/// Time limit of a command of the page: the longest wait for an agent on each of two nodes.
const COMMAND_LIMIT: &str = "120";

/// Follows the page from beginning to end.
pub(crate) fn follow_page(fixture: &mut Fixture, places: &Places, _: &Agent) {
    fixture.checks.chapter("a second node, and the first release on both");
    fixture.add_node(places);
    for machine in fixture.machines() {
        machine.sh(&format!("ctr --namespace k8s.io images tag {AGENT_IMAGE} {CANARY_IMAGE}"));
    }
    let mut reader = Reader::new(fixture, places);
    let chart = "./deploy/charts/istio-cni -n istio-system";
    let installed = reader.run(&format!(
        "helm upgrade --install istio-cni {chart} -f my-istio-values.yaml
         kubectl rollout status -n istio-system daemonset/istio-cni-node"
    ));
    assert!(installed.0, "the first release is not installed: {}", installed.1);
    ztunnel::deploy(fixture, CaptureState::InPod);
    let ready = || fixture.pods(ztunnel::NAMESPACE).iter().filter(|pod| is_ready_ztunnel(pod)).count();
    let both = kit::found_within(Duration::from_secs(30), || (ready() == NODES.len()).then_some(()));
    fixture.checks.check(both.is_some(), "each node has a ztunnel that is ready");
    check_agents(fixture, "installed", [FIRST, FIRST]);
    let pods = kinds::check(fixture, &applications("first"));
    let mut connections = OpenConnections::start(&pods);
    for (title, releases) in [
        ("Install the second release", [FIRST, FIRST]),
        ("Keep the first release off these nodes", [FIRST, FIRST]),
        ("Move a node", [FIRST, SECOND]),
        ("Move it back", [FIRST, FIRST]),
        ("Remove the second release", [FIRST, FIRST]),
    ] {
        let later = applications(&title.to_lowercase().replace(' ', "-"));
        reader.follow_section(fixture, title, &later);
        check_agents(fixture, title, releases);
        for (pod, expected) in &pods {
            kinds::now(fixture, pod, *expected, &format!("{title}: a connection"));
        }
        let restarted: Vec<_> =
            pods.iter().filter(|(pod, _)| scenarios::restarts(fixture, pod) > 0).collect();
        fixture.checks.check(restarted.is_empty(), format!("{title}: no container was restarted"));
        connections.check(fixture, title);
        let later = kinds::check(fixture, &later);
        scenarios::delete_all(fixture, &later);
    }
    reader.page.check_end(&mut fixture.checks);
}

fn is_ready_ztunnel(pod: &Value) -> bool {
    pod["metadata"]["labels"]["app"] == "ztunnel" && Fixture::is_ready(pod)
}

/// A pod of each kind on each node.
fn applications(name: &str) -> Pods {
    let on = |node: &str, mut pod: Value| {
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        pod
    };
    let pods = NODES.iter().flat_map(|node| {
        let name = format!("{name}-{node}");
        [
            (on(node, injected(SHOP, &format!("sidecar-{name}"))), Expected::Sidecar),
            (on(node, plain(MESH, &format!("mesh-{name}"))), Expected::Ztunnel),
        ]
    });
    pods.collect()
}

/// Checks that each node has one agent, which is ready and of this release, once its predecessor has ended.
fn check_agents(fixture: &mut Fixture, when: &str, releases: [(&str, &str); 2]) {
    let expected = NODES.iter().zip(releases);
    let expected: Vec<_> = expected
        .map(|(node, (namespace, image))| ((*node).to_owned(), namespace, image.to_owned(), true))
        .collect();
    let as_expected = || (agents(fixture) == expected).then_some(());
    let found = kit::found_within(START_LIMIT, as_expected).is_some();
    let agents = agents(fixture);
    fixture.checks.check(found, format!("{when}: each node has its agent: {agents:?}"));
}

/// Node, namespace and image of each agent, and whether it is ready and not terminating.
fn agents(fixture: &Fixture) -> Vec<(String, &'static str, String, bool)> {
    let mut agents = Vec::new();
    for namespace in [FIRST.0, SECOND.0] {
        let mut pods = fixture.pods(namespace);
        pods.retain(|pod| pod["metadata"]["labels"]["k8s-app"] == "istio-cni-node");
        agents.extend(pods.iter().map(|pod| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let spec = &pod["spec"];
            let is_ready = Fixture::is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null();
            (text(&spec["nodeName"]), namespace, text(&spec["containers"][0]["image"]), is_ready)
        }));
    }
    agents.sort();
    agents
}

/// A reader who follows the page.
struct Reader {
    workplace: Workplace,
    page: Page,
}

impl Reader {
    /// Writes the files of the page, and the values of the first release.
    fn new(fixture: &Fixture, places: &Places) -> Self {
        let workplace = Workplace::new(fixture, places, &[]);
        let home = &workplace.home;
        let chart = Agent::our_chart();
        let deploy = chart.ancestors().nth(2).expect("deploy/charts/istio-cni");
        symlink(deploy, home.join("deploy")).expect("a link of ours");
        let text = fs::read_to_string(PAGE).expect("documentation");
        let image = CANARY_IMAGE.split_once("/install-cni:").expect("a registry and a tag");
        for (name, content) in page::files(&text) {
            let content = content.replace("REGISTRY", image.0).replace("TAG", image.1);
            fs::write(home.join(name), content).expect("a file of ours");
        }
        fs::write(home.join("my-istio-values.yaml"), VALUES).expect("a file of ours");
        Self { workplace, page: Page::new(PAGE, &text) }
    }

    /// Runs all commands of the next section, which must be this one. Pods are created after the first section.
    fn follow_section(&mut self, fixture: &mut Fixture, title: &str, pods: &Pods) {
        let commands = self.page.begin_section(&fixture.checks, title);
        for (index, command) in commands.iter().enumerate() {
            println!("\n$ {command}");
            let (succeeds, text) = self.run(command);
            text.lines().for_each(|line| fixture.checks.note(line));
            fixture.checks.check(succeeds, format!("{title}: {command}"));
            if index == 0 {
                pods.iter().for_each(|(pod, _)| fixture.create(pod));
            }
        }
    }

    /// Runs a bash script; returns whether it succeeds in time, and its output.
    fn run(&self, script: &str) -> (bool, String) {
        let mut command = self.workplace.command("timeout");
        command.args([COMMAND_LIMIT, "bash", "-euo", "pipefail", "-c", script]);
        let output = command.current_dir(&self.workplace.home).output().expect("bash can be run");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
    }
}
