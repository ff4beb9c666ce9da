//! Components that repeatedly undo the installation, and a kernel that does not report their changes.

mod entry;
mod plugin;
mod polling;
mod rival;
