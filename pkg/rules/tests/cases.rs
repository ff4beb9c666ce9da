//! The cases of sidecar redirection that are tested: by their printed text here, and by traffic in the kernel in
//! the workspace's integration tests, which include this file.

use model::{IfName, Mark, Port, TableId};
use rules::sidecar::{Config, Dns, InboundMode, Networks, OwnerGroups, Ports};

/// A name (also the golden file's) and what is asked for.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) config: Config,
}

pub(crate) const TPROXY: InboundMode = InboundMode::Tproxy { mark: Mark::exact(1337), table: TableId(133) };

pub(crate) fn ports(list: &[u16]) -> Ports {
    Ports::List(list.iter().copied().map(Port).collect())
}

pub(crate) fn networks(list: &[&str]) -> Networks {
    Networks::List(list.iter().map(|net| net.parse().unwrap()).collect())
}

fn interfaces(list: &[&str]) -> Vec<IfName> {
    list.iter().map(|name| IfName::new(name).unwrap()).collect()
}

/// What Istio's injector asks for when a pod has no annotation of its own.
pub(crate) fn injected() -> Config {
    Config {
        include_inbound: Ports::All,
        exclude_inbound: ports(&[15020, 15021, 15090]),
        include_networks: Networks::All,
        exclude_outbound: ports(&[15020]),
        ..Config::default()
    }
}

/// All cases, each once.
pub(crate) fn all() -> Vec<Case> {
    let dns_servers = vec!["10.96.0.10".parse().unwrap(), "fd00:96::a".parse().unwrap()];
    let cases = [
        ("nothing", Config::default()),
        ("injected", injected()),
        ("inbound-list", Config { include_inbound: ports(&[80, 8080]), ..injected() }),
        ("inbound-none", Config { include_inbound: Ports::NONE, ..injected() }),
        ("inbound-exclude-all", Config { exclude_inbound: Ports::All, ..injected() }),
        ("outbound-exclude-ports", Config { exclude_outbound: ports(&[15020, 25, 3306]), ..injected() }),
        (
            "outbound-networks",
            Config {
                include_networks: networks(&["10.0.0.0/8", "192.168.9.7/16", "fd00::/8"]),
                ..injected()
            },
        ),
        ("outbound-none", Config { include_networks: networks(&[]), ..injected() }),
        (
            "outbound-ports-only",
            Config { include_networks: networks(&[]), include_outbound: ports(&[80, 443]), ..injected() },
        ),
        (
            "outbound-all-ports",
            Config { include_networks: networks(&[]), include_outbound: Ports::All, ..injected() },
        ),
        (
            "outbound-exclude-networks",
            Config {
                exclude_networks: vec!["10.1.2.3/24".parse().unwrap(), "2001:db8::1/64".parse().unwrap()],
                ..injected()
            },
        ),
        (
            "loopback-network",
            Config { include_networks: networks(&["127.1.2.3/32", "10.0.0.0/8"]), ..injected() },
        ),
        ("exclude-interfaces", Config { exclude_interfaces: interfaces(&["net1", "net2"]), ..injected() }),
        ("kubevirt", Config { kubevirt_interfaces: interfaces(&["vnet0", "vnet1"]), ..injected() }),
        (
            "kubevirt-networks",
            Config {
                kubevirt_interfaces: interfaces(&["vnet0"]),
                include_networks: networks(&["10.0.0.0/8", "fd00::/8"]),
                ..injected()
            },
        ),
        (
            "several-owners",
            Config { proxy_uids: vec![1337, 2000], proxy_gids: vec![1337, 3000], ..injected() },
        ),
        ("owner-groups-except", Config { owner_groups: OwnerGroups::Except(vec![888, 999]), ..injected() }),
        ("owner-groups-only", Config { owner_groups: OwnerGroups::Only(vec![888, 999]), ..injected() }),
        ("owner-groups-nobody", Config { owner_groups: OwnerGroups::Only(vec![]), ..injected() }),
        ("dns-all", Config { dns: Dns::All, ..injected() }),
        ("dns-servers", Config { dns: Dns::Servers(dns_servers), ..injected() }),
        (
            "dns-owner-groups",
            Config { dns: Dns::All, owner_groups: OwnerGroups::Only(vec![888]), ..injected() },
        ),
        (
            "dns-exclude-interfaces",
            Config { dns: Dns::All, exclude_interfaces: interfaces(&["net1"]), ..injected() },
        ),
        ("drop-invalid", Config { drop_invalid: true, ..injected() }),
        (
            "drop-invalid-interfaces",
            Config { drop_invalid: true, exclude_interfaces: interfaces(&["net1"]), ..injected() },
        ),
        ("tproxy", Config { inbound_mode: TPROXY, ..injected() }),
        ("tproxy-list", Config { inbound_mode: TPROXY, include_inbound: ports(&[80, 8080]), ..injected() }),
        ("tproxy-none", Config { inbound_mode: TPROXY, include_inbound: Ports::NONE, ..injected() }),
        (
            "tproxy-everything",
            Config {
                inbound_mode: TPROXY,
                dns: Dns::All,
                drop_invalid: true,
                exclude_interfaces: interfaces(&["net1"]),
                kubevirt_interfaces: interfaces(&["vnet0"]),
                ..injected()
            },
        ),
        (
            "other-ports",
            Config {
                outbound_port: Port(16001),
                inbound_port: Port(16006),
                tunnel_port: Port(16008),
                ..injected()
            },
        ),
        (
            "trace",
            Config {
                trace: true,
                kubevirt_interfaces: interfaces(&["vnet0"]),
                exclude_interfaces: interfaces(&["net1"]),
                ..injected()
            },
        ),
    ];
    cases.into_iter().map(|(name, config)| Case { name, config }).collect()
}
