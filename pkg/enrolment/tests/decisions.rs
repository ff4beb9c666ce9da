//! The decision table of Istio's plugin, row by row, in order, and properties of every pod.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "pods/fixture.rs"]
mod fixture;

use std::collections::{BTreeMap, BTreeSet};

use enrolment::{
    EnrolmentPolicy, EnrolmentReason, PodDecision, RuntimeCall, SkipReason, decide, decide_early,
};
use fixture::{annotated, container, env, injected, namespace, with_status};
use model::{Pod, PodName};
use proptest::prelude::*;

const OFF: fn() -> EnrolmentPolicy = EnrolmentPolicy::default;

fn ambient() -> EnrolmentPolicy {
    EnrolmentPolicy { ambient: true, ..EnrolmentPolicy::default() }
}

fn decided(pod: &Pod, policy: &EnrolmentPolicy) -> PodDecision {
    decide(pod, Some(&namespace("ambient")), policy).unwrap()
}

type Row = (SkipReason, fn(&mut Pod));

/// Change of an injected pod for each row, in the order of the table.
const ROWS: [Row; 8] = [
    (SkipReason::HostNetwork, |pod| pod.spec.host_network = true),
    (SkipReason::HasIstioInit, |pod| pod.spec.init_containers.push(container("istio-init"))),
    (SkipReason::EnvoyDisabled, |pod| {
        proxies(pod).for_each(|proxy| proxy.env.push(env("DISABLE_ENVOY", "true")));
    }),
    (SkipReason::NoProxy, |pod| {
        proxies(pod).for_each(|proxy| "envoy".clone_into(&mut proxy.name));
    }),
    (SkipReason::NotSidecarProxy, |pod| {
        proxies(pod).for_each(|proxy| proxy.args = vec!["proxy".into(), "router".into()]);
    }),
    (SkipReason::InjectionRefused, |pod| {
        drop(pod.metadata.labels.insert(enrolment::INJECT.into(), "false".into()));
    }),
    (SkipReason::NotInjected, |pod| drop(pod.metadata.annotations.remove(enrolment::STATUS))),
    (SkipReason::InterceptionNone, |pod| {
        pod.metadata.annotations.insert("sidecar.istio.io/interceptionMode".into(), "NONE".into());
    }),
];

fn proxies(pod: &mut Pod) -> impl Iterator<Item = &mut model::Container> {
    let spec = &mut pod.spec;
    spec.containers.iter_mut().chain(&mut spec.init_containers).filter(|c| c.name == "istio-proxy")
}

#[test]
fn an_injected_pod_is_redirected() {
    for policy in [OFF(), ambient()] {
        let decision = decided(&injected(), &policy);
        assert!(matches!(decision, PodDecision::Sidecar(_)), "{decision}");
        assert_eq!(decision.code(), "sidecar");
        assert_eq!(decision.to_string(), "redirected to its sidecar: it was injected");
    }
}

#[test]
fn each_row_alone_decides() {
    for (reason, change) in ROWS {
        let mut pod = injected();
        change(&mut pod);
        assert_eq!(decided(&pod, &OFF()), PodDecision::Skip(reason));
    }
}

/// Every two rows together. A pod without a proxy cannot have `DISABLE_ENVOY` on it, and one that was not injected needs no proxy.
#[test]
fn of_two_rows_the_first_wins() {
    for (index, (first, change_first)) in ROWS.iter().enumerate() {
        for (second, change_second) in &ROWS[index + 1..] {
            let mut pod = injected();
            change_first(&mut pod);
            change_second(&mut pod);
            let expected = match (*first, *second) {
                (SkipReason::EnvoyDisabled, SkipReason::NoProxy)
                | (SkipReason::NoProxy, SkipReason::NotInjected) => second,
                _ => first,
            };
            assert_eq!(decided(&pod, &OFF()), PodDecision::Skip(*expected), "{first:?} and {second:?}");
        }
    }
}

#[test]
fn every_reason_has_a_code_and_a_sentence_of_its_own() {
    let skipped = SkipReason::ALL.map(PodDecision::Skip).into_iter();
    let enrolled = EnrolmentReason::ALL.map(PodDecision::Ambient).into_iter();
    let all: Vec<_> = skipped.chain(enrolled).map(|one| (one.code(), one.to_string())).collect();
    let (codes, sentences): (BTreeSet<_>, BTreeSet<_>) = all.iter().cloned().unzip();
    assert_eq!((codes.len(), sentences.len()), (all.len(), all.len()));
    assert!(codes.iter().all(|code| code.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
    assert_eq!(
        PodDecision::Skip(SkipReason::NotInjected).to_string(),
        "skipped: it was not injected (no annotation sidecar.istio.io/status)"
    );
}

#[test]
fn istio_init_counts_as_any_kind_of_container() {
    let mut pod = injected();
    pod.spec.containers.push(container("istio-init"));
    assert_eq!(decided(&pod, &OFF()), PodDecision::Skip(SkipReason::HasIstioInit));
    let mut pod = injected();
    pod.spec.init_containers.push(container("istio-validation"));
    assert!(matches!(decided(&pod, &OFF()), PodDecision::Sidecar(_)));
}

#[test]
fn a_native_sidecar_is_an_init_container() {
    let native = || {
        let mut pod = injected();
        pod.spec.init_containers = std::mem::replace(&mut pod.spec.containers, vec![container("app")]);
        pod
    };
    assert!(matches!(decided(&native(), &OFF()), PodDecision::Sidecar(_)));
    for (reason, change) in ROWS {
        let mut pod = native();
        change(&mut pod);
        assert_eq!(decided(&pod, &OFF()), PodDecision::Skip(reason), "native");
    }
}

#[test]
fn disable_envoy_is_a_boolean_of_go() {
    for (value, disabled) in [
        ("1", true),
        ("t", true),
        ("T", true),
        ("true", true),
        ("TRUE", true),
        ("True", true),
        ("0", false),
        ("f", false),
        ("F", false),
        ("false", false),
        ("FALSE", false),
        ("False", false),
        ("", false),
        ("yes", false),
        ("tRue", false),
        (" true", false),
    ] {
        let mut pod = injected();
        proxies(&mut pod).for_each(|proxy| proxy.env.push(env("DISABLE_ENVOY", value)));
        assert_eq!(
            decided(&pod, &OFF()) == PodDecision::Skip(SkipReason::EnvoyDisabled),
            disabled,
            "{value:?}"
        );
    }
}

#[test]
fn disable_envoy_counts_on_the_proxy_only_and_the_last_one_wins() {
    let mut pod = injected();
    pod.spec.containers[0].env.push(env("DISABLE_ENVOY", "true"));
    assert_eq!(pod.spec.containers[0].name, "app");
    assert!(matches!(decided(&pod, &OFF()), PodDecision::Sidecar(_)));
    for (values, disabled) in [(["true", "false"], false), (["false", "true"], true)] {
        let mut pod = injected();
        proxies(&mut pod).for_each(|proxy| proxy.env.extend(values.map(|value| env("DISABLE_ENVOY", value))));
        assert_eq!(
            decided(&pod, &OFF()) == PodDecision::Skip(SkipReason::EnvoyDisabled),
            disabled,
            "{values:?}"
        );
    }
}

#[test]
fn only_the_first_two_arguments_tell_a_gateway() {
    for (args, sidecar) in [
        (&[][..], true),
        (&["proxy"][..], true),
        (&["proxy", "sidecar"][..], true),
        (&["proxy", "sidecar", "--domain", "router"][..], true),
        (&["istio-agent", "router"][..], true),
        (&["proxy", "router"][..], false),
        (&["proxy", "waypoint"][..], false),
        (&["proxy", ""][..], false),
        (&["proxy", "Sidecar"][..], false),
        (&["proxy", "--domain", "sidecar"][..], false),
    ] {
        let mut pod = injected();
        proxies(&mut pod).for_each(|proxy| proxy.args = args.iter().map(ToString::to_string).collect());
        let expected = decided(&pod, &OFF()) != PodDecision::Skip(SkipReason::NotSidecarProxy);
        assert_eq!(expected, sidecar, "{args:?}");
    }
}

#[test]
fn the_inject_label_goes_before_the_annotation_and_what_cannot_be_read_does_not_count() {
    for (label, annotation, refused) in [
        (None, None, false),
        (None, Some("false"), true),
        (None, Some("F"), true),
        (None, Some("0"), true),
        (None, Some("true"), false),
        (None, Some("no"), false),
        (Some("false"), None, true),
        (Some("f"), None, true),
        (Some("false"), Some("true"), true),
        (Some("true"), Some("false"), false),
        (Some("nonsense"), None, false),
        (Some(""), Some("nonsense"), false),
    ] {
        let mut pod = injected();
        label.map(|value| pod.metadata.labels.insert(enrolment::INJECT.into(), value.into()));
        annotation.map(|value| pod.metadata.annotations.insert(enrolment::INJECT.into(), value.into()));
        let decision = decided(&pod, &OFF());
        assert_eq!(
            decision == PodDecision::Skip(SkipReason::InjectionRefused),
            refused,
            "{label:?} {annotation:?}"
        );
    }
}

#[test]
fn an_unparsable_inject_label_leaves_no_room_for_the_annotation() {
    let mut pod = injected();
    pod.metadata.labels.insert(enrolment::INJECT.into(), "nonsense".into());
    pod.metadata.annotations.insert(enrolment::INJECT.into(), "false".into());
    assert!(matches!(decided(&pod, &OFF()), PodDecision::Sidecar(_)));
}

#[test]
fn any_status_counts_as_injected() {
    for status in ["", "{}", "{\"initContainers\":null}", "nonsense"] {
        let pod = annotated(enrolment::STATUS, status);
        assert!(matches!(decided(&pod, &OFF()), PodDecision::Sidecar(_)), "{status:?}");
    }
}

#[test]
fn only_the_exact_none_means_no_interception() {
    for mode in ["none", "None", " NONE", "NONE "] {
        let pod = annotated("sidecar.istio.io/interceptionMode", mode);
        assert!(decide(&pod, None, &OFF()).is_err(), "{mode:?}");
    }
}

#[test]
fn with_none_no_other_annotation_is_read() {
    let mut pod = annotated("sidecar.istio.io/interceptionMode", "NONE");
    pod.metadata.annotations.insert("traffic.sidecar.istio.io/includeInboundPorts".into(), "nonsense".into());
    assert_eq!(decided(&pod, &OFF()), PodDecision::Skip(SkipReason::InterceptionNone));
}

/// Ambient: a pod without sidecar, the namespace's label, the pod's own opt-out.
#[test]
fn ambient_takes_pods_of_labelled_namespaces_that_have_no_sidecar() {
    let plain = || Pod { metadata: model::ObjectMeta::default(), ..injected() };
    let refused = |value: &str| {
        let mut pod = plain();
        pod.metadata.annotations.insert(enrolment::AMBIENT_REDIRECTION.into(), value.into());
        pod
    };
    let host = Pod { spec: model::PodSpec { host_network: true, ..plain().spec }, ..plain() };
    let enrolled = PodDecision::Ambient(EnrolmentReason::NamespaceLabel);
    let not_labelled = PodDecision::Skip(SkipReason::NotLabelled);
    for (pod, label, expected) in [
        (plain(), "ambient", enrolled.clone()),
        (plain(), "Ambient", not_labelled.clone()),
        (plain(), "", not_labelled),
        (refused("disabled"), "ambient", PodDecision::Skip(SkipReason::OptedOut)),
        (refused("enabled"), "ambient", enrolled.clone()),
        (refused("Disabled"), "ambient", enrolled.clone()),
        (host, "ambient", PodDecision::Skip(SkipReason::HostNetwork)),
    ] {
        assert_eq!(decide(&pod, Some(&namespace(label)), &ambient()).unwrap(), expected, "{label:?} {pod:?}");
        let off = decide(&pod, Some(&namespace(label)), &OFF()).unwrap();
        assert!(matches!(off, PodDecision::Skip(_)), "ambient off");
        assert!(!enrolment::needs_namespace(&pod, &OFF()));
    }
    assert!(enrolment::needs_namespace(&plain(), &ambient()));
    assert!(!enrolment::needs_namespace(&refused("disabled"), &ambient()));
    assert!(!enrolment::needs_namespace(&injected(), &ambient()));
    let unknown = decide(&plain(), None, &ambient()).unwrap();
    assert_eq!(unknown, PodDecision::Skip(SkipReason::NamespaceUnknown));
    assert_eq!(enrolled.code(), "ambient-namespace");
}

/// A pod's own label overrides its namespace's, if it is one of the two valid ones.
#[test]
fn a_pods_own_label_overrides_its_namespaces() {
    let (by_pod, by_namespace) = (
        PodDecision::Ambient(EnrolmentReason::PodLabel),
        PodDecision::Ambient(EnrolmentReason::NamespaceLabel),
    );
    let [none, unlabelled, out] =
        [SkipReason::PodLabelNone, SkipReason::NotLabelled, SkipReason::NotInjected].map(PodDecision::Skip);
    for (own, label, expected) in [
        ("none", "ambient", &none),
        ("none", "", &none),
        ("ambient", "ambient", &by_pod),
        ("ambient", "", &by_pod),
        ("ambient", "none", &by_pod),
        ("", "ambient", &by_namespace),
        ("None", "ambient", &by_namespace),
        ("sidecar", "ambient", &by_namespace),
        ("Ambient", "", &unlabelled),
        ("", "none", &unlabelled),
    ] {
        let mut pod = injected();
        pod.metadata.annotations.clear();
        pod.metadata.labels.insert(enrolment::DATAPLANE_MODE.into(), own.into());
        let on = decide(&pod, Some(&namespace(label)), &ambient()).unwrap();
        assert_eq!(&on, expected, "{own:?} in {label:?}");
        assert_eq!(decide(&pod, Some(&namespace(label)), &OFF()).unwrap(), out, "ambient off");
        assert_eq!(enrolment::needs_namespace(&pod, &ambient()), own != "none", "{own:?}");
        // With a sidecar no label applies.
        pod.metadata.annotations = with_status(&[]);
        assert!(matches!(decided(&pod, &ambient()), PodDecision::Sidecar(_)), "{own:?}");
    }
}

/// The node's proxy does not go through itself.
#[test]
fn the_ztunnel_is_not_enrolled() {
    let mut pod = injected();
    pod.metadata = model::ObjectMeta { namespace: "istio-system".into(), ..model::ObjectMeta::default() };
    pod.metadata.labels.insert("app".into(), "ztunnel".into());
    assert!(matches!(decided(&pod, &ambient()), PodDecision::Ambient(_)), "only by its label");
    pod.spec.service_account_name = "ztunnel".into();
    assert_eq!(decided(&pod, &ambient()), PodDecision::Skip(SkipReason::Ztunnel));
}

/// Later rows of the table do not keep a pod out of ambient mode.
#[test]
fn ambient_comes_before_the_rows_of_the_sidecar() {
    for (reason, change) in ROWS.into_iter().filter(|(reason, _)| *reason != SkipReason::HostNetwork) {
        let mut pod = injected();
        change(&mut pod);
        pod.metadata.annotations.remove(enrolment::STATUS);
        assert_eq!(
            decided(&pod, &ambient()),
            PodDecision::Ambient(EnrolmentReason::NamespaceLabel),
            "{reason:?}"
        );
    }
}

fn name(namespace: &str, name: &str) -> PodName {
    PodName { namespace: namespace.into(), name: name.into() }
}

#[test]
fn the_call_alone_decides_in_this_order() {
    let policy = |ambient| EnrolmentPolicy {
        excluded_namespaces: vec!["kube-system".into(), "istio-system".into()],
        agent_namespaces: vec!["canary".into(), "istio-system-2".into()],
        ambient,
        ..EnrolmentPolicy::default()
    };
    let status = || with_status(&[]);
    let none = || with_status(&[("sidecar.istio.io/interceptionMode", "NONE")]);
    let bare_none = || BTreeMap::from([("sidecar.istio.io/interceptionMode".to_owned(), "NONE".to_owned())]);
    let opted_out = || BTreeMap::from([(enrolment::AMBIENT_REDIRECTION.to_owned(), "disabled".to_owned())]);
    let (web, agent) = (name("shop", "web-0"), name("istio-system-2", "istio-cni-node-x7k2p"));
    // pod, annotations, with ambient off, with ambient on
    let pass = Some;
    for (pod, annotations, off, on) in [
        (None, None, pass(SkipReason::NoPod), pass(SkipReason::NoPod)),
        (None, Some(status()), pass(SkipReason::NoPod), pass(SkipReason::NoPod)),
        (
            Some(name("kube-system", "istio-cni-node-1")),
            Some(none()),
            pass(SkipReason::ExcludedNamespace),
            pass(SkipReason::ExcludedNamespace),
        ),
        (Some(name("kube-system-2", "dns")), None, None, None),
        (Some(agent.clone()), None, pass(SkipReason::AgentPod), pass(SkipReason::AgentPod)),
        (Some(agent), Some(none()), pass(SkipReason::AgentPod), pass(SkipReason::AgentPod)),
        (Some(name("istio-system-2", "istio-cni-nodes")), None, None, None),
        (Some(name("shop", "istio-cni-node-1")), None, None, None),
        (Some(web.clone()), None, None, None),
        (Some(web.clone()), Some(BTreeMap::new()), pass(SkipReason::NotInjected), None),
        (Some(web.clone()), Some(bare_none()), pass(SkipReason::NotInjected), None),
        (Some(web.clone()), Some(opted_out()), pass(SkipReason::NotInjected), pass(SkipReason::NotInjected)),
        (Some(web.clone()), Some(status()), None, None),
        (Some(web), Some(none()), pass(SkipReason::InterceptionNone), pass(SkipReason::InterceptionNone)),
    ] {
        let call = RuntimeCall { pod: pod.as_ref(), annotations: annotations.as_ref() };
        assert_eq!(decide_early(&call, &policy(false)), off.map(PodDecision::Skip), "{call:?}, ambient off");
        assert_eq!(decide_early(&call, &policy(true)), on.map(PodDecision::Skip), "{call:?}, ambient on");
    }
}

#[test]
fn without_a_known_agent_namespace_no_pod_is_the_agent() {
    let pod = name("istio-system", "istio-cni-node-x7k2p");
    assert_eq!(decide_early(&RuntimeCall { pod: Some(&pod), annotations: None }, &OFF()), None);
}

/// Selects pods with this label, in any namespace.
fn selecting(label: &str, value: &str) -> EnrolmentPolicy {
    let selector = serde_json::json!([{"podSelector": {"matchLabels": {label: value}}}]);
    let enablement = serde_json::from_value(selector).unwrap();
    EnrolmentPolicy { enablement: Some(enablement), ignores_opt_out: true, ..ambient() }
}

#[test]
fn selectors_take_the_place_of_labels_and_annotation() {
    let mut pod = injected();
    pod.metadata.annotations = BTreeMap::from([(enrolment::AMBIENT_REDIRECTION.into(), "disabled".into())]);
    pod.metadata.labels.insert(enrolment::DATAPLANE_MODE.into(), "none".into());
    let policy = selecting(enrolment::DATAPLANE_MODE, "none");
    let name = pod.name();
    let call = RuntimeCall { pod: Some(&name), annotations: Some(&pod.metadata.annotations) };
    assert_eq!(decide_early(&call, &policy), None, "it may belong there");
    assert_eq!(decide_early(&call, &ambient()), Some(PodDecision::Skip(SkipReason::NotInjected)));
    assert!(enrolment::needs_namespace(&pod, &policy) && !enrolment::needs_namespace(&pod, &ambient()));
    assert_eq!(decided(&pod, &policy), PodDecision::Ambient(EnrolmentReason::Selector));
    assert_eq!(decided(&pod, &ambient()), PodDecision::Skip(SkipReason::PodLabelNone));
    let other = selecting("app", "other");
    let decision = decided(&pod, &other);
    assert_eq!(decision, PodDecision::Skip(SkipReason::NotSelected), "whatever its namespace says");
    pod.metadata.annotations.insert(enrolment::STATUS.into(), "{}".into());
    assert!(matches!(decided(&pod, &policy), PodDecision::Sidecar(_)), "a sidecar counts more");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pod_gets_a_decision_with_a_reason_or_a_named_annotation(
        pod in fixture::pod(),
        label in proptest::option::of("(ambient|Ambient|)"),
        ambient in any::<bool>(),
    ) {
        let policy = EnrolmentPolicy { ambient, ..EnrolmentPolicy::default() };
        let namespace = label.as_deref().map(namespace);
        let decision = decide(&pod, namespace.as_ref(), &policy);
        prop_assert_eq!(&decision, &decide(&pod, namespace.as_ref(), &policy), "the same each time");
        match decision {
            Ok(decision) => {
                prop_assert!(!decision.code().is_empty() && !decision.to_string().is_empty());
                prop_assert!(!pod.spec.host_network || decision == PodDecision::Skip(SkipReason::HostNetwork));
                let enrolled = matches!(decision, PodDecision::Ambient(_));
                let injected = pod.metadata.annotations.contains_key(enrolment::STATUS);
                let own = pod.metadata.labels.get(enrolment::DATAPLANE_MODE).map(String::as_str);
                let labelled = own == Some("ambient") || (own != Some("none") && label.as_deref() == Some("ambient"));
                prop_assert!(!enrolled || (ambient && !injected && labelled && label.is_some()));
                prop_assert!(!matches!(decision, PodDecision::Sidecar(_)) || injected);
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!(text.contains(&error.pod.to_string()) && text.contains(error.annotation));
                prop_assert!(text.contains(error.allowed) && error.value.chars().count() <= 200);
                prop_assert!(pod.metadata.annotations.contains_key(enrolment::STATUS));
            }
        }
    }

    #[test]
    fn what_the_call_decides_the_pod_would_have_decided_too(
        pod in fixture::pod(),
        ambient in any::<bool>(),
        label in "(ambient|)",
    ) {
        let policy = EnrolmentPolicy { ambient, ..EnrolmentPolicy::default() };
        let name = name("shop", "web-0");
        let call = RuntimeCall { pod: Some(&name), annotations: Some(&pod.metadata.annotations) };
        if let Some(early) = decide_early(&call, &policy) {
            prop_assert!(matches!(early, PodDecision::Skip(SkipReason::NotInjected | SkipReason::InterceptionNone)));
            let late = decide(&pod, Some(&namespace(&label)), &policy);
            prop_assert!(matches!(late, Ok(PodDecision::Skip(_))), "{:?} early, {:?} late", early, late);
        }
    }

    /// The decisions of the plugin at ADD and of the agent later never differ.
    #[test]
    fn plugin_and_agent_decide_alike(
        pod in fixture::pod(),
        label in proptest::option::of("(ambient|Ambient|)"),
        excluded in any::<bool>(),
    ) {
        let excluded_namespaces = if excluded { vec!["shop".to_owned()] } else { Vec::new() };
        let later = EnrolmentPolicy { excluded_namespaces: excluded_namespaces.clone(), ..EnrolmentPolicy::default() };
        let policy = EnrolmentPolicy { excluded_namespaces, ..ambient() };
        let namespace = label.as_deref().map(namespace);
        let at_add = match decide(&pod, namespace.as_ref(), &policy) {
            Ok(PodDecision::Ambient(reason)) => Some(reason),
            _ => None,
        };
        let later = enrolment::ambient::evaluate_membership(&pod, namespace.as_ref(), &later).ok();
        prop_assert_eq!(at_add, later);
    }
}
