//! The agent is killed at each step of each kind of plan, and started again: it converges, and no traffic is affected.

mod backend;
mod ends;
mod kinds;
mod steps;
mod upgrade;
