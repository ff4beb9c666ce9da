//! A pod with a proxy and an application, and an external host with servers and clients.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use firewall::Backend;
use kit::{Echo, Netns, Proto, Seen, Serve, TrafficClient};
use redirect::FamilyChoice;
use rules::sidecar::{InboundMode, SidecarConfig};

use crate::sidecar_kernel::{at_once, state::forced};

/// A user and a group.
pub(crate) type Owner = (u32, u32);
/// User and group of the proxy.
pub(crate) const PROXY: Owner = (1337, 1337);
/// User and group of the application.
pub(crate) const APP: Owner = (1000, 1000);

/// The expected server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The proxy, on its inbound port.
    Inbound,
    /// The proxy, on its outbound port.
    Outbound,
    /// The proxy, on its DNS port.
    ProxyDns,
    /// The proxy, by its own port: not redirected.
    Proxy,
    /// The application.
    App,
    /// The external host.
    Outside,
}
use To::{App, Inbound, Outbound, Outside, Proxy, ProxyDns};

/// The redirected pod, and the external host.
pub(crate) struct Fixture {
    pub(crate) pod: Netns,
    pub(crate) outside: Netns,
    pub(crate) backend: Backend,
    pub(crate) config: SidecarConfig,
    servers: Vec<Echo>,
}

/// Runs a test with all kinds of tables concurrently, unless there is no second user for the proxy here.
pub(crate) fn fixtures(config: &SidecarConfig, test: impl Fn(&mut Fixture) + Sync) {
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    at_once(&Backend::ALL, |backend| test(&mut Fixture::new(config, *backend)));
}

impl Fixture {
    fn new(config: &SidecarConfig, backend: Backend) -> Fixture {
        let (pod, outside) = (Netns::new("pod"), Netns::new("outside"));
        let mut fixture = Fixture { pod, outside, backend, config: config.clone(), servers: Vec::new() };
        fixture.connect();
        fixture.redirect(FamilyChoice::Dual);
        let inbound = Serve::new(Proto::Tcp, config.inbound_port.0);
        let tproxy = matches!(config.inbound_mode, InboundMode::Tproxy { .. });
        fixture.proxy(if tproxy { inbound.transparent() } else { inbound });
        fixture.proxy(Serve::new(Proto::Tcp, config.outbound_port.0));
        fixture
    }

    /// Applies the rules, or applies them again.
    pub(crate) fn redirect(&self, families: FamilyChoice) {
        let apply = || redirect::apply(&self.config, families, &forced(self.backend));
        self.pod.run(apply).unwrap();
    }

    /// `eth0` has the default route, `net1` is on a network of its own. The external host has further networks.
    fn connect(&self) {
        let outside = self.outside.name();
        self.pod.pipe(
            "ip -batch -",
            &format!(
                "link add eth0 type veth peer name eth0 netns {outside}\n\
                 link add net1 type veth peer name net1 netns {outside}\n\
                 address add 10.1.0.2/24 dev eth0\n\
                 address add fd00:1::2/64 dev eth0\n\
                 address add 10.9.0.2/24 dev net1\n\
                 address add fd00:9::2/64 dev net1\n\
                 link set eth0 up\n\
                 link set net1 up\n\
                 route add default via 10.1.0.1\n\
                 route add default via fd00:1::1 dev eth0\n"
            ),
        );
        self.outside.pipe(
            "ip -batch -",
            "address add 10.1.0.1/24 dev eth0\n\
             address add fd00:1::1/64 dev eth0\n\
             address add 10.9.0.1/24 dev net1\n\
             address add fd00:9::1/64 dev net1\n\
             address add 10.2.0.1/32 dev lo\n\
             address add fd00:2::1/128 dev lo\n\
             address add 10.3.0.1/32 dev lo\n\
             address add fd00:3::1/128 dev lo\n\
             link set eth0 up\n\
             link set net1 up\n",
        );
        [&self.pod, &self.outside].iter().for_each(|side| side.wait_until_addresses_are_usable());
    }

    /// Starts a server of the proxy.
    pub(crate) fn proxy(&mut self, serve: Serve) {
        self.servers.push(Echo::start(&self.pod, &serve.named("proxy").owned_by(PROXY.0, PROXY.1)));
    }

    /// Starts the proxy's DNS server, over both protocols. As Istio's, it listens on loopback, to which REDIRECT sends local
    /// datagrams, and from which the answer must come.
    pub(crate) fn proxy_dns(&mut self) {
        for (proto, v6) in [(Proto::Tcp, false), (Proto::Tcp, true), (Proto::Udp, false), (Proto::Udp, true)]
        {
            self.proxy(Serve::new(proto, 15053).on(ip(v6, "127.0.0.1", "::1")));
        }
    }

    /// Starts servers of the application on these ports.
    pub(crate) fn app(&mut self, ports: &[u16]) {
        for port in ports {
            let serve = Serve::new(Proto::Tcp, *port).named("app").owned_by(APP.0, APP.1);
            self.servers.push(Echo::start(&self.pod, &serve));
        }
    }

    /// Starts a UDP server of the application.
    pub(crate) fn app_udp(&mut self, port: u16) {
        let serve = Serve::new(Proto::Udp, port).named("app").owned_by(APP.0, APP.1);
        self.servers.push(Echo::start(&self.pod, &serve));
    }

    /// Starts servers on these ports, on all addresses of the external host.
    pub(crate) fn outside(&mut self, ports: &[u16]) {
        for port in ports {
            self.servers.push(Echo::start(&self.outside, &Serve::new(Proto::Tcp, *port).named("outside")));
        }
    }

    /// Starts UDP servers on the external host, on its addresses in these networks: with a server for each, the source of the
    /// answer is the destination of the query.
    pub(crate) fn outside_udp(&mut self, port: u16, networks: &[u8]) {
        for (n, v6) in networks.iter().flat_map(|n| FAMILIES.map(|v6| (*n, v6))) {
            let serve = Serve::new(Proto::Udp, port).on(network_ip(v6, n)).named("outside");
            self.servers.push(Echo::start(&self.outside, &serve));
        }
    }

    /// The pod's address.
    pub(crate) fn pod_ip(&self, v6: bool) -> IpAddr {
        ip(v6, "10.1.0.2", "fd00:1::2")
    }

    /// Address of the external host.
    pub(crate) fn outside_ip(&self, v6: bool) -> IpAddr {
        ip(v6, "10.1.0.1", "fd00:1::1")
    }

    /// Connects as a process of the pod.
    pub(crate) fn pod_calls(&self, owner: Owner, target: SocketAddr, to: To) -> Seen {
        let client = TrafficClient::new(Proto::Tcp).owned_by(owner.0, owner.1);
        self.expect(&self.pod, &client, target, to)
    }

    /// Sends a datagram as a process of the pod and receives the answer.
    pub(crate) fn pod_asks(&self, owner: Owner, target: SocketAddr, to: To) -> Seen {
        let client = TrafficClient::new(Proto::Udp).owned_by(owner.0, owner.1);
        self.expect(&self.pod, &client, target, to)
    }

    /// Connects from the external host.
    pub(crate) fn outside_calls(&self, target: SocketAddr, to: To) -> Seen {
        self.expect(&self.outside, &TrafficClient::new(Proto::Tcp), target, to)
    }

    /// Connects, and asserts that the expected server answers.
    pub(crate) fn expect(&self, from: &Netns, client: &TrafficClient, target: SocketAddr, to: To) -> Seen {
        let (backend, client) = (self.backend, client.clone().within(Duration::from_secs(20)));
        let seen = client.connect(from, target);
        let what = format!("{backend}: {client:?} to {target}, expected {to:?}");
        let seen = seen.unwrap_or_else(|failure| panic!("{what}: {failure}"));
        let (name, port, redirected) = match to {
            Inbound => ("proxy", self.config.inbound_port.0, true),
            Outbound => ("proxy", self.config.outbound_port.0, true),
            ProxyDns => ("proxy", 15053, true),
            Proxy => ("proxy", target.port(), false),
            App => ("app", target.port(), false),
            Outside => ("outside", target.port(), false),
        };
        assert_eq!((seen.server.as_str(), seen.listener), (name, port), "{what}: {seen:?}");
        let saw = seen.original_dst.is_none_or(|saw| saw == target);
        assert!(saw && (!redirected || to == ProxyDns || seen.original_dst.is_some()), "{what}: {seen:?}");
        seen
    }
}

/// Parses the text of one family.
pub(crate) fn ip(v6: bool, v4_text: &str, v6_text: &str) -> IpAddr {
    if v6 { v6_text.parse().unwrap() } else { v4_text.parse().unwrap() }
}

/// Address of the external host in a further network: `10.<n>.0.1` or `fd00:<n>::1`.
pub(crate) fn network_ip(v6: bool, n: u8) -> IpAddr {
    ip(v6, &format!("10.{n}.0.1"), &format!("fd00:{n}::1"))
}

/// IPv4, then IPv6.
pub(crate) const FAMILIES: [bool; 2] = [false, true];
