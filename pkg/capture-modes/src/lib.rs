//! Capture modes: how pods of ambient mode are captured on the node's kernel.
//!
//! [`open()`] creates the configured mode for the daemon, which passes it to `agent::Reconciler`. The reconciler drives
//! the mode on its own thread through `agent::CaptureMode`:
//!
//! - `NodeCapture`, node-level capture: rules, sets, links and routes in the node's network namespace;
//! - `InPodCapture`, in-pod capture: rules in each pod's namespace, which is passed to ztunnel over ZDS;
//! - `AutoCapture`: the mode that the node's ztunnel supports, with a transition between the two.
//!
//! A mode decides from `agent::AgentState` and the kernel's state. It never connects to the API server.

mod auto;
mod error;
mod in_pod;
mod node;
mod node_watch;
mod open;
mod settings;
mod uninstall;

pub use error::Error;
pub use node::{observe_installed as found_on_node, open_path};
pub use open::open;
pub use settings::{CaptureConfig, CaptureSettings, InPodConfig, kernel_has_ipv6};
pub use uninstall::uninstall;
