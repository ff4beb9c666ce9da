//! Whose an address is.
//!
//! The API tells late: a pod's address appears there seconds after its first packet, and stays for as long after its
//! last one, when another pod may have it. The plugin's calls tell at once, in the order in which it happens. So they
//! count more, and the newest most.
//!
//! Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use model::PodName;
use planner::{
    ambient::{AmbientPolicy, Standing, standing},
    facts::Index,
    node::Members,
};

/// What an ADD told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's UID, as the API knows it.
    pub uid: String,
    /// The pod.
    pub pod: PodName,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
}

#[derive(Debug)]
struct Record {
    attachment: Attachment,
    order: u64,
    /// The API has shown the pod since.
    seen: bool,
}

/// What the plugin told, by container.
#[derive(Debug, Default)]
pub struct Ledger {
    records: BTreeMap<String, Record>,
    /// Addresses given back by pods that the API still shows with them.
    released: BTreeSet<(String, IpAddr)>,
    last: u64,
}

impl Ledger {
    /// A container has these addresses, from now on.
    pub fn added(&mut self, container: &str, attachment: Attachment) {
        self.last += 1;
        for ip in &attachment.ips {
            self.released.remove(&(attachment.uid.clone(), *ip));
        }
        let record = Record { attachment, order: self.last, seen: false };
        self.records.insert(container.to_owned(), record);
    }

    /// A container has gone. Answers with its addresses that are nobody else's, and the UID that they were added with;
    /// `told` is what the call itself says, for an agent that was not there at the ADD.
    pub fn deleted(&mut self, container: &str, told: Attachment) -> Attachment {
        let attachment = self.records.remove(container).map_or(told, |record| record.attachment);
        let others: BTreeSet<IpAddr> =
            self.records.values().flat_map(|record| &record.attachment.ips).copied().collect();
        let ips: Vec<IpAddr> = attachment.ips.iter().copied().filter(|ip| !others.contains(ip)).collect();
        self.released.extend(ips.iter().map(|ip| (attachment.uid.clone(), *ip)));
        Attachment { ips, ..attachment }
    }

    /// The containers that are known and not among these.
    #[must_use]
    pub fn without(&self, attachments: &BTreeSet<String>) -> Vec<String> {
        self.records.keys().filter(|container| !attachments.contains(*container)).cloned().collect()
    }

    /// The pod with this UID gave the address back.
    #[must_use]
    pub fn has_released(&self, uid: &str, ip: IpAddr) -> bool {
        self.released.contains(&(uid.to_owned(), ip))
    }

    /// Who is enrolled, address by address.
    ///
    /// `inherited` are the members that an earlier agent or a plugin left in the kernel, for pods that the API shows
    /// without an address.
    pub fn members(&mut self, index: &Index, policy: &AmbientPolicy, inherited: &Members) -> Members {
        self.tidy(index);
        let mut claims: BTreeMap<IpAddr, (u64, String, String)> = BTreeMap::new();
        let mut claim = |ip: IpAddr, order: u64, created: &str, uid: &str| {
            let new = (order, created.to_owned(), uid.to_owned());
            let entry = claims.entry(ip).or_insert_with(|| new.clone());
            if *entry < new {
                *entry = new;
            }
        };
        let mut out = BTreeSet::new();
        for pod in index.pods() {
            let meta = &pod.metadata;
            let namespace = index.namespace(&meta.namespace);
            let ips = match standing(pod, namespace, policy) {
                Standing::Member { ips, .. } => ips,
                Standing::Pending(_) => {
                    inherited.iter().filter(|(_, uid)| **uid == meta.uid).map(|(ip, _)| *ip).collect()
                }
                Standing::Out(_) => {
                    out.insert(meta.uid.as_str());
                    continue;
                }
            };
            for ip in ips.into_iter().filter(|ip| !self.released.contains(&(meta.uid.clone(), *ip))) {
                claim(ip, 0, &meta.created, &meta.uid);
            }
        }
        for record in self.records.values().filter(|record| !out.contains(record.attachment.uid.as_str())) {
            for ip in &record.attachment.ips {
                claim(*ip, record.order, "", &record.attachment.uid);
            }
        }
        claims.into_iter().map(|(ip, (_, _, uid))| (ip, uid)).collect()
    }

    /// Drops what the API has overtaken.
    fn tidy(&mut self, index: &Index) {
        if !index.is_synced() {
            return;
        }
        let uids: BTreeSet<&str> = index.pods().map(|pod| pod.metadata.uid.as_str()).collect();
        self.records.retain(|_, record| {
            let there = uids.contains(record.attachment.uid.as_str());
            record.seen |= there;
            there || !record.seen
        });
        self.released.retain(|(uid, ip)| {
            let pod = index.pods().find(|pod| pod.metadata.uid == *uid);
            pod.is_some_and(|pod| pod.status.ips().contains(ip))
        });
    }
}
