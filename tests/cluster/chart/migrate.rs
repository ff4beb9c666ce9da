//! The manifests of docs/migrate.md, for each installer: our chart knows their values, which name the image.

use std::fs;

use serde_json::{Value, json};

use super::helm::{Helm, object};
use crate::install_manifests::documents::repository;

/// YAML blocks of a page, each with one or more documents.
fn manifests(page: &str) -> Vec<Value> {
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split_once("\n```").unwrap().0);
    blocks.flat_map(|block| serde_saphyr::from_multiple::<Value>(block).unwrap()).collect()
}

/// Values for the agent's chart, wherever a kind of installer has them. A source of charts has none.
fn values(manifest: &Value) -> Option<&Value> {
    let spec = &manifest["spec"];
    match manifest["kind"].as_str().unwrap() {
        "IstioOperator" | "IstioCNI" => Some(&spec["values"]),
        "Application" => Some(&spec["source"]["helm"]["valuesObject"]),
        "HelmRelease" => Some(&spec["values"]),
        "OCIRepository" => None,
        other => panic!("{other} is no kind of an installer"),
    }
}

#[test]
fn each_installer_sets_values_of_the_chart() {
    let Some(helm) = Helm::find() else { return };
    let page = fs::read_to_string(repository("docs/migrate.md")).unwrap();
    let manifests = manifests(&page);
    let all: Vec<&Value> = manifests.iter().filter_map(values).collect();
    assert_eq!(all.len(), 6, "{all:?}");
    for values in all {
        let mut strict = values.clone();
        strict["millrace"]["strict"] = true.into();
        let objects =
            helm.template_values(&strict).unwrap_or_else(|complaint| panic!("{values}: {complaint}"));
        let daemon_set = object(&objects, "DaemonSet", "istio-cni-node");
        let image = &daemon_set["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(image, "REGISTRY/install-cni@sha256:SHA256", "{values}");
    }
}

/// The operator's ZTunnel is in a namespace of this name, unless it names another one.
#[test]
fn the_ztunnels_of_the_sail_operator_are_no_strangers() {
    let Some(helm) = Helm::find() else { return };
    let page = fs::read_to_string(repository("docs/migrate.md")).unwrap();
    let manifests = manifests(&page);
    let cni = manifests.iter().find(|manifest| manifest["kind"] == "IstioCNI").unwrap();
    let objects = helm.template_values(&cni["spec"]["values"]).unwrap();
    let daemon_set = object(&objects, "DaemonSet", "istio-cni-node");
    let env = daemon_set["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    assert!(env.contains(&json!({"name": "SYSTEM_NAMESPACE", "value": "ztunnel"})), "{env:?}");
}
