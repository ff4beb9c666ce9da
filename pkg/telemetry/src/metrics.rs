//! Metrics in OpenMetrics text format, which every version of Prometheus since 2.5 negotiates.

mod process;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

pub use process::register_process;

/// HTTP content type of [`render`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Renders all metrics of the registry as OpenMetrics 1.0.0.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail; only a collector could, and then the partial output is still useful.
    let _ = text::encode(&mut text, registry);
    text
}
