//! Alert rules and dashboard of `deploy/`: every expression can be evaluated on what the daemon really exports, with the
//! labels and values that it has there.

#[path = "dashboards/catalogue.rs"]
mod catalogue;
#[path = "dashboards/expression.rs"]
mod expression;
#[path = "dashboards/files.rs"]
mod files;
