//! Who a connected ztunnel is: its pod, by the addresses of the network namespace that it dialled from.

use std::{collections::BTreeSet, net::IpAddr};

use model::PodUid;

/// A ztunnel pod of the node, as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZtunnelPod {
    /// Its UID.
    pub uid: PodUid,
    /// `metadata.creationTimestamp`.
    pub created: String,
    /// It is being deleted.
    pub terminating: bool,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
}

/// A connected ztunnel.
#[derive(Clone, Debug, Default)]
pub(crate) struct ZtunnelPeer {
    /// Of its network namespace; `None`: they could not be determined.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Its pod, once it was found: a process stays in its pod.
    pub(crate) pod: Option<ZtunnelPod>,
    /// That it is a stranger was reported.
    reported: bool,
}

/// How much a ztunnel counts as the newest; the greatest does. Any process of root can dial: one that runs in no ztunnel pod
/// must not take the place of one that does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seniority {
    /// Its pod is being deleted.
    Leaving(PodAge),
    /// In which pod it runs is not known.
    Unknown,
    /// Its pod stays.
    Staying(PodAge),
}

/// How new a ztunnel pod is; the greatest is the newest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodAge {
    created: String,
    /// Of two of the same second, always the same one.
    uid: PodUid,
}

impl ZtunnelPeer {
    pub(crate) fn new(addresses: BTreeSet<IpAddr>) -> ZtunnelPeer {
        ZtunnelPeer { addresses, pod: None, reported: false }
    }

    /// Looks for its pod among these.
    pub(crate) fn identify(&mut self, pods: &[ZtunnelPod]) {
        if let Some(pod) = &mut self.pod {
            match pods.iter().find(|known| known.uid == pod.uid) {
                Some(known) => known.clone_into(pod),
                None => pod.terminating = true, // the API has forgotten it already
            }
            return;
        }
        let mut fitting = pods.iter().filter(|pod| pod.ips.iter().any(|ip| self.addresses.contains(ip)));
        // Two with one address share the node's network, and cannot be reported apart by it.
        self.pod = fitting.next().filter(|_| fitting.next().is_none()).cloned();
    }

    pub(crate) fn seniority(&self) -> Seniority {
        let Some(pod) = &self.pod else { return Seniority::Unknown };
        let age = PodAge { created: pod.created.clone(), uid: pod.uid.clone() };
        if pod.terminating { Seniority::Leaving(age) } else { Seniority::Staying(age) }
    }

    /// Whether its pod is not known, and nobody was reported so.
    pub(crate) fn take_stranger_news(&mut self) -> bool {
        self.pod.is_none() && !std::mem::replace(&mut self.reported, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, created: &str, last: u8) -> ZtunnelPod {
        let ips = vec![IpAddr::from([10, 0, 0, last])];
        ZtunnelPod { uid: uid.into(), created: created.to_owned(), terminating: false, ips }
    }

    fn peer(last: u8) -> ZtunnelPeer {
        ZtunnelPeer::new(BTreeSet::from([IpAddr::from([10, 0, 0, last])]))
    }

    #[test]
    fn the_newest_is_the_one_created_last_that_stays() {
        let (old, new) = (pod("b", "2026-01-01T00:00:00Z", 1), pod("a", "2026-01-02T00:00:00Z", 2));
        let (mut one, mut two) = (peer(1), peer(2));
        let pods = [old.clone(), new.clone()];
        [&mut one, &mut two].into_iter().for_each(|peer| peer.identify(&pods));
        assert!(two.seniority() > one.seniority());
        assert!(one.seniority() > peer(3).seniority() && !one.take_stranger_news());
        // A rollback: the newer pod is being deleted.
        two.identify(&[old.clone(), ZtunnelPod { terminating: true, ..new }]);
        assert!(one.seniority() > two.seniority() && peer(3).seniority() > two.seniority());
        // The API has removed the object, the process still drains.
        two.identify(&[old]);
        assert!(one.seniority() > two.seniority());
    }

    #[test]
    fn who_cannot_be_told_from_another_is_not_known() {
        let pods = [pod("a", "2026-01-01T00:00:00Z", 1), pod("b", "2026-01-02T00:00:00Z", 1)];
        for mut unknown in [peer(1), peer(2), ZtunnelPeer::default()] {
            unknown.identify(&pods);
            assert_eq!(unknown.seniority(), Seniority::Unknown);
            assert!(unknown.take_stranger_news() && !unknown.take_stranger_news(), "reported once");
        }
    }
}
