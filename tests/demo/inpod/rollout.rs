//! A new ztunnel takes over from an old one under traffic.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use kit::{Live, LiveConnections, Proto, UplinkWatch, Via};

use super::{
    fixture::Fixture,
    ways::{Actors, Way, addresses},
};
use crate::show::Show;

/// Long-lived connections of all kinds, `each` in each family.
pub(crate) fn crowd(fixture: &Fixture, actors: &Actors, each: usize) -> Vec<LiveConnections> {
    let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(10) };
    let mut from_one = LiveConnections::start(&actors.one.sandbox.netns, live);
    let mut from_outside = LiveConnections::start(fixture.node.outside(), live);
    let mut from_plain = LiveConnections::start(&actors.plain.sandbox.netns, live);
    for v6 in [false, true] {
        from_one.open(fixture.outside(v6), each);
        from_one.open(actors.two.at(v6), each);
        from_outside.open(actors.two.at(v6), each);
        from_plain.open(actors.two.at(v6), each);
    }
    vec![from_one, from_outside, from_plain]
}

/// Connections, exchanges, broken ones, and the slowest exchange.
pub(crate) fn finish(crowd: Vec<LiveConnections>) -> (usize, u64, usize, Duration) {
    let reports: Vec<_> = crowd.into_iter().map(LiveConnections::finish).collect();
    let connections = reports.iter().map(|report| report.connections).sum();
    let exchanges = reports.iter().map(|report| report.exchanges).sum();
    let broken = reports.iter().map(|report| report.broken.len()).sum();
    (connections, exchanges, broken, reports.iter().map(|report| report.slowest).max().unwrap_or_default())
}

/// The new one receives all pods and listens beside the old one, which gets SIGTERM and drains.
pub(crate) fn rollout(fixture: &mut Fixture, actors: &mut Actors, show: &mut Show) {
    show.chapter("a ztunnel rollout under traffic");
    let node = std::sync::Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &addresses(actors));
    let mut crowd = crowd(fixture, actors, 6);
    let next = fixture.ztunnel("ztunnel-b");
    show.note("ztunnel-b has all pods, and listens beside ztunnel-a; both get new connections");
    crowd.iter_mut().for_each(LiveConnections::wait_round);
    let outside = fixture.outside(false);
    let (attempts, failures) = while_attempting(actors, outside, || {
        actors.ztunnel.stop();
        fixture.wait_logged("ztunnel closed its connection", "", 1);
    });
    let mut old = std::mem::replace(&mut actors.ztunnel, next);
    crowd.iter_mut().for_each(LiveConnections::wait_round);
    let before = old.seen().len();
    let way = Way::new(&actors.one.sandbox.netns, "mesh/one", outside, &[Via::Outbound]);
    way.check(&actors.ztunnel, "", show);
    show.check(old.seen().len() == before && old.alive(), "ztunnel-a drains: it gets no new connection");
    let (connections, exchanges, broken, slowest) = finish(crowd);
    show.check(
        broken == 0 && connections > 0,
        format!("{connections} connections from before, one exchange each 20 ms, {exchanges} in all, slowest {slowest:.0?}: {broken} broken"),
    );
    show.note(format!(
        "{attempts} connections were begun while ztunnel-a closed its listeners: {failures} of them failed"
    ));
    fixture.manifests.remove_pod("istio-system", "ztunnel-a");
    let status = old.wait_end();
    show.check(status.success(), "ztunnel-a ends when its last connection has");
    show.check(watch.total().direct == 0, "no packet of a mesh pod at the uplink that ztunnel did not send");
}

/// Numbers of connections attempted during an action, and of failed ones.
fn while_attempting(actors: &Actors, to: std::net::SocketAddr, something: impl FnOnce()) -> (usize, usize) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let attempts = scope.spawn(|| {
            let (mut begun, mut failed) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                begun += 1;
                failed += usize::from(kit::connect(&actors.one.sandbox.netns, Proto::Tcp, to).is_err());
            }
            (begun, failed)
        });
        let began = Instant::now();
        something();
        // Several more after the change.
        thread::sleep(Duration::from_millis(300).saturating_sub(began.elapsed()));
        stop.store(true, Ordering::Relaxed);
        attempts.join().unwrap()
    })
}
