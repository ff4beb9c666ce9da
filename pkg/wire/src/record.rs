//! What the plugin leaves behind of an ADD, a file for each container, so that whoever looks at the node later can tell
//! what was decided and why, with no agent and no API server; and so that an agent that was not there at the ADD knows what
//! the one before it was told.

use std::{collections::BTreeMap, net::IpAddr};

use model::{ContainerId, Pod, PodUid};
use serde::{Deserialize, Serialize};

/// Name of the file beside the sockets in which the plugin notes since when the API server has refused its credential: one
/// line of seconds since the node booted, the boot's id, and the fingerprints of the kubeconfig and of the log socket that
/// the last agent left. An agent that starts removes it.
pub const REFUSED_CREDENTIAL: &str = "credential-refused";
/// The directory of records, in the directory that plugin and agent share.
pub const RECORDS: &str = "pods";
/// What begins the name of a record of an ADD that failed; the pod's namespace and name follow. It outlives the container.
pub const FAILED: &str = "failed_";
/// The longest record that is read, in bytes.
pub const MAX_RECORD: usize = 1 << 20;

/// What tells a network namespace from all others that there are at the time: its file in nsfs. The kernel may give the
/// number of one that ended to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsFile {
    /// Device of the file system that holds it.
    pub dev: u64,
    /// Its inode number, the one in `net:[4026531840]`.
    pub ino: u64,
}

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Its UID, where the runtime says it.
    #[serde(default)]
    pub uid: PodUid,
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_NETNS`, as the runtime says it.
    #[serde(default)]
    pub netns: String,
    /// What was there at the ADD; `None`: that could not be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_file: Option<NetnsFile>,
    /// The addresses of the pod's interface.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    /// When the ADD ended, RFC 3339.
    pub at: String,
    /// A short, stable name of the decision; empty: it did not come that far.
    #[serde(default)]
    pub decision: String,
    /// The decision in words.
    #[serde(default)]
    pub words: String,
    /// Why the ADD failed; `None`: it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The rules that redirect it to its sidecar, as the ADD left them, chain by chain (`netfilter::RuleDigest`); empty: none
    /// were made, or they could not be read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, String>,
    /// The pod as it was known then; `None`: nobody had to be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Box<Pod>>,
}
