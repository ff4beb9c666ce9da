//! HTTP over a Unix socket, for root alone.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
pub use socketfile::SocketError;
use socketfile::SocketFile;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tracing::warn;

use crate::connections::{self, ConnectionLimits, ConnectionPeer, Listener};

/// Mode of the socket: only root can connect.
const MODE: u32 = 0o600;

/// Server of a Unix socket, which listens from its creation and serves when run. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct RootServer {
    listener: UnixListener,
    file: SocketFile,
}

impl RootServer {
    /// Creates the socket at the path. A missing directory is created; a socket without a listener is replaced atomically.
    ///
    /// # Errors
    /// Another process listens there, another object is at the path, or the system refuses.
    pub fn bind(path: &Path) -> Result<RootServer, SocketError> {
        let (listener, file) = socketfile::bind(path, MODE)?;
        Ok(RootServer { listener, file })
    }

    /// Serves at most that many connections, until `shutdown`; then removes the socket, if it is still ours, and lets requests in
    /// flight complete. A client that is slow or silent is disconnected.
    ///
    /// # Errors
    /// The listener cannot be registered with the runtime.
    pub async fn run(
        self,
        router: Router,
        most: usize,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let RootServer { listener, file } = self;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let listener = RootOnly { listener, last_warning: Mutex::new(None) };
        let shutdown = async move {
            shutdown.await;
            drop(file);
        };
        connections::serve(&listener, &router, ConnectionLimits::with_maximum(most), shutdown).await;
        Ok(())
    }
}

/// Minimum interval between warnings about rejected connections, whose number their clients control.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Rejects connections of other users: another process may have changed the socket's mode.
struct RootOnly {
    listener: tokio::net::UnixListener,
    last_warning: Mutex<Option<Instant>>,
}

impl RootOnly {
    fn log_refusal(&self, user: u32) {
        let mut last_warning = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last_warning.is_none_or(|last_warning| last_warning.elapsed() >= WARNING_INTERVAL) {
            *last_warning = Some(Instant::now());
            warn!(target: "install", uid = user, "rejected a connection to a socket for root only");
        }
    }
}

impl Listener for RootOnly {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, ConnectionPeer)> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            match socketfile::peer_user(&stream)? {
                0 => return Ok((stream, ConnectionPeer::Socket)),
                user => self.log_refusal(user),
            }
        }
    }
}
