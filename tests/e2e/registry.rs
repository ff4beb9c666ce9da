//! Releases from a registry, by the commands of `docs/registry.md` alone: verified, installed on a new node, upgraded under
//! traffic, and replaced by Istio's agent. `hack/e2e.d/releases` makes the published releases.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::agent::{AGENT_IMAGE, Agent};
use crate::control::Places;
use crate::fixture::Fixture;
use crate::kinds::{self, Expected};
use crate::live::OpenConnections;
use crate::page::Page;
use crate::pods::{injected, plain};
use crate::running::Running;
use crate::runs::{MESH, SHOP};
use crate::scenarios::{self, Pods};
use crate::workplace::Workplace;
use crate::ztunnel::{self, CaptureState};

const PAGE: &str = "docs/registry.md";
/// An address of the sandbox, which the node reaches through its gateway.
const ADDRESS: &str = "10.96.0.2:5000";
/// Directory of the registry's settings for the node's container runtime.
const TRUST: &str = "/etc/containerd/certs.d/10.96.0.2:5000";
/// Saves definitions of one command of the page for the next one, as its reader's shell keeps them.
const REMEMBER: &str = "{ declare -p REGISTRY VERSION CHART IMAGE; declare -f; } >shell 2>/dev/null || true";

/// Follows the page from beginning to end.
pub(crate) fn follow_page(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter("a registry with two releases, and a node that trusts it");
    let mut reader = Reader::new(fixture, places);
    let (this, next) = (reader.publish("this"), reader.publish("next"));
    reader.publish_istio();
    reader.fill_in(&this, &next);
    let refused = !reader.run(&format!("oras resolve {ADDRESS}/mesh/millrace/install-cni:{this}")).0;
    fixture.checks.check(refused, "nobody gets anything without a password");
    let installed = ["Verify", "Install"].map(|title| reader.follow_section(fixture, title));
    assert!(installed.iter().all(Result::is_ok), "neither verified nor installed: {installed:?}");
    reader.check_image(fixture, agent, &format!("mesh/millrace/install-cni:{this}"));
    ztunnel::deploy(fixture, CaptureState::InPod);
    let pods = kinds::check(fixture, &applications("first"));
    let checked = reader.follow_section(fixture, "Check");
    fixture.checks.check(checked.is_ok(), "the commands that check it succeed");
    let mut connections = OpenConnections::start(&pods);
    let istio = path_of("MILLRACE_ISTIO_AGENT");
    for (title, image, programs) in [
        ("Upgrade", format!("mesh/millrace/install-cni:{next}"), Path::new("dist")),
        ("Go back to Istio's agent", "istio/install-cni:test-distroless".to_owned(), &istio),
    ] {
        let done = reader.follow_section(fixture, title);
        scenarios::migrate(fixture, agent, title, &done, &pods);
        reader.check_image(fixture, agent, &image);
        let plugin = fs::read(fixture.machine.path("/opt/cni/bin/istio-cni")).ok();
        let is_theirs = plugin.is_some() && plugin == fs::read(programs.join("istio-cni")).ok();
        fixture.checks.check(is_theirs, format!("{title}: the plugin on the node is that of {image}"));
        connections.check(fixture, title);
        let later = kinds::check(fixture, &applications(&image.replace(['/', ':', '.'], "-")));
        scenarios::delete_all(fixture, &later);
    }
    reader.page.check_end(&mut fixture.checks);
}

fn applications(name: &str) -> Pods {
    vec![
        (injected(SHOP, &format!("sidecar-{name}")), Expected::Sidecar),
        (plain(SHOP, &format!("plain-{name}")), Expected::Direct),
        (plain(MESH, &format!("mesh-{name}")), Expected::Ztunnel),
    ]
}

/// A reader who follows the page.
struct Reader {
    workplace: Workplace,
    page: Page,
    _registry: Running,
}

impl Reader {
    /// Starts the registry. The node trusts it, and has no image of an agent, as a new node of a cluster.
    fn new(fixture: &mut Fixture, places: &Places) -> Self {
        let programs =
            [("oras", path_of("MILLRACE_ORAS").join("oras")), ("cosign", path_of("MILLRACE_COSIGN"))];
        let workplace = Workplace::new(fixture, places, &programs);
        let registry = serve_registry(&workplace.home);
        let trust = fixture.machine.path(TRUST);
        fs::create_dir_all(&trust).expect("the node runs");
        fs::copy(workplace.home.join("registry.crt"), trust.join("ca.crt")).expect("the node runs");
        let hosts =
            format!("server = 'https://{ADDRESS}'\n[host.'https://{ADDRESS}']\nca = '{TRUST}/ca.crt'\n");
        fs::write(trust.join("hosts.toml"), hosts).expect("the node runs");
        let ctr = "ctr --namespace k8s.io";
        let digest =
            fixture.machine.sh(&format!("{ctr} images ls | awk '$1 == \"{AGENT_IMAGE}\" {{ print $3 }}'"));
        let digest = digest.trim();
        let of_it = format!("{ctr} images ls | awk '$3 == \"{digest}\" {{ print $1 }}'");
        fixture.machine.sh(&format!("{ctr} images rm --sync $({of_it})"));
        let contents = fixture.machine.sh(&format!("{ctr} content ls --quiet"));
        let is_gone = digest.starts_with("sha256:") && !contents.contains(digest);
        fixture.checks.check(is_gone, format!("the node has no image of an agent any more: {digest}"));
        let page = fs::read_to_string(PAGE).expect("documentation");
        Self { workplace, page: Page::new(PAGE, &page), _registry: registry }
    }

    /// Publishes a release; returns its version.
    fn publish(&self, name: &str) -> String {
        let hack = path_of("MILLRACE_RELEASES").join(name).join("hack");
        let home = path_of("HOME");
        let login = format!("HOME={} REGISTRY_USER=publisher REGISTRY_PASSWORD=secret", home.display());
        self.sh(&format!("{login} {}/publish {ADDRESS}/mesh/millrace", hack.display()));
        self.sh(&format!("{}/version", hack.display()))
    }

    /// Publishes Istio's agent and its chart, as in a cluster's mirror.
    fn publish_istio(&self) {
        let (image, chart) =
            (path_of("MILLRACE_RELEASES").join("istio.tar"), path_of("MILLRACE_ISTIO_AGENT").join("chart"));
        self.sh(&format!(
            "echo secret | oras login {ADDRESS} --username publisher --password-stdin
             oras cp --no-tty --from-oci-layout {}:test {ADDRESS}/istio/install-cni:test-distroless
             helm package {} && helm push cni-1.0.0.tgz oci://{ADDRESS}/istio/charts",
            image.display(),
            chart.display()
        ));
    }

    /// Does what the page asks of its reader before the commands, and replaces placeholders in them.
    fn fill_in(&mut self, this: &str, next: &str) {
        let values = format!(
            "profile: ambient\nglobal: {{hub: '{ADDRESS}/istio', tag: test, imagePullSecrets: [millrace-registry]}}\n"
        );
        let home = &self.workplace.home;
        fs::copy(path_of("MILLRACE_RELEASES").join("millrace.pub"), home.join("millrace.pub"))
            .expect("a key");
        fs::write(home.join("my-istio-values.yaml"), values).expect("a file of ours");
        fs::write(home.join("password.txt"), "secret").expect("a file of ours");
        for (stands, meant) in [
            ("registry.example", ADDRESS),
            ("VERSION=0.1.0", &format!("VERSION={this}")),
            ("VERSION=0.2.0", &format!("VERSION={next}")),
            ("USER", "publisher"),
            ("istio/cni --version 1.29.1", &format!("oci://{ADDRESS}/istio/charts/cni --version 1.0.0")),
        ] {
            let mut commands: Vec<_> = self.page.commands_mut().collect();
            assert!(commands.iter().any(|command| command.contains(stands)), "{PAGE} has no {stands}");
            commands.iter_mut().for_each(|command| **command = command.replace(stands, meant));
        }
    }

    /// Runs all commands of the next section, which must be this one, once each.
    fn follow_section(&mut self, fixture: &mut Fixture, title: &str) -> Result<(), String> {
        let commands = self.page.begin_section(&fixture.checks, title);
        for command in commands {
            println!("\n$ {command}");
            let (succeeds, text) = self.run(&format!("[ ! -f shell ] || . ./shell\n{command}\n{REMEMBER}"));
            text.lines().for_each(|line| fixture.checks.note(line));
            if !fixture.checks.check(succeeds, format!("{title}: {command}")) {
                return Err(command);
            }
        }
        Ok(())
    }

    /// Checks that the agent runs the image with this name in the registry.
    fn check_image(&self, fixture: &mut Fixture, agent: &Agent, name: &str) {
        let digest = self.sh(&format!("oras resolve {ADDRESS}/{name}"));
        let pods = agent.pods(&fixture.control);
        let running: Vec<_> =
            pods.iter().map(|pod| &pod["status"]["containerStatuses"][0]["imageID"]).collect();
        let is_it = |id: &&Value| id.as_str().is_some_and(|id| id.ends_with(&digest));
        let holds = running.len() == 1 && running.iter().all(is_it);
        fixture.checks.check(holds, format!("the agent's image is {name}, {digest}: {running:?}"));
    }

    /// Runs a bash script; returns whether it succeeds, and its output.
    fn run(&self, script: &str) -> (bool, String) {
        let mut command = self.workplace.command("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(&self.workplace.home);
        command.env("SSL_CERT_FILE", self.workplace.home.join("registry.crt"));
        let output = command.output().expect("bash can be run");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// Output of a setup script, which has another login than the reader, and must succeed.
    fn sh(&self, script: &str) -> String {
        let login = "export DOCKER_CONFIG=$HOME/mirror HELM_REGISTRY_CONFIG=$HOME/mirror/config.json";
        let (succeeds, text) = self.run(&format!("{login}\n{script}"));
        assert!(succeeds, "{script}: {text}");
        text
    }
}

/// Path in a variable that `hack/e2e` sets.
fn path_of(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("hack/e2e sets {variable}")).into()
}

/// Starts the registry, which keeps its files in this directory.
fn serve_registry(directory: &Path) -> Running {
    let host = ADDRESS.split(':').next().expect("an address");
    let added = Command::new("ip").args(["address", "replace", &format!("{host}/32"), "dev", "lo"]).status();
    assert!(added.is_ok_and(|status| status.success()), "the sandbox has a network");
    let log = fs::File::create(directory.join("registry.log")).expect("a file of ours");
    let mut command = Command::new("hack/registry");
    command.arg(directory).arg(ADDRESS).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let registry = Running(command.spawn().expect("hack/registry can be run"));
    let listens = || TcpStream::connect(ADDRESS).ok();
    assert!(kit::found_within(Duration::from_secs(20), listens).is_some(), "the registry does not start");
    registry
}
