//! The files of alert rules and dashboard.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use report::CaptureState;
use serde_json::Value;

use super::catalogue::{Catalogue, exported};
use super::expression::{Labels, check};

/// A PromQL expression, the element that shows its result, and the labels that it uses.
struct Use {
    place: String,
    expr: String,
    labels: Labels,
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy").join(file);
    fs::read_to_string(path).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).clone()
}

/// Labels of a template: `{{label}}` of Grafana, `{{ $labels.label }}` and `{{ or $labels.one $labels.other }}` of Prometheus.
fn used(template: &str) -> Labels {
    let parts = template.split("{{").skip(1).map(|part| part.split("}}").next().unwrap().trim());
    let words = parts.filter(|part| !part.starts_with("$value")).flat_map(str::split_whitespace);
    words.filter(|word| *word != "or").map(|word| word.trim_start_matches("$labels.").to_owned()).collect()
}

/// Alerts and recording rules.
fn all_rules() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&read("prometheus-rules.yaml")).unwrap();
    list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"])).collect()
}

fn rules() -> Vec<Value> {
    all_rules().into_iter().filter(|rule| rule.get("record").is_none()).collect()
}

/// The agent's metrics, and those of recording rules.
fn recorded() -> Catalogue {
    let mut catalogue = exported();
    for rule in all_rules().iter().filter(|rule| rule.get("record").is_some()) {
        let labels =
            check(&text(&rule["expr"]), &catalogue).unwrap_or_else(|error| panic!("{error}: {rule}"));
        // The labels that the expression preserves, with unchanged values.
        let labels = labels.into_iter().map(|label| (label, BTreeSet::new())).collect();
        assert!(catalogue.insert(text(&rule["record"]), labels).is_none(), "{rule}");
    }
    catalogue
}

fn dashboard() -> Value {
    serde_json::from_str(&read("grafana-dashboard.json")).unwrap()
}

fn panels() -> Vec<Value> {
    list(&dashboard()["panels"])
}

/// Panels with data.
fn charts() -> Vec<Value> {
    panels().into_iter().filter(|panel| panel["type"] != "row").collect()
}

fn uses() -> Vec<Use> {
    let of_alerts = rules().into_iter().map(|rule| {
        let annotations = rule["annotations"].as_object().unwrap().values();
        let labels = annotations.flat_map(|annotation| used(&text(annotation))).collect();
        Use { place: text(&rule["alert"]), expr: text(&rule["expr"]), labels }
    });
    let of_charts = charts().into_iter().flat_map(|panel| {
        let place = text(&panel["title"]);
        list(&panel["targets"]).into_iter().map(move |target| Use {
            place: place.clone(),
            expr: text(&target["expr"]),
            labels: used(&text(&target["legendFormat"])),
        })
    });
    of_alerts.chain(of_charts).collect()
}

#[test]
fn every_expression_fits_what_the_daemon_exports() {
    let catalogue = recorded();
    let mut troubles = Vec::new();
    for Use { place, expr, labels } in uses() {
        match check(&expr, &catalogue) {
            Err(trouble) => troubles.push(format!("{place}: {trouble}\n  {expr}")),
            Ok(has) if !labels.is_subset(&has) => {
                troubles.push(format!("{place}: shows {labels:?} of {has:?}\n  {expr}"));
            }
            Ok(_) => {}
        }
    }
    assert!(troubles.is_empty(), "{}\n{catalogue:#?}", troubles.join("\n"));
    let variable = text(&dashboard()["templating"]["list"][1]["query"]["query"]);
    let metric = variable.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(", instance)"));
    assert!(catalogue.contains_key(metric.unwrap()), "{variable}");
    let states = catalogue.values().filter_map(|labels| labels.get("state")).flatten();
    let other: Vec<_> = states.filter(|state| CaptureState::from_name(state).is_none()).collect();
    assert!(other.is_empty(), "commands and docs have other words for {other:?}");
}

#[test]
fn every_alert_says_what_is_wrong_and_what_to_do() {
    let mut names = BTreeSet::new();
    for rule in rules() {
        let name = text(&rule["alert"]);
        assert!(name.starts_with("IstioCNI") && names.insert(name.clone()), "{name}");
        let severity = text(&rule["labels"]["severity"]);
        assert!(["info", "warning", "critical"].contains(&severity.as_str()), "{name}: {severity}");
        let annotations = &rule["annotations"];
        let names_node = used(&text(&annotations["summary"])).iter().any(|label| label == "node");
        assert!(names_node || name == "IstioCNIAbsent", "{name}: {}", annotations["summary"]);
        for part in ["summary", "description", "runbook"] {
            assert!(text(&annotations[part]).len() > 20, "{name}: {part}");
        }
        // Alerts about pods link to the diagnosis of a single pod.
        let about_pods = text(&rule["expr"]).contains("istio_cni_ambient_");
        let explains = text(&annotations["runbook"]).contains("install-cni explain");
        assert!(explains || !about_pods, "{name}: {}", annotations["runbook"]);
        if let Some(wait) = rule.get("for") {
            let wait = text(wait);
            assert!(
                wait.strip_suffix('m').is_some_and(|minutes| minutes.parse::<u8>().is_ok()),
                "{name}: {wait}"
            );
        }
    }
    let manual = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/alerts.md")).unwrap();
    let unknown: Vec<_> = names.iter().filter(|name| !manual.contains(&format!("`{name}`"))).collect();
    assert!(unknown.is_empty(), "docs/alerts.md does not know {unknown:?}");
}

#[test]
fn every_panel_has_its_own_place_a_unit_and_the_chosen_data_source() {
    let dashboard = dashboard();
    let variables = list(&dashboard["templating"]["list"]);
    let kinds: Vec<_> = variables.iter().map(|one| (text(&one["name"]), text(&one["type"]))).collect();
    let expected = [("datasource", "datasource"), ("instance", "query")];
    assert_eq!(kinds, expected.map(|(name, kind)| (name.to_owned(), kind.to_owned())));
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels() {
        let title = text(&panel["title"]);
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another's, too");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24 && w > 0 && h > 0, "{title}");
        let cells = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        assert!(cells.into_iter().all(|cell| taken.insert(cell)), "{title}: over another one");
    }
    for panel in charts() {
        let title = text(&panel["title"]);
        assert!(["stat", "timeseries"].contains(&panel["type"].as_str().unwrap()), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
        assert!(["short", "s", "ops", "bytes", "percentunit"].contains(&unit.as_str()), "{title}: {unit}");
        assert!(!text(&panel["description"]).is_empty(), "{title}");
        let mut references = BTreeSet::new();
        for target in list(&panel["targets"]) {
            assert!(references.insert(text(&target["refId"])), "{title}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            // Seconds have their unit, and so have rates.
            let expr = text(&target["expr"]);
            assert!(!expr.contains("_seconds_bucket") || unit == "s", "{title}: {unit}");
        }
    }
}
