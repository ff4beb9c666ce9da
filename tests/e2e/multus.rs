//! Multus sets up pods' networks: as on OpenShift, where it calls our plugin by name, and as the node's first network, with our
//! plugin after Multus or after the plugins to which it delegates.

use serde_json::Value;

use crate::agent::Agent;
use crate::control::Places;
use crate::fixture::{Fixture, START_LIMIT, place_of};
use crate::footprint::{self, Footprint};
use crate::kinds::{self, Expected};
use crate::network::{LIST, Network, OUTSIDE_OF_SECOND, attachment_resource, attachments};
use crate::pods::{PORT, annotated, injected, plain};
use crate::runs::{Entry, MESH, SHOP, end, renew};
use crate::runtime::Runtime;
use crate::scenarios::{self, Pods};
use crate::ztunnel::{self, CaptureState};

/// Annotation by which a pod names further networks. Istio's injector sets it where istiod has the CNI provider `multus`.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Value that the injector sets.
const ISTIO_CNI: &str = "default/istio-cni";
/// Annotation in which Multus reports the interfaces of a pod.
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const EXCLUDED: &str = "traffic.sidecar.istio.io/excludeInterfaces";

pub(crate) fn entries() -> Vec<Entry> {
    let list = format!("cniConfFileName={LIST}");
    let first = |values: &[&str]| {
        Entry::behind(Network::MultusBeside, Runtime::Containerd2, Agent::ours(values), first)
    };
    vec![
        Entry::behind(
            Network::MultusApart,
            Runtime::Crio,
            Agent::ours(&["platform=openshift", "profile=ambient"]),
            by_name,
        ),
        first(&["profile=ambient"]),
        first(&["profile=ambient", &list]),
    ]
}

/// Defines the resource by which pods name further networks, and second networks.
pub(crate) fn define_attachments(fixture: &Fixture) {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    fixture.control.apply(definitions, &attachment_resource());
    let list = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";
    assert!(
        kit::found_within(START_LIMIT, || fixture.control.find(list)).is_some(),
        "the API server does not serve {list}"
    );
    for attachment in [SHOP, MESH].into_iter().flat_map(attachments) {
        fixture.control.apply(&crate::agent::collection(&attachment), &attachment);
    }
}

/// Multus calls our plugin for pods that name it.
fn by_name(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter(&agent.name);
    let before = scenarios::install(fixture, agent);
    ztunnel::deploy(fixture, CaptureState::InPod);
    let named = |pod| annotated(pod, NETWORKS, ISTIO_CNI);
    let made = |suffix: &str| {
        vec![
            (named(injected(SHOP, &format!("sidecar{suffix}"))), Expected::Sidecar),
            (named(plain(MESH, &format!("mesh{suffix}"))), Expected::Ztunnel),
            (named(plain(SHOP, &format!("named{suffix}"))), Expected::Direct),
            (plain(SHOP, &format!("plain{suffix}")), Expected::Direct),
        ]
    };
    let both = |pod| annotated(pod, NETWORKS, &format!("{ISTIO_CNI},second"));
    let two = |suffix: &str| {
        vec![
            (both(injected(SHOP, &format!("sidecar-two{suffix}"))), Expected::Sidecar),
            (both(plain(MESH, &format!("mesh-two{suffix}"))), Expected::Ztunnel),
        ]
    };
    come_and_go(fixture, &[made("-1"), two("-1")].concat());
    let mut pods = kinds::check(fixture, &two(""));
    second_interface(fixture, &pods);
    pods.extend(kinds::check(fixture, &made("")));
    pods.extend(kinds::joins(fixture, &plain(MESH, "mesh-not-named")));
    leave(fixture, places, agent, &before, &pods);
}

/// Multus is the network that the runtime uses; pods have a second interface.
fn first(fixture: &mut Fixture, places: &Places, agent: &Agent) {
    fixture.checks.chapter(&agent.name);
    let before = scenarios::install(fixture, agent);
    ztunnel::deploy(fixture, CaptureState::InPod);
    let both = |pod| annotated(pod, NETWORKS, "second");
    let made = |suffix: &str| {
        let excluding = annotated(injected(SHOP, &format!("excluding{suffix}")), EXCLUDED, "net1");
        vec![
            (both(injected(SHOP, &format!("sidecar{suffix}"))), Expected::Sidecar),
            (both(excluding), Expected::Sidecar),
            (annotated(injected(SHOP, &format!("routed{suffix}")), NETWORKS, "routed"), Expected::Sidecar),
            (both(plain(MESH, &format!("mesh{suffix}"))), Expected::Ztunnel),
            (both(plain(SHOP, &format!("plain{suffix}"))), Expected::Direct),
        ]
    };
    come_and_go(fixture, &made("-1"));
    let pods = kinds::check(fixture, &made(""));
    second_interface(fixture, &pods);
    leave(fixture, places, agent, &before, &pods);
}

/// Pods of each kind start and are deleted while the agent runs, without leftovers.
fn come_and_go(fixture: &mut Fixture, made: &Pods) {
    let before = footprint::of_pods(&fixture.machine);
    let pods = kinds::check(fixture, made);
    scenarios::delete(fixture, &pods, &before);
}

/// Traffic over the second interface is redirected to the sidecar, too, unless the pod excludes it; likewise to ztunnel.
fn second_interface(fixture: &mut Fixture, pods: &Pods) {
    for (pod, expected) in pods {
        let excludes = pod["metadata"]["annotations"][EXCLUDED].is_string();
        let expected = if excludes { Expected::Direct } else { *expected };
        kinds::towards(fixture, pod, OUTSIDE_OF_SECOND, expected, "a connection over its second interface");
        let Some(address) = second_address(fixture, pod) else {
            fixture.checks.check(false, format!("{} has a second interface", place_of(pod)));
            continue;
        };
        kinds::inbound(
            fixture,
            pod,
            &format!("{address}:{PORT}"),
            expected,
            "a connection from outside to its second interface",
        );
    }
}

fn second_address(fixture: &Fixture, pod: &Value) -> Option<String> {
    let pod = fixture.control.find(&crate::agent::path(pod))?;
    let status: Value = serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str()?).ok()?;
    let mut further = status.as_array()?.iter().filter(|network| network["default"] != true);
    // Our plugin's own network has no interface.
    further.find_map(|network| network["ips"][0].as_str().map(str::to_owned))
}

/// The agent is uninstalled while pods run, which then end as with the agent.
fn leave(fixture: &mut Fixture, places: &Places, agent: &Agent, before: &Footprint, pods: &Pods) {
    let clean = end(fixture, agent, before, pods.clone());
    scenarios::check_ends(fixture, pods);
    ztunnel::remove(fixture);
    renew(fixture, places, clean);
}
