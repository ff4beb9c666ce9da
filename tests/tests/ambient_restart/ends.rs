//! The first build on a node and the removal from it, cut off.

use std::fs;
use std::time::{Duration, Instant};

use kit::{Echo, NodeOptions, Ztunnel};
use rustix::process::Signal;

use super::kinds::difference;
use super::steps::{Point, Tracer, some_of};
use crate::ambient_stage::{Ambient, MESH, PORT, Peer};

struct Lab {
    stage: Ambient,
    ztunnel: Ztunnel,
    pod: Peer,
}

impl Lab {
    fn new() -> Self {
        let mut stage = Ambient::stopped(NodeOptions::default(), &[("CLEANUP_ON_EXIT", "always")]);
        stage.arguments = vec!["--log_output_level=default:info,ambient:debug"];
        let ztunnel = Ztunnel::start(&stage.node, "ztunnel-a", Default::default());
        let pod = stage.pod_without_plugin(MESH, "web");
        stage.announce(&ztunnel, true);
        Self { stage, ztunnel, pod }
    }

    fn state(&self) -> String {
        self.stage.state(&[&self.ztunnel])
    }

    fn wait_state(&self, wanted: &str, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let state = self.state();
            if state == wanted {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{what}:\n{}\n{}",
                difference(wanted, &state),
                self.stage.log()
            );
            std::thread::sleep(Duration::from_millis(5)); // between two looks at the kernel
        }
    }

    /// Starts an agent that has no facts yet.
    fn start_blind(&mut self) {
        fs::rename(self.stage.manifests.path(), self.hidden()).unwrap();
        self.stage.daemon = Some(self.stage.container.start_with(&self.stage.arguments, &[]));
        self.stage.daemon().wait_for("it looks", |daemon| {
            daemon.get(8000, "/readyz").is_some() && daemon.log().contains("the plugin is installed")
        });
    }

    fn give_sight(&self) {
        fs::rename(self.hidden(), self.stage.manifests.path()).unwrap();
    }

    fn hidden(&self) -> std::path::PathBuf {
        self.stage.manifests.path().with_extension("hidden")
    }

    /// SIGTERM, after which nothing of ours is there.
    fn uninstall(&mut self, clean: &str, what: &str) {
        let (status, log) = self.stage.daemon.take().unwrap().terminate();
        assert!(status.success(), "{what}: {log}");
        assert_eq!(difference(clean, &self.state()), "", "{what}: {log}");
    }
}

#[test]
fn a_first_build_and_a_removal_cut_off_are_completed_by_the_next_agent() {
    let began = Instant::now();
    let mut lab = Lab::new();
    let _outside = Echo::tcp(lab.stage.node.outside(), PORT);
    let before = lab.state();
    lab.start_blind();
    let tracer = Tracer::attach(lab.stage.daemon(), "ambient", None);
    lab.give_sight();
    lab.stage.daemon().wait_for("it is built", |daemon| daemon.is_ready());
    let building = some_of(tracer.points());
    assert!(lab.stage.is_captured(&lab.pod));
    let built = lab.state();
    let tracer = Tracer::attach(lab.stage.daemon(), "install-cni", None);
    lab.stage.daemon().signal(Signal::TERM);
    let _ = lab.stage.daemon().wait();
    let removing = every(tracer.calls(), 4);
    // iptables leaves its own chains, which are empty.
    let clean = lab.state();
    let left = difference(&before, &clean);
    assert!(
        left.lines().all(|line| ["+ *", "+ :", "+ COMMIT"].iter().any(|own| line.starts_with(own))),
        "{left}"
    );
    assert!(left.lines().all(|line| !line.contains("ztunnel")), "{left}");
    println!("{} points of building, {} of removing", building.len(), removing.len());

    for point in &building {
        let what = format!("first build, killed at {point:?}");
        lab.start_blind();
        let tracer = Tracer::attach(lab.stage.daemon(), "ambient", Some(point));
        lab.give_sight();
        assert!(tracer.killed(|| false), "{what}");
        lab.stage.restart();
        lab.wait_state(&built, &what);
        lab.uninstall(&clean, &what);
    }
    lab.stage.start();
    for point in &removing {
        let what = format!("removal, killed at {point:?}");
        lab.wait_state(&built, &what);
        let tracer = Tracer::attach(lab.stage.daemon(), "install-cni", Some(point));
        lab.stage.daemon().signal(Signal::TERM);
        let since = Instant::now();
        if !tracer.killed(|| since.elapsed() > Duration::from_secs(2)) {
            println!("not reached: {what}");
        }
        lab.stage.restart();
        lab.wait_state(&built, &what);
        assert!(lab.stage.is_captured(&lab.pod), "{what}");
    }
    lab.uninstall(&clean, "at last");
    println!("{:?}", began.elapsed());
}

/// Every so many of them.
fn every(points: Vec<Point>, step: usize) -> Vec<Point> {
    points.into_iter().step_by(step).collect()
}
