//! Owner of an address in single scenarios, and after events in any order.

use std::collections::BTreeMap;

use enrolment::{EnrolmentPolicy, Fact, ambient::pod_standing};
use model::{Namespace, ObjectMeta, Pod, PodIp, PodName};
use proptest::{collection::vec, option, prelude::*};

use super::*;

mod inherited;

const X: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 1));
const Y: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2));

fn name(uid: &str) -> PodName {
    PodName { namespace: "mesh".to_owned(), name: format!("pod-{uid}") }
}

fn attached(uid: &str, ips: &[IpAddr]) -> PodAttachment {
    PodAttachment { uid: uid.into(), ips: ips.to_vec(), network: "cbr0".to_owned() }
}

/// A pod as the API shows it.
fn shown(uid: &str, ips: &[IpAddr]) -> Pod {
    let PodName { namespace, name } = name(uid);
    let metadata =
        ObjectMeta { name, namespace, uid: uid.into(), created: uid.to_owned(), ..ObjectMeta::default() };
    let mut pod = Pod { metadata, ..Pod::default() };
    pod.status.pod_ips = ips.iter().map(|ip| PodIp { ip: ip.to_string() }).collect();
    pod.status.phase = "Running".to_owned();
    pod
}

fn namespace() -> Namespace {
    let labels = BTreeMap::from([("istio.io/dataplane-mode".to_owned(), "ambient".to_owned())]);
    Namespace { metadata: ObjectMeta { name: "mesh".to_owned(), labels, ..ObjectMeta::default() } }
}

/// A ledger, and the pods that the API shows; the kernel has the last desired members.
struct Node {
    ledger: AttachmentLedger,
    index: FactIndex,
    kernel: MemberAddresses,
    /// Changes since the last comparison, if only these are compared.
    changed: Option<(BTreeMap<PodUid, PodName>, BTreeSet<IpAddr>)>,
}

impl Node {
    fn new(pods: Vec<Pod>) -> Node {
        let mut index = FactIndex::default();
        index.apply(Fact::Namespaces(vec![namespace()]));
        index.apply(Fact::Pods(pods));
        Node { ledger: AttachmentLedger::default(), index, kernel: MemberAddresses::new(), changed: None }
    }

    fn changes(&mut self, uid: &str, released: &[IpAddr]) {
        if let Some((pods, ips)) = &mut self.changed {
            pods.insert(uid.into(), name(uid));
            ips.extend(released);
        }
    }

    /// Toggles the label that keeps the pod out of the mesh, if the API shows the pod.
    fn changes_sides(&mut self, uid: &str) {
        let Some(mut pod) = self.index.pod(&name(uid)).cloned() else { return };
        let labels = &mut pod.metadata.labels;
        if labels.remove("istio.io/dataplane-mode").is_none() {
            labels.insert("istio.io/dataplane-mode".to_owned(), "none".to_owned());
        }
        self.api(pod);
    }

    fn add(&mut self, container: &str, uid: &str, ips: &[IpAddr]) {
        self.changes(uid, &[]);
        self.ledger.record_add(&container.into(), attached(uid, ips));
    }

    fn skip(&mut self, container: &str, uid: &str, ips: &[IpAddr]) {
        self.changes(uid, &[]);
        self.ledger.record_skip(&container.into(), attached(uid, ips));
    }

    fn del(&mut self, container: &str, uid: &str, ips: &[IpAddr]) -> Vec<IpAddr> {
        let freed = self.ledger.record_delete(&container.into(), attached(uid, ips)).ips;
        self.changes(uid, &freed);
        freed
    }

    fn api(&mut self, pod: Pod) {
        self.changes(pod.metadata.uid.as_str(), &[]);
        self.index.apply(Fact::Pod(Box::new(pod)));
    }

    fn gone(&mut self, uid: &str) {
        self.changes(uid, &[]);
        self.index.apply(Fact::PodGone { name: name(uid), uid: uid.into() });
    }

    /// The containers that an empty list of the runtime lacks.
    fn unlisted(&self) -> Vec<String> {
        let unlisted = self.ledger.containers_not_in("cbr0", &BTreeSet::new());
        unlisted.into_iter().map(|(container, _)| container.into()).collect()
    }

    fn restart(&mut self) {
        self.ledger = AttachmentLedger::default();
    }

    fn members(&mut self) -> MemberAddresses {
        let policy = EnrolmentPolicy::default();
        let standing = |pod: &Pod| pod_standing(pod, self.index.namespace(&pod.metadata.namespace), &policy);
        let Some((pods, mut ips)) = self.changed.take() else {
            self.kernel = self.ledger.resolve_members(&self.index, standing, &self.kernel);
            return self.kernel.clone();
        };
        ips.extend(pods.keys().flat_map(|uid| self.ledger.added_addresses(uid)));
        ips.extend(self.index.pods_with(&pods).flat_map(|pod| pod.status.ips()));
        ips.extend(self.kernel.iter().filter(|(_, owner)| pods.contains_key(*owner)).map(|(ip, _)| *ip));
        let members = self.ledger.members_among((&ips, &pods), &self.index, standing, &self.kernel);
        assert!(members.keys().all(|ip| ips.contains(ip)));
        self.kernel.retain(|ip, _| !ips.contains(ip));
        self.kernel.extend(members);
        self.changed = Some(Default::default());
        self.kernel.clone()
    }

    #[track_caller]
    fn are(&mut self, wanted: &[(IpAddr, &str)]) {
        let wanted: MemberAddresses = wanted.iter().map(|(ip, uid)| (*ip, (*uid).into())).collect();
        assert_eq!(self.members(), wanted);
    }
}

#[test]
fn an_address_that_is_used_again_belongs_to_the_new_pod_whenever_the_old_ones_end_is_told() {
    for late in [false, true] {
        let mut node = Node::new(vec![shown("u1", &[X]), shown("u2", &[])]);
        node.add("c1", "u1", &[X]);
        node.are(&[(X, "u1")]);
        if !late {
            assert_eq!(node.del("c1", "u1", &[X]), [X]);
            node.are(&[]);
        }
        node.add("c2", "u2", &[X]);
        node.are(&[(X, "u2")]);
        if late {
            assert!(node.del("c1", "u1", &[X]).is_empty());
        }
        node.are(&[(X, "u2")]);
        assert_eq!(node.del("c2", "u2", &[X]), [X]);
        node.are(&[]);
    }
}

/// Also if the end of the old one is never reported.
#[test]
fn who_has_lost_an_address_does_not_get_it_back() {
    let mut node = Node::new(vec![shown("u1", &[X])]);
    node.add("c1", "u1", &[X, Y]);
    node.add("c2", "u2", &[X]);
    node.are(&[(X, "u2"), (Y, "u1")]);
    node.del("c2", "u2", &[X]);
    node.are(&[(Y, "u1")]);
    let mut outside = shown("u3", &[X]);
    outside.metadata.labels.insert("istio.io/dataplane-mode".to_owned(), "none".to_owned());
    node.add("c3", "u3", &[X]);
    node.api(outside);
    node.are(&[(Y, "u1")]);
}

#[test]
fn a_new_sandbox_of_a_pod_has_its_own_addresses() {
    let mut node = Node::new(vec![shown("u1", &[X])]);
    node.add("c1", "u1", &[X]);
    node.add("c2", "u1", &[Y]);
    assert_eq!(node.del("c1", "u1", &[X]), [X]);
    node.are(&[(Y, "u1")]);
    // The same address again: the old sandbox removes nothing.
    node.add("c3", "u1", &[Y]);
    assert!(node.del("c2", "u1", &[Y]).is_empty());
    node.are(&[(Y, "u1")]);
    // And an address that was released before.
    node.add("c4", "u1", &[X]);
    assert!(!node.ledger.has_released(&"u1".into(), X));
    node.are(&[(X, "u1"), (Y, "u1")]);
}

#[test]
fn an_end_can_be_told_again() {
    let mut node = Node::new(vec![shown("u1", &[X]), shown("u2", &[])]);
    node.add("c1", "u1", &[X]);
    assert_eq!(node.del("c1", "u1", &[X]), [X]);
    assert_eq!(node.del("c1", "u1", &[X]), [X]);
    node.add("c2", "u2", &[X]);
    assert!(node.del("c1", "u1", &[X]).is_empty());
    node.are(&[(X, "u2")]);
}

#[test]
fn what_a_pod_gave_back_stays_so_however_late_the_api_is() {
    // The API still shows the address; does not show it yet; does not show the pod yet.
    for pods in [vec![shown("u1", &[X])], vec![shown("u1", &[])], vec![]] {
        let mut node = Node::new(pods);
        node.add("c1", "u1", &[X]);
        node.del("c1", "u1", &[X]);
        node.are(&[]);
        for ips in [&[X][..], &[], &[X]] {
            node.api(shown("u1", ips));
            node.are(&[]);
        }
        assert!(node.ledger.has_released(&"u1".into(), X));
        node.gone("u1");
        node.are(&[]);
        assert!(!node.ledger.has_released(&"u1".into(), X), "forgotten with the pod");
    }
}

#[test]
fn ends_of_pods_that_the_api_never_shows_are_forgotten() {
    let mut node = Node::new(vec![]);
    for number in 0..3 * FORGOTTEN {
        node.del(&format!("c{number}"), &format!("u{number}"), &[X]);
        node.are(&[]);
    }
    assert!(node.ledger.released.len() <= usize::try_from(FORGOTTEN).unwrap());
}

#[test]
fn a_pod_is_enrolled_before_the_api_knows_it_and_until_the_api_forgets_it() {
    let mut node = Node::new(vec![]);
    node.add("c1", "u1", &[X]);
    node.are(&[(X, "u1")]);
    node.api(shown("u1", &[]));
    node.are(&[(X, "u1")]);
    node.gone("u1");
    node.are(&[]);
}

#[test]
fn a_pod_that_ends_right_after_another_add_goes_all_the_same() {
    let mut node = Node::new(vec![shown("u1", &[X])]);
    let container = unnamed_container(&"u1".into());
    node.add(container.as_str(), "u1", &[X]);
    node.are(&[(X, "u1")]);
    node.add(container.as_str(), "u1", &[X]);
    node.gone("u1");
    node.are(&[]);
    assert!(!node.ledger.is_expected(&"u1".into()));
}

#[test]
fn a_pod_that_is_not_to_be_enrolled_is_no_member_before_the_api_shows_it_as_one() {
    let mut node = Node::new(vec![shown("u0", &[X])]);
    node.add("c0", "u0", &[X]);
    node.skip("c1", "u1", &[X, Y]);
    node.are(&[]);
    assert!(node.ledger.has_released(&"u0".into(), X), "the address is that of the pod that came last");
    node.index.apply(Fact::Namespaces(vec![]));
    node.api(shown("u1", &[]));
    node.are(&[]);
    node.index.apply(Fact::Namespaces(vec![namespace()]));
    node.changes("u1", &[]);
    node.are(&[(X, "u1"), (Y, "u1")]);
    assert_eq!(node.del("c1", "u1", &[X, Y]), [X, Y]);
    node.are(&[]);
}

#[test]
fn a_pod_leaves_by_its_label_and_comes_back() {
    let mut node = Node::new(vec![shown("u1", &[])]);
    node.add("c1", "u1", &[X]);
    for (label, wanted) in [("none", &[][..]), ("ambient", &[(X, "u1")]), ("none", &[])] {
        let mut pod = shown("u1", &[X]);
        pod.metadata.labels.insert("istio.io/dataplane-mode".to_owned(), label.to_owned());
        node.api(pod);
        node.are(wanted);
    }
}

#[test]
fn a_pod_stays_enrolled_while_its_namespace_is_not_known_yet() {
    let mut node = Node::new(vec![shown("u1", &[X]), shown("u2", &[Y])]);
    node.index.apply(Fact::Namespaces(vec![]));
    node.add("c1", "u1", &[X]);
    node.are(&[(X, "u1")]);
    node.restart();
    node.are(&[(X, "u1")]);
}

#[test]
fn a_new_agent_goes_on_with_what_the_kernel_holds() {
    let mut node = Node::new(vec![shown("u1", &[]), shown("u2", &[])]);
    node.add("c1", "u1", &[X]);
    node.are(&[(X, "u1")]);
    node.restart();
    node.are(&[(X, "u1")]);
    node.api(shown("u2", &[X]));
    node.add("c2", "u2", &[X]);
    node.are(&[(X, "u2")]);
    node.del("c2", "u2", &[X]);
    node.restart();
    node.kernel.clear();
    node.api(shown("u2", &[]));
    node.are(&[]);
}

#[test]
fn an_end_that_began_before_this_agent_is_believed() {
    let mut node = Node::new(vec![shown("u1", &[X]), shown("u2", &[])]);
    node.add("c2", "u2", &[X]);
    assert!(node.del("c1", "u1", &[X]).is_empty());
    node.are(&[(X, "u2")]);
    assert_eq!(node.del("c2", "u2", &[X]), [X]);
    node.are(&[]);
}

#[test]
fn of_two_that_the_api_shows_with_an_address_the_one_counts_that_runs_and_is_newer() {
    for (older, newer) in [("u1", "u2"), ("u2", "u1")] {
        let mut pods = [shown(older, &[X]), shown(newer, &[X])];
        for (pod, created) in pods.iter_mut().zip(["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"]) {
            pod.metadata.created = created.to_owned();
        }
        Node::new(pods.to_vec()).are(&[(X, newer)]);
        pods[1].status.phase = "Succeeded".to_owned();
        Node::new(pods.to_vec()).are(&[(X, older)]);
        pods[0].status.phase = "Failed".to_owned();
        Node::new(pods.to_vec()).are(&[]);
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A pod gets a sandbox with an address, and is enrolled or not, as far as the ADD can determine.
    Add(usize, usize, bool),
    /// The end of the sandbox with this number is reported, once more or for the first time.
    Del(usize),
    /// The API shows a pod with one more of its addresses, in order.
    Tell(usize),
    Forget(usize),
    Look,
}

fn told() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..3usize, 0..3usize, any::<bool>()).prop_map(|(pod, ip, enrols)| Event::Add(pod, ip, enrols)),
        4 => (0..12usize).prop_map(Event::Del),
        4 => (0..3usize).prop_map(Event::Tell),
        1 => (0..3usize).prop_map(Event::Forget),
        3 => Just(Event::Look),
    ]
}

const UIDS: [&str; 3] = ["u1", "u2", "u3"];

/// Events in the simplest form.
#[derive(Default)]
struct Truth {
    /// Pod, address, whether it has ended or lost the address to another pod, whether its ADD enrolled it.
    sandboxes: Vec<(usize, IpAddr, bool, bool)>,
    told: [usize; 3],
    forgotten: [bool; 3],
}

impl Truth {
    fn happens(&mut self, event: Event, node: &mut Node) {
        match event {
            Event::Add(pod, ..) | Event::Tell(pod) | Event::Forget(pod) if self.forgotten[pod] => {}
            Event::Add(pod, ip, enrols) => {
                let ip = IpAddr::from([10, 1, 0, u8::try_from(ip).unwrap()]);
                let container = format!("c{}", self.sandboxes.len());
                if enrols {
                    node.add(&container, UIDS[pod], &[ip]);
                } else {
                    node.skip(&container, UIDS[pod], &[ip]);
                }
                let lost = self.sandboxes.iter_mut().filter(|(other, had, ..)| *other != pod && *had == ip);
                lost.for_each(|(_, _, ended, _)| *ended = true);
                self.sandboxes.push((pod, ip, false, enrols));
            }
            Event::Del(number) => {
                if let Some((pod, ip, ended, _)) = self.sandboxes.get_mut(number) {
                    *ended = true;
                    node.del(&format!("c{number}"), UIDS[*pod], &[*ip]);
                }
            }
            Event::Tell(pod) => {
                let mut ips =
                    self.sandboxes.iter().filter(|(owner, ..)| *owner == pod).map(|(_, ip, ..)| *ip);
                let ip = ips.by_ref().nth(self.told[pod]);
                self.told[pod] += usize::from(ip.is_some());
                node.api(shown(UIDS[pod], ip.as_slice()));
            }
            Event::Forget(pod) => {
                // A pod that was never reported cannot be forgotten.
                self.forgotten[pod] = node.index.pod(&name(UIDS[pod])).is_some();
                drop(node.members());
                node.gone(UIDS[pod]);
            }
            Event::Look => {}
        }
    }

    /// `is_shown` returns whether the API shows the pod with this UID as one of ambient mode.
    fn agrees(&self, members: &MemberAddresses, is_shown: impl Fn(&str) -> bool) {
        let newest: BTreeMap<IpAddr, usize> =
            self.sandboxes.iter().map(|(pod, ip, ..)| (*ip, *pod)).collect();
        for (ip, pod) in newest {
            let mut own = self
                .sandboxes
                .iter()
                .filter(|(owner, had, ended, _)| (*owner, *had, *ended) == (pod, ip, false));
            // Of several sandboxes of a pod with one address, the last ADD decides.
            let enrols = own.next_back().is_some_and(|(.., enrols)| *enrols || is_shown(UIDS[pod]));
            let wanted = (enrols && !self.forgotten[pod]).then_some(UIDS[pod]);
            assert_eq!(members.get(&ip).map(PodUid::as_str), wanted, "{ip}");
        }
    }
}

#[test]
fn a_pod_whose_container_nobody_named_goes_with_the_api_and_not_with_a_list_of_containers() {
    let mut node = Node::new(vec![shown("a", &[])]);
    node.add(unnamed_container(&"a".into()).as_str(), "a", &[X]);
    node.add("c1", "b", &[Y]);
    assert_eq!(node.unlisted(), ["c1"], "no runtime lists it");
    node.add(unnamed_container(&"a".into()).as_str(), "a", &[X]);
    assert_eq!(node.ledger.records.len(), 2, "the next ADD takes its place");
    node.add("c2", "a", &[X]);
    assert_eq!(node.unlisted(), ["c1", "c2"], "also one that names its container");
    assert_eq!(node.ledger.records.len(), 2);
    node.add(unnamed_container(&"c".into()).as_str(), "c", &[Y]);
    assert!(node.ledger.is_expected(&"c".into()));
    node.index.apply(Fact::Pods(vec![shown("c", &[Y])]));
    drop(node.members());
    assert!(!node.ledger.is_expected(&"c".into()));
    node.index.apply(Fact::Pods(Vec::new()));
    drop(node.members());
    assert!(!node.ledger.records.contains_key(&unnamed_container(&"c".into())), "the API shows it no more");
}

#[test]
fn a_pod_that_nobody_has_seen_can_be_given_up_and_no_other() {
    let mut node = Node::new(vec![shown("a", &[X])]);
    node.add("c1", "a", &[X]);
    node.add("c2", "b", &[Y]);
    assert!(node.members().contains_key(&Y) && node.ledger.is_expected(&"b".into()));
    node.ledger.drop_lost_pod(&"a".into());
    node.ledger.drop_lost_pod(&"b".into());
    assert!(node.members().contains_key(&X), "the API has shown it");
    assert!(!node.members().contains_key(&Y) && !node.ledger.is_expected(&"b".into()));
    assert_eq!(node.unlisted(), ["c1"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_address_is_the_newest_sandboxs_until_that_ends(events in vec(told(), 1..30)) {
        let mut node = Node::new(vec![]);
        let mut truth = Truth::default();
        for event in events {
            truth.happens(event, &mut node);
            let members = node.members();
            truth.agrees(&members, |uid| node.index.pod(&name(uid)).is_some());
        }
    }

    #[test]
    fn it_is_the_same_if_only_what_has_changed_is_looked_at(
        events in vec((told(), option::of(0..3usize), any::<bool>()), 1..30),
    ) {
        let mut whole = Node::new(vec![]);
        let mut part = Node { changed: Some(Default::default()), ..Node::new(vec![]) };
        let mut truths = [Truth::default(), Truth::default()];
        for (event, labelled, looks) in events {
            for (node, truth) in [&mut whole, &mut part].into_iter().zip(&mut truths) {
                truth.happens(event, node);
                if let Some(pod) = labelled {
                    node.changes_sides(UIDS[pod]);
                }
            }
            if looks {
                assert_eq!(part.members(), whole.members());
            }
        }
    }
}
