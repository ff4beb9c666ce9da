//! A node with services, three pods and a ztunnel.

use std::net::{IpAddr, SocketAddr};
use std::thread;

use kit::{Echo, Netns, NodeOptions, Proto, ProxyMode, Service, TrafficClient, Ztunnel, ZtunnelOptions};

use crate::fixtures::ambient::{Ambient, Legs, MESH, PLAIN, Peer, Watched};

/// Port of the servers on the external host and on the node.
pub(super) const OUTSIDE: u16 = 9000;
/// Port of HBONE.
pub(super) const HBONE: u16 = 15008;

/// Last part of services' addresses, by endpoint.
pub(super) struct Vips {
    pub(super) mesh: u8,
    pub(super) plain: u8,
    pub(super) masqueraded: u8,
    pub(super) outside: u8,
}

pub(super) const VIP: Vips = Vips { mesh: 1, plain: 2, masqueraded: 3, outside: 4 };

/// Tables of the services, and the agent's setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Nft,
    Legacy,
    /// Services are in kube-proxy's own tables; those of iptables are unused.
    Nftables,
    /// IPVS forwards services.
    Ipvs,
    /// Both backends have tables; the agent's setting selects one.
    ForcedNft,
    ForcedLegacy,
}

impl Backend {
    /// The requested backends.
    pub(super) fn all() -> Vec<Backend> {
        if kit::wants_ipvs() {
            return vec![Backend::Ipvs];
        }
        vec![Backend::Nft, Backend::Legacy, Backend::Nftables, Backend::ForcedNft, Backend::ForcedLegacy]
    }

    fn kube_proxy(self) -> ProxyMode {
        match self {
            Backend::Nft | Backend::ForcedNft => ProxyMode::Iptables,
            Backend::Legacy | Backend::ForcedLegacy => ProxyMode::LegacyIptables,
            Backend::Nftables => ProxyMode::Nftables,
            Backend::Ipvs => ProxyMode::Ipvs,
        }
    }

    /// Masqueraded services work from and to pods of the mesh. In kube-proxy's own tables they do not with node-level capture
    /// (docs/ambient.md): connections redirected to ztunnel are masqueraded, too.
    pub(super) fn can_masquerade(self) -> bool {
        self != Backend::Nftables
    }

    /// Destination that ztunnel sees for a pod's connection to a service: kube-proxy's own tables have translated it to the
    /// endpoint by then.
    pub(super) fn seen_at(self, service: SocketAddr, endpoint: SocketAddr) -> SocketAddr {
        if matches!(self, Backend::Nftables | Backend::Ipvs) { endpoint } else { service }
    }

    fn is_legacy(self) -> bool {
        matches!(self, Backend::Legacy | Backend::ForcedLegacy)
    }

    fn forced(self) -> Option<(&'static str, &'static str)> {
        match self {
            Backend::Nft | Backend::Legacy | Backend::Nftables | Backend::Ipvs => None,
            Backend::ForcedNft => Some(("FORCE_IPTABLES_BINARY", "nft")),
            Backend::ForcedLegacy => Some(("FORCE_IPTABLES_BINARY", "legacy")),
        }
    }
}

pub(super) struct Fixture {
    _servers: Vec<Echo>,
    pub(super) client: Peer,
    pub(super) server: Peer,
    pub(super) plain: Peer,
    pub(super) watched: Watched,
    pub(super) base: Ambient,
}

/// Runs cases concurrently: most of each is waiting.
pub(crate) fn every<T: Sync>(cases: &[T], test: impl Fn(&T) + Sync) {
    thread::scope(|scope| {
        let running: Vec<_> = cases.iter().map(|case| scope.spawn(|| test(case))).collect();
        for thread in running {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

impl Fixture {
    pub(super) fn new(backend: Backend) -> Self {
        Self::made(backend, &[], None, false)
    }

    /// Every present and future link on the node and in ztunnel's namespace has strict reverse-path filtering; `by_mark`: 1 if it
    /// uses the packets' marks.
    pub(super) fn strict(backend: Backend, by_mark: &str) -> Self {
        Self::made(backend, &[], Some(by_mark), false)
    }

    pub(super) fn with_env(env: &[(&str, &str)]) -> Self {
        Self::made(Backend::Nft, env, None, false)
    }

    pub(super) fn with_dns(backend: Backend) -> Self {
        Self::made(backend, &[], None, true)
    }

    fn made(backend: Backend, env: &[(&str, &str)], strict: Option<&str>, dns_capture: bool) -> Self {
        let env: Vec<_> = env.iter().copied().chain(backend.forced()).collect();
        let mut base = Ambient::stopped(NodeOptions::default(), &env);
        if let Some(by_mark) = strict {
            check_sources(base.node.netns(), by_mark);
        }
        // kube-proxy was set up before the agent.
        put(&base, backend, false, 99, (base.node.outside_ip(false), OUTSIDE).into(), false);
        if backend.forced().is_some() {
            let other = if backend.is_legacy() { "nft" } else { "legacy" };
            for family in ["iptables", "ip6tables"] {
                base.node.netns().sh(&format!("{family}-{other} -w -t mangle -N FOREIGN"));
                base.node.netns().sh(&format!("{family}-{other} -w -t mangle -A FORWARD -j FOREIGN"));
            }
        }
        base.start();
        let ztunnel = Ztunnel::start(
            &base.node,
            "ztunnel-a",
            ZtunnelOptions { dns_capture, ..ZtunnelOptions::default() },
        );
        if let Some(by_mark) = strict {
            check_sources(&ztunnel.pod().netns, by_mark);
        }
        base.announce(&ztunnel, true);
        base.wait_active(&ztunnel);
        let (client, server, plain) =
            (base.pod(MESH, "client"), base.pod(MESH, "server"), base.pod(PLAIN, "plain"));
        let (outside, node) = (base.node.outside(), base.node.netns());
        let servers = vec![
            Echo::tcp(outside, OUTSIDE),
            Echo::udp(outside, OUTSIDE),
            Echo::tcp(node, OUTSIDE),
            Echo::tcp(&server.sandbox.netns, HBONE),
        ];
        for v6 in [false, true] {
            put(&base, backend, v6, VIP.mesh, server.at(v6), false);
            put(&base, backend, v6, VIP.plain, plain.at(v6), false);
            put(&base, backend, v6, VIP.masqueraded, server.at(v6), true);
            put(&base, backend, v6, VIP.outside, (base.node.outside_ip(v6), OUTSIDE).into(), false);
        }
        Self { _servers: servers, client, server, plain, watched: Watched::new(ztunnel), base }
    }

    pub(super) fn outside(&self, v6: bool) -> SocketAddr {
        (self.base.node.outside_ip(v6), OUTSIDE).into()
    }

    pub(super) fn vip(&self, v6: bool, last: u8) -> SocketAddr {
        vip(v6, last)
    }

    /// Connects. The server at `real` answers and sees `peer`; ztunnel sees `legs`, from `source`.
    #[allow(clippy::too_many_arguments, reason = "a row of a table")]
    pub(super) fn tcp(
        &self,
        name: &str,
        netns: &Netns,
        target: SocketAddr,
        peer: Option<IpAddr>,
        real: SocketAddr,
        legs: Legs<'_>,
        source: Option<IpAddr>,
    ) {
        let what = format!("{name} to {target}");
        let seen = TrafficClient::new(Proto::Tcp).connect(netns, target);
        let seen = seen.unwrap_or_else(|error| {
            panic!(
                "{what}: {error}\n{:?}\n{}\n{}",
                self.watched.ztunnel.seen(),
                self.base.log(),
                self.base.dump()
            )
        });
        assert_eq!(seen.local, real, "{what}");
        assert!(peer.is_none_or(|peer| seen.peer.ip() == peer), "{what}: {seen:?}");
        self.watched.expect(&what, source, legs);
    }

    pub(super) fn ping(&self, netns: &Netns, ip: IpAddr) {
        crate::fixtures::ambient::ping(netns, ip);
    }

    /// Asserts that our rules are in the expected backend, and in no other.
    pub(super) fn is_in_its_backend(&self, backend: Backend) {
        for family in ["iptables", "ip6tables"] {
            let save = |kind: &str| self.base.node.netns().sh(&format!("{family}-{kind}-save"));
            let rules = |kind: &str| save(kind).lines().any(|line| line.starts_with(":ztunnel-"));
            let found = (rules("nft"), rules("legacy"));
            assert_eq!(found, (!backend.is_legacy(), backend.is_legacy()), "{backend:?} {family}");
        }
    }
}

fn vip(v6: bool, last: u8) -> SocketAddr {
    let text = if v6 { format!("[fd00:97::{last}]:80") } else { format!("10.97.0.{last}:80") };
    text.parse().unwrap()
}

fn put(base: &Ambient, backend: Backend, v6: bool, last: u8, to: SocketAddr, masquerade: bool) {
    let mut service = Service::new(vip(v6, last), to);
    if masquerade {
        service = service.masqueraded();
    }
    base.node.service(&service.by(backend.kube_proxy()));
}

fn check_sources(netns: &Netns, by_mark: &str) {
    netns.sysctl("net/ipv4/conf/all/src_valid_mark", by_mark);
    for line in netns.sh("ip -oneline link show").lines() {
        let name = line.split(": ").nth(1).unwrap().split('@').next().unwrap();
        netns.sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "1");
    }
    for scope in ["all", "default"] {
        netns.sysctl(&format!("net/ipv4/conf/{scope}/rp_filter"), "1");
    }
}
