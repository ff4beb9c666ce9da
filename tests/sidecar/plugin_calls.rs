//! Single calls of the plugin: valid, absurd and hostile ones, with the binary and the kernel.

mod commands;
mod hostile;
mod repetition;
mod results;
mod user_namespace;
