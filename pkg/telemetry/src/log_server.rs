//! Socket that receives the plugin's log lines, and prints them among the daemon's own.
//!
//! HTTP/1.1: `/log` with any method, the body a JSON array of strings, each of them a log line as a JSON object. The response has
//! no body: 200, also for invalid lines (as in Istio); 413 beyond [`MAX_BODY`] and for very many lines, 408 when the body does not
//! arrive, 503 when too many arrive at the same time. Lines beyond a rate are dropped, counted, and summarised in one line.
//!
//! The socket is for root alone, the user as whom container runtimes run plugins: any other user could forge lines of any pod, and
//! fill the node's disk.

mod budget;
mod metrics;
mod receive;
#[cfg(test)]
mod tests;

use std::io;

pub use metrics::LogMetrics;
pub use receive::MAX_BODY;

use crate::local::RootServer;
use crate::logging::Logger;

/// Maximum number of connections; more wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 32;

/// Serves the log socket until `shutdown`; then removes it, if it is still ours, and lets requests in flight complete.
///
/// # Errors
/// The listener cannot be registered with the runtime.
pub async fn serve_log_lines(
    server: RootServer,
    logger: Logger,
    metrics: LogMetrics,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    server.run(receive::build_router(logger, metrics), MAX_CONNECTIONS, shutdown).await
}
