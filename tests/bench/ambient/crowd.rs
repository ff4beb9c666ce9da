//! A thousand pods join the mesh together: their namespace is labelled.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kit::Node;

use super::{fixture::Fixture, sampler::Eyes, spread};
use crate::base::wait_known;

const PODS: u32 = 1000;
const CROWD: &str = "crowd";
const SET: &str = "ztunnel-pods-ips";
const LIMIT: Duration = Duration::from_secs(20);
/// A further change of a pod's membership takes effect 2 s after the last one, so each is measured after a longer pause.
const PACE: Duration = Duration::from_millis(2500);

pub(crate) fn run(rounds: usize) {
    let mut fixture = Fixture::start(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    fixture.label(CROWD, false);
    fixture.fill(CROWD, PODS);
    wait_known(&fixture.container, CROWD, PODS as usize);
    let (mut changes, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..rounds.min(15) {
        let watch = watch(&fixture.node);
        thread::sleep(Duration::from_millis(50)); // polling interval
        let began = Instant::now();
        fixture.label(CROWD, true);
        let (first, last) = watch.join().unwrap();
        changes.push((last - first).as_secs_f64() * 1000.0);
        whole.push((last - began).as_secs_f64() * 1000.0);
        fixture.wait_members(PODS as usize);
        thread::sleep(PACE);
        fixture.label(CROWD, false);
        fixture.wait_members(0);
        thread::sleep(PACE);
    }
    println!("{PODS} enrolments at once, {} times; median (least, greatest).", changes.len());
    for (name, values) in [("kernel changes, first to last", changes), ("from the label to the last", whole)]
    {
        let (median, least, most) = spread(&values);
        println!("  {name:<32} {median:>8.2} ms ({least:.2}, {most:.2})");
    }
    println!();
}

/// Time of the first route of a pod, and of the last address in the set.
fn watch(node: &Arc<Node>) -> thread::JoinHandle<(Instant, Instant)> {
    let node = Arc::clone(node);
    thread::spawn(move || {
        node.netns().enter();
        let deadline = Instant::now() + LIMIT;
        let (mut eyes, mut sets) = (Eyes::open(), ipset::IpsetHandle::open().unwrap());
        let pause = || {
            assert!(Instant::now() < deadline, "the pods were never enrolled");
            thread::sleep(Duration::from_micros(50)); // between two polls of the kernel
        };
        while !eyes.has_any_route(100) {
            pause();
        }
        let first = Instant::now();
        let set = [ipset::SetName::new(SET).unwrap()];
        let mut members = || sets.foreign_member_counts(&set).unwrap()[0];
        while members() < i64::from(PODS) {
            pause();
        }
        (first, Instant::now())
    })
}
