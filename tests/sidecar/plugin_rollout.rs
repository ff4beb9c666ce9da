//! The plugin while no agent answers: after the node has booted, and while one agent is replaced by another.

mod credential;
mod gap;
mod reboot;
mod successor;
