//! Admission of requests: peers, operations, timeout, and the headers that restrict browsers.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::timeout;

use super::{ConnectionPeer, DEADLINE, error_response};

/// The page contains its style and script; it neither loads nor sends anything elsewhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Middleware for all paths.
pub(super) async fn check_request(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectionPeer>().copied();
    let mut response = match find_refusal(peer, &request) {
        Some(refusal) => refusal,
        None => timeout(DEADLINE, next.run(request)).await.unwrap_or_else(|_| timeout_response()),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn timeout_response() -> Response {
    let why = format!("there was no answer within {} seconds", DEADLINE.as_secs());
    error_response(StatusCode::SERVICE_UNAVAILABLE, &why)
}

/// Returns the response to a request that is refused; `None`: it is admitted. A request without a known peer counts as remote.
///
/// Changes over TCP are always refused: a peer of user 0 on the loopback interface can be any container with hostNetwork.
fn find_refusal(peer: Option<ConnectionPeer>, request: &Request) -> Option<Response> {
    let why = match peer {
        // Browsers cannot connect to it, and its clients send no Host.
        Some(ConnectionPeer::Socket) => return None,
        _ if ![Method::GET, Method::HEAD].contains(request.method()) => return Some(refuse_change()),
        // With hostNetwork the loopback interface is the node's, and any process of the node can connect.
        Some(peer @ ConnectionPeer::Local { .. }) if !peer.is_root() => {
            "over the loopback only processes of root are answered"
        }
        // A page of another site could resolve its own name to our address (DNS rebinding), and read the responses.
        _ if !is_asked_for_us(request) => "the host is neither an IP address nor localhost: use one of these",
        _ => return None,
    };
    Some(error_response(StatusCode::FORBIDDEN, why))
}

fn refuse_change() -> Response {
    let why = "over TCP nothing is changed: run install-cni log-level or install-cni prove in the agent's container (kubectl exec), \
               or send the request to the agent's Unix socket debug.sock as root";
    let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED, why);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// Whether the Host header is acceptable. Browsers always send one; a client that sends none is no browser.
fn is_asked_for_us(request: &Request) -> bool {
    let named = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    request.uri().authority().map(|authority| authority.as_str()).into_iter().chain(named).all(is_ours)
}

/// Whether a host is an IP address or `localhost`, with or without a port.
fn is_ours(host: &str) -> bool {
    let is_known = |name: &str| match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok(),
    };
    // The last colon may belong to an address instead: then what precedes it is not known.
    let with_port = host.rsplit_once(':');
    is_known(host) || with_port.is_some_and(|(name, port)| is_known(name) && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_or_localhost() {
        for host in [
            "localhost",
            "LOCALHOST:9876",
            "127.0.0.1",
            "127.0.0.1:9876",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:9876",
            "[fe80::1]:1",
        ] {
            assert!(is_ours(host), "{host}");
        }
        for host in [
            "",
            ":9876",
            "evil.example",
            "evil.example:9876",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost.",
            "::1",
            "[::1",
            "[::1]x",
            "[localhost]",
            "[127.0.0.1]",
            "localhost:",
            "localhost:x",
            "localhost:99999",
            "127.1",
            "2130706433",
            "evil.example@127.0.0.1",
            "x.localhost",
        ] {
            assert!(!is_ours(host), "{host}");
        }
    }
}
