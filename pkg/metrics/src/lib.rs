//! How metrics are registered and labelled, for all parts of the agent that count something.
//!
//! Pure: values only. The agent's HTTP server, in `telemetry`, prints them.

use prometheus_client::{
    metrics::{family::Family, histogram::Histogram},
    registry::{Metric, Registry},
};

/// Labels of a sample: their names and values, all of them known to the program.
pub type Labels<const N: usize> = [(&'static str, &'static str); N];

/// A metric with a sample for each value of one label.
pub type Labelled<M> = Family<Labels<1>, M>;

/// The registry of metrics, which returns what it registers.
pub trait MetricRegistry {
    /// Registers a metric, so that it is there before anything is counted, and returns it. The library adds the full stop of
    /// the help text, and `_total` to the name of a counter.
    fn register_metric<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.metric_as(name, help, M::default())
    }

    /// Like [`MetricRegistry::register_metric`], but for one that needs more than a name, such as the bounds of a histogram.
    fn metric_as<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M;
}

impl MetricRegistry for Registry {
    fn metric_as<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.register(name, help, metric.clone());
        metric
    }
}

/// Returns a histogram for each value of one label, made by `new`.
#[must_use]
pub fn histogram_family(new: fn() -> Histogram) -> Labelled<Histogram> {
    Family::new_with_constructor(new)
}

/// Returns a number of things as a gauge takes it.
#[must_use]
pub fn gauge_value(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
