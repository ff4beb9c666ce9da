//! The first setup of a node and its cleanup, interrupted.

use std::fs;
use std::time::{Duration, Instant};

use kit::{Echo, Netns, NodeOptions, Ztunnel};
use rustix::process::Signal;

use super::kinds::difference;
use super::steps::{Point, Tracer, some_of};
use crate::fixtures::ambient::{Ambient, MESH, PORT, Peer};

struct Fixture {
    base: Ambient,
    ztunnel: Ztunnel,
    pod: Peer,
}

impl Fixture {
    fn new() -> Self {
        let mut base = Ambient::stopped(NodeOptions::default(), &[("CLEANUP_ON_EXIT", "always")]);
        base.arguments.push("--log_output_level=default:info,ambient:debug");
        let ztunnel = Ztunnel::start(&base.node, "ztunnel-a", Default::default());
        let pod = base.pod_without_plugin(MESH, "web");
        base.announce(&ztunnel, true);
        Self { base, ztunnel, pod }
    }

    fn state(&self) -> String {
        self.base.state(&[&self.ztunnel])
    }

    /// The state once the kernel has noticed the carrier of all links.
    fn read_settled_state(&self) -> String {
        let all = [&**self.base.node.netns(), &self.ztunnel.pod().netns];
        all.into_iter().for_each(Netns::wait_until_addresses_are_usable);
        self.state()
    }

    fn wait_state(&self, wanted: &str, what: &str) {
        let described = std::fmt::from_fn(|f| {
            write!(f, "{what}:\n{}\n{}", difference(wanted, &self.state()), self.base.log())
        });
        kit::until(described, || self.state() == wanted);
    }

    /// Starts an agent that has no facts yet.
    fn start_blind(&mut self) {
        fs::rename(self.base.manifests.path(), self.hidden()).unwrap();
        self.base.daemon = Some(self.base.container.start_with(&self.base.arguments, &[]));
        self.base.daemon().wait_for("it looks", |daemon| {
            daemon.get(8000, "/readyz").is_some() && daemon.logged("the plugin is installed", "") > 0
        });
    }

    fn give_sight(&self) {
        fs::rename(self.hidden(), self.base.manifests.path()).unwrap();
    }

    fn hidden(&self) -> std::path::PathBuf {
        self.base.manifests.path().with_extension("hidden")
    }

    /// Sends SIGTERM, after which none of our objects exists.
    fn uninstall(&mut self, clean: &str, what: &str) {
        let (status, log) = self.base.daemon.take().unwrap().terminate();
        assert!(status.success(), "{what}: {log}");
        assert_eq!(difference(clean, &self.state()), "", "{what}: {log}");
    }
}

#[test]
fn a_first_build_and_a_removal_cut_off_are_completed_by_the_next_agent() {
    let began = Instant::now();
    let mut fixture = Fixture::new();
    let _outside = Echo::tcp(fixture.base.node.outside(), PORT);
    let before = fixture.read_settled_state();
    fixture.start_blind();
    let tracer = Tracer::attach(fixture.base.daemon(), "agent", None);
    fixture.give_sight();
    fixture.base.daemon().wait_for("it is built", |daemon| daemon.is_ready());
    let building = some_of(tracer.points());
    assert!(fixture.base.is_captured(&fixture.pod));
    let built = fixture.read_settled_state();
    let tracer = Tracer::attach(fixture.base.daemon(), "install-cni", None);
    fixture.base.daemon().signal(Signal::TERM);
    let _ = fixture.base.daemon().wait();
    let removing = every(tracer.calls(), 4);
    // iptables leaves its own empty chains.
    let clean = fixture.state();
    let left = difference(&before, &clean);
    assert!(
        left.lines().all(|line| ["+ *", "+ :", "+ COMMIT"].iter().any(|own| line.starts_with(own))),
        "{left}"
    );
    assert!(left.lines().all(|line| !line.starts_with("+ :ztunnel")), "no chain of ours: {left}");
    println!("{} points of building, {} of removing", building.len(), removing.len());

    for point in &building {
        let what = format!("first build, killed at {point:?}");
        fixture.start_blind();
        let tracer = Tracer::attach(fixture.base.daemon(), "agent", Some(point));
        fixture.give_sight();
        assert!(tracer.killed(|| false), "{what}");
        fixture.base.restart();
        fixture.wait_state(&built, &what);
        fixture.uninstall(&clean, &what);
    }
    fixture.base.start();
    for point in &removing {
        let what = format!("removal, killed at {point:?}");
        fixture.wait_state(&built, &what);
        let tracer = Tracer::attach(fixture.base.daemon(), "install-cni", Some(point));
        fixture.base.daemon().signal(Signal::TERM);
        let since = Instant::now();
        if !tracer.killed(|| since.elapsed() > Duration::from_secs(2)) {
            println!("not reached: {what}");
        }
        fixture.base.restart();
        fixture.wait_state(&built, &what);
        assert!(fixture.base.is_captured(&fixture.pod), "{what}");
    }
    fixture.uninstall(&clean, "at last");
    println!("{:?}", began.elapsed());
}

/// Every `step`th of the points.
fn every(points: Vec<Point>, step: usize) -> Vec<Point> {
    points.into_iter().step_by(step).collect()
}
