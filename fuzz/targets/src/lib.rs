//! Fuzz targets: one function per kind of external text or message, which accepts any bytes and panics if a property is violated.
//! Called by `fuzz/fuzz_targets` (cargo-fuzz, nightly) and by this crate's own short test (`cargo test -p fuzz-targets`). No I/O.

mod annotations;
mod cni;
mod conflist;
mod connection_replies;
mod dns;
mod http_response;
mod kernel;
mod kubeconfig;
mod notifications;
mod pods;
mod saved_rules;
mod set_replies;
mod sockets;
mod taint_config;
mod zds;

pub use self::http_response::http_response;
pub use self::zds::zds_messages;
pub use annotations::annotations;
pub use cni::{cni_args, cni_stdin};
pub use conflist::conflist;
pub use connection_replies::connection_replies;
pub use dns::dns_answer;
pub use kernel::{legacy_tables, nft_replies, route_replies};
pub use kubeconfig::kubeconfig;
pub use notifications::notifications;
pub use pods::pod_object;
pub use saved_rules::saved_rules;
pub use set_replies::set_replies;
pub use sockets::{agent_messages, log_post, plugin_event};
pub use taint_config::taint_config;
