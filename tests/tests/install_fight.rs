//! Others that keep undoing the installation, and a kernel that does not tell of their changes.

#[path = "install_fight/entry.rs"]
mod entry;
#[path = "install_fight/plugin.rs"]
mod plugin;
#[path = "install_fight/polling.rs"]
mod polling;
#[path = "install_fight/rival.rs"]
mod rival;
