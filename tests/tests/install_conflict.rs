//! Others that keep undoing the installation, and a kernel that does not tell of their changes.

#[path = "install_conflict/entry.rs"]
mod entry;
#[path = "install_conflict/plugin.rs"]
mod plugin;
#[path = "install_conflict/polling.rs"]
mod polling;
#[path = "install_conflict/rival.rs"]
mod rival;
