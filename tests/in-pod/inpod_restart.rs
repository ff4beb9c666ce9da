//! In-pod capture: the agent is killed at each step while a pod joins or leaves the mesh, and started again. It converges,
//! other pods are not affected, and no pod starts without being captured.

mod starting;
mod tracer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::{Echo, InpodOptions, InpodZtunnel, Live, LiveConnections, Node, Pod, UplinkWatch, WorkloadState};
use serde_json::json;

use crate::fixtures::ambient::{MESH, PORT, Peer};
use crate::fixtures::inpod::{InPod, ours};
use tracer::{Point, Tracer};

/// A node with two pods of the mesh whose connections must not break, and a third one that joins and leaves.
struct Fixture {
    base: InPod,
    ztunnel: InpodZtunnel,
    mesh: [Peer; 2],
    third: Peer,
    snapshots: usize,
}

impl Fixture {
    fn new() -> Self {
        let mut base = InPod::new(&[]);
        let ztunnel = base.ztunnel("ztunnel-a", InpodOptions::default());
        let mesh = ["one", "two"].map(|name| base.mesh_pod(name));
        let third = base.running_pod(MESH, "third");
        let mut fixture = Self { base, ztunnel, mesh, third, snapshots: 1 };
        fixture.label(false);
        fixture
    }

    /// Labels the third pod to join the mesh or leave it.
    fn label(&mut self, member: bool) {
        let mut manifest = self.third.sandbox.manifest();
        if !member {
            manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
        }
        self.base.manifests.put_pod(&manifest);
    }

    fn is_led(&self, member: bool) -> bool {
        let third = &self.third;
        let ruled = if member { InPod::is_ruled } else { InPod::is_bare };
        let state = if member { WorkloadState::Up } else { WorkloadState::Gone };
        let now = self.ztunnel.workload(&third.sandbox.pod.uid).map(|workload| workload.state);
        let told = now == Some(state) || (now.is_none() && !member);
        told && self.base.is_probed(third.ip(false)) == member && ruled(&self.base, third)
    }

    fn wait_led(&self, member: bool, what: &str) {
        self.base.eventually(&format!("{what}: member={member}"), |_| self.is_led(member));
    }

    /// Starts a new agent, and waits until it has sent its snapshot and reports the pods as captured; ztunnel still serves them.
    fn restart(&mut self, what: &str) {
        self.assert_held(what);
        self.base.restart();
        self.snapshots += 1;
        self.ztunnel.wait_for_snapshots(self.snapshots);
        for peer in &self.mesh {
            self.base.wait_captured(peer);
            let state = self.ztunnel.workload(&peer.sandbox.pod.uid).unwrap().state;
            assert_eq!(state, WorkloadState::Up, "{what}");
        }
    }

    /// Asserts what must hold whenever the agent is killed: other pods are captured, and no pod's traffic is redirected to no
    /// listener.
    fn assert_held(&self, what: &str) {
        assert!(self.mesh.iter().all(|peer| self.base.is_ruled(peer)), "{what}");
        let [jumps, rules, routes] = ours(&self.third);
        assert!(
            jumps == 0 || (rules, routes) == (2, 2),
            "{what}: {jumps} jumps, {rules} policy rules, {routes} routes"
        );
    }

    /// The points at which the third pod's change can be interrupted.
    fn undisturbed(&mut self, member: bool) -> Vec<Point> {
        let tracer = Tracer::attach(self.base.daemon(), None);
        self.label(member);
        self.wait_led(member, "undisturbed");
        tracer.points()
    }

    /// Interrupts the change at a point. False if it was complete before.
    fn cut_off(&mut self, member: bool, at: usize, planned: &Point) -> bool {
        let tracer = Tracer::attach(self.base.daemon(), Some(at));
        self.label(member);
        let began = Instant::now();
        // A second change of labels within two seconds takes effect only after them.
        let killed = tracer.killed(|| match began.elapsed().as_secs() {
            0..6 => false,
            6..15 => self.is_led(member),
            _ => true,
        });
        let what = format!("member={member}, point {at}: {planned:?}, killed at {killed:?}");
        self.restart(&what);
        self.wait_led(member, &what);
        killed.is_some()
    }

    fn add(&self, pod: &Pod) -> Result<Peer, Box<kit::ChainError>> {
        self.base.add(pod.clone(), &self.base.node.conflist(&[self.base.plugin()]))
    }

    /// A started pod runs: it has a process, and the API knows its addresses.
    fn run(&mut self, peer: &Peer) -> u32 {
        self.base.manifests.put_pod(&peer.sandbox.manifest());
        self.base.processes.add(&peer.sandbox.pod.uid, &peer.sandbox.netns)
    }

    /// Ends the pod.
    fn delete(&mut self, mut peer: Peer, process: u32) {
        let _ = peer.sandbox.delete().unwrap();
        self.base.processes.remove(process);
        self.base.manifests.remove_pod(MESH, &peer.sandbox.pod.name);
        self.base.eventually("it is gone", |_| !self.base.is_probed(peer.ip(false)));
        let _ = self.ztunnel.wait_for_state(&peer.sandbox.pod.uid, WorkloadState::Gone);
    }

    /// Asserts that a started pod is captured immediately.
    fn assert_started(&self, peer: &Peer, what: &str) {
        assert!(self.base.is_ruled(peer) && self.base.is_probed(peer.ip(false)), "{what}");
        let state = self.ztunnel.workload(&peer.sandbox.pod.uid).map(|workload| workload.state);
        assert_eq!(state, Some(WorkloadState::Up), "{what}");
    }
}

/// Connections that must not be affected, and a watch that no packet of these pods bypasses ztunnel.
fn bystanders<'a>(fixture: &Fixture, node: &'a Arc<Node>) -> (LiveConnections, UplinkWatch<'a>) {
    let live = Live { stall: Duration::from_secs(10), ..Live::default() };
    let [one, two] = &fixture.mesh;
    let mut crowd = LiveConnections::start(&one.sandbox.netns, live);
    for v6 in [false, true] {
        let _ = crowd.open(two.at(v6), 2);
        let _ = crowd.open(SocketAddr::new(node.outside_ip(v6), PORT), 2);
    }
    let addresses: Vec<_> = fixture.mesh.iter().flat_map(|peer| peer.sandbox.ips()).collect();
    (crowd, UplinkWatch::start(node, &addresses))
}

fn show(name: &str, points: &[Point]) {
    println!("{name}: {} points", points.len());
    points.iter().for_each(|point| println!("  {point:?}"));
}

#[test]
fn a_running_pods_way_in_and_out_is_completed_wherever_the_agent_is_killed() {
    let began = Instant::now();
    let mut fixture = Fixture::new();
    let _outside = Echo::tcp(fixture.base.node.outside(), PORT);
    let node = Arc::clone(&fixture.base.node);
    fixture.wait_led(false, "at first");
    fixture.restart("at first");
    let (crowd, watch) = bystanders(&fixture, &node);
    // Tables that were used once stay, and another code path uses these.
    let _ = [true, false].map(|member| fixture.undisturbed(member));
    let ways = [true, false].map(|member| fixture.undisturbed(member));
    show("in", &ways[0]);
    show("out", &ways[1]);
    // At least two policy rules, two routes, two addresses, two restores and a message.
    assert!(ways.iter().all(|points| points.len() >= 9), "{ways:?}");
    let (mut kills, mut missed) = (0, 0);
    for at in 0..ways.iter().map(Vec::len).max().unwrap() {
        for (member, points) in [true, false].into_iter().zip(&ways) {
            match points.get(at) {
                Some(point) if fixture.cut_off(member, at, point) => kills += 1,
                Some(_) => missed += 1,
                None => {
                    fixture.label(member);
                    fixture.wait_led(member, "undisturbed");
                    fixture.restart("undisturbed"); // the next change of labels need not wait for this one
                }
            }
        }
    }
    crowd.finish().assert_unbroken();
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
    assert_eq!(fixture.ztunnel.protocol_error(), None, "{:?}", fixture.ztunnel.messages());
    println!("{kills} kills, {missed} not reached, {:?}", began.elapsed());
    assert!(missed * 10 <= kills, "{kills} kills, {missed} not reached");
}

#[test]
fn an_add_ends_in_a_captured_pod_or_none_wherever_the_agent_is_killed() {
    let began = Instant::now();
    let mut fixture = Fixture::new();
    let _outside = Echo::tcp(fixture.base.node.outside(), PORT);
    let node = Arc::clone(&fixture.base.node);
    fixture.wait_led(false, "at first");
    fixture.restart("at first");
    let (crowd, watch) = bystanders(&fixture, &node);
    let tracer = Tracer::attach(fixture.base.daemon(), None);
    let first = fixture.add(&Pod::new(MESH, "first")).unwrap();
    let points = tracer.points();
    show("ADD", &points);
    assert!(points.len() >= 10, "{points:?}");
    let process = fixture.run(&first);
    fixture.delete(first, process);
    let (mut kills, mut missed, mut started) = (0, 0, 0);
    for (at, planned) in points.iter().enumerate() {
        let pod = Pod::new(MESH, &format!("pod-{at}"));
        let tracer = Tracer::attach(fixture.base.daemon(), Some(at));
        let added = fixture.add(&pod);
        let since = Instant::now();
        let killed = tracer.killed(|| since.elapsed() > Duration::from_secs(5));
        let what = format!("point {at}: {planned:?}, killed at {killed:?}, {:?}", added.as_ref().err());
        match killed {
            Some(_) => kills += 1,
            None => missed += 1,
        }
        // A started pod is captured, even while there is no agent. A failed one is retried, as runtimes do.
        let (peer, process) = match added {
            Ok(peer) => {
                started += 1;
                fixture.assert_started(&peer, &what);
                fixture.restart(&what);
                // This pod is not yet known from the API or a process.
                fixture.assert_started(&peer, &what);
                let process = fixture.run(&peer);
                (peer, process)
            }
            Err(_) => {
                fixture.restart(&what);
                let peer = fixture
                    .add(&pod)
                    .unwrap_or_else(|error| panic!("{what}: {error}\n{}", fixture.base.log()));
                let process = fixture.run(&peer);
                (peer, process)
            }
        };
        fixture.assert_started(&peer, &what);
        fixture.delete(peer, process);
    }
    crowd.finish().assert_unbroken();
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
    assert_eq!(fixture.ztunnel.protocol_error(), None, "{:?}", fixture.ztunnel.messages());
    println!("{kills} kills, {missed} not reached, {started} had started, {:?}", began.elapsed());
    assert!(missed * 10 <= kills, "{kills} kills, {missed} not reached");
}
