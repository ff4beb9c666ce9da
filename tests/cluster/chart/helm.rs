//! Helm, and what it renders.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::thread;

use kit::TempDir;
use serde_json::{Value, json};

use crate::install_manifests::documents::repository;

/// Renderings at a time.
const AT_A_TIME: usize = 4;
/// Whose images the tests install, unless they say otherwise.
pub(super) const HUB: &str = "registry.example/mesh";
/// Where releases of tests are.
pub(super) const NAMESPACE: &str = "istio-system";

/// The program that `hack/helm` builds.
pub(super) struct Helm {
    program: OsString,
    home: TempDir,
}

impl Helm {
    /// The one in `$MILLRACE_HELM`. `None` where there is none: the test is then skipped.
    pub(super) fn find() -> Option<Helm> {
        let Some(program) = std::env::var_os("MILLRACE_HELM") else {
            kit::skip("no Helm: set MILLRACE_HELM to what hack/helm prints");
            return None;
        };
        Some(Helm { program, home: TempDir::new().unwrap() })
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        // It ends before it has garbage worth collecting.
        command.args(arguments).env("HOME", self.home.path()).env("GOGC", "off").env_remove("KUBECONFIG");
        command.output().unwrap_or_else(|error| panic!("cannot run {}: {error}", self.program.display()))
    }

    /// What Helm complains of, with these values and no others.
    pub(super) fn refusal(&self, set: &[&str]) -> String {
        let chart = chart();
        let common = ["template", "istio-cni", chart.to_str().unwrap()];
        let set: Vec<&str> = set.iter().flat_map(|value| ["--set", *value]).collect();
        let output = self.run(&[&common[..], &set].concat());
        assert!(!output.status.success(), "{set:?} renders");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The objects for values as `--set` takes them, or what Helm complains of.
    pub(super) fn template(&self, set: &[&str]) -> Result<Vec<Value>, String> {
        self.render(&set.iter().flat_map(|value| ["--set", *value]).collect::<Vec<_>>())
    }

    /// The same for a file of values.
    pub(super) fn template_values(&self, values: &Value) -> Result<Vec<Value>, String> {
        let file = tempfile_in(&self.home, values);
        let rendered = self.render(&["--values", file.to_str().unwrap()]);
        fs::remove_file(file).unwrap();
        rendered
    }

    /// The notes of an installation: `helm template` does not print them, and all else asks an API server.
    pub(super) fn notes(&self, set: &[&str]) -> String {
        let copy = TempDir::new().unwrap();
        let copied = Command::new("cp").arg("-R").arg(chart()).arg(copy.path()).status().unwrap();
        assert!(copied.success());
        let chart = copy.path().join("istio-cni");
        fs::rename(chart.join("templates/NOTES.txt"), chart.join("notes")).unwrap();
        let template =
            "kind: Notes\nmetadata: {name: notes}\ntext: {{ tpl (.Files.Get \"notes\") . | toJson }}\n";
        fs::write(chart.join("templates/notes.yaml"), template).unwrap();
        let set: Vec<&str> = set.iter().flat_map(|value| ["--set", *value]).collect();
        let objects = self.render_chart(&chart, &set).unwrap();
        object(&objects, "Notes", "notes")["text"].as_str().unwrap().to_owned()
    }

    fn render(&self, arguments: &[&str]) -> Result<Vec<Value>, String> {
        self.render_chart(&chart(), arguments)
    }

    fn render_chart(&self, chart: &Path, arguments: &[&str]) -> Result<Vec<Value>, String> {
        // In a file, which the values of a test override, those in a file too.
        let hub = tempfile_in(&self.home, &json!({"millrace": {"image": {"hub": HUB}}}));
        let values = ["--values", hub.to_str().unwrap()];
        let common = ["template", "istio-cni", chart.to_str().unwrap(), "--namespace", NAMESPACE];
        let output = self.run(&[&common, &values[..], arguments].concat());
        fs::remove_file(&hub).unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8(output.stdout).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"));
        Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
    }
}

fn tempfile_in(home: &TempDir, values: &Value) -> PathBuf {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    *next += 1;
    let path = home.path().join(format!("values-{next}.json"));
    fs::write(&path, values.to_string()).unwrap();
    path
}

pub(super) fn chart() -> PathBuf {
    repository("deploy/charts/istio-cni")
}

/// A YAML file of the chart.
pub(super) fn read_yaml(path: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(chart().join(path)).unwrap()).unwrap()
}

/// Does something with each item, some at a time; returns the results in any order.
pub(super) fn each<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let (items, results) = (Mutex::new(items), Mutex::new(Vec::new()));
    let worker = || {
        loop {
            let next = items.lock().unwrap().pop();
            let Some(item) = next else { return };
            let result = work(item);
            results.lock().unwrap().push(result);
        }
    };
    thread::scope(|scope| (0..AT_A_TIME).for_each(|_| drop(scope.spawn(worker))));
    results.into_inner().unwrap()
}

/// The only object of a kind and name.
pub(super) fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = objects.iter().filter(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    let first = found.next().unwrap_or_else(|| panic!("no {kind} {name}"));
    assert!(found.next().is_none(), "several {kind} {name}");
    first
}

#[test]
fn helm_lint_has_no_complaint() {
    let Some(helm) = Helm::find() else { return };
    let output = helm.run(&["lint", "--strict", chart().to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
