//! Decision for one pod.

use std::fmt;

model::word_enum! {
    /// Evidence on which the answer for a pod rests, strongest first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Witness {
        /// The runtime passed the namespace to the plugin with the pod's ADD, and the plugin to the agent.
        Add = "the runtime passed it with the pod's ADD",
        /// The record of the pod's ADD: the path that the runtime passed still refers to the namespace of that ADD.
        Record = "the record of the pod's ADD names it",
        /// The node routes the pod's address to a link whose peer is in the namespace.
        Route = "the node routes the pod's address into it",
        /// The node routes the pod's address to a bridge that has a port whose peer is in the namespace, and no other namespace
        /// with a process of the pod has one.
        Bridge = "it is the only one with a process of the pod on the bridge to which the node routes the pod's address",
        /// Processes only: the node's network does not show where the address is, and no other namespace fits.
        Processes = "it is the only one with a process and an address of the pod; the node's routes do not show where that address is",
    }
}

/// Where the node's own network leads for a pod's address, seen from one namespace; the later outweigh the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodePath {
    /// No namespace: a gateway, a tunnel, a switch outside of the kernel's bridges, hardware.
    Unknown,
    /// A bridge that has a port whose peer is in this namespace. A bridge learns the port of an address only from what
    /// its neighbours send, so that port is no witness: a pod with `NET_RAW` can claim the address.
    Bridge,
    /// A link whose peer is in this namespace.
    Here,
    /// A link, or a bridge, without any peer in this namespace.
    Elsewhere,
}

/// Combines the paths to several addresses of one pod: one that leads elsewhere outweighs all others.
pub fn combine_paths(paths: impl IntoIterator<Item = NodePath>) -> NodePath {
    paths.into_iter().max().unwrap_or(NodePath::Unknown)
}

/// A namespace that a process of the pod is in, and that has one of the pod's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<N> {
    /// The namespace.
    pub netns: N,
    /// Target of the node's routes to the pod's addresses.
    pub path: NodePath,
    /// Whether the peer of one of its links is in the node's namespace, which cannot be achieved from inside.
    pub linked_to_node: bool,
    /// Whether all of the pod's processes in it are [nested](crate::ProcessOwner::Pod::nested).
    pub nested: bool,
}

/// The answer for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity<N> {
    /// This namespace is the pod's.
    Found(N, Witness),
    /// No namespace is known to be the pod's, and none fits.
    NotFound,
    /// No decision is possible, and none may be guessed.
    Ambiguous(Ambiguity),
}

model::word_enum! {
    /// Reason why no decision is possible.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Ambiguity {
        /// Several namespaces fit.
        SeveralFit = "several-fit", "its processes are in several network namespaces that have its address and are connected to the node",
        /// There are more namespaces of its processes than are examined.
        TooMany = "too-many-netns", "its processes are in more network namespaces than are examined",
        /// Processes of the pod are in a namespace with its address, and the node routes that address to another one.
        AddressElsewhere = "address-elsewhere", "its processes are in a network namespace that has its address, but the node's routes lead to another one",
        /// All processes may belong to a pod that is not known.
        Nested = "nested", "the control group of its processes is nested in that of a pod which the API server does not show",
        /// Another pod has the same UID in the container runtime.
        SharedUid = "shared-uid", "another pod has the same UID for the container runtime",
        /// The namespace is another pod's.
        SharedNetns = "shared-netns", "another pod has the network namespace of its processes",
    }
}

/// Consecutive undecided answers for one pod. A single one may be due to a pod that is just starting or ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguityStreak {
    /// Reason of the last one.
    pub why: Ambiguity,
    count: u32,
}

impl AmbiguityStreak {
    /// Continues the streak of a pod; `before`: `None` if the last answer was decided.
    pub fn continue_from(before: Option<AmbiguityStreak>, why: Ambiguity) -> AmbiguityStreak {
        AmbiguityStreak { why, count: before.map_or(0, |before| before.count).saturating_add(1) }
    }

    /// Returns whether it is to be reported now: at its second answer only.
    pub fn is_due(self) -> bool {
        self.count == 2
    }
}

impl fmt::Display for AmbiguityStreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its network namespace could not be determined: {}", self.why)
    }
}

/// Decides which of the candidates is the pod's namespace, if any. A namespace that the runtime passed, at the ADD or
/// in its record, needs no decision here.
///
/// Neither the number of processes nor their age counts, because the pod's author chooses both.
pub fn choose_netns<N: Copy>(candidates: &[Candidate<N>]) -> Identity<N> {
    let of = |path: NodePath| candidates.iter().filter(move |candidate| candidate.path == path);
    let own = |candidate: &&Candidate<N>| !candidate.nested;
    if let Some(identity) = identify_only(of(NodePath::Here), Witness::Route) {
        return identity;
    }
    if let Some(identity) = identify_only(of(NodePath::Bridge).filter(own), Witness::Bridge) {
        return identity;
    }
    let silent = || of(NodePath::Unknown).filter(own);
    // A link to the node cannot be created inside; a namespace that a pod created itself has none. Hardware has no
    // peer.
    let linked: Vec<_> = silent().filter(|candidate| candidate.linked_to_node).collect();
    let fitting = if linked.is_empty() { silent().collect() } else { linked };
    if let Some(identity) = identify_only(fitting, Witness::Processes) {
        return identity;
    }
    match candidates {
        [] => Identity::NotFound,
        _ if of(NodePath::Elsewhere).next().is_some() => Identity::Ambiguous(Ambiguity::AddressElsewhere),
        _ => Identity::Ambiguous(Ambiguity::Nested),
    }
}

/// Decides, for a report, which namespace is the pod's if its processes are not known: the one of its ADD if it still
/// has one of the pod's addresses, else the only one that has. `None`: none has, or the answer is ambiguous.
///
/// A pod may give itself the address of another one, so namespaces of other pods' ADDs do not count.
pub fn choose_by_address<N: Copy + PartialEq>(
    fitting: impl IntoIterator<Item = N>,
    recorded: Option<N>,
    is_of_another: impl Fn(N) -> bool,
) -> Option<N> {
    let fitting: Vec<N> = fitting.into_iter().collect();
    if let Some(own) = recorded.filter(|own| fitting.contains(own)) {
        return Some(own);
    }
    let mut all = fitting.into_iter().filter(|netns| !is_of_another(*netns));
    all.next().filter(|_| all.next().is_none())
}

/// Identifies the only fitting candidate. `None`: none fits.
fn identify_only<'a, N: Copy + 'a>(
    fitting: impl IntoIterator<Item = &'a Candidate<N>>,
    witness: Witness,
) -> Option<Identity<N>> {
    let mut fitting = fitting.into_iter();
    let first = fitting.next()?;
    Some(match fitting.next() {
        None => Identity::Found(first.netns, witness),
        Some(_) => Identity::Ambiguous(Ambiguity::SeveralFit),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(netns: u8, path: NodePath) -> Candidate<u8> {
        Candidate { netns, path, linked_to_node: true, nested: false }
    }

    fn unlinked(netns: u8) -> Candidate<u8> {
        Candidate { linked_to_node: false, ..candidate(netns, NodePath::Unknown) }
    }

    fn nested(netns: u8, path: NodePath) -> Candidate<u8> {
        Candidate { nested: true, ..candidate(netns, path) }
    }

    #[test]
    fn the_answer_rests_on_the_strongest_witness() {
        use Ambiguity::{AddressElsewhere, Nested, SeveralFit};
        use NodePath::{Bridge, Elsewhere, Here, Unknown};
        let found = |netns, witness| Identity::Found(netns, witness);
        let table = [
            (vec![], Identity::NotFound),
            (vec![candidate(1, Here)], found(1, Witness::Route)),
            // The node's route never leads to an address on a link of its own.
            (vec![candidate(1, Elsewhere), candidate(2, Here)], found(2, Witness::Route)),
            (vec![candidate(1, Elsewhere)], Identity::Ambiguous(AddressElsewhere)),
            (vec![candidate(1, Here), candidate(2, Here)], Identity::Ambiguous(SeveralFit)),
            (vec![candidate(1, Bridge)], found(1, Witness::Bridge)),
            (vec![candidate(1, Bridge), candidate(2, Elsewhere)], found(1, Witness::Bridge)),
            (vec![candidate(1, Bridge), candidate(2, Bridge)], Identity::Ambiguous(SeveralFit)),
            (vec![candidate(1, Unknown)], found(1, Witness::Processes)),
            (vec![unlinked(1)], found(1, Witness::Processes)),
            // A namespace that the pod created inside itself, and to which its own address leads.
            (vec![unlinked(1), candidate(2, Unknown)], found(2, Witness::Processes)),
            (vec![unlinked(1), unlinked(2)], Identity::Ambiguous(SeveralFit)),
            (vec![candidate(1, Unknown), candidate(2, Unknown)], Identity::Ambiguous(SeveralFit)),
            // A node that runs in a pod: only its routes decide.
            (vec![nested(1, Here)], found(1, Witness::Route)),
            (vec![nested(1, Bridge)], Identity::Ambiguous(Nested)),
            (vec![nested(1, Unknown)], Identity::Ambiguous(Nested)),
            (vec![nested(1, Bridge), candidate(2, Bridge)], found(2, Witness::Bridge)),
            (vec![nested(1, Unknown), candidate(2, Unknown)], found(2, Witness::Processes)),
        ];
        for (candidates, expected) in table {
            assert_eq!(choose_netns(&candidates), expected, "{candidates:?}");
            let reversed: Vec<_> = candidates.iter().rev().copied().collect();
            assert_eq!(choose_netns(&reversed), expected, "reversed: {candidates:?}");
        }
    }

    #[test]
    fn an_address_is_a_witness_only_of_a_single_namespace_that_is_no_other_pods() {
        let table = [
            (vec![], None, None),
            (vec![1], None, Some(1)),
            (vec![1, 2], None, None),
            (vec![1, 2], Some(2), Some(2)),
            (vec![1], Some(2), Some(1)),
            // 7 is from another pod's ADD.
            (vec![7], None, None),
            (vec![1, 7], None, Some(1)),
            (vec![7], Some(7), Some(7)),
        ];
        for (fitting, recorded, expected) in table {
            let chosen = choose_by_address(fitting.iter().copied(), recorded, |netns| netns == 7);
            assert_eq!(chosen, expected, "{fitting:?} {recorded:?}");
        }
    }

    #[test]
    fn one_address_that_leads_elsewhere_outweighs_the_others() {
        use NodePath::{Bridge, Elsewhere, Here, Unknown};
        let table = [
            (vec![], Unknown),
            (vec![Here, Unknown], Here),
            (vec![Bridge, Unknown], Bridge),
            (vec![Here, Elsewhere], Elsewhere),
            (vec![Bridge, Elsewhere, Unknown], Elsewhere),
        ];
        for (paths, expected) in table {
            assert_eq!(combine_paths(paths.iter().copied()), expected, "{paths:?}");
        }
    }

    #[test]
    fn an_ambiguity_is_reported_at_its_second_answer_in_a_row() {
        let why = Ambiguity::Nested;
        let one = AmbiguityStreak::continue_from(None, Ambiguity::SeveralFit);
        let two = AmbiguityStreak::continue_from(Some(one), why);
        let three = AmbiguityStreak::continue_from(Some(two), why);
        assert_eq!([one, two, three].map(AmbiguityStreak::is_due), [false, true, false]);
        assert_eq!(two.why, why);
    }

    fn any_path() -> impl Strategy<Value = NodePath> {
        prop_oneof![
            Just(NodePath::Here),
            Just(NodePath::Bridge),
            Just(NodePath::Elsewhere),
            Just(NodePath::Unknown)
        ]
    }

    fn any_candidates() -> impl Strategy<Value = Vec<Candidate<u8>>> {
        let one = (any_path(), any::<bool>(), any::<bool>());
        prop::collection::vec(one, 0..5).prop_map(|all| {
            let number = |(netns, (path, linked_to_node, nested)): (usize, _)| Candidate {
                netns: netns as u8,
                path,
                linked_to_node,
                nested,
            };
            all.into_iter().enumerate().map(number).collect()
        })
    }

    proptest! {
        #[test]
        fn no_order_and_no_namespace_that_the_node_leads_past_changes_the_answer(
            candidates in any_candidates(),
            seed in any::<u64>(),
        ) {
            let mut shuffled = candidates.clone();
            let length = shuffled.len().max(1);
            shuffled.rotate_left(seed as usize % length);
            prop_assert_eq!(choose_netns(&shuffled), choose_netns(&candidates));
            let lure = Candidate { netns: 99, ..candidate(99, NodePath::Elsewhere) };
            shuffled.push(lure);
            let with_lure = choose_netns(&shuffled);
            match choose_netns(&candidates) {
                found @ Identity::Found(..) => prop_assert_eq!(with_lure, found),
                _ => prop_assert!(!matches!(with_lure, Identity::Found(..))),
            }
        }

        #[test]
        fn an_answer_is_never_a_nested_one_without_a_route(candidates in any_candidates()) {
            if let Identity::Found(netns, witness) = choose_netns(&candidates) {
                let chosen = candidates.iter().find(|candidate| candidate.netns == netns).unwrap();
                prop_assert!(!chosen.nested || witness == Witness::Route);
                prop_assert!(chosen.path != NodePath::Elsewhere);
            }
        }
    }
}
