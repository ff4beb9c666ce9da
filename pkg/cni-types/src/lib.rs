//! Container Network Interface for a *plugin*, versions 0.1.0 to 1.1.0: the request (environment, `CNI_ARGS`, configuration on
//! stdin), the result of the previous plugins, errors, and the output for `VERSION`.
//!
//! Pure: bytes and names in, values and text out. The caller reads stdin and the environment and prints. The crate must not do I/O,
//! read the clock or know Kubernetes beyond the names passed by a runtime. Called by the plugin, and by tests that replay recorded
//! calls.
//!
//! Sources: the CNI specification (`SPEC.md` of containernetworking/cni at each version's tag), and the behaviour of Istio's plugin
//! where the specification leaves room.

mod args;
mod conf;
mod conflist;
mod document;
mod environment;
mod error;
mod json;
mod names;
mod result;
pub mod run_dir;
mod version;

pub use args::{CniArgs, MAX_ARGS};
pub use conf::{KubernetesConf, MAX_STDIN, NetConf, POD_ANNOTATIONS, VALID_ATTACHMENTS};
pub use conflist::{
    ConflistEntry, EditError, EntryError, EntryStatus, FileForm, Libcni, NetworkFile, UnusableConf,
    check_directory_plugin, entry_status, is_auxiliary, is_converted_from, is_standalone, merge_entry,
    plugin_types, read_network, unknown_version, without_entry,
};
pub use document::{Json, JsonError};
pub use environment::{CniCommand, CniEnvironment};
pub use error::{CniError, ErrorCode};
pub use names::{CniIfName, K8sNamespace, K8sPodName, NameError, NetnsPath};
pub use result::{CniResult, IpConfig, PrevResult};
pub use version::{CniVersion, SUPPORTED, UnknownVersion, version_output};
