//! Cases of sidecar redirection: tested here by their printed text, and by traffic in the kernel in the workspace's integration
//! tests, which include this file.

use model::{IfName, Mark, Port, TableId};
use rules::sidecar::{DnsCapture, InboundMode, NetworkSelection, OwnerGroups, PortSelection, SidecarConfig};

/// A name (also the golden file's) and the configuration.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) config: SidecarConfig,
}

pub(crate) const TPROXY: InboundMode =
    InboundMode::Tproxy { mark: Mark::with_full_mask(1337), table: TableId(133) };

pub(crate) fn ports(list: &[u16]) -> PortSelection {
    PortSelection::List(list.iter().copied().map(Port).collect())
}

pub(crate) fn networks(list: &[&str]) -> NetworkSelection {
    NetworkSelection::List(list.iter().map(|net| net.parse().unwrap()).collect())
}

fn interfaces(list: &[&str]) -> Vec<IfName> {
    list.iter().map(|name| IfName::new(name).unwrap()).collect()
}

/// Configuration that Istio's injector requests for a pod without annotations.
pub(crate) fn injected() -> SidecarConfig {
    SidecarConfig {
        include_inbound: PortSelection::All,
        exclude_inbound: ports(&[15020, 15021, 15090]),
        include_networks: NetworkSelection::All,
        exclude_outbound: ports(&[15020]),
        ..SidecarConfig::default()
    }
}

/// All cases, each once.
pub(crate) fn all() -> Vec<Case> {
    let dns_servers = vec!["10.96.0.10".parse().unwrap(), "fd00:96::a".parse().unwrap()];
    let cases = [
        ("nothing", SidecarConfig::default()),
        ("injected", injected()),
        ("inbound-list", SidecarConfig { include_inbound: ports(&[80, 8080]), ..injected() }),
        ("inbound-none", SidecarConfig { include_inbound: PortSelection::NONE, ..injected() }),
        ("inbound-exclude-all", SidecarConfig { exclude_inbound: PortSelection::All, ..injected() }),
        (
            "outbound-exclude-ports",
            SidecarConfig { exclude_outbound: ports(&[15020, 25, 3306]), ..injected() },
        ),
        (
            "outbound-networks",
            SidecarConfig {
                include_networks: networks(&["10.0.0.0/8", "192.168.9.7/16", "fd00::/8"]),
                ..injected()
            },
        ),
        ("loopback-cidr", SidecarConfig { loopback: "127.0.0.0/8".parse().unwrap(), ..injected() }),
        (
            "loopback-cidr-tproxy",
            SidecarConfig { loopback: "127.0.0.0/8".parse().unwrap(), inbound_mode: TPROXY, ..injected() },
        ),
        (
            "port-ranges",
            SidecarConfig {
                exclude_inbound: ports(&(1..=600).chain([700, 700, 702]).rev().collect::<Vec<_>>()),
                exclude_outbound: ports(&(0..=u16::MAX).collect::<Vec<_>>()),
                include_outbound: PortSelection::Ranges(vec![8000..=8010, 443..=443]),
                ..injected()
            },
        ),
        ("outbound-none", SidecarConfig { include_networks: networks(&[]), ..injected() }),
        (
            "outbound-ports-only",
            SidecarConfig {
                include_networks: networks(&[]),
                include_outbound: ports(&[80, 443]),
                ..injected()
            },
        ),
        (
            "outbound-all-ports",
            SidecarConfig {
                include_networks: networks(&[]),
                include_outbound: PortSelection::All,
                ..injected()
            },
        ),
        (
            "outbound-exclude-networks",
            SidecarConfig {
                exclude_networks: vec!["10.1.2.3/24".parse().unwrap(), "2001:db8::1/64".parse().unwrap()],
                ..injected()
            },
        ),
        (
            "loopback-network",
            SidecarConfig { include_networks: networks(&["127.1.2.3/32", "10.0.0.0/8"]), ..injected() },
        ),
        (
            "exclude-interfaces",
            SidecarConfig { exclude_interfaces: interfaces(&["net1", "net2"]), ..injected() },
        ),
        ("kubevirt", SidecarConfig { kubevirt_interfaces: interfaces(&["vnet0", "vnet1"]), ..injected() }),
        (
            "kubevirt-networks",
            SidecarConfig {
                kubevirt_interfaces: interfaces(&["vnet0"]),
                include_networks: networks(&["10.0.0.0/8", "fd00::/8"]),
                ..injected()
            },
        ),
        (
            "several-owners",
            SidecarConfig { proxy_uids: vec![1337, 2000], proxy_gids: vec![1337, 3000], ..injected() },
        ),
        (
            "owner-groups-except",
            SidecarConfig { owner_groups: OwnerGroups::Except(vec![888, 999]), ..injected() },
        ),
        (
            "owner-groups-only",
            SidecarConfig { owner_groups: OwnerGroups::Only(vec![888, 999]), ..injected() },
        ),
        ("owner-groups-nobody", SidecarConfig { owner_groups: OwnerGroups::Only(vec![]), ..injected() }),
        ("dns-all", SidecarConfig { dns: DnsCapture::All, ..injected() }),
        ("dns-servers", SidecarConfig { dns: DnsCapture::Servers(dns_servers), ..injected() }),
        (
            "dns-owner-groups",
            SidecarConfig { dns: DnsCapture::All, owner_groups: OwnerGroups::Only(vec![888]), ..injected() },
        ),
        (
            "dns-exclude-interfaces",
            SidecarConfig { dns: DnsCapture::All, exclude_interfaces: interfaces(&["net1"]), ..injected() },
        ),
        ("drop-invalid", SidecarConfig { drop_invalid: true, ..injected() }),
        (
            "drop-invalid-interfaces",
            SidecarConfig { drop_invalid: true, exclude_interfaces: interfaces(&["net1"]), ..injected() },
        ),
        ("tproxy", SidecarConfig { inbound_mode: TPROXY, ..injected() }),
        (
            "tproxy-list",
            SidecarConfig { inbound_mode: TPROXY, include_inbound: ports(&[80, 8080]), ..injected() },
        ),
        (
            "tproxy-none",
            SidecarConfig { inbound_mode: TPROXY, include_inbound: PortSelection::NONE, ..injected() },
        ),
        (
            "tproxy-everything",
            SidecarConfig {
                inbound_mode: TPROXY,
                dns: DnsCapture::All,
                drop_invalid: true,
                exclude_interfaces: interfaces(&["net1"]),
                kubevirt_interfaces: interfaces(&["vnet0"]),
                ..injected()
            },
        ),
        (
            "other-ports",
            SidecarConfig {
                outbound_port: Port(16001),
                inbound_port: Port(16006),
                tunnel_port: Port(16008),
                ..injected()
            },
        ),
        (
            "trace",
            SidecarConfig {
                trace: true,
                kubevirt_interfaces: interfaces(&["vnet0"]),
                exclude_interfaces: interfaces(&["net1"]),
                ..injected()
            },
        ),
    ];
    cases.into_iter().map(|(name, config)| Case { name, config }).collect()
}
