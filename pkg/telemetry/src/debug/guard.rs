//! Who may ask what, for how long, and what browsers may do with the answers.

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::timeout;

use super::{ConnectionPeer, DEADLINE, refuse};

/// The page has its style and script in it; nothing comes from elsewhere, and nothing goes there.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Around everything.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectionPeer>().copied();
    let mut response = match refusal(peer, &request) {
        Some(why) => refuse(StatusCode::FORBIDDEN, why),
        None => timeout(DEADLINE, next.run(request)).await.unwrap_or_else(|_| late()),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn late() -> Response {
    let why = format!("there was no answer within {} seconds", DEADLINE.as_secs());
    refuse(StatusCode::SERVICE_UNAVAILABLE, &why)
}

/// None: it may pass. A request of which nobody knows where it comes from is one from far away.
fn refusal(peer: Option<ConnectionPeer>, request: &Request) -> Option<&'static str> {
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    match peer {
        // No browser gets there, and its clients name no host.
        Some(ConnectionPeer::Socket) => return None,
        Some(peer) if peer.is_root() => {}
        // With hostNetwork the loopback is the node's, and any process of the node can connect.
        Some(ConnectionPeer::Local { .. }) => {
            return Some("over the loopback only processes of root are answered");
        }
        _ if reads => {}
        _ => return Some("only GET and HEAD are answered to other machines"),
    }
    if !is_asked_for_us(request) {
        // Else a page of another site could have its own name lead here, and read what it gets.
        return Some("the host is no IP address and not localhost: use one of these");
    }
    if !reads && comes_from_elsewhere(request.headers()) {
        return Some("pages of other sites change nothing here");
    }
    None
}

/// Browsers always name the host; a client that names none is no browser.
fn is_asked_for_us(request: &Request) -> bool {
    let named = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    request.uri().authority().map(|authority| authority.as_str()).into_iter().chain(named).all(is_ours)
}

/// An IP address or `localhost`, with or without a port.
fn is_ours(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, rest)) => match rest.strip_prefix(':') {
            Some(port) => (name, Some(port)),
            None => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let bracketed = host.starts_with('[');
    let known = if bracketed {
        name.parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::Ipv4Addr>().is_ok()
    };
    known && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Only browsers send an origin: the page's own is the host that was asked.
fn comes_from_elsewhere(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let own = format!("http://{host}");
    headers.get_all(ORIGIN).iter().any(|origin| !origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()))
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
