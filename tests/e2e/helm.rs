//! Releases that a real Helm installs, upgrades and uninstalls.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::agent::Agent;
use crate::control::{ControlPlane, Places};

const RELEASE: &str = "istio-cni";

/// The program that `hack/helm` builds.
fn program() -> PathBuf {
    std::env::var_os("MILLRACE_HELM").expect("hack/e2e sets MILLRACE_HELM").into()
}

/// Renders a chart with our image, which is on the node; `set` in the syntax of `--set`.
pub(crate) fn template(chart: &Path, namespace: &str, set: &[&str]) -> String {
    let image = ["pullPolicy=Never", "millrace.image.hub=registry.invalid"];
    let values = set.iter().chain(&image).flat_map(|value| ["--set", *value]);
    let mut command = Command::new(program());
    command.args(["template", RELEASE, "--skip-tests", "--namespace", namespace]).arg(chart).args(values);
    let output = command.output().expect("helm can be run");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("YAML")
}

/// Helm, with a release in a namespace.
pub(crate) struct Helm<'a> {
    program: PathBuf,
    kubeconfig: PathBuf,
    work: &'a Path,
    namespace: &'a str,
}

impl<'a> Helm<'a> {
    /// Helm for an existing namespace.
    pub(crate) fn new(places: &'a Places, control: &ControlPlane, namespace: &'a str) -> Self {
        Self { program: program(), kubeconfig: control.kubeconfig(), work: &places.work, namespace }
    }

    /// Installs or upgrades a chart; `set` in the syntax of `--set`.
    pub(crate) fn upgrade(&self, chart: &Path, set: &[&str]) -> Result<(), String> {
        let chart = chart.to_str().expect("a path of ours");
        let values = set.iter().flat_map(|value| ["--set", *value]);
        self.run(&["upgrade", "--install", RELEASE, chart].into_iter().chain(values).collect::<Vec<_>>())
    }

    /// Uninstalls.
    pub(crate) fn uninstall(&self) -> Result<(), String> {
        self.run(&["uninstall", RELEASE])
    }

    fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).args(["--namespace", self.namespace, "--kubeconfig"]).arg(&self.kubeconfig);
        let output = command.env("HOME", self.work).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// A chart that renders the objects of an installation, whatever its values: it stands in for Istio's chart, which is not
    /// available here.
    pub(crate) fn chart_of(&self, agent: &Agent) -> PathBuf {
        let path = self.work.join("recorded-chart");
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("templates")).expect("a directory of ours");
        let write = |name: &str, text: String| fs::write(path.join(name), text).expect("a file of ours");
        write("Chart.yaml", "apiVersion: v2\nname: cni\nversion: 1.0.0\n".to_owned());
        for (number, object) in agent.objects().iter().enumerate() {
            // JSON is YAML, and these objects have no template syntax.
            write(&format!("templates/{number}.yaml"), object.to_string());
        }
        path
    }
}
