//! Ledger of the pods that addresses belong to.
//!
//! The API lags: it shows a pod's address seconds after the pod's first packet, and for seconds after the last one, when another
//! pod may have the address. The plugin's calls arrive immediately and in order, and therefore take precedence, the newest first.
//!
//! Pure.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use enrolment::{AmbientStanding, SkipReason, facts::FactIndex};
use model::{ContainerId, MemberAddresses, Pod, PodName, PodUid};

/// UID and addresses of a pod, as reported by an ADD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAttachment {
    /// UID of the pod, as in the API.
    pub uid: PodUid,
    /// Addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// Network that assigned them; empty: the plugin did not name it.
    pub network: String,
}

#[derive(Debug)]
struct AttachmentRecord {
    attachment: PodAttachment,
    order: u64,
    /// Whether the API has shown the pod since.
    observed: bool,
    /// Whether the pod was to be enrolled. If not, as with a sidecar, its addresses still belong to no other pod.
    is_enrolled: bool,
}

/// An address released by a pod. The API may still show it with the pod, or only begin to.
#[derive(Debug)]
struct AddressRelease {
    order: u64,
    /// Whether the API has shown the pod since.
    observed: bool,
}

/// Number of further calls after which the API is not expected to begin showing a pod.
const FORGOTTEN: u64 = 1024;

/// Claim of a pod to an address; the greatest takes precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AddressClaim {
    /// Sequence number of the plugin's call; 0 without one.
    order: u64,
    /// Whether the kernel's set has the address with this UID.
    held: bool,
    created: String,
    uid: PodUid,
    /// Whether the pod is enrolled with the address if its claim takes precedence.
    is_member: bool,
}

/// Prefix that no runtime's container ID has.
const UNNAMED: &str = "pod:";

/// Returns a placeholder for the container of a pod whose ADD did not name it, as with Istio's own plugin. No DEL names it either:
/// the next ADD of the pod replaces it, and it is dropped when the API no longer shows the pod.
pub(crate) fn unnamed_container(uid: &PodUid) -> ContainerId {
    format!("{UNNAMED}{uid}").into()
}

/// Whether this is such a placeholder.
fn is_unnamed(container: &ContainerId) -> bool {
    container.as_str().starts_with(UNNAMED)
}

/// Attachments reported by the plugin, by container, and addresses released by pods.
#[derive(Debug, Default)]
pub struct AttachmentLedger {
    records: BTreeMap<ContainerId, AttachmentRecord>,
    released: BTreeMap<(PodUid, IpAddr), AddressRelease>,
    last: u64,
}

impl AttachmentLedger {
    /// Records that a container of a pod to be enrolled has these addresses. They no longer belong to any other pod, although that
    /// pod's own end may be reported later, or never.
    pub fn record_add(&mut self, container: &ContainerId, attachment: PodAttachment) {
        self.record_attachment(container, attachment, true);
    }

    /// Records an ADD like [`Self::record_add`], of a pod not to be enrolled as far as known at its ADD: the API decides once it
    /// shows the pod.
    pub fn record_skip(&mut self, container: &ContainerId, attachment: PodAttachment) {
        self.record_attachment(container, attachment, false);
    }

    fn record_attachment(&mut self, container: &ContainerId, attachment: PodAttachment, is_enrolled: bool) {
        self.last += 1;
        let PodAttachment { uid, ips, .. } = &attachment;
        for other in self.records.values_mut().filter(|other| other.attachment.uid != *uid) {
            let lost = other.attachment.ips.extract_if(.., |ip| ips.contains(ip));
            for ip in lost {
                let release = AddressRelease { order: self.last, observed: other.observed };
                self.released.insert((other.attachment.uid.clone(), ip), release);
            }
        }
        for ip in ips {
            self.released.remove(&(uid.clone(), *ip));
        }
        // An observation by the API is kept across a further ADD: the pod's end may precede the next pass.
        let observed = self.records.values().any(|other| other.attachment.uid == *uid && other.observed);
        self.records.remove(&unnamed_container(uid));
        let record = AttachmentRecord { attachment, order: self.last, observed, is_enrolled };
        self.records.insert(container.clone(), record);
    }

    /// Records an ADD that an earlier agent received, of a container with these addresses; the API has shown the pod since. Such a
    /// record is ranked below all reports to this agent, and no higher than the API. Returns the addresses that still belong to the
    /// pod.
    pub fn record_inherited(&mut self, container: &ContainerId, attachment: PodAttachment) -> Vec<IpAddr> {
        let PodAttachment { uid, mut ips, network } = attachment;
        let is_newer = |(name, known): (&ContainerId, &AttachmentRecord)| {
            name == container || known.attachment.uid == uid
        };
        if self.records.iter().any(is_newer) {
            return Vec::new();
        }
        let is_assigned = |ip: &IpAddr| self.records.values().any(|other| other.attachment.ips.contains(ip));
        ips.retain(|ip| !is_assigned(ip) && !self.has_released(&uid, *ip));
        if !ips.is_empty() {
            let record = AttachmentRecord {
                attachment: PodAttachment { uid, ips: ips.clone(), network },
                order: 0,
                observed: true,
                is_enrolled: true,
            };
            self.records.insert(container.clone(), record);
        }
        ips
    }

    /// Records the deletion of a container. Returns its addresses that belong to no other pod, and the UID that they were added
    /// with; `reported` is the content of the call itself, for an agent that did not receive the ADD.
    pub fn record_delete(&mut self, container: &ContainerId, reported: PodAttachment) -> PodAttachment {
        self.last += 1;
        let record = self.records.remove(container);
        let observed = record.as_ref().is_some_and(|record| record.observed);
        let attachment = record.map_or(reported, |record| record.attachment);
        let holds = |record: &AttachmentRecord, ip: &IpAddr| record.attachment.ips.contains(ip);
        for ip in &attachment.ips {
            let mut own = self.records.values().filter(|record| record.attachment.uid == attachment.uid);
            if !own.any(|record| holds(record, ip)) {
                let release = AddressRelease { order: self.last, observed };
                self.released.insert((attachment.uid.clone(), *ip), release);
            }
        }
        let free = |ip: &&IpAddr| !self.records.values().any(|record| holds(record, ip));
        let ips = attachment.ips.iter().filter(free).copied().collect();
        PodAttachment { ips, ..attachment }
    }

    /// Whether the ADD of this container is known.
    pub fn has_container(&self, container: &ContainerId) -> bool {
        self.records.contains_key(container)
    }

    /// Drops the pod with this UID, which has no process and was never shown by the API: its DEL was lost.
    pub fn drop_lost_pod(&mut self, uid: &PodUid) {
        self.records.retain(|_, record| record.observed || record.attachment.uid != *uid);
    }

    /// Returns the known containers of a network that are not among these, except unnamed ones.
    pub fn containers_not_in(
        &self,
        network: &str,
        attachments: &BTreeSet<ContainerId>,
    ) -> Vec<(ContainerId, PodAttachment)> {
        let all = self.records.iter().map(|(container, record)| (container, &record.attachment));
        let is_gone = |container| !attachments.contains(container) && !is_unnamed(container);
        let gone = all.filter(|(container, one)| one.network == network && is_gone(container));
        gone.map(|(container, one)| (container.clone(), one.clone())).collect()
    }

    /// Whether an ADD reported the pod with this UID, and the API has not shown it yet.
    pub fn is_expected(&self, uid: &PodUid) -> bool {
        self.records.values().any(|record| record.attachment.uid == *uid && !record.observed)
    }

    /// Returns the addresses that the pod with this UID was added with.
    pub fn added_addresses(&self, uid: &PodUid) -> Vec<IpAddr> {
        let own = self.records.values().filter(|record| record.attachment.uid == *uid);
        own.flat_map(|record| record.attachment.ips.iter().copied()).collect()
    }

    /// Whether the pod with this UID no longer has the address, whatever the API shows: it released it, or another pod was added
    /// with it.
    pub fn has_lost(&self, uid: &PodUid, ip: IpAddr) -> bool {
        let mut others = self.records.values().filter(|record| record.attachment.uid != *uid);
        self.has_released(uid, ip) || others.any(|record| record.attachment.ips.contains(&ip))
    }

    /// Whether the pod with this UID released the address.
    pub fn has_released(&self, uid: &PodUid, ip: IpAddr) -> bool {
        self.released.contains_key(&(uid.clone(), ip))
    }

    /// Whether the pod with this UID released any address.
    pub(crate) fn has_released_any(&self, uid: &PodUid) -> bool {
        self.released.keys().any(|(released, _)| released == uid)
    }

    /// Returns the pod that is enrolled with each address.
    ///
    /// `inherited` are the members that an earlier agent or a plugin left in the kernel: the API shows at most one address of a
    /// family, and at first none.
    pub fn resolve_members(
        &mut self,
        index: &FactIndex,
        standing: impl Fn(&Pod) -> AmbientStanding,
        inherited: &MemberAddresses,
    ) -> MemberAddresses {
        if index.is_synced() {
            let known: BTreeSet<&PodUid> = index.pods().map(|pod| &pod.metadata.uid).collect();
            self.drop_obsolete(|uid| Some(known.contains(uid)));
        }
        self.claim_all(index.pods(), standing, inherited, |_| true)
    }

    /// Resolves members like [`Self::resolve_members`], but only for the addresses `ips`, after a change of only the pods in
    /// `changed`.
    pub fn members_among(
        &mut self,
        (ips, changed): (&BTreeSet<IpAddr>, &BTreeMap<PodUid, PodName>),
        index: &FactIndex,
        standing: impl Fn(&Pod) -> AmbientStanding,
        inherited: &MemberAddresses,
    ) -> MemberAddresses {
        if index.is_synced() {
            let known: BTreeSet<&PodUid> = index.pods_with(changed).map(|pod| &pod.metadata.uid).collect();
            self.drop_obsolete(|uid| changed.contains_key(uid).then(|| known.contains(uid)));
        }
        let shares = |shown: &[IpAddr]| shown.iter().any(|ip| ips.contains(ip));
        let recorded = self.records.values().filter(|record| shares(&record.attachment.ips));
        let held = inherited.iter().filter(|(ip, _)| ips.contains(*ip));
        let claimants: BTreeSet<PodUid> =
            recorded.map(|record| &record.attachment.uid).chain(held.map(|(_, uid)| uid)).cloned().collect();
        let pods = index
            .pods_with_addresses()
            .filter(|(pod, shown)| shares(shown) || claimants.contains(&pod.metadata.uid));
        self.claim_all(pods.map(|(pod, _)| pod), standing, inherited, |ip| ips.contains(ip))
    }

    /// Resolves competing claims to addresses, from pods and from the plugin's reports.
    fn claim_all<'a>(
        &self,
        pods: impl Iterator<Item = &'a Pod>,
        standing: impl Fn(&Pod) -> AmbientStanding,
        inherited: &MemberAddresses,
        is_meant: impl Fn(&IpAddr) -> bool,
    ) -> MemberAddresses {
        let mut claims: BTreeMap<IpAddr, AddressClaim> = BTreeMap::new();
        // The plugin wrote the kernel's entry, in order: it takes precedence over the API.
        let is_held = |ip: &IpAddr, uid: &PodUid| inherited.get(ip).is_some_and(|owner| owner == uid);
        let by_owner = LazyCell::new(|| {
            let mut owned: BTreeMap<&PodUid, Vec<IpAddr>> = BTreeMap::new();
            inherited.iter().for_each(|(ip, uid)| owned.entry(uid).or_default().push(*ip));
            owned
        });
        let (mut joined, mut out, mut gone) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for pod in pods {
            let meta = &pod.metadata;
            let ips = match standing(pod) {
                AmbientStanding::Member { ips, .. } => {
                    joined.insert(&meta.uid);
                    // The API shows one address of a family, the plugin may have reported more to an earlier agent. Any other
                    // claim takes precedence, because the pod may have another sandbox since.
                    for ip in by_owner.get(&meta.uid).into_iter().flatten() {
                        if is_meant(ip) && !self.has_released(&meta.uid, *ip) {
                            let (created, uid) = (String::new(), meta.uid.clone());
                            let claim = AddressClaim { order: 0, held: false, created, uid, is_member: true };
                            add_claim(&mut claims, *ip, claim);
                        }
                    }
                    ips
                }
                AmbientStanding::Pending(_) => {
                    joined.insert(&meta.uid);
                    by_owner.get(&meta.uid).cloned().unwrap_or_default()
                }
                // Its namespace comes from another watch, and may arrive later.
                AmbientStanding::Out(SkipReason::NamespaceUnknown) => {
                    by_owner.get(&meta.uid).cloned().unwrap_or_default()
                }
                AmbientStanding::Out(SkipReason::HostNetwork | SkipReason::Terminated) => {
                    gone.insert(&meta.uid);
                    continue;
                }
                // Its addresses belong to no earlier pod any more, although the pod is not captured.
                AmbientStanding::Out(_) => {
                    out.insert(&meta.uid);
                    pod.status.ips()
                }
            };
            for ip in ips.into_iter().filter(|ip| is_meant(ip) && !self.has_released(&meta.uid, *ip)) {
                let (held, created, uid) = (is_held(&ip, &meta.uid), meta.created.clone(), meta.uid.clone());
                add_claim(&mut claims, ip, AddressClaim { order: 0, held, created, uid, is_member: true });
            }
        }
        for record in self.records.values().filter(|record| !gone.contains(&record.attachment.uid)) {
            let PodAttachment { uid, ips, .. } = &record.attachment;
            let (order, is_member) = (record.order, record.is_enrolled || joined.contains(uid));
            for ip in ips.iter().filter(|ip| is_meant(ip)) {
                let (held, created, uid) = (is_held(ip, uid), String::new(), uid.clone());
                add_claim(&mut claims, *ip, AddressClaim { order, held, created, uid, is_member });
            }
        }
        let enrolled = claims.into_iter().filter(|(_, claim)| claim.is_member && !out.contains(&claim.uid));
        enrolled.map(|(ip, claim)| (ip, claim.uid)).collect()
    }

    /// Drops records that the API has caught up with. `is_known`: whether the API shows the pod; `None`: unchanged.
    fn drop_obsolete(&mut self, is_known: impl Fn(&PodUid) -> Option<bool>) {
        self.records.retain(|_, record| {
            let Some(there) = is_known(&record.attachment.uid) else { return true };
            record.observed |= there;
            there || !record.observed
        });
        // The API may begin to show a pod's address only after the pod released it.
        self.released.retain(|(uid, _), release| {
            let Some(there) = is_known(uid) else { return true };
            release.observed |= there;
            there || (!release.observed && self.last - release.order < FORGOTTEN)
        });
    }
}

/// Keeps the greater of two claims.
fn add_claim(claims: &mut BTreeMap<IpAddr, AddressClaim>, ip: IpAddr, new: AddressClaim) {
    if claims.get(&ip).is_none_or(|known| *known < new) {
        claims.insert(ip, new);
    }
}

#[cfg(test)]
mod tests;
