//! HTTP/1.1 connections with bounds: how many, how much memory, how long.
//!
//! Every wait for a client has an end, so that those who are slow, silent or stuck hold a place for a while only. Where
//! anybody can connect, a new client gets the place of one that is not being answered when all are taken.

mod places;
#[cfg(test)]
pub(crate) mod tests;
mod write_timeout;

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_service::Service as _;

use places::{ConnectionTable, InFlight};
use write_timeout::WriteTimeout;

/// [`ConnectionLimits::head`] of most servers.
const HEAD: Duration = Duration::from_secs(10);
/// [`ConnectionLimits::lifetime`] of most servers.
const LIFETIME: Duration = Duration::from_secs(30);
/// [`ConnectionLimits::grace`] of most servers.
const GRACE: Duration = Duration::from_secs(10);
/// Each connection's buffer for reading: a request's head has to fit. The least that hyper takes is half.
const BUFFER: usize = 16 * 1024;
/// Before trying again when there are no descriptors left, or the like.
const PAUSE: Duration = Duration::from_secs(1);

/// Peer at the other end of a connection. Every request has it as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPeer {
    /// A process of this machine, over a Unix socket.
    Socket,
    /// A process of our network namespace, over its loopback.
    Local {
        /// Address of the process.
        address: SocketAddr,
        /// User who made its socket, as our user namespace numbers users; `None` if unknown.
        user: Option<u32>,
    },
    /// Somebody over TCP.
    Address(SocketAddr),
}

impl ConnectionPeer {
    /// Whether a process of user 0 is known to be at the other end. Enough to read, and not to change anything: with
    /// hostNetwork, containers without any capability are that, too.
    pub fn is_root(self) -> bool {
        matches!(self, ConnectionPeer::Socket | ConnectionPeer::Local { user: Some(0), .. })
    }

    /// Returns the peer at the other end of this TCP connection.
    fn from_stream(stream: &TcpStream, address: SocketAddr) -> ConnectionPeer {
        // A socket for both families shows IPv4 as a part of IPv6.
        if !address.ip().to_canonical().is_loopback() {
            return ConnectionPeer::Address(address);
        }
        let user = stream.local_addr().ok().and_then(|ours| sockdiag::user_of(address, ours).ok().flatten());
        ConnectionPeer::Local { address, user }
    }
}

/// Limits on the connections of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// How many at a time.
    pub(crate) most: usize,
    /// For the head of a request, and between two requests.
    pub(crate) head: Duration,
    /// For a connection with all its requests; whoever wants more connects anew.
    pub(crate) lifetime: Duration,
    /// For what is at work when the connection, or all of them, must end.
    pub(crate) grace: Duration,
    /// For a client that takes nothing of what is written to it.
    pub(crate) stall: Duration,
    /// When all places are taken, a new client gets the place of one that is not being answered. Else it waits.
    pub(crate) evicts: bool,
}

impl ConnectionLimits {
    /// For servers whose answers are short: nobody stalls longer than the connection lives.
    pub(crate) const fn with_maximum(most: usize) -> ConnectionLimits {
        let stall = LIFETIME.saturating_add(GRACE);
        ConnectionLimits { most, head: HEAD, lifetime: LIFETIME, grace: GRACE, stall, evicts: false }
    }

    /// For ports that anybody can reach, so that nobody can keep others out.
    pub(crate) const fn for_public_port(most: usize) -> ConnectionLimits {
        ConnectionLimits { evicts: true, ..ConnectionLimits::with_maximum(most) }
    }
}

/// A listening socket.
pub(crate) trait Listener {
    /// Type of its connections.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and who it comes from.
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

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, ConnectionPeer)> {
        Ok((UnixListener::accept(self).await?.0, ConnectionPeer::Socket))
    }
}

/// Serves within the limits until `shutdown`; then those at work get a while to end.
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
                let serve = serve_stream(stream, peer, in_flight.clone(), router.clone(), limits, closed.clone());
                places.insert(peer, in_flight, connections.spawn(serve));
            }
        }
    }
    drop(closing);
    // What is late is dropped with the set.
    let _ = timeout(limits.grace, async { while connections.join_next().await.is_some() {} }).await;
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
        // What is wrong with a connection is its client's affair.
        _ = connection.as_mut() => return,
        _ = closed.changed() => {}
        () = sleep(limits.lifetime) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(limits.grace, connection).await;
}

fn answer_request(
    router: &Router,
    peer: ConnectionPeer,
    in_flight: &InFlight,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
    request.extensions_mut().insert(peer);
    let (answer, guard) = (router.clone().call(request), in_flight.begin_request());
    async move {
        let _guard = guard;
        answer.await
    }
}
