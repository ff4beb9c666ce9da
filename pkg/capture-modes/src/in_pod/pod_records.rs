//! Namespaces of pods that were added while an earlier agent ran, from the plugin's records of their ADDs.
//!
//! Between an ADD and the pod's first process there is no other source for the pod's namespace, and before the API shows
//! the pod's addresses, none for those. A record may be old: the pod may have another sandbox by now, and the path may lead
//! to another namespace. So it counts only if it has the pod's UID, and the namespace at its path is the one of the ADD and
//! has one of the pod's addresses.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use agent::read_records;
use inpod::{NetnsFinder, NetnsMatch, NetnsQuery};
use model::{ContainerId, PodUid};
use netns::{Netns, NetnsId};
use wire::PodRecord;

use crate::settings::CaptureSettings;

/// The plugin's records, and where the namespaces are that they name.
#[derive(Debug)]
pub(super) struct PodRecordStore {
    directory: PathBuf,
    netns_directory: PathBuf,
}

/// What a record shows of a pod.
#[derive(Debug)]
pub(crate) struct RecordedPod {
    pub(super) found: NetnsMatch,
    /// The addresses of its ADD.
    pub(super) ips: Vec<IpAddr>,
    /// Its container.
    pub(super) container: ContainerId,
    /// The record itself.
    pub(super) file: PathBuf,
}

impl PodRecordStore {
    pub(super) fn new(settings: &CaptureSettings) -> PodRecordStore {
        PodRecordStore {
            directory: settings.records.clone(),
            netns_directory: settings.netns_directory.clone(),
        }
    }

    /// What the records show of these pods, by their newest ADDs. Pods without a valid record are absent.
    pub(super) fn find(
        &self,
        finder: &NetnsFinder,
        sought: &BTreeMap<PodUid, NetnsQuery>,
    ) -> BTreeMap<PodUid, RecordedPod> {
        let runtime = sought.iter().flat_map(|(uid, pod)| pod.uids.iter().map(move |known| (known, uid)));
        let runtime: BTreeMap<&PodUid, &PodUid> = runtime.collect();
        let mut records = read_records(&self.directory);
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
        // In the agent's container the runtime's directory may be mounted elsewhere.
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
