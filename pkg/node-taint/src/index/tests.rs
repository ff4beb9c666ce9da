use proptest::prelude::*;

use super::*;

fn config(count: usize) -> ReadinessConfig {
    let entries = (0..count).map(|number| format!("- {{selector: app=a{number}, namespace: s}}\n"));
    ReadinessConfig::parse(&BTreeMap::from([("config".to_owned(), entries.collect())])).unwrap()
}

fn name(pod: &str) -> PodName {
    PodName { namespace: "s".to_owned(), name: pod.to_owned() }
}

fn pod(pod: &str, node: &str, is_ready: bool) -> ReadinessPod {
    ReadinessPod { name: name(pod), node: node.to_owned(), is_ready }
}

fn node(name: &str, is_ready: bool, is_tainted: bool) -> ObservedNode {
    ObservedNode { name: name.to_owned(), is_ready, is_tainted }
}

/// An index after both lists, with one requirement.
fn listed(nodes: &[ObservedNode], pods: &[ReadinessPod]) -> NodeIndex {
    let mut index = NodeIndex::new(&config(1));
    index.observe(NodeObservation::Nodes(ListEvent::Reset(nodes.to_vec())));
    index.observe(NodeObservation::Pods(0, ListEvent::Reset(pods.to_vec())));
    index
}

fn applied(index: &mut NodeIndex, pod: ReadinessPod) -> Vec<String> {
    index.observe(NodeObservation::Pods(0, ListEvent::Applied(pod))).into_iter().collect()
}

#[test]
fn a_node_passes_when_it_and_a_pod_on_it_are_ready() {
    for (node_ready, pods, tainted, expected) in [
        (true, vec![pod("p", "n", true)], true, Some(TaintChange::Remove)),
        (true, vec![pod("p", "n", true)], false, None),
        (true, vec![pod("p", "n", false), pod("q", "n", true)], true, Some(TaintChange::Remove)),
        (true, vec![pod("p", "n", false)], true, None),
        (true, vec![pod("p", "n", false)], false, Some(TaintChange::Add)),
        (true, vec![pod("p", "other", true)], false, Some(TaintChange::Add)),
        (true, vec![pod("p", "", true)], false, Some(TaintChange::Add)),
        (true, vec![], false, Some(TaintChange::Add)),
        (false, vec![pod("p", "n", true)], true, None),
        (false, vec![pod("p", "n", true)], false, Some(TaintChange::Add)),
    ] {
        let index = listed(&[node("n", node_ready, tainted)], &pods);
        assert_eq!(index.needed_change("n"), expected, "{node_ready} {tainted} {pods:?}");
    }
}

#[test]
fn without_requirements_a_ready_node_passes() {
    let mut index = NodeIndex::new(&config(0));
    index.observe(NodeObservation::Nodes(ListEvent::Reset(vec![
        node("n", true, true),
        node("m", false, true),
    ])));
    assert_eq!(
        (index.verdict("n"), index.needed_change("n")),
        (NodeVerdict::Pass, Some(TaintChange::Remove))
    );
    assert_eq!((index.verdict("m"), index.needed_change("m")), (NodeVerdict::NotReady, None));
}

#[test]
fn every_requirement_must_have_its_pod() {
    let mut index = NodeIndex::new(&config(2));
    index.observe(NodeObservation::Nodes(ListEvent::Reset(vec![node("n", true, true)])));
    for number in [0, 1] {
        index.observe(NodeObservation::Pods(number, ListEvent::Reset(Vec::new())));
    }
    index.observe(NodeObservation::Pods(1, ListEvent::Applied(pod("p", "n", true))));
    let NodeVerdict::Lacks(lacking) = index.verdict("n") else { panic!("{:?}", index.verdict("n")) };
    assert_eq!(lacking.to_string(), "app=a0 in s");
    index.observe(NodeObservation::Pods(0, ListEvent::Applied(pod("q", "n", true))));
    assert_eq!(index.verdict("n"), NodeVerdict::Pass);
}

/// A taint changed on the basis of half of the facts would be changed back a moment later.
#[test]
fn nothing_is_said_before_everything_was_listed_and_then_of_all_nodes() {
    let mut index = NodeIndex::new(&config(2));
    let nodes = vec![node("m", true, false), node("n", true, true)];
    index.observe(NodeObservation::Pods(0, ListEvent::Applied(pod("p", "n", true))));
    index.observe(NodeObservation::Nodes(ListEvent::Reset(nodes)));
    index.observe(NodeObservation::Pods(0, ListEvent::Reset(vec![pod("p", "n", true)])));
    assert_eq!((index.verdict("n"), index.needed_change("m")), (NodeVerdict::Unknown, None));
    let concerned = index.observe(NodeObservation::Pods(1, ListEvent::Reset(vec![pod("q", "n", true)])));
    assert_eq!(concerned.into_iter().collect::<Vec<_>>(), ["m", "n"]);
    assert_eq!(
        (index.needed_change("m"), index.needed_change("n")),
        (Some(TaintChange::Add), Some(TaintChange::Remove))
    );
    assert_eq!(index.verdict("unknown"), NodeVerdict::Unknown);
}

#[test]
fn an_event_concerns_the_nodes_of_the_pod_before_and_after_it() {
    let mut index = listed(&[node("n", true, false)], &[pod("p", "n", true)]);
    assert_eq!(applied(&mut index, pod("p", "m", true)), ["m", "n"]);
    assert_eq!(applied(&mut index, pod("p", "m", false)), ["m"]);
    assert_eq!(applied(&mut index, pod("p", "m", false)), [""; 0], "it was not ready before");
    applied(&mut index, pod("p", "n", true));
    let gone = index.observe(NodeObservation::Pods(0, ListEvent::Deleted(pod("p", "n", true))));
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), ["n"]);
    applied(&mut index, pod("p", "n", true));
    let listed = index.observe(NodeObservation::Pods(0, ListEvent::Reset(vec![pod("q", "m", true)])));
    assert_eq!(listed.into_iter().collect::<Vec<_>>(), ["m", "n"]);
    assert_eq!(index.needed_change("n"), Some(TaintChange::Add));
}

#[test]
fn a_node_needs_no_change_when_a_watch_shows_the_last_one_or_when_it_is_gone() {
    let mut index = listed(&[node("n", true, false)], &[]);
    assert_eq!(index.needed_change("n"), Some(TaintChange::Add));
    index.observe(NodeObservation::Nodes(ListEvent::Applied(node("n", true, true))));
    assert_eq!((index.needed_change("n"), index.node_counts()), (None, (1, 1)));
    index.observe(NodeObservation::Nodes(ListEvent::Applied(node("n", true, false))));
    assert_eq!(index.needed_change("n"), Some(TaintChange::Add), "someone removed it");
    index.observe(NodeObservation::Nodes(ListEvent::Deleted(node("n", true, false))));
    assert_eq!(index.needed_change("n"), None);
}

/// Events of a collection's watch, and the final state.
fn history<T: Clone + std::fmt::Debug + 'static>(
    name_of: fn(&T) -> String,
    object: impl Strategy<Value = T> + Clone + 'static,
) -> impl Strategy<Value = (Vec<ListEvent<T>>, Vec<T>)> {
    let event = prop_oneof![
        6 => object.clone().prop_map(ListEvent::Applied),
        3 => object.clone().prop_map(ListEvent::Deleted),
        1 => prop::collection::vec(object.clone(), 0..4).prop_map(ListEvent::Reset),
    ];
    (prop::collection::vec(object, 0..4), prop::collection::vec(event, 0..12)).prop_map(
        move |(first, more)| {
            let events: Vec<ListEvent<T>> = std::iter::once(ListEvent::Reset(first)).chain(more).collect();
            let mut state = BTreeMap::new();
            for event in events.clone() {
                match event {
                    ListEvent::Reset(all) => {
                        state = all.into_iter().map(|one| (name_of(&one), one)).collect();
                    }
                    ListEvent::Applied(one) => drop(state.insert(name_of(&one), one)),
                    ListEvent::Deleted(one) => drop(state.remove(&name_of(&one))),
                }
            }
            (events, state.into_values().collect())
        },
    )
}

fn any_node() -> impl Strategy<Value = ObservedNode> + Clone {
    ("[a-c]", any::<bool>(), any::<bool>()).prop_map(|(name, ready, tainted)| node(&name, ready, tainted))
}

fn any_pod() -> impl Strategy<Value = ReadinessPod> + Clone {
    ("[p-s]", "[a-d]?", any::<bool>()).prop_map(|(name, node, ready)| pod(&name, &node, ready))
}

fn pod_key(pod: &ReadinessPod) -> String {
    pod.name.to_string()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// In whatever order the events of nodes and of the pods of two requirements interleave, the final verdicts are those of the
    /// final state; and a caller that evaluates only reported nodes misses no change.
    #[test]
    fn verdicts_do_not_depend_on_the_order_of_events(
        (nodes, last_nodes) in history(|node: &ObservedNode| node.name.clone(), any_node()),
        (first, last_first) in history(pod_key, any_pod()),
        (second, last_second) in history(pod_key, any_pod()),
        order in prop::collection::vec(0..3_usize, 0..60),
    ) {
        let mut streams = [
            nodes.into_iter().map(NodeObservation::Nodes).collect::<Vec<_>>().into_iter(),
            first.into_iter().map(|event| NodeObservation::Pods(0, event)).collect::<Vec<_>>().into_iter(),
            second.into_iter().map(|event| NodeObservation::Pods(1, event)).collect::<Vec<_>>().into_iter(),
        ];
        let (mut index, mut followed) = (NodeIndex::new(&config(2)), BTreeMap::new());
        for stream in order.into_iter().chain([0, 1, 2].repeat(20)) {
            let Some(observation) = streams[stream].next() else { continue };
            for node in index.observe(observation) {
                followed.insert(node.clone(), index.needed_change(&node));
            }
        }
        let mut expected = NodeIndex::new(&config(2));
        expected.observe(NodeObservation::Nodes(ListEvent::Reset(last_nodes)));
        expected.observe(NodeObservation::Pods(0, ListEvent::Reset(last_first)));
        expected.observe(NodeObservation::Pods(1, ListEvent::Reset(last_second)));
        for node in ["a", "b", "c", "d"] {
            prop_assert_eq!(index.verdict(node), expected.verdict(node));
            prop_assert_eq!(followed.get(node).copied().flatten(), expected.needed_change(node));
        }
    }
}
