//! Which pods belong to ambient mode, row by row in order.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "pods/fixture.rs"]
mod fixture;

use enrolment::{
    AmbientStanding, EnrolmentPolicy, EnrolmentReason, STATUS, SkipReason,
    ambient::{AMBIENT_REDIRECTION, DATAPLANE_MODE, evaluate_membership, pod_standing},
    selector::{Enablement, LabelSelector},
};
use fixture::{container, namespace};
use model::{ObjectMeta, Pod, PodIp, PodSpec};
use proptest::prelude::*;

fn policy() -> EnrolmentPolicy {
    EnrolmentPolicy {
        excluded_namespaces: vec!["kube-system".into()],
        agent_namespaces: vec!["mesh".into()],
        ..EnrolmentPolicy::default()
    }
}

fn plain() -> Pod {
    let metadata = ObjectMeta { name: "web-0".into(), namespace: "shop".into(), ..ObjectMeta::default() };
    let spec = PodSpec { containers: vec![container("app")], ..PodSpec::default() };
    Pod { metadata, spec, ..Pod::default() }
}

fn is(pod: &Pod) -> Result<EnrolmentReason, SkipReason> {
    evaluate_membership(pod, Some(&namespace("ambient")), &policy())
}

type Change = fn(&mut Pod);
type Row = (SkipReason, Change);

/// Reasons that keep a pod of an ambient namespace out, in the order of the table.
const ROWS: [Row; 10] = [
    (SkipReason::PodLabelNone, |pod| drop(pod.metadata.labels.insert(DATAPLANE_MODE.into(), "none".into()))),
    (SkipReason::ExcludedNamespace, |pod| pod.metadata.namespace = "kube-system".into()),
    (SkipReason::AgentPod, |pod| {
        pod.metadata.namespace = "mesh".into();
        pod.metadata.name = "istio-cni-node-x7k2p".into();
    }),
    (SkipReason::Ztunnel, |pod| {
        pod.metadata.namespace = "istio-system".into();
        pod.metadata.labels.insert("app".into(), "ztunnel".into());
        pod.spec.service_account_name = "ztunnel".into();
    }),
    (SkipReason::HostNetwork, |pod| pod.spec.host_network = true),
    (SkipReason::Terminated, |pod| pod.status.phase = "Succeeded".into()),
    (SkipReason::Terminated, |pod| pod.status.phase = "Failed".into()),
    (SkipReason::OptedOut, |pod| {
        pod.metadata.annotations.insert(AMBIENT_REDIRECTION.into(), "disabled".into());
    }),
    (SkipReason::HasSidecar, |pod| {
        pod.metadata.annotations.insert(STATUS.into(), String::new());
        pod.spec.init_containers.push(container("istio-proxy"));
    }),
    (SkipReason::NoProxy, |pod| drop(pod.metadata.annotations.insert(STATUS.into(), String::new()))),
];

#[test]
fn each_row_alone_keeps_a_pod_out() {
    assert_eq!(is(&plain()), Ok(EnrolmentReason::NamespaceLabel));
    for (reason, change) in ROWS {
        let mut pod = plain();
        change(&mut pod);
        assert_eq!(is(&pod), Err(reason));
        assert_eq!(reason.is_refusal(), reason != SkipReason::PodLabelNone, "{reason:?}");
        pod.metadata.labels.entry(DATAPLANE_MODE.into()).or_insert_with(|| "ambient".into());
        assert_eq!(is(&pod), Err(reason), "its own label changes nothing");
    }
}

/// The three about names exclude each other.
#[test]
fn of_two_rows_the_first_is_told() {
    let on_names = [SkipReason::ExcludedNamespace, SkipReason::AgentPod, SkipReason::Ztunnel];
    for (index, (first, change_first)) in ROWS.iter().enumerate() {
        for (second, change_second) in &ROWS[index + 1..] {
            if on_names.contains(first) && on_names.contains(second) {
                continue;
            }
            let mut pod = plain();
            change_first(&mut pod);
            change_second(&mut pod);
            assert_eq!(is(&pod), Err(*first), "{first:?} and {second:?}");
        }
    }
}

#[test]
fn labels_decide_before_anything_else_does() {
    for (reason, change) in ROWS.into_iter().skip(1) {
        let mut pod = plain();
        change(&mut pod);
        for (label, expected) in
            [("", SkipReason::NotLabelled), ("Ambient", SkipReason::NotLabelled), ("ambient", reason)]
        {
            assert_eq!(evaluate_membership(&pod, Some(&namespace(label)), &policy()), Err(expected));
        }
        assert_eq!(evaluate_membership(&pod, None, &policy()), Err(SkipReason::NamespaceUnknown));
    }
}

#[test]
fn what_does_not_keep_a_pod_out() {
    let rows: [(&str, Change); 8] = [
        ("running", |pod| pod.status.phase = "Running".into()),
        ("no phase that we know", |pod| pod.status.phase = "Unknown".into()),
        ("on its way out", |pod| pod.metadata.deleted = Some("2026-01-01T00:00:00Z".into())),
        ("enrolled", |pod| {
            drop(pod.metadata.annotations.insert(AMBIENT_REDIRECTION.into(), "enabled".into()));
        }),
        ("no exact opt-out", |pod| {
            pod.metadata.annotations.insert(AMBIENT_REDIRECTION.into(), "Disabled".into());
        }),
        ("an agent elsewhere", |pod| pod.metadata.name = "istio-cni-node-x7k2p".into()),
        ("a proxy by hand", |pod| pod.spec.containers.push(container("istio-proxy"))),
        ("a ztunnel by its label alone", |pod| {
            pod.metadata.labels.insert("app".into(), "ztunnel".into());
            pod.spec.service_account_name = "ztunnel".into();
        }),
    ];
    for (what, change) in rows {
        let mut pod = plain();
        change(&mut pod);
        assert_eq!(is(&pod), Ok(EnrolmentReason::NamespaceLabel), "{what}");
    }
}

#[test]
fn a_pod_label_counts_only_in_a_known_namespace_unless_it_is_none() {
    let mut pod = plain();
    pod.metadata.labels.insert(DATAPLANE_MODE.into(), "ambient".into());
    assert_eq!(evaluate_membership(&pod, None, &policy()), Err(SkipReason::NamespaceUnknown));
    assert_eq!(evaluate_membership(&pod, Some(&namespace("")), &policy()), Ok(EnrolmentReason::PodLabel));
    pod.metadata.labels.insert(DATAPLANE_MODE.into(), "none".into());
    assert_eq!(evaluate_membership(&pod, None, &policy()), Err(SkipReason::PodLabelNone));
}

#[test]
fn selectors_take_the_place_of_labels_and_everything_else_stays() {
    let entry = Enablement {
        pod_selector: LabelSelector {
            match_labels: [("mesh".to_owned(), "yes".to_owned())].into(),
            ..LabelSelector::default()
        },
        ..Enablement::default()
    };
    let policy = EnrolmentPolicy { enablement: Some(vec![entry]), ..policy() };
    let decide = |pod: &Pod, label: &str| evaluate_membership(pod, Some(&namespace(label)), &policy);
    assert_eq!(decide(&plain(), "ambient"), Err(SkipReason::NotSelected));
    let mut chosen = plain();
    chosen.metadata.labels.insert("mesh".into(), "yes".into());
    assert_eq!(decide(&chosen, ""), Ok(EnrolmentReason::Selector));
    assert_eq!(evaluate_membership(&chosen, None, &policy), Err(SkipReason::NamespaceUnknown));
    for (reason, change) in ROWS.iter().filter(|(reason, _)| *reason != SkipReason::PodLabelNone) {
        let mut pod = chosen.clone();
        change(&mut pod);
        pod.metadata.labels.insert("mesh".into(), "yes".into());
        assert_eq!(decide(&pod, ""), Err(*reason));
    }
    let nobody = EnrolmentPolicy { enablement: Some(Vec::new()), ..policy.clone() };
    assert_eq!(
        evaluate_membership(&chosen, Some(&namespace("ambient")), &nobody),
        Err(SkipReason::NotSelected)
    );
}

#[test]
fn opting_out_by_annotation_means_nothing_where_istio_says_so() {
    let mut pod = plain();
    pod.metadata.annotations.insert(AMBIENT_REDIRECTION.into(), "disabled".into());
    assert_eq!(is(&pod), Err(SkipReason::OptedOut));
    let policy = EnrolmentPolicy { ignores_opt_out: true, ..policy() };
    let decided = evaluate_membership(&pod, Some(&namespace("ambient")), &policy);
    assert_eq!(decided, Ok(EnrolmentReason::NamespaceLabel));
}

#[test]
fn without_an_address_a_member_is_pending() {
    let ambient = namespace("ambient");
    let mut pod = plain();
    let pending = pod_standing(&pod, Some(&ambient), &policy());
    assert_eq!(pending, AmbientStanding::Pending(EnrolmentReason::NamespaceLabel));
    pod.status.pod_ips = vec![PodIp { ip: "10.0.0.1".into() }, PodIp { ip: "fd00::1".into() }];
    let ips = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let member = AmbientStanding::Member { reason: EnrolmentReason::NamespaceLabel, ips };
    assert_eq!(pod_standing(&pod, Some(&ambient), &policy()), member);
    assert_eq!(
        pod_standing(&pod, Some(&namespace("")), &policy()),
        AmbientStanding::Out(SkipReason::NotLabelled)
    );
}

#[test]
fn the_table_is_in_the_order_of_the_reasons() {
    assert!(ROWS.iter().map(|(reason, _)| *reason).is_sorted());
    assert!(SkipReason::ALL.is_sorted() && EnrolmentReason::ALL.is_sorted());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn standing_and_membership_agree(
        pod in fixture::pod(),
        label in proptest::option::of("(ambient|)"),
        phase in "(Running|Failed|)",
        ip in "(10.0.0.1|nonsense|)",
    ) {
        let mut pod = pod;
        (pod.status.phase, pod.status.pod_ip) = (phase, ip.clone());
        let namespace = label.as_deref().map(namespace);
        let membership = evaluate_membership(&pod, namespace.as_ref(), &policy());
        let has_address = ip == "10.0.0.1";
        let standing = pod_standing(&pod, namespace.as_ref(), &policy());
        match (membership, standing) {
            (Err(a), AmbientStanding::Out(b)) => prop_assert_eq!(a, b),
            (Ok(a), AmbientStanding::Pending(b)) => prop_assert!(a == b && !has_address),
            (Ok(a), AmbientStanding::Member { reason, ips }) => {
                prop_assert!(a == reason && has_address && ips.len() == 1 && !pod.spec.host_network);
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

/// Default selectors that the agent passes to the plugin, and those of Istio's chart.
#[test]
fn selectors_that_only_mean_the_labels_give_the_reasons_of_labels() {
    let text = r#"[{"podSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}},
        {"podSelector": {"matchExpressions": [
            {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["none"]}]},
         "namespaceSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}]"#;
    let selecting = EnrolmentPolicy { enablement: serde_json::from_str(text).unwrap(), ..policy() };
    for own in [None, Some("ambient"), Some("none"), Some("other")] {
        let mut pod = plain();
        pod.metadata.labels.remove("istio.io/dataplane-mode");
        pod.metadata.labels.extend(own.map(|own| ("istio.io/dataplane-mode".to_owned(), own.to_owned())));
        for label in ["ambient", "", "other"] {
            let by = |policy: &EnrolmentPolicy| evaluate_membership(&pod, Some(&namespace(label)), policy);
            assert_eq!(by(&selecting), by(&policy()), "{own:?} in {label:?}");
        }
    }
}
