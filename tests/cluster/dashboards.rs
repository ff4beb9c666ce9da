//! Alert rules and dashboard of `deploy/`: every expression can be evaluated on what the daemon really exports, with the
//! labels and values that it has there.

mod catalogue;
mod expression;
mod files;
