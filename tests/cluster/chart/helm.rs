//! Helm, and the objects that it renders.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use kit::TempDir;
use serde_json::{Value, json};

use super::recorded;
use super::schema::{random_values, schema};
use crate::install_manifests::documents::repository;

/// Concurrent renderings.
const AT_A_TIME: usize = 4;
/// Default hub of the images in tests.
pub(super) const HUB: &str = "registry.example/mesh";
/// Namespace of the tests' releases.
pub(super) const NAMESPACE: &str = "istio-system";

/// The program that `hack/helm` builds.
pub(super) struct Helm {
    program: OsString,
    home: TempDir,
}

impl Helm {
    /// The program in `$MILLRACE_HELM`. `None` means that it is not set, and the test is skipped.
    pub(super) fn find() -> Option<Helm> {
        let Some(program) = std::env::var_os("MILLRACE_HELM") else {
            kit::skip("no Helm: set MILLRACE_HELM to what hack/helm prints");
            return None;
        };
        Some(Helm { program, home: TempDir::new().unwrap() })
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        // It ends before garbage collection pays off.
        command.args(arguments).env("HOME", self.home.path()).env("GOGC", "off").env_remove("KUBECONFIG");
        command.output().unwrap_or_else(|error| panic!("cannot run {}: {error}", self.program.display()))
    }

    /// Runs `helm template`, by the program of `hack/helm.d` in `$MILLRACE_HELM_RENDERER`, if that is set.
    fn run_template(&self, arguments: &[&str]) -> Output {
        static RENDERER: Mutex<Option<Renderer>> = Mutex::new(None);
        let Some(program) = std::env::var_os("MILLRACE_HELM_RENDERER") else { return self.run(arguments) };
        let mut renderer = RENDERER.lock().unwrap();
        renderer.get_or_insert_with(|| Renderer::start(&program)).render(&arguments[1..])
    }

    /// Helm's error for these values.
    pub(super) fn refusal(&self, set: &[&str]) -> String {
        let chart = chart();
        let common = ["template", "istio-cni", chart.to_str().unwrap()];
        let set: Vec<&str> = set.iter().flat_map(|value| ["--set", *value]).collect();
        let output = self.run_template(&[&common[..], &set].concat());
        assert!(!output.status.success(), "{set:?} renders");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The objects for values in the syntax of `--set`, or Helm's error.
    pub(super) fn template(&self, set: &[&str]) -> Result<Vec<Value>, String> {
        self.render(&set.iter().flat_map(|value| ["--set", *value]).collect::<Vec<_>>())
    }

    /// The objects for a values file, or Helm's error.
    pub(super) fn template_values(&self, values: &Value) -> Result<Vec<Value>, String> {
        let file = tempfile_in(&self.home, values);
        let rendered = self.render(&["--values", file.to_str().unwrap()]);
        fs::remove_file(file).unwrap();
        rendered
    }

    /// Notes of an installation: `helm template` does not print them, and other commands need an API server.
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
        // In a file, so that a test's values override it, including those in a file.
        let hub = tempfile_in(&self.home, &json!({"millrace": {"image": {"hub": HUB}}}));
        let values = ["--values", hub.to_str().unwrap()];
        let common = ["template", "istio-cni", chart.to_str().unwrap(), "--namespace", NAMESPACE];
        let output = self.run_template(&[&common, &values[..], arguments].concat());
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

/// A process that renders on request until this process ends.
struct Renderer {
    _program: Child,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl Renderer {
    fn start(program: &OsStr) -> Self {
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (requests, responses) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { _program: child, requests, responses }
    }

    fn render(&mut self, arguments: &[&str]) -> Output {
        writeln!(self.requests, "{}", json!(arguments)).unwrap();
        let mut line = String::new();
        self.responses.read_line(&mut line).unwrap();
        let response: Value = serde_json::from_str(&line).unwrap();
        let bytes = |key: &str| response[key].as_str().unwrap().as_bytes().to_vec();
        let status = ExitStatus::from_raw(i32::from(response["failed"] == true) << 8);
        Output { status, stdout: bytes("stdout"), stderr: bytes("stderr") }
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

/// Processes items concurrently; returns the results in any order.
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

/// Every recorded set of values, random ones in files, and values that schema, chart or Helm refuse.
#[test]
fn the_renderer_prints_what_helm_does() {
    if std::env::var_os("MILLRACE_HELM_RENDERER").is_none() {
        kit::skip("no renderer: set MILLRACE_HELM_RENDERER to what hack/helm renderer prints");
        return;
    }
    let Some(helm) = Helm::find() else { return };
    let schema = schema();
    let mut cases: Vec<Vec<String>> = recorded::cases().iter().map(recorded::Case::values).collect();
    cases.push(Vec::new());
    cases.extend(
        [
            "repair.enabled=maybe",
            "profile=ambeint",
            "compatibilityVersion=1.99",
            "millrace.nodecondition=true",
            "repair=3",
            "a[",
            "ambient.enablementSelectors=null",
            "podLabels.a=true",
            "namespace=x,revision=\n:",
        ]
        .map(|value| vec![value.to_owned()]),
    );
    let sets = cases
        .into_iter()
        .map(|values| values.into_iter().flat_map(|one| ["--set".to_owned(), one]).collect());
    let files: Vec<PathBuf> =
        (1..=20).map(|seed| tempfile_in(&helm.home, &random_values(&schema, seed))).collect();
    let broken = helm.home.path().join("broken.yaml");
    fs::write(&broken, "repair: [").unwrap();
    let files = files.into_iter().chain([broken, helm.home.path().join("none.yaml")]);
    let files = files.map(|file| vec!["--values".to_owned(), file.to_str().unwrap().to_owned()]);
    let hub = tempfile_in(&helm.home, &json!({"millrace": {"image": {"hub": HUB}}}));
    let (chart, hub) = (chart(), hub.to_str().unwrap());
    let failures = each(sets.chain(files).collect::<Vec<Vec<String>>>(), |arguments| {
        let common =
            ["template", "istio-cni", chart.to_str().unwrap(), "--namespace", NAMESPACE, "--values", hub];
        let arguments: Vec<&str> = common.into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let output = helm.run(&arguments);
        assert_eq!(helm.run_template(&arguments), output, "{arguments:?}");
        output.status.success()
    });
    let failures = failures.iter().filter(|succeeded| !**succeeded).count();
    assert!(failures > 5, "only {failures} fail");
    let without_hub = ["template", "istio-cni", chart.to_str().unwrap()];
    assert_eq!(helm.run_template(&without_hub), helm.run(&without_hub));
}
