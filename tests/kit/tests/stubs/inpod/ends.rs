//! Ends of a ztunnel, and one that starts before the other has ended.

use std::time::{Duration, Instant};

use kit::{Echo, InpodOptions, InpodZtunnel, Live, LiveConnections, Netns, Proto, connect};

use super::agent::{DONE, LIMIT, SNAPSHOT, del};
use super::conversation::taken;
use super::fixture::{Fixture, INBOUND, OUTBOUND, fixture, fixture_with, outside};

const QUICK: Live = Live { every: Duration::from_millis(2), stall: Duration::from_secs(10) };
/// Longer than what happens meanwhile, on any machine.
const DRAIN: Duration = Duration::from_secs(6);

fn draining(drain: Duration) -> Fixture {
    fixture_with(InpodOptions { drain, ..InpodOptions::default() })
}

#[test]
fn after_sigterm_connections_go_on_for_a_while() {
    let mut fixture = draining(DRAIN);
    let _echo = [Echo::tcp(fixture.node.outside(), OUTBOUND), Echo::tcp(&fixture.pod.netns, INBOUND)];
    let (out, into) = (outside(&fixture, false, OUTBOUND), (fixture.pod.ip(true), INBOUND).into());
    let mut outbound = LiveConnections::start(&fixture.pod.netns, QUICK);
    let mut inbound = LiveConnections::start(fixture.node.outside(), QUICK);
    outbound.open(out, 2);
    inbound.open(into, 2);
    let stopped = Instant::now();
    fixture.ztunnel.stop();
    assert!(fixture.connection.receive().is_empty(), "the agent hears of it first");
    kit::until("all listeners are closed", || taken(&fixture.pod.netns).is_empty());
    for live in [&mut outbound, &mut inbound] {
        live.wait_round();
        assert_eq!(live.broken(), []);
    }
    assert!(fixture.ztunnel.alive());
    connect(&fixture.pod.netns, Proto::Tcp, out).expect_err("nobody listens");
    assert_eq!(fixture.ztunnel.wait_end().code(), Some(0));
    assert!(stopped.elapsed() >= DRAIN, "{:?}", stopped.elapsed());
    assert_eq!((outbound.wait_broken(2).len(), inbound.wait_broken(2).len()), (2, 2));
}

#[test]
fn after_sigterm_nobody_waits_for_connections_that_are_not_there() {
    let mut fixture = draining(LIMIT * 10);
    let _echo = Echo::tcp(fixture.node.outside(), OUTBOUND);
    let mut live = LiveConnections::start(&fixture.pod.netns, QUICK);
    live.open(outside(&fixture, false, OUTBOUND), 1);
    fixture.ztunnel.stop();
    assert!(fixture.connection.receive().is_empty());
    live.wait_round();
    drop(live);
    assert_eq!(fixture.ztunnel.wait_end().code(), Some(0));
}

#[test]
fn connections_of_a_deleted_pod_are_reset_and_those_of_others_are_not() {
    let fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), OUTBOUND);
    let other = Netns::new("other");
    assert_eq!(fixture.connection.add("other", &other), DONE);
    let mut live = LiveConnections::start(&fixture.pod.netns, QUICK);
    live.open(outside(&fixture, false, OUTBOUND), 1);
    assert_eq!(fixture.connection.ask(&del("other")), DONE);
    live.wait_round();
    assert_eq!(fixture.connection.ask(&del(&fixture.pod.pod.uid)), DONE);
    assert_eq!(
        live.wait_broken(1)[0].error,
        "Connection reset by peer (os error 104)",
        "{:?}",
        live.broken()
    );
}

#[test]
fn two_share_the_ports_of_a_pod_until_one_goes() {
    let mut fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), OUTBOUND);
    let second =
        InpodZtunnel::start(&fixture.node, "ztunnel-b", &fixture.agent.path(), InpodOptions::default());
    let connection = fixture.agent.accept();
    assert_eq!(connection.add(&fixture.pod.pod.uid, &fixture.pod.netns), DONE, "nobody has to go first");
    assert_eq!(connection.ask(&SNAPSHOT), DONE);
    let target = outside(&fixture, false, OUTBOUND);
    for _ in 0..30 {
        connect(&fixture.pod.netns, Proto::Tcp, target).expect("outside answers");
    }
    let both = || [&fixture.ztunnel, &second].map(|one| one.seen().len());
    kit::until("all are told of", || both().iter().sum::<usize>() == 30);
    let [first, rest] = both();
    assert!(first > 0 && rest > 0, "both get some: {first}, {rest}");
    fixture.ztunnel.stop();
    fixture.ztunnel.wait_end();
    for _ in 0..10 {
        connect(&fixture.pod.netns, Proto::Tcp, target).expect("outside answers");
    }
    assert_eq!((second.wait_seen_count(rest + 10).len(), fixture.ztunnel.seen().len()), (rest + 10, first));
}

#[test]
fn a_killed_one_comes_back_with_nothing_and_keeps_what_it_saw() {
    let mut fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), OUTBOUND);
    let target = outside(&fixture, true, OUTBOUND);
    connect(&fixture.pod.netns, Proto::Tcp, target).expect("outside answers");
    fixture.ztunnel.kill();
    assert!(fixture.connection.receive().is_empty() && !fixture.ztunnel.alive());
    fixture.ztunnel.restart();
    let connection = fixture.agent.accept();
    assert_eq!((taken(&fixture.pod.netns), fixture.ztunnel.workloads().len()), (vec![], 0));
    assert_eq!(connection.add(&fixture.pod.pod.uid, &fixture.pod.netns), DONE);
    connect(&fixture.pod.netns, Proto::Tcp, target).expect("outside answers");
    assert_eq!(fixture.ztunnel.wait_seen_count(2).len(), 2);
}

#[test]
fn all_of_it_goes_with_its_value() {
    let fixture = fixture();
    let Fixture { connection, ztunnel, pod, .. } = fixture;
    let manifest = ztunnel.manifest();
    assert_eq!(manifest["metadata"]["labels"]["app"], "ztunnel");
    assert_eq!(manifest["metadata"]["namespace"], "istio-system");
    assert_eq!(manifest["status"]["conditions"][1]["status"], "True");
    drop(connection);
    kit::until("it is not ready without its agent", || !ztunnel.is_ready());
    assert_eq!(ztunnel.manifest()["status"]["conditions"][1]["status"], "False");
    assert_eq!(manifest["spec"]["containers"][0]["env"][0]["value"], "true");
    let (process, netns) = (format!("/proc/{}", ztunnel.pid()), ztunnel.pod().netns.path());
    assert!(std::fs::exists(&process).unwrap() && netns.exists());
    drop(ztunnel);
    assert!(!std::fs::exists(&process).unwrap() && !netns.exists());
    assert!(taken(&pod.netns).is_empty());
}
