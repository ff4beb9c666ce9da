//! Network namespaces of the node's ztunnel pods, by which their connections are recognised.
//!
//! Any process of root can connect to ztunnel.sock, and add a ztunnel pod's address to its own namespace. So the
//! namespaces are determined like those of all pods, by evidence that no pod can forge (`pod_identity`).

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration, time::Instant};

use model::PodUid;
use netns::{Netns, NetnsId};
use pod_capture::{NetnsAnswer, NetnsMatch, NetnsQuery};
use tracing::{info, warn};

use super::search_schedule::SearchSchedule;

/// The ztunnel pods with their namespaces, as far as these are known, and the time of the next search.
#[derive(Debug, Default)]
pub(super) struct ZtunnelNamespaces {
    pods: BTreeMap<PodUid, ZtunnelPlace>,
    schedule: SearchSchedule,
}

#[derive(Debug, Default)]
struct ZtunnelPlace {
    ips: Vec<IpAddr>,
    /// Held open, so that the kernel does not reuse its number for another namespace.
    netns: Option<Arc<Netns>>,
    /// Whether it was reported that the namespace could not be determined.
    reported: bool,
}

impl ZtunnelNamespaces {
    /// Sets the ztunnel pods that have a network namespace of their own, with their addresses. A new pod, and one whose
    /// addresses changed, is searched for immediately.
    pub(super) fn set_pods(&mut self, pods: BTreeMap<PodUid, Vec<IpAddr>>) {
        self.pods.retain(|uid, _| pods.contains_key(uid));
        for (uid, ips) in pods {
            let place = self.pods.entry(uid).or_default();
            if place.ips != ips {
                place.ips = ips;
                self.schedule.schedule_within(Duration::ZERO, false);
            }
        }
    }

    /// Returns the namespace of a pod; `None`: unknown.
    pub(super) fn netns_id(&self, uid: &PodUid) -> Option<NetnsId> {
        Some(self.pods.get(uid)?.netns.as_ref()?.id())
    }

    /// Returns when the next search is due, if there is anything to search for.
    pub(super) fn next_discovery(&self) -> Option<Instant> {
        self.pods.values().any(|place| !place.ips.is_empty()).then_some(self.schedule.next)
    }

    pub(super) fn is_due(&self) -> bool {
        self.next_discovery().is_some() && self.schedule.is_due()
    }

    /// Returns the queries for all ztunnel pods, including known ones: a pod whose sandbox is recreated has another
    /// namespace.
    pub(super) fn netns_queries(&self) -> impl Iterator<Item = (PodUid, NetnsQuery)> {
        let placed = self.pods.iter().filter(|(_, place)| !place.ips.is_empty());
        placed.map(|(uid, place)| {
            let (ips, known) = (place.ips.clone(), place.netns.clone());
            (uid.clone(), NetnsQuery { ips, known, recorded: None })
        })
    }

    /// Applies the answers of a search, and removes those of ztunnel pods from them. `None`: the search failed.
    pub(super) fn apply_answers(&mut self, answers: Option<&mut BTreeMap<PodUid, NetnsAnswer>>) {
        let mut is_complete = answers.is_some();
        if let Some(answers) = answers {
            for (uid, place) in &mut self.pods {
                if let Some(answer) = answers.remove(uid) {
                    place.apply_answer(uid, answer);
                }
                is_complete &= place.netns.is_some();
            }
        }
        if is_complete { self.schedule.schedule_regular() } else { self.schedule.schedule_retry() }
    }
}

impl ZtunnelPlace {
    fn apply_answer(&mut self, uid: &PodUid, answer: NetnsAnswer) {
        match answer {
            NetnsAnswer::Found(NetnsMatch { netns, .. }) => {
                info!(target: "ambient", %uid, netns = netns.id().ino, "network namespace of the ztunnel pod found");
                (self.netns, self.reported) = (Some(Arc::new(netns)), false);
            }
            NetnsAnswer::Ambiguous(why) if !self.reported => {
                warn!(target: "ambient", %uid, reason = why.code(), "network namespace of the ztunnel pod could not be determined");
                self.reported = true;
            }
            NetnsAnswer::Ambiguous(_) | NetnsAnswer::Unchanged { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use pod_identity::{Ambiguity, Witness};

    use super::*;

    fn pods(ztunnels: &[(&str, u8)]) -> BTreeMap<PodUid, Vec<IpAddr>> {
        let one = |(uid, last): &(&str, u8)| ((*uid).into(), vec![IpAddr::from([10, 0, 0, *last])]);
        ztunnels.iter().map(one).collect()
    }

    fn found(uid: &str) -> (PodUid, NetnsAnswer) {
        let netns = Netns::current().unwrap();
        (uid.into(), NetnsAnswer::Found(NetnsMatch { netns, witness: Witness::Route, captured: false }))
    }

    #[test]
    fn a_search_is_due_at_once_for_a_new_pod_and_for_other_addresses() {
        let mut namespaces = ZtunnelNamespaces::default();
        assert!(!namespaces.is_due(), "there is none");
        namespaces.set_pods(BTreeMap::from([("a".into(), Vec::new())]));
        assert!(!namespaces.is_due(), "it has no address yet");
        namespaces.set_pods(pods(&[("a", 1)]));
        assert!(namespaces.is_due() && namespaces.netns_id(&"a".into()).is_none());
        let mut answers = BTreeMap::from([found("a"), found("other")]);
        namespaces.apply_answers(Some(&mut answers));
        assert_eq!(answers.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["other"]);
        assert_eq!(namespaces.netns_id(&"a".into()), Some(Netns::current().unwrap().id()));
        assert!(!namespaces.is_due());
        namespaces.set_pods(pods(&[("a", 1)]));
        assert!(!namespaces.is_due(), "nothing has changed");
        namespaces.set_pods(pods(&[("a", 2)]));
        assert!(namespaces.is_due());
        let known = namespaces.netns_queries().all(|(_, query)| query.known.is_some());
        assert!(known, "what is known is verified");
    }

    #[test]
    fn one_that_is_not_found_is_searched_for_again_and_one_that_goes_is_forgotten() {
        let mut namespaces = ZtunnelNamespaces::default();
        namespaces.set_pods(pods(&[("a", 1), ("b", 2)]));
        namespaces.apply_answers(Some(&mut BTreeMap::from([found("a")])));
        let soon = namespaces.next_discovery().unwrap();
        assert!(soon < Instant::now() + Duration::from_secs(5), "b is missing");
        let ambiguous = NetnsAnswer::Ambiguous(Ambiguity::SeveralFit);
        namespaces.apply_answers(Some(&mut BTreeMap::from([("a".into(), ambiguous)])));
        assert!(namespaces.netns_id(&"a".into()).is_some(), "it stays as it was");
        namespaces.apply_answers(None);
        namespaces.set_pods(pods(&[("b", 2)]));
        assert!(namespaces.netns_id(&"a".into()).is_none());
        namespaces.set_pods(BTreeMap::new());
        assert!(namespaces.next_discovery().is_none());
    }
}
