//! The installed image, whose registry is never guessed.

use std::fs;

use super::helm::{Helm, object};
use crate::install_manifests::documents::repository;

fn image(helm: &Helm, set: &[&str]) -> String {
    let objects = helm.template(set).unwrap_or_else(|complaint| panic!("{set:?}: {complaint}"));
    let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"];
    spec["containers"][0]["image"].as_str().unwrap().to_owned()
}

/// A hub in a values file for Istio is the registry of Istio's images.
#[test]
fn without_a_hub_nothing_is_rendered() {
    let Some(helm) = Helm::find() else { return };
    for set in [
        &[][..],
        &["profile=ambient"],
        &["compatibilityVersion=1.20", "image=install-cni"],
        &["hub=docker.io/istio", "tag=1.29.1", "global.hub=docker.io/istio", "global.tag=1.29.1"],
        &["_internal_defaults_do_not_set.hub=docker.io/istio"],
        &["millrace.image.tag=0.1.0", "millrace.image.name=install-cni"],
        &["millrace.taintController.enabled=true", "global.resourceScope=namespace"],
    ] {
        let refusal = helm.refusal(set);
        let (_, why) = refusal.lines().next().and_then(|line| line.split_once("): ")).unwrap();
        assert_eq!(
            why,
            "millrace.image.hub is not set: set it to where you have pushed the image, such as registry.example.com/mesh, or set \
             image to the image's whole name; see docs/helm.md#install",
            "{set:?}"
        );
    }
    assert!(kit::has_line(&fs::read_to_string(repository("docs/helm.md")).unwrap(), "## Install"));
}

#[test]
fn objects_without_a_namespace_need_no_image() {
    let Some(helm) = Helm::find() else { return };
    let more = ["millrace.taintController.enabled=true", "millrace.admissionPolicy.enabled=true"];
    let set = [&["global.resourceScope=cluster", "millrace.image.hub="], &more[..]].concat();
    let objects = helm.template(&set).unwrap();
    assert!(objects.iter().all(|one| one["metadata"]["namespace"].is_null()), "{objects:?}");
}

#[test]
fn the_image_is_ours_at_the_hub_or_what_is_given_as_a_whole() {
    let Some(helm) = Helm::find() else { return };
    for (set, expected) in [
        (&[][..], concat!("registry.example/mesh/install-cni:", env!("CARGO_PKG_VERSION"))),
        (&["millrace.image.hub=localhost:5000", "millrace.image.tag=2"], "localhost:5000/install-cni:2"),
        (&["millrace.image.name=node", "millrace.image.tag=2"], "registry.example/mesh/node:2"),
        (
            &["millrace.image.variant=ambient", "millrace.image.tag=2"],
            "registry.example/mesh/install-cni:2-ambient",
        ),
        (
            &["hub=docker.io/istio", "tag=1.29.1", "millrace.image.tag=2"],
            "registry.example/mesh/install-cni:2",
        ),
        (&["image=r.example/a:3", "millrace.image.hub="], "r.example/a:3"),
    ] {
        assert_eq!(image(&helm, set), expected, "{set:?}");
    }
}
