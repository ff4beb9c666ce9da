//! HTTP/1.1 connections with bounds: how many, how much memory, how long.
//!
//! Every wait for a client has an end, so that those who are slow, silent or stuck hold a place for a while only.

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io::{self, ErrorKind};
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

/// For the head of a request, and between two requests.
const HEAD: Duration = Duration::from_secs(10);
/// For a connection with all its requests; whoever wants more connects anew.
const LIFETIME: Duration = Duration::from_secs(30);
/// For what is at work when the connection, or all of them, must end.
const GRACE: Duration = Duration::from_secs(10);
/// Each connection's buffer for reading: a request's head has to fit. The least that hyper takes is half.
const BUFFER: usize = 16 * 1024;
/// Before trying again when there are no descriptors left, or the like.
const PAUSE: Duration = Duration::from_secs(1);

/// A listening socket.
pub(crate) trait Listener {
    /// Its connections.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection.
    async fn accept(&self) -> io::Result<Self::Stream>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        Ok(TcpListener::accept(self).await?.0)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixListener::accept(self).await?.0)
    }
}

/// Serves at most that many connections at a time, until `shutdown`; then those at work get a while to end.
pub(crate) async fn serve(
    listener: &impl Listener,
    router: &Router,
    most: usize,
    shutdown: impl Future<Output = ()>,
) {
    let (closing, closed) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            stream = next(listener), if connections.len() < most => {
                connections.spawn(connection(stream, router.clone(), closed.clone()));
            }
        }
    }
    drop(closing);
    // What is late is dropped with the set.
    let _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
}

async fn next<L: Listener>(listener: &L) -> L::Stream {
    loop {
        match listener.accept().await {
            Ok(stream) => return stream,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    mut closed: watch::Receiver<()>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service_fn(|request| respond(&router, request)));
    let mut connection = pin!(connection);
    tokio::select! {
        // What is wrong with a connection is its client's affair.
        _ = connection.as_mut() => return,
        _ = closed.changed() => {}
        () = sleep(LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(GRACE, connection).await;
}

fn respond(
    router: &Router,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
    router.clone().call(request)
}
