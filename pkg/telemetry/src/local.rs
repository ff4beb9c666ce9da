//! HTTP on a Unix socket; for root alone, with [`RootServer`].

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use axum::Router;
use socketfile::{SocketError, SocketFile};
use tokio::net::UnixStream;
use tracing::warn;

use crate::connections::{self, Limits, Listener, Peer};

/// Nobody else even gets a connection.
const MODE: u32 = 0o600;

/// A socket that listens. Its file goes with it.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: UnixListener,
    file: SocketFile,
}

impl Bound {
    /// Puts a socket at the path. The directory is made when it is missing; a socket that nobody listens on is replaced,
    /// with no moment in between.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Bound, SocketError> {
        let (listener, file) = socketfile::bind(path, mode)?;
        Ok(Bound { listener, file })
    }

    /// Serves at most that many connections at a time, until `shutdown`; then removes the socket, if it is still ours,
    /// and lets those end that are at work.
    pub(crate) async fn run<L: Listener>(
        self,
        accepting: impl FnOnce(tokio::net::UnixListener) -> L,
        router: &Router,
        most: usize,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let Bound { listener, file } = self;
        let listener = accepting(tokio::net::UnixListener::from_std(listener)?);
        let shutdown = async move {
            shutdown.await;
            drop(file);
        };
        connections::serve(&listener, router, Limits::of(most), shutdown).await;
        Ok(())
    }
}

/// Listens, and serves when it is run. The socket's file goes with it.
#[derive(Debug)]
pub struct RootServer(Bound);

impl RootServer {
    /// Puts a socket at the path. The directory is made when it is missing; a socket that nobody listens on is replaced,
    /// with no moment in between.
    ///
    /// # Errors
    /// When somebody listens there, when something else is there, and when the system refuses.
    pub fn bind(path: &Path) -> Result<RootServer, SocketError> {
        Bound::bind(path, MODE).map(RootServer)
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
        self.0.run(RootOnly, &router, most, shutdown).await
    }
}

/// Drops the connections of others: somebody may have given the socket another mode.
struct RootOnly(tokio::net::UnixListener);

impl Listener for RootOnly {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        loop {
            let (stream, _) = self.0.accept().await?;
            match socketfile::peer_user(&stream)? {
                0 => return Ok((stream, Peer::Socket)),
                user => {
                    warn!(target: "install", "user {user} connects to a socket of root's, and is not answered");
                }
            }
        }
    }
}
