//! Proxy for an API server from environment variables, chosen by Go's rules, and therefore kubectl's.

use std::net::IpAddr;

use http::Uri;
use model::IpNet;

/// Returns the proxy for a server by `HTTPS_PROXY` (for an `http` server `HTTP_PROXY`) and `NO_PROXY`, whose values `variable`
/// returns; `None`: no proxy, as always for this machine itself. Rules: golang.org/x/net/http/httpproxy.
pub(crate) fn proxy_by_environment(
    server: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let value = |name: &str| {
        let both = [name.to_owned(), name.to_lowercase()];
        both.iter().filter_map(|name| variable(name)).find(|value| !value.is_empty()).unwrap_or_default()
    };
    let is_plain = server.scheme_str() == Some("http");
    let proxy = value(if is_plain { "HTTP_PROXY" } else { "HTTPS_PROXY" });
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_lowercase();
    let address = host.parse::<IpAddr>().ok();
    let is_own = host == "localhost" || address.is_some_and(|address| address.is_loopback());
    let port = server.port_u16().unwrap_or(if is_plain { 80 } else { 443 }).to_string();
    let exempts = |entry: &str| exempts_server(&entry.trim().to_lowercase(), &host, address, &port);
    if proxy.is_empty() || is_own || value("NO_PROXY").split(',').any(exempts) {
        return None;
    }
    Some(if proxy.contains("://") { proxy } else { format!("http://{proxy}") })
}

/// Whether an entry of `NO_PROXY` matches a server: everything, a network, or an address or a domain with or without a port.
fn exempts_server(entry: &str, host: &str, address: Option<IpAddr>, port: &str) -> bool {
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    let (name, of_port) = match entry.rsplit_once(':') {
        Some((name, of_port)) if !name.contains(':') || name.ends_with(']') => (name, Some(of_port)),
        _ => (entry, None),
    };
    let name = name.trim_matches(['[', ']']);
    // `*.example.com` and `.example.com` match subdomains only; `example.com` matches itself, too.
    let domain = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    let is_below = |before: &str| domain.starts_with('.') || before.is_empty() || before.ends_with('.');
    let is_meant = match name.parse::<IpAddr>() {
        Ok(named) => address == Some(named),
        Err(_) => !domain.is_empty() && host.strip_suffix(domain).is_some_and(is_below),
    };
    entry == "*" || (is_meant && of_port.is_none_or(|of_port| of_port == port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_chosen_as_kubectl_chooses_it() {
        const PROXY: &str = "http://proxy:3128";
        for (server, no_proxy, is_direct) in [
            ("https://10.1.2.3:6443", "", false),
            ("https://10.1.2.3:6443", "192.168.0.0/16, 10.0.0.0/8", true),
            ("https://10.1.2.3:6443", "11.0.0.0/8,10.1.2.4,", false),
            ("https://10.1.2.3:6443", "10.1.2.3", true),
            ("https://10.1.2.3:6443", "10.1.2.3:6443", true),
            ("https://10.1.2.3:6443", "10.1.2.3:443,proxy", false),
            ("https://10.1.2.3", "10.1.2.3:443", true),
            ("https://10.1.2.3:6443", "*", true),
            ("https://[2001:db8::1]:6443", "2001:db8::/32", true),
            ("https://[2001:db8::1]:6443", "2001:db8:0::1", true),
            ("https://[2001:db8::1]:6443", "[2001:db8::1]:6443", true),
            ("https://[2001:db8::1]:6443", "[2001:db8::1]:443,2001:db8::2", false),
            ("https://api.Example.com", "example.com", true),
            ("https://api.example.com", ".EXAMPLE.com", true),
            ("https://api.example.com", "*.example.com", true),
            ("https://api.example.com", "api.example.com:443", true),
            ("https://api.example.com", "example.com:6443,ample.com, ,*.com.", false),
            ("https://example.com", "example.com", true),
            ("https://example.com", ".example.com,*.example.com", false),
            ("https://127.0.0.1:6443", "", true),
            ("https://[::1]:6443", "", true),
            ("https://localhost:6443", "", true),
        ] {
            let variable = |name: &str| match name {
                "HTTPS_PROXY" => Some(PROXY.to_owned()),
                "HTTP_PROXY" => Some("http://other:3128".to_owned()),
                "no_proxy" => Some(no_proxy.to_owned()),
                _ => None,
            };
            let found = proxy_by_environment(&server.parse().unwrap(), variable);
            assert_eq!(found.as_deref(), (!is_direct).then_some(PROXY), "{server} {no_proxy}");
        }
    }

    #[test]
    fn the_variable_follows_the_scheme_of_the_server_and_the_proxys_scheme_is_http_by_default() {
        let proxy = |server: &'static str, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(found, _)| *found == name).map(|(_, value)| (*value).to_owned())
            };
            proxy_by_environment(&Uri::from_static(server), variable)
        };
        let both = [("HTTPS_PROXY", "secure:3128"), ("HTTP_PROXY", "user:word@plain:3128")];
        let found = |server| proxy(server, &both).unwrap();
        assert_eq!(found("https://192.0.2.1:6443"), "http://secure:3128");
        assert_eq!(found("http://192.0.2.1:8080"), "http://user:word@plain:3128");
        let lower = [("HTTPS_PROXY", ""), ("https_proxy", "socks5://socks:1080")];
        assert_eq!(proxy("https://192.0.2.1", &lower).unwrap(), "socks5://socks:1080");
        assert_eq!(proxy("https://192.0.2.1", &[]), None);
    }
}
