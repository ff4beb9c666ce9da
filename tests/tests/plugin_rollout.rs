//! The plugin while no agent answers: after the node has booted, and while one agent is replaced by the next.

#[path = "plugin_rollout/reboot.rs"]
mod reboot;
