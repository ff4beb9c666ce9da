//! Metrics as text, in the form that the client asks for.

mod negotiation;
mod process;
mod prometheus;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

pub use negotiation::negotiate;
pub use process::register_process;

/// A text form of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus text 0.0.4, which everyone reads.
    Prometheus,
}

impl Format {
    /// The HTTP content type.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All metrics of the registry.
#[must_use]
pub fn render(registry: &Registry, format: Format) -> String {
    let mut text = String::new();
    // A string takes all; only a collector could fail, and then what stands there is still worth having.
    let _ = text::encode(&mut text, registry);
    match format {
        Format::OpenMetrics => text,
        Format::Prometheus => prometheus::from_open_metrics(&text),
    }
}
