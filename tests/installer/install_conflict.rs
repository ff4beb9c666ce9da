//! Others that keep undoing the installation, and a kernel that does not tell of their changes.

mod entry;
mod plugin;
mod polling;
mod rival;
