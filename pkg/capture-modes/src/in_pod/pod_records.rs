//! Namespaces of pods that were added while an earlier agent ran, from the plugin's records of their ADDs.
//!
//! Between an ADD and the pod's first process there is no other source for the pod's namespace, nor for its addresses
//! before the API shows them. A record may be outdated: the pod may have another sandbox by now, and the path may refer
//! to another namespace. So a record is valid only if it is about this very pod (`pod_identity`), the namespace at its
//! path is that of the ADD, and that namespace has one of the pod's addresses.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use agent::RecordIndex;
use agent_protocol::PodRecord;
use model::ContainerId;
use netns::Netns;
use pod_capture::{NetnsFinder, NetnsMatch, recorded_netns};

/// The plugin's records, and the directory of the namespaces that they name.
#[derive(Debug)]
pub(super) struct PodRecordStore {
    pub(super) index: Arc<RecordIndex>,
    pub(super) netns_directory: PathBuf,
}

/// A pod as recorded by the plugin.
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
    /// Returns the pod of a record, if the record is valid. `ips`: the pod's addresses, if the API shows any.
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
