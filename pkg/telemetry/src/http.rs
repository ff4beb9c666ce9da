//! Health and metrics over HTTP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::str::FromStr;
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

/// Listens on all addresses with one dual-stack socket; on IPv4 alone if the kernel has no IPv6.
///
/// # Errors
/// The port is taken, and so on.
pub fn bind(port: u16) -> io::Result<TcpListener> {
    bind_any(port, listen_on)
}

/// Listen address: `localhost`, `*` (all), or an IP address, with or without brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// All addresses of the machine.
    All,
    /// One address; `0.0.0.0` and `::` stand for all of a family.
    One(IpAddr),
}

/// Text that is no [`ListenAddress`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither localhost, * nor an IP address")]
pub struct ListenAddressError(String);

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        match text {
            "localhost" => Ok(ListenAddress::One(Ipv4Addr::LOCALHOST.into())),
            "*" => Ok(ListenAddress::All),
            _ => bare.parse().map(ListenAddress::One).map_err(|_| ListenAddressError(text.to_owned())),
        }
    }
}

/// Listens at an address.
///
/// # Errors
/// The machine lacks the address, the port is taken, and so on.
pub fn bind_to(address: ListenAddress, port: u16) -> io::Result<TcpListener> {
    match address {
        ListenAddress::All => bind(port),
        ListenAddress::One(ip) => Ok(listen_on((ip, port).into())?),
    }
}

fn bind_any<T>(port: u16, listen: impl Fn(SocketAddr) -> Result<T, Errno>) -> io::Result<T> {
    match listen((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => Ok(listen((Ipv4Addr::UNSPECIFIED, port).into())?),
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
        let bound = |errno: Option<Errno>| {
            bind_any(80, |address| match errno {
                Some(errno) if address.is_ipv6() => Err(errno),
                _ => Ok(address.to_string()),
            })
        };
        assert_eq!(bound(None).unwrap(), "[::]:80");
        assert_eq!(bound(Some(Errno::AFNOSUPPORT)).unwrap(), "0.0.0.0:80");
        assert_eq!(bound(Some(Errno::ADDRNOTAVAIL)).unwrap(), "0.0.0.0:80");
        assert_eq!(bound(Some(Errno::ADDRINUSE)).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn addresses_are_read_as_the_flag_has_them() {
        let one = |text: &str| ListenAddress::One(text.parse().unwrap());
        for (text, expected) in [
            ("localhost", one("127.0.0.1")),
            ("*", ListenAddress::All),
            ("10.0.0.1", one("10.0.0.1")),
            ("0.0.0.0", one("0.0.0.0")),
            ("::1", one("::1")),
            ("[::1]", one("::1")),
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap(), expected);
        }
        for text in ["", "node-1", "localhost:80", "127.0.0.1:80", "[127.0.0.1", "**"] {
            let error = text.parse::<ListenAddress>().unwrap_err();
            assert_eq!(error.to_string(), format!("{text:?} is neither localhost, * nor an IP address"));
        }
    }

    #[test]
    fn an_address_is_bound_and_no_other() {
        let bound = |address: &str| bind_to(address.parse().unwrap(), 0);
        let local = |address: &str| bound(address).unwrap().local_addr().unwrap().ip().to_string();
        assert_eq!(local("localhost"), "127.0.0.1");
        assert_eq!(local("127.0.0.2"), "127.0.0.2");
        assert!(["::", "0.0.0.0"].contains(&local("*").as_str()));
        assert_eq!(bound("192.0.2.1").unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    }
}
