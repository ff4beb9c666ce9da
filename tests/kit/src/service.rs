//! Services as kube-proxy implements them in each of its modes, each with one endpoint.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;

use crate::netns::Netns;
use crate::node::Node;

/// A service for TCP and UDP.
#[derive(Debug, Clone)]
pub struct Service {
    address: SocketAddr,
    backend: SocketAddr,
    masquerade: bool,
    mode: ProxyMode,
}

/// Mode in which kube-proxy implements services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMode {
    /// `iptables-nft`.
    Iptables,
    /// `iptables-legacy`.
    LegacyIptables,
    /// Nftables tables of kube-proxy.
    Nftables,
    /// IPVS, which not every kernel has; rules of `iptables-nft` with sets select the packets.
    Ipvs,
}

/// Whether tests of kube-proxy have to use IPVS instead of the other modes (`MILLRACE_KUBE_PROXY=ipvs`), on a kernel that has it:
/// hack/test-kernels sets this.
///
/// # Panics
/// If the variable has another value.
#[must_use]
pub fn wants_ipvs() -> bool {
    match std::env::var("MILLRACE_KUBE_PROXY").as_deref() {
        Err(_) => false,
        Ok("ipvs") => true,
        Ok(other) => panic!("MILLRACE_KUBE_PROXY={other}"),
    }
}

impl Service {
    /// Creates a service with this address and this endpoint.
    #[must_use]
    pub fn new(address: SocketAddr, backend: SocketAddr) -> Self {
        Self { address, backend, masquerade: false, mode: ProxyMode::Iptables }
    }

    /// Masquerades all traffic through it, as kube-proxy does for clients outside the cluster.
    #[must_use]
    pub fn masqueraded(mut self) -> Self {
        self.masquerade = true;
        self
    }

    /// Sets the mode.
    #[must_use]
    pub fn by(mut self, mode: ProxyMode) -> Self {
        self.mode = mode;
        self
    }

    fn tool(&self, suffix: &str) -> String {
        let family = if self.address.is_ipv6() { "ip6tables" } else { "iptables" };
        format!("{family}-{}{suffix}", if self.mode == ProxyMode::LegacyIptables { "legacy" } else { "nft" })
    }

    /// Additions of a service to the tables of nftables mode; the common part is equal each time.
    fn nftables(&self) -> String {
        let Self { address, backend, masquerade, .. } = self;
        let (family, address_type) =
            if address.is_ipv6() { ("ip6", "ipv6_addr") } else { ("ip", "ipv4_addr") };
        let (ip, port, backend_ip) = (address.ip(), address.port(), backend.ip());
        let tag = format!("{ip}-{port}").replace([':', '.', '-'], "_");
        let marked = if *masquerade { "jump mark-for-masquerade;" } else { "" };
        format!(
            r"table {family} kube-proxy {{
 map service-ips {{ type {address_type} . inet_proto . inet_service : verdict; }}
 chain mark-for-masquerade {{ }}
 chain masquerading {{ }}
 chain services {{ }}
 chain nat-prerouting {{ type nat hook prerouting priority dstnat; policy accept; }}
 chain nat-output {{ type nat hook output priority -100; policy accept; }}
 chain nat-postrouting {{ type nat hook postrouting priority srcnat; policy accept; }}
}}
flush chain {family} kube-proxy mark-for-masquerade
flush chain {family} kube-proxy masquerading
flush chain {family} kube-proxy services
flush chain {family} kube-proxy nat-prerouting
flush chain {family} kube-proxy nat-output
flush chain {family} kube-proxy nat-postrouting
table {family} kube-proxy {{
 chain mark-for-masquerade {{ meta mark set meta mark or 0x4000; }}
 chain masquerading {{
  meta mark & 0x4000 == 0 return;
  meta mark set meta mark xor 0x4000;
  masquerade fully-random;
 }}
 chain services {{ {family} daddr . meta l4proto . th dport vmap @service-ips; }}
 chain nat-prerouting {{ jump services; }}
 chain nat-output {{ jump services; }}
 chain nat-postrouting {{ jump masquerading; }}
 chain service_{tag} {{
  {marked}
  {family} saddr {backend_ip} jump mark-for-masquerade;
  meta l4proto {{ tcp, udp }} dnat to {backend};
 }}
 map service-ips {{
  type {address_type} . inet_proto . inet_service : verdict;
  elements = {{ {ip} . tcp . {port} : goto service_{tag}, {ip} . udp . {port} : goto service_{tag} }}
 }}
}}
",
        )
    }

    /// The service's own rules. Hairpin connections are always masqueraded.
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

impl Service {
    /// The virtual server, the sets' entries, and the address on the dummy link for which the kernel delivers packets locally.
    fn by_ipvs(&self, netns: &Netns) {
        let Self { address, backend, masquerade, .. } = self;
        let (ip, port) = (address.ip(), address.port());
        let (backend_ip, backend_port) = (backend.ip(), backend.port());
        let (family, prefix) = if ip.is_ipv6() { ("inet6", "KUBE-6") } else { ("inet", "KUBE") };
        let (services, loops) = (format!("{prefix}-CLUSTER-IP"), format!("{prefix}-LOOP-BACK"));
        if !netns.output(Command::new("ip").args(["link", "show", "kube-ipvs0"])).status.success() {
            netns.sh("ip link add kube-ipvs0 type dummy");
        }
        netns.sh(&format!("ip address add {ip} dev kube-ipvs0"));
        netns.sh(&format!("ipset -exist create {services} hash:ip,port family {family}"));
        netns.sh(&format!("ipset -exist create {loops} hash:ip,port,ip family {family}"));
        for (option, proto) in [("-t", "tcp"), ("-u", "udp")] {
            netns.sh(&format!("ipset add {services} {ip},{proto}:{port}"));
            netns.sh(&format!("ipset -exist add {loops} {backend_ip},{proto}:{backend_port},{backend_ip}"));
            netns.sh(&format!("ipvsadm -A {option} {address} -s rr"));
            netns.sh(&format!("ipvsadm -a {option} {address} -r {backend} -m"));
        }
        netns.sysctl("net/ipv4/vs/conntrack", "1");
        let mut rules = self.shared(netns).to_owned();
        if !rules.is_empty() {
            // Hairpin connections are always masqueraded.
            writeln!(rules, "-I KUBE-POSTROUTING -m set --match-set {loops} dst,dst,src -j MASQUERADE")
                .unwrap();
        }
        let to_this = format!("-d {ip} -m set --match-set {services} dst,dst");
        if *masquerade {
            writeln!(rules, "-A KUBE-SERVICES {to_this} -j KUBE-MARK-MASQ").unwrap();
        }
        writeln!(rules, "-A KUBE-SERVICES {to_this} -j ACCEPT").unwrap();
        netns.pipe(&format!("{} -w --noflush", self.tool("-restore")), &format!("*nat\n{rules}COMMIT\n"));
    }

    /// Returns [`SHARED`] if the rules do not exist yet.
    fn shared(&self, netns: &Netns) -> &'static str {
        let mut tool = Command::new(self.tool(""));
        let is_there = netns.output(tool.args(["-w", "-t", "nat", "-S", "KUBE-SERVICES"])).status.success();
        if is_there { "" } else { SHARED }
    }
}

/// Rules common to all services. Names are kube-proxy's where there is a choice.
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
    /// Adds a service to this node's rules, and a route to its address to the external host. It stays as long as the node.
    pub fn service(&self, service: &Service) {
        let netns = self.netns();
        let ip = service.address.ip();
        let gateway = self.ip(ip.is_ipv6());
        self.outside().sh(&format!("ip route replace {ip} via {gateway} dev eth0"));
        match service.mode {
            ProxyMode::Nftables => drop(netns.pipe("nft -f -", &service.nftables())),
            ProxyMode::Ipvs => service.by_ipvs(netns),
            ProxyMode::Iptables | ProxyMode::LegacyIptables => {
                let input = format!("*nat\n{}{}COMMIT\n", service.shared(netns), service.rules());
                netns.pipe(&format!("{} -w --noflush", service.tool("-restore")), &input);
            }
        }
    }
}
