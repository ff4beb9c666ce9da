//! Pods of the mesh while no ztunnel is ready, and when one is killed.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kit::{
    Echo, FailureKind, Live, LiveConnections, Node, Proto, Service, TempDir, TrafficClient, UplinkWatch, Via,
};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, Peer, Watched};

const OUTSIDE: u16 = 9000;
/// Long enough for an answer, if any were to arrive.
const HELD: Duration = Duration::from_millis(300);
const FAMILIES: [bool; 2] = [false, true];
/// Longer than any rejection takes. The kernel's unreachable error may arrive while `connect` still holds the socket; then only the
/// one for the first retransmission counts, after a second.
const SOON: Duration = Duration::from_secs(20);
/// Time of attempts for which a ztunnel is ready in time: the kernel sends a SYN again after 1, 3, 7, 15 and 31 s.
const PATIENCE: Duration = Duration::from_secs(50);

struct Fixture {
    _servers: Vec<Echo>,
    first: Peer,
    second: Peer,
    plain: Peer,
    base: Ambient,
    node: Arc<Node>,
}

impl Fixture {
    fn new(env: &[(&str, &str)]) -> Self {
        Self::of(Ambient::new(env))
    }

    fn of(base: Ambient) -> Self {
        let (first, second, plain) =
            (base.pod(MESH, "first"), base.pod(MESH, "second"), base.pod(PLAIN, "plain"));
        let servers = vec![Echo::tcp(base.node.outside(), OUTSIDE), Echo::udp(base.node.outside(), OUTSIDE)];
        let node = Arc::clone(&base.node);
        for v6 in FAMILIES {
            node.service(&Service::new(vip(v6), (node.outside_ip(v6), OUTSIDE).into()));
        }
        Self { _servers: servers, first, second, plain, base, node }
    }

    /// Addresses of the mesh's pods.
    fn mesh(&self) -> Vec<IpAddr> {
        [&self.first, &self.second].into_iter().flat_map(|peer| peer.sandbox.ips()).collect()
    }

    fn outside(&self, v6: bool) -> SocketAddr {
        (self.node.outside_ip(v6), OUTSIDE).into()
    }

    /// Destinations of every kind for a pod of the mesh.
    fn targets(&self, v6: bool) -> [SocketAddr; 4] {
        [self.outside(v6), self.second.at(v6), self.plain.at(v6), vip(v6)]
    }

    /// Asserts that the kubelet's probes, other pods' traffic and protocols other than TCP are not affected.
    fn others_go_on(&self) {
        for v6 in FAMILIES {
            kit::connect(self.node.netns(), Proto::Tcp, self.second.at(v6)).expect("a probe");
            assert_eq!(self.plain.tcp(self.outside(v6)).unwrap().peer.ip(), self.plain.ip(v6));
            let seen = kit::connect(&self.first.sandbox.netns, Proto::Udp, self.outside(v6)).unwrap();
            assert_eq!(seen.peer.ip(), self.first.ip(v6));
        }
    }

    /// Asserts that all connections from and to pods of the mesh fail with one of these kinds.
    fn all_fail(&self, kinds: &[FailureKind], within: Duration) {
        let client = TrafficClient::new(Proto::Tcp).within(within);
        for v6 in FAMILIES {
            let from_mesh = self.targets(v6).map(|target| (&self.first.sandbox.netns, target));
            let to_mesh =
                [(self.node.outside(), self.second.at(v6)), (&self.plain.sandbox.netns, self.second.at(v6))];
            thread::scope(|scope| {
                for (netns, target) in from_mesh.into_iter().chain(to_mesh) {
                    let client = &client;
                    scope.spawn(move || {
                        let failure = client.connect(netns, target).expect_err("no ztunnel is ready");
                        assert!(kinds.contains(&failure.kind), "{target}: {failure}");
                    });
                }
            });
        }
    }

    fn all_are_rejected(&self) {
        let client = TrafficClient::new(Proto::Tcp).within(SOON);
        for v6 in FAMILIES {
            for (netns, target) in [
                (&self.first.sandbox.netns, self.outside(v6)),
                (&self.second.sandbox.netns, vip(v6)),
                (self.node.outside(), self.second.at(v6)),
                (&self.plain.sandbox.netns, self.first.at(v6)),
            ] {
                let failure = client.connect(netns, target).expect_err("no ztunnel is ready");
                assert_eq!(failure.kind, FailureKind::Unreachable, "{target}: {failure}");
            }
        }
    }

    fn all_go_directly(&self) {
        for v6 in FAMILIES {
            for target in self.targets(v6) {
                assert_eq!(self.first.tcp(target).unwrap().peer.ip(), self.first.ip(v6), "{target}");
            }
            let seen = kit::connect(self.node.outside(), Proto::Tcp, self.second.at(v6)).unwrap();
            assert_eq!(seen.peer.ip(), self.node.outside_ip(v6));
        }
    }

    /// Connections of every kind with continuous traffic.
    fn live(&self, each: usize) -> Vec<LiveConnections> {
        let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(5) };
        let mut clients = [&self.first.sandbox.netns, self.node.outside(), &self.plain.sandbox.netns]
            .map(|netns| LiveConnections::start(netns, live));
        for v6 in FAMILIES {
            clients[0].open(self.outside(v6), each);
            for client in &mut clients {
                client.open(self.second.at(v6), each);
            }
        }
        clients.into()
    }
}

fn vip(v6: bool) -> SocketAddr {
    let text = if v6 { "[fd00:97::1]:80" } else { "10.97.0.1:80" };
    text.parse().unwrap()
}

#[test]
fn traffic_is_held_until_the_first_ztunnel_comes() {
    let mut fixture = Fixture::new(&[]);
    let node = Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &fixture.mesh());
    fixture.all_fail(&[FailureKind::Timeout], Duration::from_millis(1200));
    fixture.others_go_on();
    // Attempts of every kind for which a ztunnel is ready in time.
    let mut attempts = [&fixture.first.sandbox.netns, fixture.node.outside()]
        .map(|netns| LiveConnections::start(netns, Live::default()));
    let mut ids = Vec::new();
    for v6 in FAMILIES {
        for target in fixture.targets(v6) {
            ids.push((0, attempts[0].begin(target, 1, PATIENCE)[0]));
        }
        ids.push((1, attempts[1].begin(fixture.second.at(v6), 1, PATIENCE)[0]));
    }
    let ztunnel = fixture.base.ztunnel("ztunnel-a");
    for (which, id) in &ids {
        let opened = attempts[*which].outcome(*id);
        opened.unwrap_or_else(|error| panic!("{which} {id}: {error}"));
    }
    let seen = ztunnel.wait_seen_count(ids.len());
    assert_eq!(seen.len(), ids.len(), "{seen:?}");
    assert_eq!((watch.total().direct, watch.total().resets), (0, 0), "{:?}", watch.total());
}

/// The kernel sends a sender only a few such errors, and then one in two seconds (`icmp_ratelimit`, and `error_burst` of IPv4's
/// routes from the same bucket): so each has one attempt.
#[test]
fn traffic_is_rejected_where_that_is_wanted() {
    let mut fixture = Fixture::new(&[("NO_ZTUNNEL_POLICY", "reject")]);
    let node = Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &fixture.mesh());
    fixture.all_are_rejected();
    fixture.others_go_on();
    let ztunnel = fixture.base.ztunnel("ztunnel-a");
    for v6 in FAMILIES {
        fixture.first.tcp(fixture.outside(v6)).unwrap();
    }
    fixture.base.announce(&ztunnel, false);
    fixture.base.wait_logged("no ztunnel is ready", "TCP of enrolled pods is rejected");
    fixture.base.daemon().wait_until_ready();
    fixture.all_are_rejected();
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
}

#[test]
fn traffic_goes_its_ordinary_way_where_that_is_wanted() {
    let mut fixture = Fixture::new(&[("NO_ZTUNNEL_POLICY", "open")]);
    fixture.all_go_directly();
    fixture.others_go_on();
    let watched = Watched::new(fixture.base.ztunnel("ztunnel-a"));
    for v6 in FAMILIES {
        for target in fixture.targets(v6) {
            fixture.first.tcp(target).unwrap();
            watched.expect("with a ztunnel", Some(fixture.first.ip(v6)), &[(Via::Outbound, target)]);
        }
    }
    fixture.base.announce(&watched.ztunnel, false);
    fixture.base.wait_logged("no ztunnel is ready", "TCP of enrolled pods goes outside");
    fixture.base.daemon().wait_until_ready();
    fixture.all_go_directly();
    watched.expect("no ztunnel is ready", None, &[]);
}

#[test]
fn the_policy_changes_while_the_agent_runs() {
    let directory = TempDir::new().unwrap();
    let write = |word: &str| {
        fs::write(directory.path().join("new"), format!("{word}\n")).unwrap();
        fs::rename(directory.path().join("new"), directory.path().join("policy")).unwrap();
    };
    write("reject");
    let mut base = Ambient::stopped_with(
        &[("NO_ZTUNNEL_POLICY_FILE", "/policy/policy")],
        &[(directory.path(), "/policy")],
    );
    base.start();
    let mut fixture = Fixture::of(base);
    let rejected = std::cell::Cell::new(false);
    let becomes = |fixture: &mut Fixture, kind: &str, wanted: Option<FailureKind>| {
        let shown = |v6: bool| {
            let family = if v6 { "-6" } else { "-4" };
            fixture.node.netns().sh(&format!("ip {family} route show table all"))
        };
        let is_there = |v6: bool| {
            let text = shown(v6);
            let routes: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
            let in_table = |route: &[&str]| route.windows(2).any(|pair| pair == ["table", "101"]);
            let of = |what: &str| routes.iter().any(|route| route[0] == what && in_table(route));
            if kind.is_empty() { !of("blackhole") && !of("unreachable") } else { of(kind) }
        };
        for v6 in FAMILIES {
            let described = std::fmt::from_fn(|f| write!(f, "{kind}: {} {}", shown(v6), fixture.base.log()));
            kit::until(described, || is_there(v6));
        }
        // Rules follow routes; the sentinel leaves in a later pass.
        fixture.base.settle();
        for v6 in FAMILIES {
            let limit = if wanted == Some(FailureKind::Timeout) { HELD } else { SOON };
            let client = TrafficClient::new(Proto::Tcp).within(limit);
            let who = [&fixture.first, &fixture.second][usize::from(rejected.get())];
            let found = client.connect(&who.sandbox.netns, fixture.outside(v6)).err().map(|f| f.kind);
            assert_eq!(found, wanted, "{kind}: {}", fixture.base.log());
        }
        rejected.set(true); // the next attempt is another pod's, whose bucket is full
    };
    becomes(&mut fixture, "unreachable", Some(FailureKind::Unreachable));
    for (word, kind, wanted) in [
        ("open", "", None),
        ("hold", "blackhole", Some(FailureKind::Timeout)),
        ("nonsense", "blackhole", Some(FailureKind::Timeout)),
        ("reject", "unreachable", Some(FailureKind::Unreachable)),
        ("open", "", None),
    ] {
        write(word);
        becomes(&mut fixture, kind, wanted);
    }
}

#[test]
fn the_last_ztunnel_dies_without_warning_and_nothing_leaks() {
    let mut fixture = Fixture::new(&[]);
    let node = Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &fixture.mesh());
    let ztunnel = fixture.base.ztunnel("ztunnel-a");
    let mut live = fixture.live(2);
    live.iter_mut().for_each(LiveConnections::wait_round);
    ztunnel.delete();
    fixture.all_fail(&[FailureKind::Timeout], HELD);
    // The agent has kept the namespace open, and closes it when the pod is removed.
    fixture.base.manifests.remove_pod("istio-system", "ztunnel-a");
    fixture.base.wait_said("no ztunnel is ready");
    fixture.all_fail(&[FailureKind::Timeout], HELD);
    fixture.others_go_on();
    let mut attempts = LiveConnections::start(&fixture.first.sandbox.netns, Live::default());
    let ids: Vec<_> = FAMILIES
        .into_iter()
        .flat_map(|v6| fixture.targets(v6))
        .flat_map(|target| attempts.begin(target, 1, PATIENCE))
        .collect();
    let successor = fixture.base.ztunnel("ztunnel-b");
    for id in ids {
        attempts.outcome(id).unwrap_or_else(|error| panic!("{error}\n{}", fixture.base.log()));
    }
    let seen = successor.wait_seen_count(8);
    assert_eq!(seen.len(), 8, "{seen:?}");
    // Connections of the dead one are reset in the end.
    for client in &mut live {
        assert!(client.wait_broken(4).len() >= 4);
    }
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
}

#[test]
fn a_ztunnel_whose_process_dies_leaks_nothing() {
    let mut fixture = Fixture::new(&[]);
    let node = Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &fixture.mesh());
    let mut ztunnel = fixture.base.ztunnel("ztunnel-a");
    let mut live = fixture.live(2);
    live.iter_mut().for_each(LiveConnections::wait_round);
    ztunnel.kill();
    for client in &mut live {
        assert!(client.wait_broken(4).len() >= 4);
    }
    // No process accepts redirected connections: they are held, in effect.
    fixture.all_fail(&[FailureKind::Timeout], HELD);
    let mut attempts = LiveConnections::start(&fixture.first.sandbox.netns, Live::default());
    let ids = FAMILIES.map(|v6| attempts.begin(fixture.outside(v6), 1, PATIENCE)[0]);
    fixture.base.announce(&ztunnel, false);
    fixture.base.wait_said("no ztunnel is ready");
    fixture.all_fail(&[FailureKind::Timeout], HELD);
    fixture.others_go_on();
    ztunnel.restart();
    fixture.base.announce(&ztunnel, true);
    fixture
        .base
        .daemon()
        .wait_for("again", |daemon| daemon.logged(crate::fixtures::ambient::SWITCHED, "") >= 2);
    for id in ids {
        attempts.outcome(id).unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
}

/// During a rollout, either the old one or the new one is killed: clients without a connection through it are not affected.
#[test]
fn of_two_ztunnels_one_dies_without_warning() {
    for newest_dies in [false, true] {
        let mut fixture = Fixture::new(&[]);
        let node = Arc::clone(&fixture.node);
        let watch = UplinkWatch::start(&node, &fixture.mesh());
        let old = fixture.base.ztunnel("ztunnel-a");
        let mut on_old = fixture.live(2);
        let new = fixture.base.ztunnel("ztunnel-b");
        let mut on_new = fixture.live(2);
        on_old.iter_mut().chain(&mut on_new).for_each(LiveConnections::wait_round);
        let (dies, stays, dying, mut staying) =
            if newest_dies { (new, old, &mut on_new, on_old) } else { (old, new, &mut on_old, on_new) };
        dies.delete();
        if newest_dies {
            // The agent detects it by a failed switch, or by the API.
            fixture.base.manifests.remove_pod("istio-system", "ztunnel-b");
            fixture.base.wait_active_again(&stays);
        }
        for v6 in FAMILIES {
            for target in fixture.targets(v6) {
                fixture
                    .first
                    .tcp(target)
                    .unwrap_or_else(|error| panic!("{target} {error}: {}", fixture.base.log()));
            }
        }
        for client in dying {
            assert!(client.wait_broken(4).len() >= 4);
        }
        staying.iter_mut().for_each(LiveConnections::wait_round);
        for client in staying {
            client.finish().assert_unbroken();
        }
        assert_eq!(watch.total().direct, 0, "{newest_dies} {:?}", watch.total());
    }
}
