use super::*;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::exemplar::{CounterWithExemplar, HistogramWithExemplars};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::metrics::{Format, negotiate, render};

type Labels = Vec<(&'static str, &'static str)>;

fn check(registry: &Registry, expected: &str) {
    assert_eq!(render(registry, Format::Prometheus), expected);
}

#[test]
fn a_counter_is_called_as_its_sample() {
    let mut registry = Registry::default();
    let installs = Family::<Labels, Counter>::default();
    registry.register("istio_cni_installs", "Installations", installs.clone());
    installs.get_or_create(&vec![("result", "SUCCESS")]).inc_by(3);
    check(
        &registry,
        "# HELP istio_cni_installs_total Installations.\n\
         # TYPE istio_cni_installs_total counter\n\
         istio_cni_installs_total{result=\"SUCCESS\"} 3\n",
    );
    assert_eq!(
        render(&registry, Format::OpenMetrics),
        "# HELP istio_cni_installs Installations.\n\
         # TYPE istio_cni_installs counter\n\
         istio_cni_installs_total{result=\"SUCCESS\"} 3\n\
         # EOF\n"
    );
}

#[test]
fn values_with_quotes_braces_and_hashes_stay_as_they_are() {
    let mut registry = Registry::default();
    let family = Family::<Labels, Counter>::default();
    registry.register("odd", "A # {help} with \"quotes\"", family.clone());
    family.get_or_create(&vec![("a", "x\"} # {y=\"z\"} 1"), ("b", "back\\slash\nline")]).inc();
    check(
        &registry,
        "# HELP odd_total A # {help} with \"quotes\".\n\
         # TYPE odd_total counter\n\
         odd_total{a=\"x\\\"} # {y=\\\"z\\\"} 1\",b=\"back\\\\slash\\nline\"} 1\n",
    );
}

#[test]
fn a_gauge_loses_its_unit_line_only() {
    let mut registry = Registry::with_prefix("agent");
    let gauge: Gauge = Gauge::default();
    registry.register_with_unit("size", "Size", Unit::Bytes, gauge.clone());
    gauge.set(-7);
    check(&registry, "# HELP agent_size_bytes Size.\n# TYPE agent_size_bytes gauge\nagent_size_bytes -7\n");
}

#[test]
fn a_histogram_is_unchanged() {
    let mut registry = Registry::default();
    let histogram = Histogram::new([0.5, 1.0]);
    registry.register("took_seconds", "Duration", histogram.clone());
    histogram.observe(0.25);
    histogram.observe(3.0);
    check(
        &registry,
        "# HELP took_seconds Duration.\n\
         # TYPE took_seconds histogram\n\
         took_seconds_sum 3.25\n\
         took_seconds_count 2\n\
         took_seconds_bucket{le=\"0.5\"} 1\n\
         took_seconds_bucket{le=\"1.0\"} 1\n\
         took_seconds_bucket{le=\"+Inf\"} 2\n",
    );
}

#[test]
fn exemplars_are_left_out() {
    let mut registry = Registry::default();
    let counter = CounterWithExemplar::<Labels>::default();
    registry.register("c", "C", counter.clone());
    counter.inc_by(1, Some(vec![("trace", "a # {b}")]), None);
    let histogram = HistogramWithExemplars::<Labels>::new([1.0].into_iter());
    registry.register("h", "H", histogram.clone());
    histogram.observe(0.5, Some(vec![("trace", "x")]), None);
    assert_eq!(render(&registry, Format::OpenMetrics).matches(" # {").count(), 3, "one within the other");
    check(
        &registry,
        "# HELP c_total C.\n# TYPE c_total counter\nc_total 1\n\
         # HELP h H.\n# TYPE h histogram\nh_sum 0.5\nh_count 1\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 1\n",
    );
}

#[test]
fn infos_and_unknowns_get_types_that_prometheus_has() {
    let mut registry = Registry::default();
    registry.register("build", "Build", Info::new(vec![("version", "1 # 2")]));
    check(&registry, "# HELP build_info Build.\n# TYPE build_info gauge\nbuild_info{version=\"1 # 2\"} 1\n");
    assert_eq!(from_open_metrics("# TYPE x unknown\nx 1\n"), "# TYPE x untyped\nx 1\n");
    assert_eq!(from_open_metrics("# HELP y Why\n# TYPE x gauge\nx 1\n# EOF\n"), "# TYPE x gauge\nx 1\n");
    assert_eq!(from_open_metrics("x{a=\"never closed # {\n"), "x{a=\"never closed # {\n");
}

#[test]
fn a_collectors_metrics_are_converted_too() {
    #[derive(Debug)]
    struct One;
    impl Collector for One {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
            let counter = ConstCounter::new(0.5);
            let descriptor = encoder.encode_descriptor("cpu_seconds", "CPU.", None, counter.metric_type())?;
            counter.encode(descriptor)
        }
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(One));
    check(
        &registry,
        "# HELP cpu_seconds_total CPU.\n# TYPE cpu_seconds_total counter\ncpu_seconds_total 0.5\n",
    );
}

#[test]
fn open_metrics_is_for_those_who_ask() {
    use Format::{OpenMetrics, Prometheus};
    let prometheus_2 = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    let text_first = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1";
    let table = [
        (None, Prometheus),
        (Some(""), Prometheus),
        (Some("*/*"), Prometheus),
        (Some("text/html,application/*;q=0.9"), Prometheus),
        (Some("text/plain"), Prometheus),
        (Some("application/openmetrics-text"), OpenMetrics),
        (Some("Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8"), OpenMetrics),
        (Some("application/openmetrics-text; version=\"0.0.1\""), OpenMetrics),
        (Some("application/openmetrics-text;version=2.0.0"), Prometheus),
        (Some("application/openmetrics-text;q=0"), Prometheus),
        (Some("application/openmetrics-text;q=0.0,text/plain;q=0"), Prometheus),
        (Some("application/openmetrics-text;q=much"), Prometheus),
        (Some("application/openmetrics-text;q=NaN"), Prometheus),
        (Some("application/openmetrics-text;q=2"), Prometheus),
        (Some("text/plain,application/openmetrics-text"), OpenMetrics),
        (Some("text/plain;q=0.6, application/openmetrics-text ; q=0.5"), Prometheus),
        (Some("text/plain;q=0.5,application/openmetrics-text;q=0.6"), OpenMetrics),
        (Some(prometheus_2), OpenMetrics),
        (Some(text_first), Prometheus),
    ];
    for (accept, format) in table {
        assert_eq!(negotiate(accept), format, "{accept:?}");
    }
}
