//! The agent under Istio's own charts: each set of values of `tests/data/istio-charts`, with everything that the chart gives the
//! container and exactly its permissions.

pub(crate) mod chart;
pub(crate) mod every_case;
mod migration;
pub(crate) mod release;
mod shutdown;
