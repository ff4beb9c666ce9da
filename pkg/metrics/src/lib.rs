//! Registration and labels of metrics, for all parts of the agent.
//!
//! Pure: values only. The agent's HTTP server, in `telemetry`, prints them.

use prometheus_client::{
    metrics::{family::Family, histogram::Histogram},
    registry::{Metric, Registry},
};

/// Labels of a sample: names and values, all of them constants.
pub type Labels<const N: usize> = [(&'static str, &'static str); N];

/// A metric with a sample for each value of one label.
pub type Labelled<M> = Family<Labels<1>, M>;

/// Declares a struct of metrics, each with its name, its help text and, where the default does not do, its first value, such as
/// a histogram with its bounds. The function `register` registers all of them in their order.
#[macro_export]
macro_rules! metric_set {
    ($(#[$meta:meta])* $vis:vis struct $set:ident, $rvis:vis fn $register:ident($($other:ident: $other_type:ty)?) {
        $($field:ident: $metric:ty = $name:literal, $help:literal $(, $first:expr)?;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        $vis struct $set { $(pub(crate) $other: $other_type,)? $(pub(crate) $field: $metric),+ }

        impl $set {
            /// Registers the metrics, so that they are there before anything is counted.
            $rvis fn $register(
                registry: &mut prometheus_client::registry::Registry $(, $other: $other_type)?
            ) -> $set {
                $set { $($other,)? $($field: $crate::register(registry, $name, $help, $crate::metric_set!(@ $($first)?))),+ }
            }
        }
    };
    (@) => { Default::default() };
    (@ $first:expr) => { $first };
}

/// Registers a metric, so that it is there before anything is counted, and returns it. The library adds the full stop of the help
/// text, and `_total` to the name of a counter.
pub fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Returns a histogram for each value of one label, made by `new`.
pub fn histogram_family(new: fn() -> Histogram) -> Labelled<Histogram> {
    Family::new_with_constructor(new)
}

/// Converts a number to the type of a gauge.
pub fn gauge_value(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
