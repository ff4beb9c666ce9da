//! Health and metrics over HTTP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::any;
use axum::{Extension, Router};
use model::Reason;
use prometheus_client::registry::Registry;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::connections::{self, ConnectionLimits};
use crate::metrics;

pub use crate::connections::ConnectionPeer;

/// Maximum number of connections; one more evicts an idle one.
pub const MAX_CONNECTIONS: usize = 64;
/// Backlog of connections not yet accepted.
const BACKLOG: i32 = 128;

/// Health of the daemon. Queried at every probe, so it must answer immediately.
pub trait HealthCheck: Send + Sync + 'static {
    /// Checks whether the process works at all.
    ///
    /// # Errors
    /// The reason why it should be restarted.
    fn check_liveness(&self) -> Result<(), Reason>;

    /// Checks whether the node can start pods.
    ///
    /// # Errors
    /// The missing condition.
    fn check_readiness(&self) -> Result<(), Reason>;

    /// Returns the missing condition as a word without details of the node; empty if ready.
    fn unready_reason(&self) -> &'static str;
}

type ProbeRequest = (State<Arc<dyn HealthCheck>>, Option<Extension<ConnectionPeer>>);

/// Returns the router of `/healthz` and `/readyz`: 200, or 503 with the reason. Any method is accepted, as in Istio. Any client can
/// ask, and reasons contain paths, pods and addresses; so only user 0 of this machine gets them in full.
pub fn health_router(health: Arc<dyn HealthCheck>) -> Router {
    let live =
        async |(State(health), peer): ProbeRequest| probe_response(health.check_liveness(), "NotLive", peer);
    let ready = async |(State(health), peer): ProbeRequest| {
        probe_response(health.check_readiness(), health.unready_reason(), peer)
    };
    Router::new().route("/healthz", any(live)).route("/readyz", any(ready)).with_state(health)
}

fn probe_response(
    state: Result<(), Reason>,
    word: &str,
    peer: Option<Extension<ConnectionPeer>>,
) -> (StatusCode, String) {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) if peer.is_some_and(|Extension(peer)| peer.is_root()) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
        }
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, format!("{word}\n")),
    }
}

/// Returns the router of `/metrics`.
pub fn metrics_router(registry: Arc<Registry>) -> Router {
    Router::new().route("/metrics", any(answer_metrics)).with_state(registry)
}

async fn answer_metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&registry))
}

/// Parses a listen address: `localhost`, `*` (all), or an IP address, with or without brackets. `*` and `::` are the same.
///
/// # Errors
/// Any other text; the error as a message.
pub fn parse_listen_address(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        "*" => Ok(Ipv6Addr::UNSPECIFIED.into()),
        _ => bare.parse().map_err(|_| format!("{text:?} is neither localhost, * nor an IP address")),
    }
}

/// Listens at an address; at `::` on all addresses with one dual-stack socket, and on IPv4 alone if the kernel has no IPv6.
///
/// # Errors
/// The machine lacks the address, the port is taken, and so on.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    bind_by(address, listen_on)
}

fn bind_by<T>(address: SocketAddr, listen: impl Fn(SocketAddr) -> Result<T, Errno>) -> io::Result<T> {
    match listen(address) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            Ok(listen((Ipv4Addr::UNSPECIFIED, address.port()).into())?)
        }
        result => Ok(result?),
    }
}

fn listen_on(address: SocketAddr) -> Result<TcpListener, Errno> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?; // otherwise a restart has to wait for old connections
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Serves until `shutdown`; requests in flight may then complete. At most [`MAX_CONNECTIONS`] connections; a client that is slow or
/// silent is disconnected, at the latest when another one needs its slot.
///
/// # Errors
/// The listener cannot be registered with the runtime.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_within(ConnectionLimits::for_public_port(MAX_CONNECTIONS), listener, &router, shutdown).await
}

/// Like [`serve`], with the caller's limits.
pub(crate) async fn serve_within(
    limits: ConnectionLimits,
    listener: TcpListener,
    router: &Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    connections::serve(&listener, router, limits, shutdown).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_used_only_where_there_is_no_ipv6() {
        let bound = |address: &str, errno: Option<Errno>| {
            bind_by(address.parse().unwrap(), |address| match errno {
                Some(errno) if address.is_ipv6() => Err(errno),
                _ => Ok(address.to_string()),
            })
        };
        assert_eq!(bound("[::]:80", None).unwrap(), "[::]:80");
        assert_eq!(bound("[::]:80", Some(Errno::AFNOSUPPORT)).unwrap(), "0.0.0.0:80");
        assert_eq!(bound("[::]:80", Some(Errno::ADDRNOTAVAIL)).unwrap(), "0.0.0.0:80");
        for (address, errno) in [("[::]:80", Errno::ADDRINUSE), ("[::1]:80", Errno::AFNOSUPPORT)] {
            let error = bound(address, Some(errno)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{address}");
        }
    }

    #[test]
    fn addresses_are_read_as_the_flag_has_them() {
        for (text, expected) in [
            ("localhost", "127.0.0.1"),
            ("*", "::"),
            ("10.0.0.1", "10.0.0.1"),
            ("0.0.0.0", "0.0.0.0"),
            ("::1", "::1"),
            ("[::1]", "::1"),
        ] {
            assert_eq!(parse_listen_address(text).unwrap().to_string(), expected);
        }
        for text in ["", "node-1", "localhost:80", "127.0.0.1:80", "[127.0.0.1", "**"] {
            let error = parse_listen_address(text).unwrap_err();
            assert_eq!(error, format!("{text:?} is neither localhost, * nor an IP address"));
        }
    }

    #[test]
    fn an_address_is_bound_and_no_other() {
        let bound = |address: &str| bind((parse_listen_address(address).unwrap(), 0).into());
        let local = |address: &str| bound(address).unwrap().local_addr().unwrap().ip().to_string();
        assert_eq!(local("localhost"), "127.0.0.1");
        assert_eq!(local("127.0.0.2"), "127.0.0.2");
        assert!(["::", "0.0.0.0"].contains(&local("*").as_str()));
        assert_eq!(bound("192.0.2.1").unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    }
}
