//! Cost of an idle agent.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::fixture::{Fixture, MESH};

const PODS: u32 = 250;
/// The measurement itself: longer than the agent's interval of regular observations, 30 seconds.
const REST: Duration = Duration::from_secs(35);

pub(crate) fn run() {
    let mut fixture = Fixture::start(&[]);
    let _ztunnels = [fixture.ztunnel("ztunnel-a"), fixture.ztunnel("ztunnel-b")];
    fixture.fill_with_links(MESH, PODS);
    fixture.wait_members(PODS as usize);
    thread::sleep(Duration::from_secs(1)); // until subsequent work is complete
    let (before, began) = (fixture.daemon.cpu_time(), Instant::now());
    thread::sleep(REST); // the measurement itself
    let used = fixture.daemon.cpu_time() - before;
    println!("install-cni with the agent, {PODS} pods from manifests, two ztunnels, {REST:?} at rest:");
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!(
        "  resident {:.2} MiB (peak {:.2}), of it anonymous {:.2}; CPU {:.3} % of one core",
        mib(fixture.daemon.resident_kib()),
        mib(fixture.daemon.peak_kib()),
        mib(fixture.daemon.anonymous_kib()),
        used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
    );
    println!();
}
