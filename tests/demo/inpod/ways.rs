//! The pods, and the paths of their connections.

use std::net::{IpAddr, SocketAddr};

use kit::{Echo, InpodZtunnel, Netns, Proto, Seen, UplinkWatch, Via};

use super::fixture::{Actor, Fixture, MESH, PLAIN};
use crate::show::Show;

pub(crate) const APP: u16 = 8080;
pub(crate) const WEB: u16 = 80;
/// Source addresses of the node's probes, as pods of the mesh see them.
const PROBES: [&str; 2] = ["169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"];

/// Pods and ztunnel of the scenes.
pub(crate) struct Actors {
    pub(crate) ztunnel: InpodZtunnel,
    pub(crate) one: Actor,
    pub(crate) two: Actor,
    pub(crate) plain: Actor,
    _servers: Vec<Echo>,
}

impl Actor {
    /// Address of its application.
    pub(crate) fn at(&self, v6: bool) -> SocketAddr {
        SocketAddr::new(self.sandbox.ip(v6), APP)
    }

    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.sandbox.pod.namespace, self.sandbox.pod.name)
    }
}

impl Fixture {
    /// Address of the server on the external host.
    pub(crate) fn outside(&self, v6: bool) -> SocketAddr {
        SocketAddr::new(self.node.outside_ip(v6), WEB)
    }
}

/// Addresses of both pods of the mesh.
pub(crate) fn addresses(actors: &Actors) -> Vec<IpAddr> {
    [&actors.one, &actors.two].into_iter().flat_map(|actor| actor.sandbox.ips()).collect()
}

/// Starts pods, and watches the first packets of one of them.
pub(crate) fn cast(fixture: &mut Fixture, show: &mut Show) -> Actors {
    show.chapter("a ztunnel connects, and pods start");
    let ztunnel = fixture.ztunnel("ztunnel-a");
    show.note("ztunnel-a is connected, and was told of no pod: there is none");
    let mut servers = vec![Echo::tcp(fixture.node.outside(), WEB)];
    let one = fixture.pod(MESH, "one");
    let watch = UplinkWatch::start(&fixture.node, &one.sandbox.ips());
    let way = Way::new(&one.sandbox.netns, "mesh/one", fixture.outside(false), &[Via::Outbound]);
    way.check(&ztunnel, " (its first packet, the moment its ADD is done)", show);
    show.check(watch.total().direct == 0, "no packet of it at the uplink that ztunnel did not send");
    drop(watch);
    let (two, plain) = (fixture.pod(MESH, "two"), fixture.pod(PLAIN, "visitor"));
    for (actor, what) in [(&one, "of the mesh"), (&two, "of the mesh"), (&plain, "of no mesh")] {
        let ips: Vec<String> = actor.sandbox.ips().iter().map(ToString::to_string).collect();
        show.note(format!("{} {what}: {}", actor.name(), ips.join(", ")));
        servers.push(Echo::tcp(&actor.sandbox.netns, APP));
    }
    show.check(
        super::fixture::is_ruled(&one.sandbox) && !super::fixture::is_ruled(&plain.sandbox),
        "rules are in the namespaces of the pods of the mesh, and none in the other's",
    );
    Actors { ztunnel, one, two, plain, _servers: servers }
}

/// Shows the path of connections in both families.
pub(crate) fn ways(fixture: &Fixture, actors: &Actors, show: &mut Show) {
    for v6 in [false, true] {
        show.chapter(if v6 { "who talks through what (IPv6)" } else { "who talks through what (IPv4)" });
        let (outside, two) = (fixture.outside(v6), actors.two.at(v6));
        let [one, plain, host]: [&Netns; 3] =
            [&actors.one.sandbox.netns, &actors.plain.sandbox.netns, fixture.node.outside()];
        let own = SocketAddr::new(actors.one.sandbox.ip(v6), APP);
        let loopback =
            SocketAddr::new(if v6 { [0, 0, 0, 0, 0, 0, 0, 1].into() } else { [127, 0, 0, 1].into() }, APP);
        let ways = [
            Way::new(one, "mesh/one", two, &[Via::Outbound, Via::Inbound]),
            Way::new(one, "mesh/one", outside, &[Via::Outbound]),
            Way::new(host, "the host outside", two, &[Via::Inbound]),
            Way::new(plain, "plain/visitor", two, &[Via::Inbound]),
            Way::new(plain, "plain/visitor", outside, &[]),
            Way::new(one, "mesh/one to itself", own, &[]),
            Way::new(one, "mesh/one to itself", loopback, &[]),
        ];
        for way in ways {
            way.check(&actors.ztunnel, "", show);
        }
        probe(fixture, actors, v6, show);
    }
}

/// The node's probes are exempt, and have an address by which pods identify them.
pub(crate) fn probe(fixture: &Fixture, actors: &Actors, v6: bool, show: &mut Show) {
    let way = Way::new(fixture.node.netns(), "the node (as the kubelet's probes)", actors.two.at(v6), &[]);
    let seen = way.check(&actors.ztunnel, "", show);
    let source = seen.map(|seen| seen.peer.ip().to_string()).unwrap_or_default();
    show.check(
        source == PROBES[usize::from(v6)],
        format!("the application sees the probe's source as {source}"),
    );
}

/// One connection, and the listeners of ztunnel that accepted it.
pub(crate) struct Way<'a> {
    from: &'a Netns,
    who: &'a str,
    to: SocketAddr,
    wanted: &'a [Via],
}

impl<'a> Way<'a> {
    pub(crate) fn new(from: &'a Netns, who: &'a str, to: SocketAddr, wanted: &'a [Via]) -> Self {
        Self { from, who, to, wanted }
    }

    /// Connects, and shows the path.
    pub(crate) fn check(&self, ztunnel: &InpodZtunnel, remark: &str, show: &mut Show) -> Option<Seen> {
        let before = ztunnel.seen().len();
        let seen = kit::connect(self.from, Proto::Tcp, self.to);
        // ztunnel reports each leg a moment after it is established.
        let came = |count: usize| ztunnel.wait_seen_count(before + count).split_off(before);
        let new = if seen.is_ok() { came(self.wanted.len()) } else { ztunnel.seen().split_off(before) };
        let legs: Vec<Via> = new.iter().filter(|leg| leg.dst == self.to).map(|leg| leg.via).collect();
        // Two legs are reported at the same time; the one of the client is the first.
        let first: Vec<Via> = self.wanted.iter().filter(|via| legs.contains(via)).copied().collect();
        let legs = if first.len() == legs.len() { first } else { legs };
        let words = match &seen {
            Err(failure) => format!("no answer: {failure}"),
            Ok(seen) if legs.is_empty() => format!("direct, seen as {}", seen.peer.ip()),
            Ok(seen) => {
                let legs: Vec<String> = legs.iter().map(|via| format!("{via:?}")).collect();
                format!("through {} ({}), seen as {}", ztunnel.name(), legs.join(", then "), seen.peer.ip())
            }
        };
        show.check(
            seen.is_ok() && legs == self.wanted,
            format!("{} -> {}: {words}{remark}", self.who, self.to),
        );
        seen.ok()
    }
}
