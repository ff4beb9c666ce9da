//! The plugin while no agent answers: after the node has booted, and while one agent is replaced by the next.

#[path = "plugin_rollout/credential.rs"]
mod credential;
#[path = "plugin_rollout/gap.rs"]
mod gap;
#[path = "plugin_rollout/reboot.rs"]
mod reboot;
#[path = "plugin_rollout/successor.rs"]
mod successor;
