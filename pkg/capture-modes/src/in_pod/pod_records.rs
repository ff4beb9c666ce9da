//! Namespaces of pods that were added while an earlier agent ran, from the plugin's records of their ADDs.
//!
//! Between an ADD and the pod's first process there is no other source for the pod's namespace, and before the API shows
//! the pod's addresses, none for those. A record may be old: the pod may have another sandbox by now, and the path may lead
//! to another namespace. So it counts only if it is about this very pod (`pod_identity`), and the namespace at its path is the
//! one of the ADD and has one of the pod's addresses.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use agent::RecordIndex;
use inpod::{NetnsFinder, NetnsMatch, recorded_netns};
use model::ContainerId;
use netns::Netns;
use wire::PodRecord;

use crate::settings::CaptureSettings;

/// The plugin's records, and where the namespaces are that they name.
#[derive(Debug)]
pub(super) struct PodRecordStore {
    index: Arc<RecordIndex>,
    netns_directory: PathBuf,
}

/// A pod as its record shows it.
#[derive(Debug)]
pub(crate) struct RecordedPod {
    pub(super) found: NetnsMatch,
    /// The addresses of its ADD.
    pub(super) ips: Vec<IpAddr>,
    /// The container of its ADD.
    pub(super) container: ContainerId,
    /// The network of its ADD.
    pub(super) network: String,
    /// The record itself.
    pub(super) file: PathBuf,
}

impl PodRecordStore {
    pub(super) fn new(settings: &CaptureSettings) -> PodRecordStore {
        PodRecordStore {
            index: Arc::clone(&settings.records),
            netns_directory: settings.netns_directory.clone(),
        }
    }

    /// All records.
    pub(super) fn read_records(&self) -> Vec<Arc<PodRecord>> {
        self.index.read_records()
    }

    /// Shows the pod that a record is about, if it is valid. `ips`: the pod's addresses, where the API shows any.
    pub(super) fn confirm_record(
        &self,
        finder: &NetnsFinder,
        record: &PodRecord,
        ips: &[IpAddr],
    ) -> Option<RecordedPod> {
        let then = recorded_netns(record)?;
        // In the agent's container the runtime's directory may be mounted elsewhere.
        let netns = Netns::open(self.netns_directory.join(Path::new(&record.netns).file_name()?)).ok()?;
        if netns.id() != then {
            return None;
        }
        let found = finder.confirm_recorded(netns, if ips.is_empty() { &record.ips } else { ips })?;
        let file = self.index.directory().join(record.container.as_str());
        let (ips, container) = (record.ips.clone(), record.container.clone());
        Some(RecordedPod { found, ips, container, network: record.network.clone(), file })
    }
}
