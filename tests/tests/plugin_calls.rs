//! Calls of the plugin one by one: good ones, absurd ones and hostile ones, against the binary and the kernel.

#[path = "plugin_calls/commands.rs"]
mod commands;
#[path = "plugin_calls/hostile.rs"]
mod hostile;
#[path = "plugin_calls/repetition.rs"]
mod repetition;
#[path = "plugin_calls/results.rs"]
mod results;
#[path = "plugin_calls/stage.rs"]
pub(crate) mod stage;
#[path = "plugin_calls/user_namespace.rs"]
mod user_namespace;
