//! The index of facts: in whatever order they arrive, it has the last state of each object.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "pods/fixture.rs"]
mod fixture;

use std::collections::{BTreeMap, BTreeSet};

use enrolment::{
    EnrolmentPolicy, Fact, FactIndex, PodDecision, UnconfirmedObjects, WatchedCollection, ambient, decide,
    facts::{FactChange, trim_namespace, trim_pod, trim_to_sidecar},
    ztunnel::{ZtunnelSelector, list_candidates},
};
use fixture::namespace;
use model::{EnvVar, Namespace, ObjectMeta, Pod, PodName};
use proptest::{collection::vec, prelude::*, sample};

fn pod(name: &str, uid: &str, label: &str) -> Pod {
    let labels = BTreeMap::from([("v".to_owned(), label.to_owned())]);
    let meta = ObjectMeta {
        name: name.into(),
        namespace: "shop".into(),
        uid: uid.into(),
        labels,
        ..Default::default()
    };
    Pod { metadata: meta, ..Pod::default() }
}

fn named(name: &str, mode: &str) -> Namespace {
    let mut namespace = namespace(mode);
    namespace.metadata.name = name.into();
    namespace
}

fn name(name: &str) -> PodName {
    PodName { namespace: "shop".into(), name: name.into() }
}

fn gone(pod: &str, uid: &str) -> Fact {
    Fact::PodGone { name: name(pod), uid: uid.into() }
}

/// Each fact, whether it changes anything, and the resulting pods.
#[test]
fn facts_change_what_they_are_about() {
    let mut index = FactIndex::default();
    for (fact, changes, uids) in [
        (gone("a", "1"), false, &[][..]),
        (Fact::Pods(vec![pod("a", "1", "x")]), true, &["1"]),
        (Fact::Pods(vec![pod("a", "1", "x")]), false, &["1"]),
        (Fact::Pod(Box::new(pod("a", "1", "x"))), false, &["1"]),
        (Fact::Pod(Box::new(pod("a", "1", "y"))), true, &["1"]),
        (Fact::Pod(Box::new(pod("b", "2", "x"))), true, &["1", "2"]),
        (gone("b", "1"), false, &["1", "2"]),
        (gone("b", ""), false, &["1", "2"]),
        (Fact::Pod(Box::new(pod("b", "3", "x"))), true, &["1", "3"]),
        (gone("b", "2"), false, &["1", "3"]),
        (gone("b", "3"), true, &["1"]),
        (gone("b", "3"), false, &["1"]),
        (Fact::Pods(vec![pod("c", "4", "x"), pod("c", "5", "x")]), true, &["5"]),
        (Fact::Pods(vec![]), true, &[]),
        (Fact::Pods(vec![]), false, &[]),
    ] {
        let what = format!("{fact:?}");
        assert_eq!(index.apply(fact), changes, "{what}");
        assert_eq!(index.pods().map(|pod| pod.metadata.uid.as_str()).collect::<Vec<_>>(), uids, "{what}");
    }
}

#[test]
fn it_is_synced_when_both_lists_have_come_even_empty_ones() {
    let mut index = FactIndex::default();
    assert!(index.apply(Fact::Pod(Box::new(pod("a", "1", "x")))));
    assert!(index.apply(Fact::Namespace(Box::new(named("shop", "ambient")))));
    assert!(!index.is_synced());
    assert!(index.apply(Fact::Pods(vec![])), "the first list is news in itself");
    assert!(!index.is_synced());
    assert!(index.apply(Fact::Namespaces(vec![named("shop", "ambient")])), "the same, but complete");
    assert!(index.is_synced());
    assert!(index.namespace("shop").is_some() && index.namespace("other").is_none());
    assert!(index.apply(Fact::NamespaceGone("shop".into())));
    assert!(!index.apply(Fact::NamespaceGone("shop".into())));
    assert!(index.is_synced() && index.namespace("shop").is_none() && index.pod(&name("a")).is_none());
    assert!(!index.apply(Fact::Watched(WatchedCollection::Pods, Err("refused".into()))) && index.is_synced());
    assert!(index.apply(Fact::PodsUnknown) && !index.has_pods() && !index.apply(Fact::PodsUnknown));
}

#[test]
fn what_nothing_depends_on_is_no_change() {
    let mut index = FactIndex::default();
    index.apply(Fact::Pods(vec![pod("a", "1", "x")]));
    index.apply(Fact::Namespaces(vec![named("shop", "ambient")]));
    let mut other = pod("a", "1", "x");
    other.metadata.annotations.insert("kubectl.kubernetes.io/last-applied-configuration".into(), "{}".into());
    other.metadata.resource_version = "77".into();
    other.metadata.generation = 2;
    let condition = model::Condition { kind: "PodScheduled".into(), status: "True".into() };
    other.status.conditions.push(condition);
    other.metadata.owners.push(model::OwnerReference { kind: "ReplicaSet".into(), ..Default::default() });
    other.status.start_time = Some("2026-01-01T00:00:00Z".into());
    assert!(!index.apply(Fact::Pod(Box::new(other.clone()))));
    let status = model::ContainerStatus { ready: true, ..Default::default() };
    other.status.init_container_statuses.push(status);
    assert!(index.apply(Fact::Pod(Box::new(other.clone()))), "ready");
    let ended = Box::new(model::Termination { exit_code: 1, ..Default::default() });
    let state = model::ContainerState { terminated: Some(ended), waiting: None };
    other.status.init_container_statuses[0].last_state = state;
    assert!(!index.apply(Fact::Pod(Box::new(other.clone()))));
    other.metadata.annotations.insert("ambient.istio.io/redirection".into(), "enabled".into());
    assert!(index.apply(Fact::Pod(Box::new(other))));
    let mut annotated = named("shop", "ambient");
    annotated.metadata.annotations.insert("a".into(), "b".into());
    assert!(!index.apply(Fact::Namespace(Box::new(annotated))));
    assert!(index.apply(Fact::Namespace(Box::new(named("shop", "none")))));
}

fn a_pod() -> impl Strategy<Value = Pod> {
    (sample::select(vec!["a", "b", "c"]), sample::select(vec!["1", "2"]), sample::select(vec!["x", "y"]))
        .prop_map(|(name, uid, label)| pod(name, uid, label))
}

fn a_namespace() -> impl Strategy<Value = Namespace> {
    (sample::select(vec!["a", "b"]), "(ambient|)").prop_map(|(name, mode)| named(name, &mode))
}

fn fact() -> impl Strategy<Value = Fact> {
    prop_oneof![
        1 => vec(a_pod(), 0..3).prop_map(Fact::Pods),
        4 => a_pod().prop_map(|pod| Fact::Pod(Box::new(pod))),
        3 => a_pod().prop_map(|pod| Fact::PodGone { name: pod.name(), uid: pod.metadata.uid }),
        1 => vec(a_namespace(), 0..3).prop_map(Fact::Namespaces),
        2 => a_namespace().prop_map(|namespace| Fact::Namespace(Box::new(namespace))),
        1 => sample::select(vec!["a", "b"]).prop_map(|name| Fact::NamespaceGone(name.into())),
    ]
}

/// Applies a fact by hand and without an index, to a list of everything.
fn retell(pods: &mut Vec<Pod>, namespaces: &mut Vec<Namespace>, fact: Fact) {
    match fact {
        Fact::Pods(all) => *pods = all,
        Fact::Pod(pod) => {
            pods.retain(|other| other.name() != pod.name());
            pods.push(*pod);
        }
        Fact::PodGone { name, uid } => pods.retain(|pod| pod.name() != name || pod.metadata.uid != uid),
        Fact::Namespaces(all) => *namespaces = all,
        Fact::Namespace(namespace) => {
            namespaces.retain(|other| other.metadata.name != namespace.metadata.name);
            namespaces.push(*namespace);
        }
        Fact::NamespaceGone(name) => namespaces.retain(|namespace| namespace.metadata.name != name),
        Fact::Unconfirmed(_) | Fact::Watched(..) => {}
        Fact::PodsUnknown => pods.clear(),
    }
}

/// In a list that has an object twice, the last one counts.
fn without_doubles(fact: Fact) -> Fact {
    match fact {
        Fact::Pods(all) => {
            let all: BTreeMap<_, _> = all.into_iter().map(|pod| (pod.name(), pod)).collect();
            Fact::Pods(all.into_values().collect())
        }
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_way_leads_to_what_a_list_of_the_end_would_make(facts in vec(fact(), 0..30)) {
        let (mut index, mut at_once) = (FactIndex::default(), FactIndex::default());
        let (mut pods, mut namespaces) = (Vec::new(), Vec::new());
        for fact in [Fact::Pods(vec![]), Fact::Namespaces(vec![])].into_iter().chain(facts) {
            let before = index.clone();
            let fact = without_doubles(fact);
            retell(&mut pods, &mut namespaces, fact.clone());
            let change = index.apply_fact(fact.clone());
            prop_assert_eq!(change != FactChange::Nothing, index != before, "{:?}", fact);
            if let FactChange::Pods(changed) = change {
                let names: BTreeSet<PodName> = index.pods().chain(before.pods()).map(Pod::name).collect();
                let differ = names.into_iter().filter(|name| index.pod(name) != before.pod(name));
                let differ = differ.map(|name| (before.pod(&name).cloned(), name));
                let told: BTreeMap<_, _> = changed.into_iter().map(|pod| (pod.name, pod.before)).collect();
                prop_assert_eq!(told, differ.map(|(before, name)| (name, before)).collect());
            }
            prop_assert!(!index.apply(fact), "once more changes nothing");
        }
        at_once.apply(Fact::Pods(pods));
        at_once.apply(Fact::Namespaces(namespaces));
        prop_assert_eq!(index, at_once);
    }

    /// No decision reads trimmed fields.
    #[test]
    fn a_trimmed_pod_gets_the_same_decisions(
        whole in fixture::pod(),
        more in vec(("[a-z./]{1,20}", "[a-z]{0,5}"), 0..4),
        label in "(ambient|)",
        ambient_on in any::<bool>(),
    ) {
        let mut whole = whole;
        whole.metadata.annotations.extend(more.clone());
        if let Some(first) = whole.spec.containers.first_mut() {
            first.env.extend(more.into_iter().map(|(name, value)| EnvVar { name, value: Some(value) }));
        }
        let mut trimmed = whole.clone();
        trim_pod(&mut trimmed);
        let (namespace, policy) = (namespace(&label), EnrolmentPolicy { ambient: ambient_on, ..EnrolmentPolicy::default() });
        prop_assert_eq!(decide(&whole, Some(&namespace), &policy), decide(&trimmed, Some(&namespace), &policy));
        let policy = EnrolmentPolicy::default();
        prop_assert_eq!(
            ambient::pod_standing(&whole, Some(&namespace), &policy),
            ambient::pod_standing(&trimmed, Some(&namespace), &policy)
        );
        let again = { let mut again = trimmed.clone(); trim_pod(&mut again); again };
        prop_assert_eq!(again, trimmed);
    }

    /// The part of a pod that a record of an ADD keeps determines its redirection to the sidecar.
    #[test]
    fn a_pod_trimmed_to_its_sidecar_is_redirected_alike(whole in fixture::pod()) {
        let policy = EnrolmentPolicy::default();
        let mut trimmed = whole.clone();
        trim_pod(&mut trimmed);
        trim_to_sidecar(&mut trimmed);
        let before = decide(&whole, None, &policy);
        if matches!(before, Ok(PodDecision::Sidecar(_))) {
            prop_assert_eq!(decide(&trimmed, None, &policy), before);
        }
    }
}

#[test]
fn an_index_of_nothing_has_no_candidates() {
    assert!(list_candidates(&FactIndex::default(), &ZtunnelSelector::default()).is_empty());
}

/// Changes in lists have no effect on unconfirmed objects; single changes do.
#[test]
fn lists_do_not_change_unconfirmed_objects() {
    let mut index = FactIndex::default();
    index.apply(Fact::Pods(vec![pod("a", "1", "x"), pod("b", "2", "x")]));
    index.apply(Fact::Namespaces(vec![named("shop", "ambient"), named("other", "")]));
    let unconfirmed = UnconfirmedObjects { pods: [name("a")].into(), namespaces: ["shop".to_owned()].into() };
    assert!(
        index.apply(Fact::Unconfirmed(unconfirmed.clone())) && !index.apply(Fact::Unconfirmed(unconfirmed))
    );
    let uids =
        |index: &FactIndex| index.pods().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>().join(",");
    assert!(index.apply(Fact::Pods(vec![])), "the other one is gone");
    assert!(index.apply(Fact::Namespaces(vec![])) && index.namespace("shop").is_some());
    assert!(!index.apply(Fact::Pods(vec![pod("a", "0", "before")])), "an older list");
    assert_eq!((uids(&index).as_str(), index.unconfirmed_objects().pods.len()), ("1", 1));
    assert!(index.apply(Fact::Pod(Box::new(pod("a", "1", "y")))));
    assert!(index.apply(gone("a", "1")) && index.apply(Fact::Unconfirmed(UnconfirmedObjects::default())));
    assert!(index.apply(Fact::Pods(vec![pod("a", "3", "x")])) && index.apply(Fact::Namespaces(vec![])));
    assert!(index.namespace("shop").is_none());
}

/// Whatever its author writes, within the API's limits and beyond.
#[test]
fn what_is_kept_of_a_pod_is_bounded() {
    let mut big = fixture::injected();
    let long = "a,".repeat(125_000);
    let annotations = &mut big.metadata.annotations;
    for key in fixture::ANNOTATIONS {
        annotations.insert(key.to_owned(), long.clone());
    }
    for number in 0..5000 {
        annotations.insert(format!("a{number}.istio.io/x"), long[..50].to_owned());
        big.metadata.labels.insert(format!("a{number}.istio.io/x"), "x".repeat(63));
    }
    big.metadata.labels.insert("istio.io/dataplane-mode".into(), "ambient".into());
    big.metadata.labels.insert("app".into(), long.clone());
    let mut filled = fixture::container("app");
    let names = ["ISTIO_META_DNS_CAPTURE", "INPOD_ENABLED", "INVALID_DROP", "OTHER"];
    filled.env = names.iter().cycle().take(40).map(|name| fixture::env(name, &long[..2000])).collect();
    filled.args = vec![long[..2000].to_owned(); 9];
    big.spec.containers = std::iter::repeat_n(filled.clone(), 300).collect();
    let mut privileged = filled.clone();
    privileged.security_context.privileged = true;
    big.spec.containers.push(privileged);
    big.spec.containers.push(model::Container { name: "istio-proxy".into(), ..filled });
    trim_pod(&mut big);
    assert_eq!(big.network_privilege(), model::NetworkPrivilege::Privileged);
    let again = {
        let mut again = big.clone();
        trim_pod(&mut again);
        again
    };
    assert_eq!(again, big);
    let size = serde_json::to_vec(&big).unwrap().len();
    assert!(size < 150_000, "{size}");
    assert!(big.spec.containers.iter().any(|container| container.name == "istio-proxy"));
    assert_eq!(big.metadata.labels["istio.io/dataplane-mode"], "ambient");
    let mut namespace = named("shop", "ambient");
    namespace.metadata.labels.extend(big.metadata.labels.clone());
    namespace.metadata.labels.extend((0..5000).map(|number| (format!("b{number}"), long[..200].to_owned())));
    trim_namespace(&mut namespace);
    assert!(serde_json::to_vec(&namespace).unwrap().len() < 20_000);
}
