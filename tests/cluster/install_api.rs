//! The agent and the API server: watches, reports, and the interpretation of its own end.

mod config_map;
pub(crate) mod events;
pub(crate) mod fixture;
mod leaving;
mod leaving_trouble;
mod plugin_lines;
mod requests;
