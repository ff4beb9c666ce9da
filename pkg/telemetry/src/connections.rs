//! HTTP/1.1 connections with limits on their number, memory and duration.
//!
//! Every wait for a client has a timeout, so that a slow, silent or stuck one occupies a connection slot for a limited time. On a
//! port that any client can reach, a new client evicts an idle one when all slots are taken.

mod places;
#[cfg(test)]
pub(crate) mod tests;
mod write_timeout;

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_service::Service as _;

use places::{ConnectionTable, InFlight};
use write_timeout::WriteTimeout;

/// Default of [`ConnectionLimits::head`].
const HEAD: Duration = Duration::from_secs(10);
/// Maximum lifetime of a connection; the client reconnects for further requests.
pub(crate) const LIFETIME: Duration = Duration::from_secs(30);
/// Grace period for requests in flight when the connection, or the server, must end.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// Read buffer of each connection, in bytes: a request's head has to fit. hyper requires at least half.
const BUFFER: usize = 16 * 1024;
/// Delay before accepting again when file descriptors or the like are exhausted.
const PAUSE: Duration = Duration::from_secs(1);

/// Peer of a connection, attached to every request as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPeer {
    /// Process of this machine, over a Unix socket.
    Socket,
    /// Process of our network namespace, over its loopback interface.
    Local {
        /// Address of the process.
        address: SocketAddr,
        /// UID of the owner of its socket, as mapped in our user namespace; `None` if unknown.
        user: Option<u32>,
    },
    /// Remote peer over TCP.
    Address(SocketAddr),
}

impl ConnectionPeer {
    /// Whether the peer is known to be a process of user 0. Sufficient to read, not to change anything: with hostNetwork,
    /// containers without any capability run as user 0, too.
    pub fn is_root(self) -> bool {
        matches!(self, ConnectionPeer::Socket | ConnectionPeer::Local { user: Some(0), .. })
    }

    /// Returns the peer of this TCP connection.
    fn from_stream(stream: &TcpStream, address: SocketAddr) -> ConnectionPeer {
        // A dual-stack socket shows IPv4 addresses as IPv4-mapped IPv6.
        if !address.ip().to_canonical().is_loopback() {
            return ConnectionPeer::Address(address);
        }
        let user = stream
            .local_addr()
            .ok()
            .and_then(|ours| conntrack::sockets::connection_user(address, ours).ok().flatten());
        ConnectionPeer::Local { address, user }
    }
}

/// Limits on the connections of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Maximum number of connections.
    pub(crate) most: usize,
    /// Timeout for the head of a request, and between two requests.
    pub(crate) head: Duration,
    /// Timeout of a write while the client reads nothing.
    pub(crate) stall: Duration,
    /// Whether a new client evicts an idle connection when the maximum is reached; otherwise it waits.
    pub(crate) evicts: bool,
}

impl ConnectionLimits {
    /// Limits for servers with short responses: the connection's lifetime bounds a stalled write.
    pub(crate) const fn with_maximum(most: usize) -> ConnectionLimits {
        let stall = LIFETIME.saturating_add(GRACE);
        ConnectionLimits { most, head: HEAD, stall, evicts: false }
    }

    /// Limits for ports that any client can reach, so that none can starve the others.
    pub(crate) const fn for_public_port(most: usize) -> ConnectionLimits {
        ConnectionLimits { evicts: true, ..ConnectionLimits::with_maximum(most) }
    }
}

/// A listening socket.
pub(crate) trait Listener {
    /// Type of the connections.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts the next connection; returns it with its peer.
    async fn accept(&self) -> io::Result<(Self::Stream, ConnectionPeer)>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, ConnectionPeer)> {
        let (stream, address) = TcpListener::accept(self).await?;
        let peer = ConnectionPeer::from_stream(&stream, address);
        Ok((stream, peer))
    }
}

/// Serves within the limits until `shutdown`; then requests in flight get a grace period.
pub(crate) async fn serve(
    listener: &impl Listener,
    router: &Router,
    limits: ConnectionLimits,
    shutdown: impl Future<Output = ()>,
) {
    let (closing, closed) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut places = ConnectionTable::default();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(ended) = connections.join_next_with_id() => {
                places.release(ended.map_or_else(|error| error.id(), |(id, ())| id));
            }
            (stream, peer) = accept_next(listener), if places.len() < limits.most || (limits.evicts && places.has_idle()) => {
                if places.len() >= limits.most {
                    places.evict_idle();
                }
                let (stream, in_flight) = (WriteTimeout::new(stream, limits.stall), InFlight::default());
                let observed = Arc::downgrade(&in_flight);
                let serve = serve_stream(stream, peer, in_flight, router.clone(), limits, closed.clone());
                places.insert(peer, observed, connections.spawn(serve));
            }
        }
    }
    drop(closing);
    // Dropping the set aborts the remaining connections.
    let _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
}

async fn accept_next<L: Listener>(listener: &L) -> (L::Stream, ConnectionPeer) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: ConnectionPeer,
    in_flight: InFlight,
    router: Router,
    limits: ConnectionLimits,
    mut closed: watch::Receiver<()>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(BUFFER)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer_request(&router, peer, &in_flight, request)),
        );
    let mut connection = pin!(connection);
    tokio::select! {
        // Errors of a connection concern its client only.
        _ = connection.as_mut() => return,
        _ = closed.changed() => {}
        () = sleep(LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(GRACE, connection).await;
}

fn answer_request(
    router: &Router,
    peer: ConnectionPeer,
    in_flight: &InFlight,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
    request.extensions_mut().insert(peer);
    let (answer, guard) = (router.clone().call(request), Arc::clone(in_flight));
    async move {
        let _guard = guard;
        answer.await
    }
}
