//! Host data read by the tools: users and groups from the local files (never through name services, which may use the network that
//! is about to be redirected), and the DNS servers.

use std::net::IpAddr;

/// Returns the ID of a user or group in the text of `/etc/passwd` or `/etc/group` (`name:x:id:...`).
pub fn numeric_id(name: &str, file: &str) -> Option<u32> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

/// Returns the name servers in the text of `/etc/resolv.conf`, in order. A zone (`fe80::1%eth0`) is dropped.
pub fn name_servers(resolv_conf: &str) -> Vec<IpAddr> {
    resolv_conf.lines().filter_map(parse_name_server).collect()
}

fn parse_name_server(line: &str) -> Option<IpAddr> {
    let mut fields = line.split_whitespace();
    (fields.next()? == "nameserver").then_some(())?;
    fields.next()?.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_servers_are_read_from_the_files_text() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nistio-proxy:x:1337:1338::/:/sbin/nologin\nodd\n";
        assert_eq!(numeric_id("istio-proxy", passwd), Some(1337));
        assert_eq!(numeric_id("istio", passwd), None);
        assert_eq!(numeric_id("odd", passwd), None);
        let conf = "# x\nnameserver 10.96.0.10\nsearch a b\n nameserver fe80::1%eth0\nnameserver nonsense\nnameserver";
        let expected: [IpAddr; 2] = ["10.96.0.10".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(name_servers(conf), expected);
    }
}
