//! The ambient node's agent: takes in facts and the plugin's requests, and keeps the node's network namespace as they
//! want it.
//!
//! One thread owns that namespace. Everything else sends it messages ([`Handle`]); it looks, plans, does, looks again,
//! and tells what came of it. It never waits for the API server. The plugin's socket is served by threads of their own,
//! which wait in its place.

mod enrol;
mod ledger;
mod metrics;
mod owner;
mod pass;
mod pods;
mod settings;
mod shared;
mod socket;
mod status;
mod uninstall;

pub use ledger::{Attachment, Ledger};
pub use metrics::Metrics;
pub use owner::{Handle, Owner};
pub use settings::{Lookup, Mark, Settings, Tell};
pub use socket::{Server, ServerError};
pub use status::Status;
pub use uninstall::uninstall;
