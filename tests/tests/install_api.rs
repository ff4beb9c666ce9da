//! The daemon and the API server: what it follows there, what it tells, and what it makes of its own end.

#[path = "install_api/config_map.rs"]
mod config_map;
#[path = "install_api/events.rs"]
mod events;
#[path = "install_api/leaving.rs"]
mod leaving;
#[path = "install_api/leaving_trouble.rs"]
mod leaving_trouble;
#[path = "install_api/plugin_lines.rs"]
mod plugin_lines;
#[path = "install_api/requests.rs"]
mod requests;
#[path = "install_api/scene.rs"]
pub(crate) mod scene;
