//! Services as kube-proxy makes them in its iptables mode, each with one endpoint.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;

use crate::node::Node;

/// A service for TCP and UDP.
#[derive(Debug, Clone)]
pub struct Service {
    address: SocketAddr,
    backend: SocketAddr,
    masquerade: bool,
    legacy: bool,
}

impl Service {
    /// A service at this address with this endpoint.
    #[must_use]
    pub fn new(address: SocketAddr, backend: SocketAddr) -> Self {
        Self { address, backend, masquerade: false, legacy: false }
    }

    /// What goes through it is masqueraded, as kube-proxy does for clients outside the cluster.
    #[must_use]
    pub fn masqueraded(mut self) -> Self {
        self.masquerade = true;
        self
    }

    /// With the tools of the older backend.
    #[must_use]
    pub fn legacy(mut self) -> Self {
        self.legacy = true;
        self
    }

    fn tool(&self, suffix: &str) -> String {
        let family = if self.address.is_ipv6() { "ip6tables" } else { "iptables" };
        format!("{family}-{}{suffix}", if self.legacy { "legacy" } else { "nft" })
    }

    /// The service's own rules. Endpoints that come to themselves are masqueraded whatever was asked for.
    fn rules(&self) -> String {
        let Self { address, backend, .. } = self;
        let (ip, port, backend_ip) = (address.ip(), address.port(), backend.ip());
        let tag = format!("{ip}-{port}").replace([':', '.'], "-").to_uppercase();
        let (service, endpoint) = (format!("S-{tag}"), format!("E-{tag}"));
        assert!(service.len() <= 28, "too long for a chain: {service}");
        let mut rules = format!(":{service} - [0:0]\n:{endpoint} - [0:0]\n");
        for proto in ["tcp", "udp"] {
            let matched = format!("-d {ip} -p {proto} -m {proto} --dport {port}");
            writeln!(rules, "-A KUBE-SERVICES {matched} -j {service}").unwrap();
            writeln!(rules, "-A {endpoint} -p {proto} -j DNAT --to-destination {backend}").unwrap();
        }
        if self.masquerade {
            writeln!(rules, "-A {service} -j KUBE-MARK-MASQ").unwrap();
        }
        writeln!(rules, "-A {service} -j {endpoint}").unwrap();
        writeln!(rules, "-I {endpoint} -s {backend_ip} -j KUBE-MARK-MASQ").unwrap();
        rules
    }
}

/// What all services share. kube-proxy's own words where there is a choice.
const SHARED: &str = r#":KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
"#;

impl Node {
    /// Adds a service to this node's rules, and a route to its address to the host outside. It stays as long as
    /// the node.
    pub fn service(&self, service: &Service) {
        let netns = self.netns();
        let mut tool = Command::new(service.tool(""));
        let shared = netns.output(tool.args(["-t", "nat", "-S", "KUBE-SERVICES"])).status.success();
        let shared = if shared { "" } else { SHARED };
        let input = format!("*nat\n{shared}{}COMMIT\n", service.rules());
        netns.pipe(&format!("{} --noflush", service.tool("-restore")), &input);
        let ip = service.address.ip();
        let gateway = self.ip(ip.is_ipv6());
        self.outside().sh(&format!("ip route replace {ip} via {gateway} dev eth0"));
    }
}
