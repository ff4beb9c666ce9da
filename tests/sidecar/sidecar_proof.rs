//! Proof by a packet in pods with a sidecar: the effect of the plugin's rules on it, in each kind of tables.

use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use enrolment::{EnrolmentPolicy, PodDecision};
use kit::{Echo, FakeReply, Netns, Pod, Proto, Serve, istio};
use model::Family;
use proof::{InboundSpec, ProofSpec, ProxyIdentity};
use report::{ProofPath, ProofResult};
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use serde_json::{Value, json};

use crate::fixtures::plugin::{PluginFixture, bare_pod};

const V6: &[&str] = &["fd00:244::2/64"];
const OWNER: ProxyIdentity = ProxyIdentity::Owner { uid: 1337, gid: 1337, on_node: Some((1337, 1337)) };
/// Reasons for the plugin to use each kind of tables: a foreign rule, and a setting.
const TABLES: [(&str, &[&str], bool); 3] = [
    ("nft", &["iptables-nft -t nat -A OUTPUT -p udp --dport 9 -j RETURN"], false),
    ("legacy", &["iptables-legacy -w -t nat -A OUTPUT -p udp --dport 9 -j RETURN"], false),
    ("native", &[], true),
];

/// A redirected dual-stack pod with annotations.
struct Redirected {
    netns: Netns,
    object: Value,
    _fixture: PluginFixture,
}

impl Redirected {
    fn new((name, before, native): (&str, &[&str], bool), annotations: &[(&str, &str)]) -> Redirected {
        let mut object = istio::injected_pod("shop", "web");
        for (key, value) in annotations {
            object = istio::annotated(object, key, value);
        }
        for flag in ["ISTIO_DUAL_STACK", "ISTIO_META_DNS_CAPTURE"] {
            object = istio::with_proxy_env(object, flag, "true");
        }
        let answer = object.clone();
        let fixture = PluginFixture::answering(move |_| FakeReply::Json(200, answer.clone()));
        let netns = bare_pod(V6);
        for line in [
            "ip link set lo up",
            "ip address add 10.244.1.2/24 dev eth0",
            "ip route add default via 10.244.1.1",
            "ip -6 route add default via fd00:244::1",
        ] {
            netns.sh(line);
        }
        netns.wait_until_addresses_are_usable();
        before.iter().for_each(|line| drop(netns.sh(line)));
        fixture.call("ADD", &netns).with("native_nftables", json!(native)).run().ok();
        if name == "native" {
            let tables = netns.sh("nft list tables");
            assert!(tables.lines().any(|table| table == "table inet istio-proxy-nat"), "{tables}");
        }
        Redirected { netns, object, _fixture: fixture }
    }

    /// Listens for the application's connections and for DNS, as the sidecar does.
    fn proxy(&self) -> Proxy {
        let any = Ipv6Addr::UNSPECIFIED;
        let bind = || {
            let listeners = [15001, 15053].map(|port| TcpListener::bind((any, port)).unwrap());
            Proxy { listeners, dns: UdpSocket::bind((any, 15053)).unwrap() }
        };
        self.netns.run(bind)
    }

    /// Paths of outbound packets. The pod's interface does not lead to this namespace, so nothing can arrive from here.
    fn prove(&self, families: &[Family]) -> Vec<ProofPath> {
        let netns = netns::Netns::open(self.netns.path()).unwrap();
        let found = proof::prove(&netns, None, &spec(&self.object, families, OWNER)).unwrap();
        let (arriving, sent) =
            found.into_iter().partition::<Vec<_>, _>(|path| path.name.starts_with("inbound-"));
        assert!(arriving.iter().all(|path| path.result == ProofResult::NotTestable), "{arriving:#?}");
        sent
    }
}

/// The redirection of an injected pod by the plugin.
pub(crate) fn spec(object: &Value, families: &[Family], proxy: ProxyIdentity) -> ProofSpec {
    let pod: model::Pod = serde_json::from_value(object.clone()).unwrap();
    let Ok(PodDecision::Sidecar(redirect)) = enrolment::decide(&pod, None, &EnrolmentPolicy::default())
    else {
        panic!("it has a sidecar")
    };
    let rules = |family: &Family| (*family, rules::sidecar::rule_set(&redirect.config, *family));
    let inbound = InboundSpec { tunnel: redirect.config.tunnel_port, probes: None };
    ProofSpec { rules: families.iter().map(rules).collect(), proxy, inbound }
}

struct Proxy {
    listeners: [TcpListener; 2],
    dns: UdpSocket,
}

impl Proxy {
    /// Whether it has a connection or a datagram.
    fn has_seen_any(&self) -> bool {
        self.dns.set_nonblocking(true).unwrap();
        let accepts = |listener: &TcpListener| {
            listener.set_nonblocking(true).unwrap();
            listener.accept().is_ok()
        };
        self.listeners.iter().any(accepts) || self.dns.recv(&mut [0; 64]).is_ok()
    }
}

/// Each path's name, destination and result.
fn rows(paths: &[ProofPath]) -> Vec<(&str, SocketAddr, ProofResult)> {
    paths.iter().map(|path| (path.name.as_str(), path.destination.parse().unwrap(), path.result)).collect()
}

/// All paths of these families: those of the application have one result, and those of the proxy another.
fn expected(
    families: &[&'static str],
    application: ProofResult,
    proxy: ProofResult,
) -> Vec<(&'static str, SocketAddr, ProofResult)> {
    let paths = |ip: &&str| {
        let to = |port| SocketAddr::new(ip.parse().unwrap(), port);
        [
            ("application-tcp", to(80), application),
            ("proxy-tcp", to(80), proxy),
            ("application-dns-udp", to(53), application),
            ("proxy-dns-udp", to(53), proxy),
            ("application-dns-tcp", to(53), application),
            ("proxy-dns-tcp", to(53), proxy),
        ]
    };
    families.iter().flat_map(paths).collect()
}

/// Asserts that a proof leaves the process dumpable. Other tests of this process, which enter user namespaces, may
/// change it.
fn assert_stays_dumpable(pod: &Redirected) {
    kit::until("the process is as it was before the proof", || {
        set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
        let _ = pod.prove(&[Family::V4]);
        dumpable_behavior() == Ok(DumpableBehavior::Dumpable)
    });
}

const ADDRESSES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

#[test]
fn a_sidecar_pod_is_proven_in_each_kind_of_tables() {
    use ProofResult::{Bypasses, Held, Proven};
    for tables in TABLES {
        let pod = Redirected::new(tables, &[]);
        let found = pod.prove(&Family::BOTH);
        assert_eq!(rows(&found), expected(&ADDRESSES, Held, Proven), "{tables:?}: {found:#?}");
        let proxy = pod.proxy();
        let found = pod.prove(&Family::BOTH);
        assert_eq!(rows(&found), expected(&ADDRESSES, Proven, Proven), "{tables:?}: {found:#?}");
        assert_stays_dumpable(&pod);
        assert!(!proxy.has_seen_any(), "{tables:?}");
        let flush = match tables.0 {
            "native" => "nft flush ruleset".to_owned(),
            backend => format!("iptables-{backend} -w -t nat -F OUTPUT"),
        };
        pod.netns.sh(&flush);
        let found = pod.prove(&[Family::V4]);
        assert_eq!(rows(&found), expected(&ADDRESSES[..1], Bypasses, Proven), "{tables:?}: {found:#?}");
    }
}

/// Rules that redirect the proxy's own traffic form a loop.
#[test]
fn a_proxy_whose_own_traffic_comes_back_is_held() {
    let pod = Redirected::new(TABLES[0], &[]);
    let _proxy = pod.proxy();
    pod.netns.sh("iptables-nft -t nat -I OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 15001");
    let found = pod.prove(&[Family::V4]);
    let results: Vec<ProofResult> = found.iter().take(2).map(|path| path.result).collect();
    assert_eq!(results, [ProofResult::Proven, ProofResult::Held], "{found:#?}");
}

/// Excluded traffic bypasses the proxy intentionally.
#[test]
fn what_a_sidecars_annotations_exclude_is_not_taken_for_a_leak() {
    let excluded = [
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "80,443"),
        ("traffic.sidecar.istio.io/excludeOutboundIPRanges", "192.0.2.0/24"),
    ];
    let pod = Redirected::new(TABLES[0], &excluded);
    let _proxy = pod.proxy();
    let found = pod.prove(&[Family::V4]);
    let to = "198.51.100.1:8080".parse().unwrap();
    let expected = [("application-tcp", to, ProofResult::Proven), ("proxy-tcp", to, ProofResult::Proven)];
    assert_eq!(rows(&found)[..2], expected, "{found:#?}");
    assert!(found.iter().all(|path| path.result == ProofResult::Proven), "{found:#?}");
    // All traffic is excluded.
    let nothing = [("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.96.0.0/12")];
    let pod = Redirected::new(TABLES[0], &nothing);
    let found = pod.prove(&[Family::V4]);
    let first = &found[0];
    assert_eq!((first.result, first.destination.as_str()), (ProofResult::NotTestable, ""), "{found:#?}");
    let every = "every address for documentation, with every port, user and group that is tried";
    assert_eq!(first.message, format!("the pod's annotations exclude {every}"));
}

/// A packet that cannot be sent proves nothing.
#[test]
fn a_pod_without_a_route_is_not_testable() {
    let pod = Redirected::new(TABLES[0], &[]);
    pod.netns.sh("ip route delete default");
    let found = pod.prove(&[Family::V4]);
    assert!(found.iter().all(|path| path.result == ProofResult::NotTestable), "{found:#?}");
    assert_eq!(found[0].message, "the pod has no route to it: Network is unreachable (os error 101)");
}

/// Capabilities that the chart does not grant.
#[test]
fn what_an_agent_lacks_a_capability_for_is_not_testable() {
    use ProofResult::{NotTestable, Proven};
    let pod = Redirected::new(TABLES[0], &[]);
    let _proxy = pod.proxy();
    for (lacks, application, says) in [
        (CapabilitySet::SETUID, Proven, "cannot send as another user"),
        (CapabilitySet::NET_RAW, NotTestable, "CAP_NET_RAW"),
    ] {
        let prove = || {
            let CapabilitySets { effective, permitted, inheritable } = capabilities(None).unwrap();
            let (effective, permitted) = (effective - lacks, permitted - lacks);
            set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
            pod.prove(&[Family::V4])
        };
        let found = std::thread::scope(|scope| scope.spawn(prove).join().unwrap());
        assert_eq!(rows(&found), expected(&ADDRESSES[..1], application, NotTestable), "{found:#?}");
        assert!(found[1].message.contains(says), "{found:#?}");
    }
}

/// Counters of the pod's answers to a documentation address, by which another host would notice a received packet.
const ANSWERS: &str = "table inet proof {
    counter answers {}
    chain out {
        type filter hook output priority -450
        ip daddr 192.0.2.0/24 tcp flags & (ack | rst) != 0 counter name answers
        ip6 daddr 2001:db8::/32 tcp flags & (ack | rst) != 0 counter name answers
        meta l4proto { icmp, icmpv6 } ip daddr 192.0.2.0/24 counter name answers
        meta l4proto { icmp, icmpv6 } ip6 daddr 2001:db8::/32 counter name answers
    }
}
";

/// Packets have the same result as real connections, and are not answered.
#[test]
fn what_arrives_at_a_sidecar_takes_the_path_of_real_connections() {
    use ProofResult::{Bypasses, Held, Proven};
    for (tables, mode) in TABLES.iter().flat_map(|tables| ["REDIRECT", "TPROXY"].map(|mode| (tables, mode))) {
        let mut object = istio::injected_pod("shop", "web");
        object = istio::annotated(object, "sidecar.istio.io/interceptionMode", mode);
        object = istio::annotated(object, "traffic.sidecar.istio.io/excludeInboundPorts", "9090");
        object = istio::with_proxy_env(object, "ISTIO_DUAL_STACK", "true");
        let answer = object.clone();
        let fixture = PluginFixture::answering(move |_| FakeReply::Json(200, answer.clone()));
        let pod = fixture.node.pod(Pod::new("shop", "web"), &[]);
        tables.1.iter().for_each(|line| drop(pod.netns.sh(line)));
        fixture.call("ADD", &pod.netns).with("native_nftables", json!(tables.2)).run().ok();
        let _application = [80, 9090].map(|port| Echo::tcp(&pod.netns, port));
        let netns = netns::Netns::open(pod.netns.path()).unwrap();
        let spec = spec(&object, &Family::BOTH, OWNER);
        let prove = |expected: [ProofResult; 2]| {
            let found = fixture.node.netns().run(|| proof::prove(&netns, None, &spec).unwrap());
            for (name, expected) in ["inbound-tcp", "inbound-excluded"].into_iter().zip(expected) {
                let found: Vec<_> = found.iter().filter(|path| path.name == name).collect();
                let is_expected = found.len() == 2 && found.iter().all(|path| path.result == expected);
                assert!(is_expected, "{tables:?} {mode}: {found:#?}");
            }
        };
        let listeners = |port| {
            [false, true].map(|v6| {
                let seen =
                    kit::connect(fixture.node.outside(), Proto::Tcp, SocketAddr::new(pod.ip(v6), port));
                seen.ok().map(|seen| seen.listener)
            })
        };
        prove([Held, Proven]);
        assert_eq!(listeners(80), [None; 2], "{tables:?} {mode}");
        let proxy = Echo::start(&pod.netns, &Serve::new(Proto::Tcp, istio::INBOUND).transparent());
        pod.netns.pipe("nft -f -", ANSWERS);
        prove([Proven, Proven]);
        let counted = pod.netns.sh("nft list counter inet proof answers");
        assert_eq!(counted.split_whitespace().filter(|word| *word == "packets").count(), 1);
        assert_eq!(
            counted.split_whitespace().skip_while(|word| *word != "packets").nth(1),
            Some("0"),
            "{counted}"
        );
        pod.netns.sh("nft delete table inet proof");
        assert_eq!(listeners(80), [Some(istio::INBOUND); 2], "{tables:?} {mode}");
        assert_eq!(listeners(9090), [Some(9090); 2], "{tables:?} {mode}");
        match tables.0 {
            "native" => drop(pod.netns.sh("nft flush ruleset")),
            backend => {
                for (program, table) in [
                    ("iptables", "nat"),
                    ("iptables", "mangle"),
                    ("ip6tables", "nat"),
                    ("ip6tables", "mangle"),
                ] {
                    pod.netns.sh(&format!("{program}-{backend} -t {table} -F PREROUTING"));
                }
            }
        }
        prove([Bypasses, Proven]);
        assert_eq!(listeners(80), [Some(80); 2], "{tables:?} {mode}");
        drop(proxy);
    }
}
