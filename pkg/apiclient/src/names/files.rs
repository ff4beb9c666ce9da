//! Parsers of hosts(5) and resolv.conf(5).

use std::net::IpAddr;

/// Returns the addresses of a name in a hosts file, in their order.
pub(crate) fn in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut fields = line.split_whitespace();
        let Some(address) = fields.next().and_then(|word| word.parse().ok()) else { continue };
        if fields.any(|word| word.eq_ignore_ascii_case(name)) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Settings of `resolv.conf` that are supported.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResolvConf {
    /// `nameserver`: the first three, as in glibc (`MAXNS`).
    pub(crate) servers: Vec<IpAddr>,
    search: Vec<String>,
    ndots: usize,
}

impl ResolvConf {
    pub(crate) fn parse(text: &str) -> Self {
        let mut conf = ResolvConf { servers: Vec::new(), search: Vec::new(), ndots: 1 };
        for line in text.lines() {
            let mut fields = line.split_whitespace();
            match fields.next() {
                Some("nameserver") if conf.servers.len() < 3 => {
                    conf.servers.extend(fields.next().and_then(|word| word.parse::<IpAddr>().ok()));
                }
                // The last of either takes effect.
                Some("search" | "domain") => {
                    let clean = |word: &str| word.trim_matches('.').to_ascii_lowercase();
                    conf.search = fields.map(clean).filter(|word| !word.is_empty()).take(6).collect();
                }
                Some("options") => {
                    let ndots = fields
                        .filter_map(|word| word.strip_prefix("ndots:")?.parse::<usize>().ok())
                        .next_back();
                    conf.ndots = ndots.map_or(conf.ndots, |ndots| ndots.min(15));
                }
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            // resolv.conf(5): the default is the local machine.
            conf.servers.push(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
        }
        conf
    }

    /// Returns the full names to query, in their order: a name with fewer dots than `ndots` first within the search domains.
    pub(crate) fn candidate_names(&self, name: &str) -> Vec<String> {
        let within = self.search.iter().map(|domain| format!("{name}.{domain}"));
        let bare = std::iter::once(name.to_owned());
        if name.matches('.').count() < self.ndots {
            within.chain(bare).collect()
        } else {
            bare.chain(within).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_file_is_read() {
        let text = "127.0.0.1 localhost\n# 10.0.0.1 api\n10.0.0.2\tx API.local api # y\nfd00::2 api\n10.0.0.2 api\nbad api\n";
        let shown: Vec<String> = in_hosts(text, "api").iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.2", "fd00::2"]);
        assert!(in_hosts(text, "y").is_empty());
    }

    #[test]
    fn a_resolv_conf_is_read() {
        let conf = ResolvConf::parse(
            "domain z\n; c\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nnameserver ::1\nsearch A.b. c\noptions x ndots:2\n",
        );
        assert_eq!(conf.servers, ["10.0.0.1".parse::<IpAddr>().unwrap(), "::1".parse().unwrap()]);
        assert_eq!(conf.candidate_names("api.x"), ["api.x.a.b", "api.x.c", "api.x"]);
        assert_eq!(conf.candidate_names("api.x.y"), ["api.x.y", "api.x.y.a.b", "api.x.y.c"]);
        assert_eq!(ResolvConf::parse("").servers, ["127.0.0.1".parse::<IpAddr>().unwrap()]);
    }
}
