//! ztunnel is killed, the agent is killed, and at the end everything is removed.

use std::time::{Duration, Instant};

use kit::{LiveConnections, Proto, TrafficClient, UplinkWatch, Via, WorkloadState};

use super::{
    fixture::{Fixture, MESH, dump, eventually, is_ruled},
    rollout::{crowd, finish},
    ways::{Actors, Way, addresses, probe},
};
use crate::show::Show;

/// The only ztunnel is killed and restarted.
pub(crate) fn without_ztunnel(fixture: &mut Fixture, actors: &mut Actors, show: &mut Show) {
    show.chapter("ztunnel is killed, and comes back");
    let node = std::sync::Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &addresses(actors));
    actors.ztunnel.kill();
    fixture.wait_logged("no ztunnel is connected", "", 1);
    for (from, who, to) in [
        (&actors.one.sandbox.netns, "mesh/one", fixture.outside(false)),
        (&actors.one.sandbox.netns, "mesh/one", actors.two.at(true)),
        (fixture.node.outside(), "the host outside", actors.two.at(false)),
    ] {
        let seen = TrafficClient::new(Proto::Tcp).within(Duration::from_secs(2)).connect(from, to);
        let words =
            seen.as_ref().map_or_else(ToString::to_string, |seen| format!("answered by {}", seen.server));
        show.check(seen.is_err(), format!("{who} -> {to} fails: {words}"));
    }
    probe(fixture, actors, false, show);
    refused(fixture, show);
    let counts = watch.total();
    show.check(
        counts.direct == 0,
        format!("at the uplink, meanwhile: {} packets of mesh pods that ztunnel did not send", counts.direct),
    );
    let began = Instant::now();
    actors.ztunnel.restart();
    actors.ztunnel.wait_for_snapshots(1);
    show.note(format!("ztunnel is back, and has all pods {:.0?} after its start", began.elapsed()));
    let way =
        Way::new(&actors.one.sandbox.netns, "mesh/one", actors.two.at(false), &[Via::Outbound, Via::Inbound]);
    way.check(&actors.ztunnel, " (no pod was restarted)", show);
}

/// A pod of the mesh that starts meanwhile.
fn refused(fixture: &mut Fixture, show: &mut Show) {
    let began = Instant::now();
    let error = fixture.try_pod(MESH, "four").err();
    let (code, said) = error.map_or((None, String::new()), |error| {
        let said = |key: &str| error.error[key].as_str().unwrap_or_default().to_owned();
        (error.code(), format!("{} {}", said("msg"), said("details")))
    });
    let expected =
        "the node agent failed to handle pod mesh/four: no ztunnel is connected to the agent on this node";
    let right = code == Some(11) && said.trim() == expected;
    show.check(
        right,
        format!(
            "mesh/four does not start; ADD fails after {:.0?} with code {code:?}: {said}",
            began.elapsed()
        ),
    );
    fixture.manifests.remove_pod(MESH, "four");
}

/// The agent is killed and restarted during traffic.
pub(crate) fn restart(fixture: &mut Fixture, actors: &Actors, show: &mut Show) {
    show.chapter("the agent is killed (SIGKILL), and comes back");
    let state = |fixture: &Fixture| {
        let all = [fixture.node.netns(), &actors.one.sandbox.netns, &actors.two.sandbox.netns];
        all.map(dump).concat()
    };
    let (before, mut crowd) = (state(fixture), crowd(fixture, actors, 2));
    let snapshots = actors.ztunnel.snapshots();
    fixture.daemon = fixture.container.start(); // dropping the old one kills it
    fixture.daemon.wait_until_ready();
    actors.ztunnel.wait_for_snapshots(snapshots + 1);
    let up = || {
        let states = actors.ztunnel.workloads();
        states.values().filter(|state| **state == WorkloadState::Up).count()
    };
    show.check(
        eventually(|| up() == 2),
        format!("ztunnel is told of its pods again: {} of 2 are served", up()),
    );
    crowd.iter_mut().for_each(LiveConnections::wait_round);
    show.check(state(fixture) == before, "rules and routes of node and pods are as they were");
    let (connections, _, broken, _) = finish(crowd);
    show.check(broken == 0 && connections > 0, format!("{connections} connections: {broken} broken"));
    let way = Way::new(&actors.one.sandbox.netns, "mesh/one", fixture.outside(true), &[Via::Outbound]);
    way.check(&actors.ztunnel, "", show);
}

/// Everything ends without leftovers.
pub(crate) fn end(fixture: Fixture, actors: Actors, show: &mut Show) {
    show.chapter("uninstalled");
    let Fixture { node, daemon, before, .. } = fixture;
    let (status, log) = daemon.terminate();
    show.check(
        status.success() && !kit::has_logged(&log, "not removed", &[]),
        "the agent ends, and takes everything away",
    );
    let left = [&actors.one, &actors.two].into_iter().filter(|actor| is_ruled(&actor.sandbox)).count();
    show.check(left == 0, format!("in pods of the mesh that still run: rules left in {left} of 2"));
    let outside = std::net::SocketAddr::new(node.outside_ip(false), super::ways::WEB);
    Way::new(&actors.one.sandbox.netns, "mesh/one", outside, &[]).check(&actors.ztunnel, "", show);
    drop(actors);
    show.check(
        dump(node.netns()) == before,
        "rules, routes and sets of the node are as before, to the letter",
    );
}
