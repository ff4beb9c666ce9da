//! Identity of a connected ztunnel: its pod, by the network namespace from which it connected.
//!
//! Any process of root can connect, and add the address of a ztunnel pod to its own namespace. So the namespace itself
//! is compared wherever that of the pod is known; addresses count only for pods whose namespace is unknown, and count
//! least.

use std::{collections::BTreeSet, net::IpAddr};

use model::PodUid;
use netns::NetnsId;

/// A ztunnel pod of the node, as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZtunnelPod {
    /// UID of the pod.
    pub uid: PodUid,
    /// `metadata.creationTimestamp`.
    pub created: String,
    /// Whether the pod is being deleted.
    pub terminating: bool,
    /// Addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// The network namespace that is known to be the pod's, with hostNetwork the node's; `None`: unknown.
    pub netns: Option<NetnsId>,
}

/// The network namespace from which a ztunnel connected.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerNetns {
    /// `None`: could not be determined.
    pub(crate) id: Option<NetnsId>,
    /// Addresses of the namespace; empty if not needed or not known.
    pub(crate) addresses: BTreeSet<IpAddr>,
}

impl PeerNetns {
    /// Returns a key that is equal for all connections of one namespace, whose addresses may change, or be left out.
    pub(crate) fn key(&self) -> PeerNetns {
        if self.id.is_some() { PeerNetns { id: self.id, addresses: BTreeSet::new() } } else { self.clone() }
    }
}

model::word_enum! {
    /// Evidence that a peer is a ztunnel of the node; the greatest counts most.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum PeerStanding {
        /// The peer is not known as a ztunnel of the node: its namespace is that of no known ztunnel pod.
        Unknown = "nothing",
        /// The peer's namespace has the address of a ztunnel pod whose own namespace is not known.
        Address = "address",
        /// The peer's namespace is that of a ztunnel pod.
        Namespace = "namespace",
    }
}

impl PeerStanding {
    /// Returns whether a later standing can replace this one: a peer that was known by its namespace remains so,
    /// because a process stays there.
    pub(crate) fn may_become(self, later: PeerStanding) -> bool {
        self != PeerStanding::Namespace || later == PeerStanding::Namespace
    }
}

/// A connected ztunnel.
#[derive(Clone, Debug)]
pub(crate) struct ZtunnelPeer {
    pub(crate) netns: PeerNetns,
    /// Pod of the ztunnel, once found: a process stays in its pod. `None` with a standing above unknown means one of
    /// several pods that share a namespace.
    pub(crate) pod: Option<ZtunnelPod>,
    pub(crate) standing: PeerStanding,
    /// Whether the peer was reported as unknown.
    reported: bool,
}

/// Rank of a ztunnel in determining the newest; the greatest wins. A ztunnel that is known by its namespace ranks above
/// any other, and a peer that runs in no ztunnel pod below one whose pod stays.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seniority {
    /// The pod, known by its address, is being deleted.
    AddressLeaving(PodAge),
    /// The pod is not known.
    Unknown,
    /// The pod, known by its address, stays.
    AddressStaying(PodAge),
    /// The pod, known by its namespace, is being deleted.
    NamespaceLeaving(PodAge),
    /// The pod is one of several that share the ztunnel's namespace.
    NamespaceShared,
    /// The pod, known by its namespace, stays.
    NamespaceStaying(PodAge),
}

/// Age of a ztunnel pod; the greatest is the newest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodAge {
    created: String,
    /// Tie-break between pods of the same second.
    uid: PodUid,
}

impl ZtunnelPeer {
    /// Creates the peer in this namespace, with its pod among these.
    pub(crate) fn new(netns: PeerNetns, pods: &[ZtunnelPod]) -> ZtunnelPeer {
        let mut peer = ZtunnelPeer { netns, pod: None, standing: PeerStanding::Unknown, reported: false };
        peer.identify_pod(pods);
        peer
    }

    /// Searches for the peer's pod among these.
    pub(crate) fn identify_pod(&mut self, pods: &[ZtunnelPod]) {
        if let Some(pod) = &mut self.pod {
            let Some(known) = pods.iter().find(|known| known.uid == pod.uid) else {
                pod.terminating = true; // the API has already removed it
                return;
            };
            // A peer known by its namespace stays so, even if that of the pod is no longer known.
            if known.netns.is_none()
                || (known.netns == self.netns.id && self.standing == PeerStanding::Namespace)
            {
                known.clone_into(pod);
                return;
            }
        }
        (self.standing, self.pod) = self.find_pod(pods);
    }

    fn find_pod(&self, pods: &[ZtunnelPod]) -> (PeerStanding, Option<ZtunnelPod>) {
        let by_netns = |pod: &ZtunnelPod| pod.netns.is_some() && pod.netns == self.netns.id;
        let by_address = |pod: &ZtunnelPod| {
            pod.netns.is_none() && pod.ips.iter().any(|ip| self.netns.addresses.contains(ip))
        };
        let fitting = |fits: &dyn Fn(&ZtunnelPod) -> bool| -> Vec<ZtunnelPod> {
            pods.iter().filter(|pod| fits(pod)).cloned().collect()
        };
        let (standing, mut found) = match fitting(&by_netns) {
            none if none.is_empty() => (PeerStanding::Address, fitting(&by_address)),
            found => (PeerStanding::Namespace, found),
        };
        // Pods that share the node's network cannot be distinguished by it.
        match (found.pop(), found.is_empty()) {
            (None, _) => (PeerStanding::Unknown, None),
            (only, true) => (standing, only),
            (Some(_), false) if standing == PeerStanding::Address => (PeerStanding::Unknown, None),
            (Some(_), false) => (standing, None),
        }
    }

    pub(crate) fn seniority(&self) -> Seniority {
        let is_by_netns = self.standing == PeerStanding::Namespace;
        let Some(pod) = &self.pod else {
            return if is_by_netns { Seniority::NamespaceShared } else { Seniority::Unknown };
        };
        let age = PodAge { created: pod.created.clone(), uid: pod.uid.clone() };
        match (is_by_netns, pod.terminating) {
            (true, false) => Seniority::NamespaceStaying(age),
            (true, true) => Seniority::NamespaceLeaving(age),
            (false, false) => Seniority::AddressStaying(age),
            (false, true) => Seniority::AddressLeaving(age),
        }
    }

    pub(crate) fn is_unknown_peer(&self) -> bool {
        self.standing == PeerStanding::Unknown
    }

    /// Returns whether the peer is unknown, and was not reported as such before.
    pub(crate) fn take_unknown_notice(&mut self) -> bool {
        self.is_unknown_peer() && !std::mem::replace(&mut self.reported, true)
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn pod(uid: &str, created: &str, last: u8) -> ZtunnelPod {
        let ips = vec![IpAddr::from([10, 0, 0, last])];
        ZtunnelPod { uid: uid.into(), created: created.to_owned(), terminating: false, ips, netns: None }
    }

    fn netns(ino: u64) -> Option<NetnsId> {
        Some(NetnsId { dev: 4, ino })
    }

    /// A peer in a namespace with this address, whose number is ten times the last digit.
    fn peer(last: u8) -> ZtunnelPeer {
        let addresses = BTreeSet::from([IpAddr::from([10, 0, 0, last])]);
        ZtunnelPeer::new(PeerNetns { id: netns(u64::from(last) * 10), addresses }, &[])
    }

    fn identified(mut peer: ZtunnelPeer, pods: &[ZtunnelPod]) -> ZtunnelPeer {
        peer.identify_pod(pods);
        peer
    }

    /// The address of a ztunnel pod can be added to any namespace.
    #[test]
    fn the_namespace_counts_and_not_the_address() {
        let known = ZtunnelPod { netns: netns(10), ..pod("a", "2026-01-01T00:00:00Z", 1) };
        let mut fake = peer(1);
        fake.netns.id = netns(66);
        let (real, fake) = (identified(peer(1), from_ref(&known)), identified(fake, from_ref(&known)));
        assert_eq!((real.standing, fake.standing), (PeerStanding::Namespace, PeerStanding::Unknown));
        assert!(real.seniority() > fake.seniority() && fake.pod.is_none());
        // Before its namespace was known, both had its address; afterwards one of them no longer has it.
        let unknown = ZtunnelPod { netns: None, ..known.clone() };
        let (real, fake) = (identified(real, from_ref(&unknown)), identified(fake, from_ref(&unknown)));
        assert_eq!((real.standing, fake.standing), (PeerStanding::Namespace, PeerStanding::Address));
        assert!(real.seniority() > fake.seniority());
        let fake = identified(fake, from_ref(&known));
        assert_eq!((fake.standing, fake.pod), (PeerStanding::Unknown, None));
        // Also while the real one's pod is terminating.
        let leaving = ZtunnelPod { terminating: true, ..known };
        let newer = pod("z", "2026-01-09T00:00:00Z", 7);
        let pods = [leaving, newer];
        assert!(identified(real, &pods).seniority() > identified(peer(7), &pods).seniority());
    }

    /// During the rollout of a ztunnel with hostNetwork.
    #[test]
    fn pods_that_share_the_nodes_namespace_are_no_strangers() {
        let shared = |uid: &str, created: &str| ZtunnelPod { netns: netns(10), ..pod(uid, created, 1) };
        let (old, new) = (shared("a", "2026-01-01T00:00:00Z"), shared("b", "2026-01-02T00:00:00Z"));
        let alone = identified(peer(1), from_ref(&old));
        assert_eq!((alone.standing, alone.pod.as_ref()), (PeerStanding::Namespace, Some(&old)));
        let both = [old, new];
        let mut late = identified(peer(1), &both);
        assert_eq!((late.standing, late.pod.as_ref()), (PeerStanding::Namespace, None));
        assert!(!late.take_unknown_notice() && late.seniority() > peer(3).seniority());
        assert_eq!(
            identified(alone, &both).pod.as_ref().map(|pod| &pod.uid),
            Some(&"a".into()),
            "it stays in its pod"
        );
        let late = identified(late, &both[1..]);
        assert_eq!(late.pod.as_ref(), Some(&both[1]), "the other one has gone");
    }

    #[test]
    fn the_newest_is_the_one_created_last_that_stays() {
        let (old, new) = (pod("b", "2026-01-01T00:00:00Z", 1), pod("a", "2026-01-02T00:00:00Z", 2));
        let (mut one, mut two) = (peer(1), peer(2));
        let pods = [old.clone(), new.clone()];
        [&mut one, &mut two].into_iter().for_each(|peer| peer.identify_pod(&pods));
        assert!(two.seniority() > one.seniority());
        assert!(one.seniority() > peer(3).seniority() && !one.take_unknown_notice());
        // A rollback: the newer pod is terminating.
        two.identify_pod(&[old.clone(), ZtunnelPod { terminating: true, ..new }]);
        assert!(one.seniority() > two.seniority() && peer(3).seniority() > two.seniority());
        // The API has removed the object, but the process still drains.
        two.identify_pod(&[old]);
        assert!(one.seniority() > two.seniority());
    }

    #[test]
    fn who_cannot_be_told_from_another_is_not_known() {
        let pods = [pod("a", "2026-01-01T00:00:00Z", 1), pod("b", "2026-01-02T00:00:00Z", 1)];
        let nowhere = ZtunnelPeer::new(PeerNetns::default(), &[]);
        for mut unknown in [peer(1), peer(2), nowhere] {
            unknown.identify_pod(&pods);
            assert_eq!(unknown.seniority(), Seniority::Unknown);
            assert!(unknown.take_unknown_notice() && !unknown.take_unknown_notice(), "reported once");
        }
    }
}
