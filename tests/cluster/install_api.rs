//! The daemon and the API server: what it follows there, what it tells, and what it makes of its own end.

mod config_map;
mod events;
pub(crate) mod fixture;
mod leaving;
mod leaving_trouble;
mod plugin_lines;
mod requests;
