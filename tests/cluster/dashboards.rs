//! Alert rules and dashboard of `deploy/`: every expression can be evaluated on the agent's actual metrics, with their labels and
//! values.

mod catalogue;
mod expression;
mod files;
