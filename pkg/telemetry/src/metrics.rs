//! Metrics as OpenMetrics text, which every version of Prometheus since 2.5 asks for.

mod process;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

pub use process::register_process;

/// The HTTP content type of [`render`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the registry, as OpenMetrics 1.0.0.
pub fn render(registry: &Registry) -> String {
    let mut text = String::new();
    // A string takes all; only a collector could fail, and then what stands there is still worth having.
    let _ = text::encode(&mut text, registry);
    text
}
