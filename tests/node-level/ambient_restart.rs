//! The agent is killed at each step of each kind of plan, and started again: it converges, and nobody notices.

mod backend;
mod ends;
mod kinds;
mod steps;
mod upgrade;
