//! Calls of the plugin one by one: good ones, absurd ones and hostile ones, against the binary and the kernel.

mod commands;
mod hostile;
mod repetition;
mod results;
mod user_namespace;
