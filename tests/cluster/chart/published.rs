//! Content that a chart registry shows: README.md, and the release's additions to Chart.yaml.

use std::fs;
use std::process::Command;

use kit::TempDir;
use serde_json::{Value, json};

use super::helm::{Helm, chart, object};
use super::schema::schema;
use super::values::leaves;
use crate::install_manifests::documents::repository;

#[test]
fn the_readme_has_every_value() {
    let readme = fs::read_to_string(chart().join("README.md")).unwrap();
    let named: Vec<&str> = readme.split('`').skip(1).step_by(2).collect();
    // For maps with keys of the user, the README has the default's entries.
    let has =
        |path: &String| named.iter().any(|name| name.strip_prefix(path.as_str()).is_some_and(ends_name));
    let missing: Vec<_> = leaves(&schema(), "").into_iter().filter(|path| !has(path)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn ends_name(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('.')
}

/// A copy of the chart, in a directory of its name.
fn copy_chart() -> TempDir {
    let directory = TempDir::new().unwrap();
    let copied = Command::new("cp").arg("-R").arg(chart()).arg(directory.path()).status().unwrap();
    assert!(copied.success());
    directory
}

/// Flux appends the chart's digest to its version.
#[test]
fn labels_are_valid_with_build_metadata_in_the_version() {
    let Some(helm) = Helm::find() else { return };
    let directory = copy_chart();
    let copy = directory.path().join("istio-cni");
    let version = env!("CARGO_PKG_VERSION");
    let text = fs::read_to_string(copy.join("Chart.yaml")).unwrap();
    fs::write(copy.join("Chart.yaml"), text.replace(version, &format!("{version}+0123456789ab"))).unwrap();
    let image = ["--set", "image=registry.example/install-cni:1"];
    let output = helm.run(&["template", "istio-cni", copy.to_str().unwrap(), image[0], image[1]]);
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let daemon_set = object(&objects, "DaemonSet", "istio-cni-node");
    for labels in ["/metadata/labels", "/spec/template/metadata/labels"] {
        let labels = daemon_set.pointer(labels).unwrap();
        assert_eq!(labels["helm.sh/chart"], format!("istio-cni-{version}_0123456789ab"));
        assert_eq!(labels["app.kubernetes.io/version"], format!("{version}_0123456789ab"));
    }
}

/// A copy of the chart as a release with these variables writes it.
fn describe(helm: &Helm, variables: &[(&str, &str)]) -> TempDir {
    let directory = copy_chart();
    let copy = directory.path().join("istio-cni");
    let mut command = Command::new(repository("hack/describe-chart"));
    for variable in
        ["MILLRACE_SOURCE", "MILLRACE_REGISTRY", "MILLRACE_DOCS", "MILLRACE_ICON", "MILLRACE_CHART_KEY"]
    {
        command.env_remove(variable);
    }
    let output = command.arg(&copy).envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let linted = helm.run(&["lint", "--strict", copy.to_str().unwrap()]);
    assert!(linted.status.success(), "{linted:?}");
    directory
}

/// Chart.yaml as a release of a project with this table of maintainers writes it.
fn described(helm: &Helm, variables: &[(&str, &str)]) -> Value {
    let directory = describe(helm, variables);
    let shown = helm.run(&["show", "chart", directory.path().join("istio-cni").to_str().unwrap()]);
    serde_saphyr::from_str(&String::from_utf8(shown.stdout).unwrap()).unwrap()
}

/// Returns the content of an annotation, which is YAML itself.
fn annotation(described: &Value, name: &str) -> Value {
    match described["annotations"][format!("artifacthub.io/{name}")].as_str() {
        Some(text) => serde_saphyr::from_str(text).unwrap(),
        None => Value::Null,
    }
}

#[test]
fn a_release_says_where_everything_is_and_what_has_changed() {
    let Some(helm) = Helm::find() else { return };
    let version = env!("CARGO_PKG_VERSION");
    let described = described(
        &helm,
        &[
            ("MILLRACE_SOURCE", "https://forge.example/millrace"),
            ("MILLRACE_REGISTRY", "registry.example/mesh"),
            ("MILLRACE_DOCS", "https://docs.example/"),
            ("MILLRACE_ICON", "https://docs.example/icon.svg"),
            ("MILLRACE_CHART_KEY", "0123ABCD https://forge.example/key.asc"),
            ("MILLRACE_MAINTAINERS", repository("tests/data/maintainers.md").to_str().unwrap()),
        ],
    );
    assert_eq!(described["home"], "https://forge.example/millrace");
    assert_eq!(described["sources"], json!(["https://forge.example/millrace"]));
    assert_eq!(described["icon"], "https://docs.example/icon.svg");
    let maintainers = json!([
        {"name": "A \"B\" C", "email": "a@example.com", "url": "https://forge.example/a"},
        {"name": "D"},
    ]);
    assert_eq!(described["maintainers"], maintainers);
    let images = annotation(&described, "images");
    let names: Vec<&str> =
        images.as_array().unwrap().iter().map(|one| one["image"].as_str().unwrap()).collect();
    let image = format!("registry.example/mesh/install-cni:{version}");
    assert_eq!(names, [&image, &format!("{image}-ambient")]);
    assert_eq!(images[0]["platforms"], json!(["linux/amd64", "linux/arm64"]));
    let links = annotation(&described, "links");
    assert_eq!(links[1], json!({"name": "documentation", "url": "https://docs.example/"}));
    let key = json!({"fingerprint": "0123ABCD", "url": "https://forge.example/key.asc"});
    assert_eq!(annotation(&described, "signKey"), key);
    let changes = annotation(&described, "changes");
    let log = fs::read_to_string(repository("CHANGELOG.md")).unwrap();
    let (_, entry) = log.split_once(&format!("\n## [{version}]")).unwrap();
    let count = entry.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("- ")).count();
    assert_eq!(changes.as_array().unwrap().len(), count);
    let kinds = ["added", "changed", "deprecated", "removed", "fixed", "security"];
    for change in changes.as_array().unwrap() {
        assert!(kinds.contains(&change["kind"].as_str().unwrap()), "{change}");
    }
}

/// Users who found the chart in a registry need not name that registry.
#[test]
fn a_published_chart_takes_the_image_from_its_registry() {
    let Some(helm) = Helm::find() else { return };
    let directory = describe(&helm, &[("MILLRACE_REGISTRY", "registry.example/mesh/")]);
    let copy = directory.path().join("istio-cni");
    let rendered = helm.run(&["template", "istio-cni", copy.to_str().unwrap()]);
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    let image = concat!("registry.example/mesh/install-cni:", env!("CARGO_PKG_VERSION"));
    let images: Vec<&str> =
        rendered.lines().filter_map(|line| line.trim_start().strip_prefix("image: ")).collect();
    assert!(!images.is_empty() && images.iter().all(|name| *name == image), "{images:?}");
    let readme = fs::read_to_string(copy.join("README.md")).unwrap();
    let address = "oci://registry.example/mesh/charts/istio-cni";
    assert!(readme.split_whitespace().any(|word| word == address), "{readme}");
}

/// A hint of the chart links to a public page.
#[test]
fn a_published_chart_names_pages_by_their_addresses() {
    let Some(helm) = Helm::find() else { return };
    let directory = describe(&helm, &[("MILLRACE_DOCS", "https://docs.example/x/")]);
    let copy = directory.path().join("istio-cni");
    let refused = helm.run(&["template", "istio-cni", copy.to_str().unwrap()]);
    let refused = String::from_utf8(refused.stderr).unwrap();
    let hint = refused.lines().next().and_then(|line| line.split("; see ").nth(1));
    assert_eq!(hint, Some("https://docs.example/x/docs/helm.html#install"));
    for file in ["README.md", "values.yaml", "templates/_known.tpl", "files/prometheus-rules.yaml"] {
        let text = fs::read_to_string(copy.join(file)).unwrap();
        assert_ne!(text.matches("https://docs.example/x/docs/").count(), 0, "{file}");
        assert!(![" docs/", "(docs/"].iter().any(|path| text.contains(path)), "{file}");
    }
    let values = fs::read_to_string(copy.join("values.yaml")).unwrap();
    let url = "      runbookUrl: \"https://docs.example/x/docs/alerts.html\"";
    assert!(values.lines().any(|line| line == url));
}

/// A trial, which is not published.
#[test]
fn without_settings_it_names_nobody_and_no_registry() {
    let Some(helm) = Helm::find() else { return };
    let described = described(&helm, &[]);
    for field in ["home", "sources"] {
        assert_eq!(described[field], Value::Null);
    }
    for name in ["links", "signKey"] {
        assert_eq!(annotation(&described, name), Value::Null);
    }
    let image = annotation(&described, "images")[0]["image"].clone();
    assert_eq!(image, concat!("registry.invalid/install-cni:", env!("CARGO_PKG_VERSION")));
    let icon = described["icon"].as_str().unwrap();
    assert_eq!(icon.split(',').next(), Some("data:image/svg+xml;base64"));
}
