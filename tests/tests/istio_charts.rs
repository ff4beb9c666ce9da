//! The agent under Istio's own charts: each set of values of `tests/data/istio-charts`, with everything that the chart
//! gives the container and exactly the permissions that it grants.

#[path = "istio_charts/chart.rs"]
pub(crate) mod chart;
#[path = "istio_charts/every_case.rs"]
pub(crate) mod every_case;
#[path = "istio_charts/migration.rs"]
mod migration;
#[path = "istio_charts/release.rs"]
mod release;
#[path = "istio_charts/shutdown.rs"]
mod shutdown;
