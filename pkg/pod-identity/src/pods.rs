//! The pods of a node, and their UIDs in container runtimes.

use std::collections::{BTreeMap, BTreeSet};

use model::{Pod, PodName, PodUid};

use crate::process::{UidNumber, cgroup_paths, pods_in_path};

/// Identifiers that distinguish a pod from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIds {
    /// Namespace and name.
    pub name: PodName,
    /// `metadata.uid`.
    pub uid: PodUid,
    /// Hash of a static pod's manifest, which is its UID for the kubelet and the runtime.
    pub manifest_hash: Option<PodUid>,
}

impl From<&Pod> for PodIds {
    fn from(pod: &Pod) -> PodIds {
        PodIds { name: pod.name(), uid: pod.metadata.uid.clone(), manifest_hash: pod.manifest_hash() }
    }
}

/// The pods of a node. It should have all of them: a process belongs to the outermost known pod of its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPods {
    /// Pod with each UID; `None`: several pods have it, so a process with it belongs to none of them.
    owners: BTreeMap<UidNumber, Option<PodUid>>,
    /// Pods that share a UID with another one.
    contested: BTreeSet<PodUid>,
}

/// The pod that a process belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessOwner {
    /// A pod of the node.
    Pod {
        /// The pod's UID.
        uid: PodUid,
        /// Whether the process's path names another, unknown pod outside of this one: either the node itself runs in a
        /// pod, or a pod that the API does not show has created a control group of this name.
        nested: bool,
    },
    /// No known pod, several with one UID, or contradictory control groups.
    Nobody,
}

impl KnownPods {
    /// Creates the index. `pods`: all known pods of the node, in any order.
    pub fn new(pods: impl IntoIterator<Item = PodIds>) -> KnownPods {
        let pods: Vec<PodIds> = pods.into_iter().collect();
        let mut known = KnownPods::default();
        let numbers = |ids: &PodIds| UidNumber::parse(ids.uid.as_str());
        known.add_numbers(pods.iter().filter_map(|ids| Some((numbers(ids)?, &ids.uid))));
        // The UID of a pod is always that pod's, whatever the annotations of another one claim.
        let owned: BTreeSet<UidNumber> = known.owners.keys().copied().collect();
        let hash = |ids: &PodIds| UidNumber::from_hash(ids.manifest_hash.as_ref()?.as_str());
        let hashes = pods.iter().filter_map(|ids| Some((hash(ids)?, &ids.uid)));
        known.add_numbers(hashes.filter(|(number, _)| !owned.contains(number)));
        known
    }

    fn add_numbers<'a>(&mut self, numbers: impl Iterator<Item = (UidNumber, &'a PodUid)>) {
        let mut claims: BTreeMap<UidNumber, Vec<&PodUid>> = BTreeMap::new();
        for (number, uid) in numbers {
            claims.entry(number).or_default().push(uid);
        }
        for (number, uids) in claims {
            let owner = if let [uid] = uids.as_slice() { Some((*uid).clone()) } else { None };
            if owner.is_none() {
                self.contested.extend(uids.into_iter().cloned());
            }
            self.owners.insert(number, owner);
        }
    }

    /// Returns whether another pod has the same UID in the runtime, so that processes are no evidence for it.
    pub fn is_contested(&self, uid: &PodUid) -> bool {
        self.contested.contains(uid)
    }

    /// Returns the pod to which a process belongs, by its `/proc/PID/cgroup` (version 1 or 2): the outermost known one
    /// of its path.
    pub fn process_owner(&self, cgroup: &str) -> ProcessOwner {
        let mut found: Option<(&Option<PodUid>, bool)> = None;
        for path in cgroup_paths(cgroup) {
            let mut names = pods_in_path(path).enumerate();
            let Some((place, owner)) =
                names.find_map(|(place, number)| Some((place, self.owners.get(&number)?)))
            else {
                continue;
            };
            if found.is_some_and(|(other, _)| other != owner) {
                return ProcessOwner::Nobody;
            }
            let nested = place > 0 || found.is_some_and(|(_, nested)| nested);
            found = Some((owner, nested));
        }
        match found {
            Some((Some(uid), nested)) => ProcessOwner::Pod { uid: uid.clone(), nested },
            Some((None, _)) | None => ProcessOwner::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VICTIM: &str = "2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f809";
    const ATTACKER: &str = "ffffffff-5e6f-7081-92a3-b4c5d6e7f809";
    const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";
    const HASH: &str = "0123456789abcdef0123456789abcdef";

    fn ids(uid: &str, hash: Option<&str>) -> PodIds {
        let name = PodName { namespace: "shop".to_owned(), name: format!("p-{uid}") };
        PodIds { name, uid: uid.into(), manifest_hash: hash.map(Into::into) }
    }

    fn known(pods: &[(&str, Option<&str>)]) -> KnownPods {
        KnownPods::new(pods.iter().map(|(uid, hash)| ids(uid, *hash)))
    }

    fn pod(uid: &str, nested: bool) -> ProcessOwner {
        ProcessOwner::Pod { uid: uid.into(), nested }
    }

    #[test]
    fn a_process_belongs_to_the_outermost_known_pod() {
        let known = known(&[(VICTIM, None), (ATTACKER, None)]);
        let table = [
            (format!("0::/kubepods/pod{VICTIM}/1"), pod(VICTIM, false)),
            (format!("0::/kubepods/pod{ATTACKER}/1/pod{VICTIM}/x"), pod(ATTACKER, false)),
            (format!("0::/kubepods/pod{ATTACKER}/1/kubepods-pod{VICTIM}.slice"), pod(ATTACKER, false)),
            // A node that runs in a pod of another cluster, or a force-deleted pod.
            (format!("0::/kubepods/pod{UNKNOWN}/1/kubepods/pod{VICTIM}/2"), pod(VICTIM, true)),
            (format!("0::/kubepods/pod{UNKNOWN}/1"), ProcessOwner::Nobody),
            ("0::/system.slice/sshd.service".to_owned(), ProcessOwner::Nobody),
            // Cgroup v1, with and without a contradiction.
            (
                format!(
                    "12:cpuset:/kubepods/pod{VICTIM}/1\n11:memory:/kubepods/pod{VICTIM}/1\n1:name=systemd:/\n0::/"
                ),
                pod(VICTIM, false),
            ),
            (
                format!("2:cpu:/kubepods/pod{VICTIM}/1\n1:memory:/kubepods/pod{ATTACKER}/1"),
                ProcessOwner::Nobody,
            ),
            (
                format!("2:cpu:/kubepods/pod{VICTIM}/1\n1:memory:/pod{UNKNOWN}/pod{VICTIM}/1"),
                pod(VICTIM, true),
            ),
        ];
        for (cgroup, expected) in table {
            assert_eq!(known.process_owner(&cgroup), expected, "{cgroup}");
        }
    }

    #[test]
    fn a_static_pod_is_known_by_its_hash_unless_another_pod_has_it() {
        let path = format!("0::/kubepods/pod{HASH}/1");
        let alone = known(&[(VICTIM, Some(HASH)), (ATTACKER, None)]);
        assert_eq!(alone.process_owner(&path), pod(VICTIM, false));
        // Which of the two it is cannot be determined.
        let twice = known(&[(VICTIM, Some(HASH)), (ATTACKER, Some(HASH))]);
        assert_eq!(twice.process_owner(&path), ProcessOwner::Nobody);
        assert!(twice.is_contested(&VICTIM.into()) && twice.is_contested(&ATTACKER.into()));
        assert_eq!(twice.process_owner(&format!("0::/kubepods/pod{VICTIM}/1")), pod(VICTIM, false));
        // The digits of another pod's UID, in any order of the pods, do not affect that pod.
        let digits = VICTIM.replace('-', "");
        for pods in [
            [(VICTIM, None), (ATTACKER, Some(digits.as_str()))],
            [(ATTACKER, Some(digits.as_str())), (VICTIM, None)],
        ] {
            let known = known(&pods);
            assert_eq!(known.process_owner(&format!("0::/kubepods/pod{VICTIM}/1")), pod(VICTIM, false));
            assert!(!known.is_contested(&VICTIM.into()) && !known.is_contested(&ATTACKER.into()));
        }
    }

    #[test]
    fn two_pods_with_one_uid_are_neither() {
        let twice = known(&[(VICTIM, None), (VICTIM, None)]);
        assert_eq!(twice.process_owner(&format!("0::/kubepods/pod{VICTIM}/1")), ProcessOwner::Nobody);
        assert!(twice.is_contested(&VICTIM.into()));
    }

    /// A hash that another pod's author can set: any hash, including the victim's digits and hash.
    fn any_hash() -> impl Strategy<Value = Option<String>> {
        prop_oneof![
            Just(None),
            Just(Some(VICTIM.replace('-', ""))),
            Just(Some(VICTIM.to_owned())),
            Just(Some(HASH.to_owned())),
            "[0-9a-fA-F-]{0,40}".prop_map(Some),
        ]
    }

    /// A path that a container can create below its own control group.
    fn any_group() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just(format!("/pod{VICTIM}")),
            Just(format!("/kubepods-pod{}.slice", VICTIM.replace('-', "_"))),
            Just(format!("/pod{HASH}")),
            Just("/..".to_owned()),
            "/[a-z0-9:._-]{0,40}",
        ];
        prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn nothing_that_other_pods_authors_choose_changes_whose_a_process_is(
            others in prop::collection::vec((any::<u64>(), any_hash()), 1..6),
            group in any_group(),
            is_static in any::<bool>(),
            place in any::<prop::sample::Index>(),
        ) {
            let hash = is_static.then_some(HASH);
            let mut pods: Vec<PodIds> = others
                .iter()
                .map(|(number, hash)| ids(&format!("ffffffff-0000-4000-8000-{:012x}", number >> 16), hash.as_deref()))
                .collect();
            let attacker = pods[0].clone();
            pods.insert(place.index(pods.len() + 1), ids(VICTIM, hash));
            let known = KnownPods::new(pods);
            // Exactly its own processes are the victim's, whatever the others claim.
            prop_assert_eq!(known.process_owner(&format!("0::/kubepods/pod{VICTIM}/1")), pod(VICTIM, false));
            let by_hash = known.process_owner(&format!("0::/kubepods/pod{HASH}/1"));
            let claimed = others.iter().any(|(_, hash)| hash.as_deref() == Some(HASH));
            if is_static {
                let expected = if claimed { ProcessOwner::Nobody } else { pod(VICTIM, false) };
                prop_assert_eq!(by_hash, expected);
            } else {
                prop_assert_ne!(by_hash, pod(VICTIM, false));
            }
            for path in [
                format!("0::/kubepods/pod{}/ctr{group}", attacker.uid),
                format!("0::/kubepods.slice/kubepods-pod{}.slice{group}", attacker.uid.as_str().replace('-', "_")),
            ] {
                let owner = known.process_owner(&path);
                prop_assert!(owner != pod(VICTIM, false) && owner != pod(VICTIM, true), "{path}: {owner:?}");
            }
        }
    }
}
