//! Address of the API server.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Host part of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerHost {
    /// An address.
    Ip(IpAddr),
    /// A name to resolve, lower-case.
    Name(String),
}

/// `server` of a kubeconfig: `https://host:port/prefix` (client-go also accepts a bare host; we do not).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// Whether to use TLS.
    pub https: bool,
    /// Host.
    pub host: ServerHost,
    /// Port; 443 or 80 by default.
    pub port: u16,
    /// Path before `/api`, without a slash at the end; usually empty.
    pub prefix: String,
}

/// Parses a URL; `None`: the text is none of the form `https://host:port`.
pub(crate) fn parse_server_url(text: &str) -> Option<ServerUrl> {
    let (scheme, rest) = text.trim().split_once("://")?;
    let https = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    let valid =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'.' | b'_' | b'~' | b'%' | b':');
    if !path.bytes().all(valid) {
        return None;
    }
    let (host, port) = split_port(authority)?;
    let port = match port {
        None if https => 443,
        None => 80,
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
    };
    Some(ServerUrl { https, host: parse_host(host)?, port, prefix: path.trim_end_matches('/').to_owned() })
}

/// Splits host, brackets kept, and port. A colon without a port is ignored.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let start = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    let (bracketed, rest) = authority.split_at(start);
    match rest.split_once(':') {
        None if bracketed.is_empty() => Some((rest, None)),
        None => rest.is_empty().then_some((bracketed, None)),
        Some((host, port)) => {
            let host = if bracketed.is_empty() { host } else { host.is_empty().then_some(bracketed)? };
            Some((host, Some(port).filter(|port| !port.is_empty())))
        }
    }
}

fn parse_host(host: &str) -> Option<ServerHost> {
    if let Some(inner) = host.strip_prefix('[') {
        return inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(|ip| ServerHost::Ip(ip.into()));
    }
    if let Ok(ip) = host.parse() {
        return Some(ServerHost::Ip(IpAddr::V4(ip)));
    }
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let name = host.strip_suffix('.').unwrap_or(host);
    let labels = name.split('.').all(|label| (1..=63).contains(&label.len()));
    (labels && name.len() <= 253 && name.bytes().all(valid))
        .then(|| ServerHost::Name(name.to_ascii_lowercase()))
}

impl ServerUrl {
    /// Returns `host:port`, an IPv6 address in brackets: the `Host` header.
    pub(crate) fn authority(&self) -> String {
        match &self.host {
            ServerHost::Ip(ip) => SocketAddr::new(*ip, self.port).to_string(),
            ServerHost::Name(name) => format!("{name}:{}", self.port),
        }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        for (text, shown) in [
            ("https://10.96.0.1:443", "https://10.96.0.1:443"),
            ("https://[fd00::1]:6443/", "https://[fd00::1]:6443"),
            ("https://[fd00::1]", "https://[fd00::1]:443"),
            ("HTTP://Api.Example.com.", "http://api.example.com:80"),
            ("https://rancher/k8s/clusters/c-1:x/", "https://rancher:443/k8s/clusters/c-1:x"),
            ("https://a:", "https://a:443"),
        ] {
            assert_eq!(parse_server_url(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for text in [
            "",
            "10.0.0.1",
            "10.0.0.1:443",
            "ftp://x",
            "https://",
            "https://:443",
            "https://a:0",
            "https://a:70000",
            "https://u:p@a",
            "https://a?x",
            "https://a/x y",
            "https://[fd00::1",
            "https://fd00::1:443",
            "https://[a]:1",
            "https://a b",
            "https://a\r\nb",
            "https://[::1]x:5",
            "https://x[::1]:5",
            "https://a..b",
        ] {
            assert_eq!(parse_server_url(text), None, "{text}");
        }
    }
}
