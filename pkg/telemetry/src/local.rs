//! HTTP on a Unix socket, for root alone.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use socketfile::{SocketError, SocketFile};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tracing::warn;

use crate::connections::{self, ConnectionLimits, ConnectionPeer, Listener};

/// Nobody else even gets a connection.
const MODE: u32 = 0o600;

/// Listens, and serves when it is run. The socket's file goes with it.
#[derive(Debug)]
pub struct RootServer {
    listener: UnixListener,
    file: SocketFile,
}

impl RootServer {
    /// Puts a socket at the path. The directory is made when it is missing; a socket that nobody listens on is replaced,
    /// with no moment in between.
    ///
    /// # Errors
    /// When somebody listens there, when something else is there, and when the system refuses.
    pub fn bind(path: &Path) -> Result<RootServer, SocketError> {
        let (listener, file) = socketfile::bind(path, MODE)?;
        Ok(RootServer { listener, file })
    }

    /// Serves at most that many connections at a time, until `shutdown`; then removes the socket, if it is still ours,
    /// and lets those end that are at work. A client that is slow or silent is cut off.
    ///
    /// # Errors
    /// When the listener cannot be handed to the runtime.
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

/// Of those who are dropped, one is told of in so long: they decide how many come.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Drops the connections of others: somebody may have given the socket another mode.
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
