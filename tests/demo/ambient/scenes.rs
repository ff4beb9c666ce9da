//! The scenes, which are shown and checked.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use kit::{
    ApiServer, Echo, Live, LiveConnections, Netns, Proto, Relayed, Serve, TrafficClient, UplinkWatch, Via,
    istio,
};
use serde_json::json;

use super::fixture::{Actor, Fixture, Proxy};
use crate::show::Show;

const APP: u16 = 8080;
const WEB: u16 = 80;

/// Pods and ztunnels of the scenes.
pub(crate) struct Actors {
    ztunnel: Option<Proxy>,
    one: Actor,
    two: Actor,
    plain: Actor,
    sidecar: Actor,
    _servers: Vec<Echo>,
}

impl Actors {
    fn active(&self) -> &Proxy {
        self.ztunnel.as_ref().unwrap()
    }
}

pub(crate) fn cast(fixture: &mut Fixture, show: &mut Show) -> Actors {
    show.chapter("a ztunnel becomes ready, and pods start");
    let ztunnel = fixture.start_ztunnel("ztunnel-a");
    show.note(format!(
        "ztunnel-a at {}: rules, sets, links and routes are in place",
        ztunnel.ztunnel.ip(false)
    ));
    let one = fixture.start_pod(ApiServer::pod("mesh", "one"));
    let two = fixture.start_pod(ApiServer::pod("mesh", "two"));
    let plain = fixture.start_pod(ApiServer::pod("plain", "visitor"));
    let sidecar = fixture.start_pod(istio::injected_pod("sidecars", "web"));
    for (actor, what) in
        [(&one, "of the mesh"), (&two, "of the mesh"), (&plain, "of no mesh"), (&sidecar, "with a sidecar")]
    {
        let pod = &actor.sandbox.pod;
        let ips: Vec<String> = actor.sandbox.ips().iter().map(ToString::to_string).collect();
        show.note(format!("{}/{} {what}: {}", pod.namespace, pod.name, ips.join(", ")));
    }
    let sidecar_proxy =
        Serve::new(Proto::Tcp, istio::OUTBOUND).named("sidecar").owned_by(istio::PROXY_ID, istio::PROXY_ID);
    let servers = vec![
        Echo::tcp(&one.sandbox.netns, APP),
        Echo::tcp(&two.sandbox.netns, APP),
        Echo::tcp(&plain.sandbox.netns, APP),
        Echo::tcp(fixture.node.outside(), WEB),
        Echo::start(&sidecar.sandbox.netns, &sidecar_proxy),
    ];
    Actors { ztunnel: Some(ztunnel), one, two, plain, sidecar, _servers: servers }
}

/// Shows the path of connections in both families.
pub(crate) fn ways(fixture: &Fixture, actors: &Actors, show: &mut Show) {
    for v6 in [false, true] {
        show.chapter(if v6 { "who talks through what (IPv6)" } else { "who talks through what (IPv4)" });
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), WEB);
        let at = |actor: &Actor| SocketAddr::new(actor.sandbox.ip(v6), APP);
        let (one, two, plain) = (&actors.one.sandbox.netns, at(&actors.two), &actors.plain.sandbox.netns);
        let ways = [
            Way::new(one, "mesh/one", outside, Some(Via::Outbound)),
            Way::new(one, "mesh/one", two, Some(Via::Outbound)),
            Way::new(fixture.node.outside(), "the host outside", two, Some(Via::Inbound)),
            Way::new(plain, "plain/visitor", two, Some(Via::Inbound)),
            Way::new(plain, "plain/visitor", outside, None),
            Way::new(fixture.node.netns(), "the node (as the kubelet's probes)", two, None),
        ];
        ways.into_iter().for_each(|way| way.check(actors.active(), show));
        let application = TrafficClient::new(Proto::Tcp).owned_by(1000, 1000);
        let seen = application.connect(&actors.sidecar.sandbox.netns, outside);
        let right = seen.as_ref().is_ok_and(|seen| seen.server == "sidecar");
        show.check(right || v6, format!("sidecars/web -> {outside}: through its own sidecar"));
    }
}

struct Way<'a> {
    from: &'a Netns,
    who: String,
    to: SocketAddr,
    wanted: Option<Via>,
}

impl<'a> Way<'a> {
    fn new(from: &'a Netns, who: &str, to: SocketAddr, wanted: Option<Via>) -> Self {
        Self { from, who: who.to_owned(), to, wanted }
    }

    fn check(self, proxy: &Proxy, show: &mut Show) {
        let before = proxy.ztunnel.seen().len();
        let seen = kit::connect(self.from, Proto::Tcp, self.to);
        let source = seen.as_ref().map(|seen| seen.peer.ip().to_string()).unwrap_or_default();
        let came = || proxy.ztunnel.seen().into_iter().skip(before).find(|relayed| relayed.dst == self.to);
        let (right, words) = match self.wanted {
            Some(via) => {
                let told = |relayed: &Relayed| relayed.dst == self.to && relayed.via == via;
                let relayed = seen.is_ok().then(|| proxy.ztunnel.wait_seen_after(before, told));
                let right = relayed.is_some_and(|relayed| relayed.src.ip().to_string() == source);
                (right, format!("through {} ({via:?}), seen as {source}", proxy.ztunnel.name()))
            }
            None => (seen.is_ok() && came().is_none(), format!("direct, seen as {source}")),
        };
        show.check(right, format!("{} -> {}: {words}", self.who, self.to));
    }
}

/// Long-lived connections of all kinds, `each` in each family.
fn crowd(fixture: &Fixture, actors: &Actors, each: usize) -> Vec<LiveConnections> {
    let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(10) };
    let families = [false, true];
    let two = |v6| SocketAddr::new(actors.two.sandbox.ip(v6), APP);
    let outside = |v6| SocketAddr::new(fixture.node.outside_ip(v6), WEB);
    let mut from_one = LiveConnections::start(&actors.one.sandbox.netns, live);
    let mut from_outside = LiveConnections::start(fixture.node.outside(), live);
    let mut from_plain = LiveConnections::start(&actors.plain.sandbox.netns, live);
    for v6 in families {
        from_one.open(outside(v6), each);
        from_one.open(two(v6), each);
        from_outside.open(two(v6), each);
        from_plain.open(two(v6), each);
    }
    vec![from_one, from_outside, from_plain]
}

fn finish(crowd: Vec<LiveConnections>) -> (usize, u64, usize, Duration) {
    let reports: Vec<_> = crowd.into_iter().map(LiveConnections::finish).collect();
    let connections = reports.iter().map(|report| report.connections).sum();
    let exchanges = reports.iter().map(|report| report.exchanges).sum();
    let broken = reports.iter().map(|report| report.broken.len()).sum();
    (connections, exchanges, broken, reports.iter().map(|report| report.slowest).max().unwrap_or_default())
}

fn addresses(actors: &Actors) -> Vec<IpAddr> {
    [&actors.one, &actors.two].into_iter().flat_map(|actor| actor.sandbox.ips()).collect()
}

/// A new ztunnel takes over during traffic, and the old one ends.
pub(crate) fn rollout(fixture: &mut Fixture, actors: &mut Actors, show: &mut Show) {
    show.chapter("a ztunnel rollout under traffic");
    let node = std::sync::Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &addresses(actors));
    let links = fixture.links();
    let mut crowd = crowd(fixture, actors, 6);
    let next = fixture.start_ztunnel("ztunnel-b");
    crowd.iter_mut().for_each(LiveConnections::wait_round);
    let old = actors.ztunnel.replace(next).unwrap();
    let before = old.ztunnel.seen().len();
    let outside = SocketAddr::new(fixture.node.outside_ip(false), WEB);
    Way {
        from: &actors.one.sandbox.netns,
        who: "mesh/one".to_owned(),
        to: outside,
        wanted: Some(Via::Outbound),
    }
    .check(actors.active(), show);
    show.check(old.ztunnel.seen().len() == before, "no new connection at ztunnel-a");
    let (connections, exchanges, broken, slowest) = finish(crowd);
    show.check(
        broken == 0 && connections > 0,
        format!("{connections} connections, one exchange each 20 ms, {exchanges} in all, slowest {slowest:.0?}: {broken} broken"),
    );
    fixture.end_ztunnel(old);
    fixture.wait_for_links(links); // the kernel removes a namespace, and its links, some time after its last process
    show.check(watch.total().direct == 0, "no packet of a mesh pod at the uplink that ztunnel did not send");
}

/// The agent is killed and restarted during traffic.
pub(crate) fn restart(fixture: &mut Fixture, actors: &Actors, show: &mut Show) {
    show.chapter("the agent is killed, and comes back");
    let (before, crowd) = (fixture.dump(), crowd(fixture, actors, 2));
    fixture.daemon = fixture.container.start(); // dropping the old one kills it
    fixture.daemon.wait_until_ready();
    show.check_same(&before, &fixture.dump(), "it finds everything as it should be, and changes nothing");
    let (connections, _, broken, _) = finish(crowd);
    show.check(broken == 0, format!("{connections} connections: {broken} broken"));
}

/// The only ztunnel ends; connection attempts meanwhile are held.
pub(crate) fn without_ztunnel(fixture: &mut Fixture, actors: &mut Actors, show: &mut Show) {
    show.chapter("no ztunnel is left");
    let node = std::sync::Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &addresses(actors));
    fixture.end_ztunnel(actors.ztunnel.take().unwrap());
    fixture.daemon.wait_for("it is noticed", |daemon| daemon.logged("no ztunnel is ready", "effect=") > 0);
    let outside = SocketAddr::new(fixture.node.outside_ip(false), WEB);
    let mut attempt = LiveConnections::start(&actors.one.sandbox.netns, Live::default());
    let began = Instant::now();
    let ids = attempt.begin(outside, 1, Duration::from_secs(15));
    let probe =
        kit::connect(fixture.node.netns(), Proto::Tcp, SocketAddr::new(actors.two.sandbox.ip(false), APP));
    show.check(probe.is_ok(), "the kubelet's probes still reach the pods of the mesh");
    let ztunnel = fixture.start_ztunnel("ztunnel-c");
    let opened = attempt.outcome(ids[0]);
    show.check(
        opened.is_ok(),
        format!(
            "mesh/one -> {outside}, attempted meanwhile: held, and connected after {:.1?} through ztunnel-c",
            began.elapsed()
        ),
    );
    let counts = watch.total();
    show.check(
        counts.direct == 0,
        format!("at the uplink, meanwhile: {} packets of mesh pods that ztunnel did not send", counts.direct),
    );
    actors.ztunnel = Some(ztunnel);
}

/// The namespace leaves ambient mode.
pub(crate) fn leave(fixture: &Fixture, actors: &Actors, show: &mut Show) {
    show.chapter("a namespace leaves the mesh");
    if let Some(value) = fixture.source.redirection(&actors.one.sandbox) {
        show.check(
            value == json!("enabled"),
            format!("mesh/one is annotated ambient.istio.io/redirection: {value}"),
        );
    }
    fixture.source.take_out("mesh");
    let gone = || fixture.node.netns().sh("ipset save").lines().all(|line| !line.starts_with("add "));
    let released = kit::found_within(Duration::from_secs(10), gone).is_some();
    show.check(released, "its pods are released as soon as the label is gone");
    let outside = SocketAddr::new(fixture.node.outside_ip(false), WEB);
    Way { from: &actors.one.sandbox.netns, who: "mesh/one".to_owned(), to: outside, wanted: None }
        .check(actors.active(), show);
}

/// Everything ends without leftovers.
pub(crate) fn end(fixture: Fixture, actors: Actors, show: &mut Show) {
    show.chapter("uninstalled");
    let Actors { ztunnel, one, two, plain, sidecar, .. } = actors;
    let Fixture { node, daemon, before, source, .. } = fixture;
    let (status, log) = daemon.terminate();
    show.check(
        status.success() && !kit::has_logged(&log, "not removed", &[]),
        "the agent ends, and takes everything away",
    );
    drop((one, two, plain, sidecar));
    if let Some(proxy) = ztunnel {
        drop(proxy.ztunnel.delete());
    }
    drop(source);
    let after = super::fixture::dump(&node);
    show.check(after == before, "rules, routes, sets and firewall of the node are as before, to the letter");
}
