//! Metrics of the log socket.

use agent_protocol::LogLevel;
use metrics::Labelled;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

model::word_enum! {
    /// Outcome of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum RequestOutcome {
        Ok = "ok",
        TooLarge = "too_large",
        Malformed = "malformed",
        Busy = "busy",
        Timeout = "timeout",
    }
}

metrics::metric_set! {
    /// Counters: `istio_cni_log_records_total` by `level`, whether printed or not, and `istio_cni_log_requests_total` by
    /// `result`; `istio_cni_log_records_dropped_total`.
    pub struct LogMetrics, fn register_all() {
        records: Labelled<Counter> = "istio_cni_log_records",
            "Log records received from CNI plugins";
        requests: Labelled<Counter> = "istio_cni_log_requests",
            "Requests to the log socket of the CNI plugins";
        dropped: Counter = "istio_cni_log_records_dropped",
            "Log records of CNI plugins that were not printed because there were too many";
    }
}

impl LogMetrics {
    /// Registers the counters, all at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> LogMetrics {
        let metrics = LogMetrics::register_all(registry);
        for level in [LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error] {
            drop(metrics.records.get_or_create(&[("level", level.as_str())]));
        }
        for outcome in RequestOutcome::ALL {
            drop(metrics.requests.get_or_create(&[("result", outcome.as_str())]));
        }
        metrics
    }
}
