//! Namespaces of pods that were added to an agent before this one, by what the plugin noted of their ADDs.
//!
//! Between an ADD and the pod's first process nothing else tells which namespace is the pod's, and before the API shows its
//! addresses, nothing else tells those. A record may be old: its pod may have another sandbox by now, and its path may lead
//! to another namespace. So it counts only if it names the pod by its UID, and the namespace there is the one that was
//! there at the ADD, and has one of the pod's addresses.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use inpod::{NetnsFinder, NetnsMatch, NetnsQuery};
use model::{ContainerId, PodUid};
use netns::{Netns, NetnsId};
use planner::{AmbientStanding, SkipReason};
use pod_status::lifecycle::PodEvent;
use tracing::info;
use wire::PodRecord;

use super::InPodCapture;
use crate::{agent_state::AgentState, ledger::PodAttachment, records, settings::AgentSettings};

/// The plugin's records, and where the namespaces are that they name.
#[derive(Debug)]
pub(super) struct PodRecordStore {
    directory: PathBuf,
    netns_directory: PathBuf,
}

/// What a record tells of a pod.
#[derive(Debug)]
pub(crate) struct RecordedPod {
    found: NetnsMatch,
    /// The addresses of its ADD.
    ips: Vec<IpAddr>,
    container: ContainerId,
    /// The record itself.
    file: PathBuf,
}

impl PodRecordStore {
    pub(super) fn new(settings: &AgentSettings) -> PodRecordStore {
        PodRecordStore {
            directory: settings.records.clone(),
            netns_directory: settings.netns_directory.clone(),
        }
    }

    /// What the records tell of these pods, by their newest ADDs. Pods without a record that counts are absent.
    pub(super) fn find(
        &self,
        finder: &NetnsFinder,
        sought: &BTreeMap<PodUid, NetnsQuery>,
    ) -> BTreeMap<PodUid, RecordedPod> {
        let runtime = sought.iter().flat_map(|(uid, pod)| pod.uids.iter().map(move |known| (known, uid)));
        let runtime: BTreeMap<&PodUid, &PodUid> = runtime.collect();
        let mut records = records::read(&self.directory);
        records.retain(|record| record.error.is_none());
        records.sort_by(|a, b| a.at.cmp(&b.at));
        let mut found = BTreeMap::new();
        for record in records {
            let api = record.pod.as_ref().map(|pod| &pod.metadata.uid);
            let uid = api.into_iter().chain([&record.uid]).find_map(|uid| runtime.get(uid).copied());
            let Some((uid, pod)) = uid.and_then(|uid| sought.get_key_value(uid)) else { continue };
            if let Some(recorded) = self.recorded(finder, record, &pod.ips) {
                found.insert(uid.clone(), recorded);
            }
        }
        found
    }

    /// `ips`: the pod's addresses, where the API shows any.
    fn recorded(&self, finder: &NetnsFinder, record: PodRecord, ips: &[IpAddr]) -> Option<RecordedPod> {
        let then = record.netns_file?;
        // The runtime's directory may be somewhere else in our container.
        let netns = Netns::open(self.netns_directory.join(Path::new(&record.netns).file_name()?)).ok()?;
        if netns.id() != (NetnsId { dev: then.dev, ino: then.ino }) {
            return None;
        }
        let found = finder.confirm(netns, if ips.is_empty() { &record.ips } else { ips })?;
        let PodRecord { container, ips, .. } = record;
        let file = self.directory.join(container.as_str());
        Some(RecordedPod { found, ips, container, file })
    }
}

impl InPodCapture {
    /// What an ADD told an agent before this one is known from now on, as if it had been told to this one.
    pub(super) fn inherit(&mut self, core: &mut AgentState, uid: &PodUid, recorded: RecordedPod) {
        let RecordedPod { found, ips, container, file } = recorded;
        // At its DEL the plugin removes the record before it tells us. So either we have not heard of a DEL, and shall, or the
        // record is gone.
        if !file.exists() {
            return;
        }
        let is_placed = |enrolled_pod: &super::EnrolledPod| {
            enrolled_pod.netns.is_some() || enrolled_pod.lifecycle.is_awaited()
        };
        if self.enrolled.get(uid).is_some_and(is_placed) {
            return;
        }
        let Some(pod) = core.index.pods().find(|pod| pod.metadata.uid == *uid) else { return };
        let (standing, pod) = (core.standing(pod), pod.clone());
        let told = core.ledger.inherited(&container, PodAttachment { uid: uid.clone(), ips });
        match standing {
            AmbientStanding::Out(SkipReason::NamespaceUnknown | SkipReason::Terminated) => return,
            AmbientStanding::Out(_) if self.enrolled.contains_key(uid) => {}
            AmbientStanding::Out(_) if found.captured => self.left_meanwhile(core, uid),
            AmbientStanding::Out(_) => return,
            // Others have its addresses by now, or it has another container.
            AmbientStanding::Pending(_) if told.is_empty() => return,
            AmbientStanding::Member { .. } | AmbientStanding::Pending(_) => {
                self.enrolled_pod_of(core, &pod);
            }
        }
        let Some(enrolled_pod) = self.enrolled.get_mut(uid) else { return };
        if enrolled_pod.ips.is_empty() {
            enrolled_pod.ips = told;
        }
        enrolled_pod.container = container;
        let netns = enrolled_pod.settle_in(found.netns);
        info!(target: "ambient", namespace = %enrolled_pod.name.namespace, pod = %enrolled_pod.name.name, "network namespace known from the record of the pod's ADD");
        self.handle(uid, PodEvent::Found { netns, captured: found.captured });
    }
}
