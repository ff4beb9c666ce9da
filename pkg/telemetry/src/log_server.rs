//! The socket that takes the plugin's log lines, and prints them among the daemon's own.
//!
//! HTTP/1.1: `/log` with any method, the body a JSON array of strings, each of them a log line as a JSON object. The
//! answer has no body: 200, also for lines that cannot be read (as in Istio); 413 beyond [`MAX_BODY`] and for very many
//! lines, 408 when the body does not come, 503 when too many come at once. Lines beyond a rate are dropped, counted, and
//! told of in one line.
//!
//! The socket is for root alone, as whom container runtimes run plugins: anybody else could write lines of any pod, and
//! fill the node's disk.

mod budget;
mod metrics;
mod receive;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

pub use metrics::LogMetrics;
pub use receive::MAX_BODY;

use crate::local::RootServer;
use crate::logging::Logger;

pub use socketfile::SocketError as LogServerError;

/// Connections that are served at a time; more wait in the kernel.
const MAX_CONNECTIONS: usize = 32;

/// Listens, and serves when it is run. The socket's file goes with it.
#[derive(Debug)]
pub struct LogServer(RootServer);

impl LogServer {
    /// Puts a socket at the path. The directory is made when it is missing; a socket that nobody listens on is replaced,
    /// with no moment in between.
    ///
    /// # Errors
    /// When somebody listens there, when something else is there, and when the system refuses.
    pub fn bind(path: &Path) -> Result<LogServer, LogServerError> {
        RootServer::bind(path).map(LogServer)
    }

    /// Serves until `shutdown`; then removes the socket, if it is still ours, and lets those end that are at work.
    ///
    /// # Errors
    /// When the listener cannot be handed to the runtime.
    pub async fn run(
        self,
        logger: Logger,
        metrics: LogMetrics,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let router = receive::build_router(logger, metrics);
        self.0.run(router, MAX_CONNECTIONS, shutdown).await
    }
}
