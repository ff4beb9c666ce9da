//! Flags and environment for both tools, and the known differences of their rules.

use std::net::{IpAddr, Ipv6Addr};

use super::packets::{Origin, Packet};

/// A row of docs/compatibility.md.
pub(crate) struct Difference {
    pub(crate) description: &'static str,
    /// Whether the result of a packet may differ because of it.
    pub(crate) covers: fn(&Packet) -> bool,
    /// Whether at least one packet of every run shows it.
    pub(crate) is_common: bool,
}

const TUNNEL_PORT: Difference = Difference {
    description: "with TPROXY, port 15008 is never captured",
    covers: |packet| packet.is_tcp && packet.to.port() == 15008,
    is_common: true,
};
const VIRTUAL_MACHINES: Difference = Difference {
    description: "with TPROXY, traffic of virtual machines counts as outbound",
    covers: |packet| packet.origin == Origin::Machine,
    is_common: true,
};
const LOOP_MARK: Difference = Difference {
    description: "the proxy's loop mark is the TPROXY mark plus one",
    covers: |packet| packet.mark == 1338,
    is_common: false,
};

const PASSTHROUGH_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6));

/// The kernel gives the source `::6` to datagrams to `::6`, and to those that it routes to `lo` by the mark.
const DNS_OF_THE_PASSTHROUGH: Difference = Difference {
    description: "DNS over UDP from the proxy's source for inbound traffic is captured if another user sends it",
    covers: |packet| {
        let is_given = packet.to.is_ipv6() && (packet.mark != 0 || packet.to.ip() == PASSTHROUGH_V6);
        !packet.is_tcp && packet.to.port() == 53 && (packet.source.is_some() || is_given)
    },
    is_common: false,
};

pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) flags: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// Outbound, then inbound port.
    pub(crate) proxy_ports: [u16; 2],
    pub(crate) differences: &'static [Difference],
}

impl Setting {
    const fn new(name: &'static str, flags: &'static [&'static str]) -> Self {
        Self { name, flags, environment: &[], proxy_ports: [15001, 15006], differences: &[] }
    }

    const fn with_environment(self, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { environment, ..self }
    }

    const fn differing(self, differences: &'static [Difference]) -> Self {
        Self { differences, ..self }
    }

    pub(crate) fn is_tproxy(&self) -> bool {
        self.flags.contains(&"TPROXY")
    }
}

pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new("no flags", &[]),
    Setting::new("injected", &["-b", "*", "-d", "15090,15021,15020", "-i", "*", "-o", "15020"]),
    Setting::new("inbound ports", &["-b", "80,8080", "-i", "*"]),
    Setting::new("no inbound ports", &["-b", "", "-i", "*"]),
    Setting::new("excluded inbound ports", &["-b", "*", "-d", "80,9000", "-i", "*"]),
    Setting::new("outbound networks", &["-b", "*", "-i", "10.96.0.0/16,10.2.0.0/24,fd00:96::/64"]),
    Setting::new(
        "excluded networks",
        &["-b", "*", "-i", "*", "-x", "10.96.7.0/24,192.0.2.0/24,2001:db8::/32"],
    ),
    Setting::new(
        "networks within excluded ones",
        &["-b", "*", "-i", "10.96.0.0/16,fd00::/16", "-x", "10.96.7.0/24,fd00:2::/64"],
    ),
    Setting::new("no outbound networks", &["-b", "*", "-i", ""]),
    Setting::new("outbound ports only", &["-b", "*", "-i", "", "-q", "80,443"]),
    Setting::new("outbound ports within networks", &["-b", "*", "-i", "10.96.0.0/16", "-q", "80,8080"]),
    Setting::new("excluded outbound ports", &["-b", "*", "-i", "*", "-o", "443,8080"]),
    Setting::new("loopback network", &["-b", "*", "-i", "127.9.0.0/16,10.2.0.0/16,::1/128"]),
    Setting::new("excluded interfaces", &["-b", "*", "-i", "*", "-c", "net1"]),
    Setting::new("virtual interfaces", &["-b", "*", "-i", "*", "-k", "vnet0"]),
    Setting::new(
        "virtual interfaces and networks",
        &["-b", "*", "-i", "10.2.0.0/16,fd00:2::/64", "-k", "vnet0"],
    ),
    Setting::new("virtual and excluded interfaces", &["-b", "*", "-i", "*", "-k", "vnet0", "-c", "net1"]),
    Setting::new("owner groups", &["-b", "*", "-i", "*"])
        .with_environment(&[("ISTIO_OUTBOUND_OWNER_GROUPS", "888,2000")]),
    Setting::new("excluded owner groups", &["-b", "*", "-i", "*"])
        .with_environment(&[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "888")]),
    Setting::new("loopback of the host", &["-b", "*", "-i", "*"])
        .with_environment(&[("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/8")]),
    Setting::new("DNS of name servers", &["-b", "*", "-i", "*", "--redirect-dns"])
        .differing(&[DNS_OF_THE_PASSTHROUGH]),
    Setting::new("all DNS", &["-b", "*", "-i", "*", "--redirect-dns", "--capture-all-dns"])
        .differing(&[DNS_OF_THE_PASSTHROUGH]),
    Setting::new("all DNS without networks", &["-b", "*", "-i", "", "--redirect-dns", "--capture-all-dns"])
        .differing(&[DNS_OF_THE_PASSTHROUGH]),
    Setting::new("DNS and excluded interfaces", &["-b", "*", "-i", "*", "--redirect-dns", "-c", "net1"])
        .differing(&[DNS_OF_THE_PASSTHROUGH]),
    Setting::new(
        "all DNS but for an excluded port",
        &["-b", "*", "-i", "*", "-o", "53", "--redirect-dns", "--capture-all-dns"],
    ),
    Setting::new("DNS of owner groups", &["-b", "*", "-i", "*", "--redirect-dns", "--capture-all-dns"])
        .differing(&[DNS_OF_THE_PASSTHROUGH])
        .with_environment(&[("ISTIO_OUTBOUND_OWNER_GROUPS", "888")]),
    Setting::new("DNS but for owner groups", &["-b", "*", "-i", "*", "--redirect-dns", "--capture-all-dns"])
        .differing(&[DNS_OF_THE_PASSTHROUGH])
        .with_environment(&[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "888,1000")]),
    Setting::new("dropped invalid packets", &["-b", "*", "-i", "*", "--drop-invalid"]),
    Setting::new("several users", &["-b", "*", "-i", "*", "-u", "1337,2000", "-g", "1337,2000"]),
    Setting {
        proxy_ports: [16001, 16006],
        ..Setting::new("other ports", &["-b", "*", "-i", "*", "-p", "16001", "-z", "16006", "-e", "16008"])
    },
    Setting::new("TPROXY", &["-m", "TPROXY", "-b", "*", "-d", "15090", "-i", "*"]).differing(&[TUNNEL_PORT]),
    Setting::new("TPROXY of ports", &["-m", "TPROXY", "-b", "80,8080", "-i", "*"]),
    Setting::new("TPROXY without ports", &["-m", "TPROXY", "-b", "", "-i", "*"]),
    Setting::new("TPROXY and excluded interfaces", &["-m", "TPROXY", "-b", "*", "-i", "*", "-c", "net1"])
        .differing(&[TUNNEL_PORT]),
    Setting::new("TPROXY and virtual interfaces", &["-m", "TPROXY", "-b", "*", "-i", "*", "-k", "vnet0"])
        .differing(&[TUNNEL_PORT, VIRTUAL_MACHINES]),
    Setting::new(
        "TPROXY and DNS",
        &["-m", "TPROXY", "-b", "*", "-i", "*", "--redirect-dns", "--capture-all-dns"],
    )
    .differing(&[TUNNEL_PORT, DNS_OF_THE_PASSTHROUGH]),
    Setting::new(
        "TPROXY with another mark",
        &["-m", "TPROXY", "-b", "*", "-i", "*", "-t", "1400", "-r", "140"],
    )
    .differing(&[TUNNEL_PORT, LOOP_MARK]),
];
