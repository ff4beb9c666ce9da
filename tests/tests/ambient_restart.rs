//! The agent is killed at each step of each kind of plan, and started again: it converges, and nobody notices.

#[path = "ambient_restart/backend.rs"]
mod backend;
#[path = "ambient_restart/ends.rs"]
mod ends;
#[path = "ambient_restart/kinds.rs"]
mod kinds;
#[path = "ambient_restart/steps.rs"]
mod steps;
#[path = "ambient_restart/upgrade.rs"]
mod upgrade;
