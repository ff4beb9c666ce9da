//! Every kind of plan, interrupted at every step.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::{Echo, Live, LiveConnections, Netns, NodeOptions, UplinkWatch, Ztunnel};
use serde_json::{Value, json};

use super::steps::{Point, Tracer, some_of};
use crate::fixtures::ambient::{Ambient, MESH, PLAIN, PORT, Peer};

/// A node with pods, two ztunnels of which the agent knows the first one, and a file with the policy.
struct Fixture {
    base: Ambient,
    ztunnels: [Ztunnel; 2],
    mesh: [Peer; 2],
    third: Peer,
    policy: kit::TempDir,
}

/// A change that results in a plan.
type Change = fn(&mut Fixture);
/// A kind of plan: its name, the change, and whether pods of the mesh can connect at all times.
type Kind = (&'static str, Change, bool);

/// In this order they end in the initial state.
const KINDS: [Kind; 8] = [
    ("a pod joins", |fixture| fixture.label(Some("ambient")), true),
    ("a pod leaves", |fixture| fixture.label(None), true),
    ("another ztunnel takes over", |fixture| fixture.announce(1, "2026-01-01T00:00:02Z"), true),
    ("policy reject", |fixture| fixture.choose("reject"), true),
    ("policy hold", |fixture| fixture.choose("hold"), true),
    ("the old ztunnel is retired", |fixture| fixture.retire(0), true),
    ("the last ztunnel goes", |fixture| fixture.retire(1), false),
    ("the first ztunnel comes", |fixture| fixture.announce(0, "2026-01-01T00:00:01Z"), false),
];
/// Kinds that revert each other.
const PAIRS: [[usize; 2]; 2] = [[0, 1], [3, 4]];
/// From this kind on, connections through the first ztunnel are affected.
const FIRST_AFFECTED: usize = 5;

impl Fixture {
    fn new() -> Self {
        let policy = kit::TempDir::new().unwrap();
        let mut base =
            Ambient::stopped(NodeOptions::default(), &[("NO_ZTUNNEL_POLICY_FILE", "/policy/word")]);
        base.mount(policy.path(), "/policy");
        base.arguments.push("--log_output_level=default:info,ambient:debug");
        fs::write(policy.path().join("word"), "hold").unwrap();
        base.start();
        let mesh = ["first", "second"].map(|name| base.pod(MESH, name));
        let third = base.pod(PLAIN, "third");
        let ztunnels =
            ["ztunnel-a", "ztunnel-b"].map(|name| Ztunnel::start(&base.node, name, Default::default()));
        let fixture = Self { base, ztunnels, mesh, third, policy };
        fixture.announce_to(0, "2026-01-01T00:00:01Z");
        fixture
    }

    fn announce_to(&self, ztunnel: usize, created: &str) {
        self.base.manifests.put_pod(&self.ztunnels[ztunnel].pod_manifest(true, created));
    }

    /// Writes the object of a ztunnel that was never used.
    fn announce(&mut self, ztunnel: usize, created: &str) {
        let netns = &self.ztunnels[ztunnel].pod().netns;
        for family in ["-4", "-6"] {
            for what in ["rule del pref 20000", "rule del pref 20003", "route flush table 100"] {
                // It does not exist the first time.
                let _ = netns.output(Command::new("ip").arg(family).args(what.split(' ')));
            }
        }
        for tool in ["iptables-nft-restore", "ip6tables-nft-restore"] {
            netns.pipe(tool, "*mangle\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n");
        }
        self.announce_to(ztunnel, created);
    }

    fn retire(&mut self, ztunnel: usize) {
        self.base.manifests.remove_pod("istio-system", self.ztunnels[ztunnel].name());
    }

    fn label(&mut self, mode: Option<&str>) {
        let mut manifest: Value = self.third.sandbox.manifest();
        if let Some(mode) = mode {
            manifest["metadata"]["labels"]["istio.io/dataplane-mode"] = json!(mode);
        }
        self.base.manifests.put_pod(&manifest);
    }

    fn choose(&mut self, policy: &str) {
        let (new, word) = (self.policy.path().join("new"), self.policy.path().join("word"));
        fs::write(&new, policy).unwrap();
        fs::rename(new, word).unwrap();
    }

    fn state(&self) -> String {
        self.base.state(&[&self.ztunnels[0], &self.ztunnels[1]])
    }

    fn wait_state(&self, wanted: &str, what: &str) {
        let described = std::fmt::from_fn(|f| {
            let difference = difference(wanted, &self.state());
            write!(f, "{what}: (- wanted, + found)\n{difference}\n{}", self.base.log())
        });
        kit::until(described, || self.state() == wanted);
    }

    /// Makes a change; returns the points at which its plan can be interrupted, and the resulting state.
    fn undisturbed(&mut self, name: &str, change: Change) -> (Vec<Point>, String) {
        self.base.restart();
        let tracer = Tracer::attach(self.base.daemon(), "agent", None);
        let mut end = PlanEnd::after(&self.base);
        change(self);
        kit::until("the plan has ended", || end.is_here(&self.base));
        let points = tracer.points();
        let steps = points.iter().filter(|point| point.between).count();
        println!("{name}: {steps} steps, {} points", points.len());
        assert!(steps > 0, "{name}");
        (some_of(points), self.wait_quiet())
    }

    /// Waits until the agent is idle, and the kernel has noticed the carrier of its links.
    fn wait_quiet(&mut self) -> String {
        self.base.settle();
        let inside = self.ztunnels.iter().map(|ztunnel| &ztunnel.pod().netns);
        inside.chain([&**self.base.node.netns()]).for_each(Netns::wait_until_addresses_are_usable);
        self.state()
    }
}

/// Detects the end of a plan: the agent has logged steps, and then none for a while.
struct PlanEnd {
    told: usize,
    began: Instant,
    since: Option<Instant>,
}

impl PlanEnd {
    /// Far longer than any step takes.
    const QUIET: Duration = Duration::from_millis(300);
    /// After this time there is no plan to wait for.
    const LIMIT: Duration = Duration::from_secs(15);

    fn after(base: &Ambient) -> Self {
        Self { told: steps_told(base), began: Instant::now(), since: None }
    }

    fn is_here(&mut self, base: &Ambient) -> bool {
        let told = steps_told(base);
        if told != self.told {
            (self.told, self.since) = (told, Some(Instant::now()));
        }
        let is_quiet = self.since.is_some_and(|since| since.elapsed() > Self::QUIET);
        is_quiet || self.began.elapsed() > Self::LIMIT
    }
}

fn steps_told(base: &Ambient) -> usize {
    base.log().matches("\tdebug\tambient\t").count()
}

/// Lines of either text that are not in the other.
pub(super) fn difference(wanted: &str, found: &str) -> String {
    let only = |sign: &'static str, these: &str, those: &str| {
        let those: std::collections::BTreeSet<&str> = those.lines().collect();
        let lines = these.lines().filter(|line| !those.contains(line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    only("-", wanted, found) + &only("+", found, wanted)
}

/// One connection on each path, which must not be affected.
fn crowd(from: &Netns, targets: &[std::net::SocketAddr]) -> LiveConnections {
    let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(5) };
    let mut client = LiveConnections::start(from, live);
    targets.iter().for_each(|target| drop(client.open(*target, 1)));
    client
}

fn mesh_crowd(fixture: &Fixture) -> [LiveConnections; 2] {
    let outside = [false, true].map(|v6| std::net::SocketAddr::new(fixture.base.node.outside_ip(v6), PORT));
    let [first, second] = &fixture.mesh;
    let inner = [second.at(false), second.at(true), fixture.third.at(false), outside[0], outside[1]];
    [
        crowd(&first.sandbox.netns, &inner),
        crowd(fixture.base.node.outside(), &[first.at(false), first.at(true)]),
    ]
}

#[test]
fn a_plan_cut_off_at_any_step_is_completed_by_the_next_agent() {
    let began = Instant::now();
    let mut fixture = Fixture::new();
    let _outside = Echo::tcp(fixture.base.node.outside(), PORT);
    fixture.wait_quiet();
    let node = Arc::clone(&fixture.base.node);
    let outside = [false, true].map(|v6| std::net::SocketAddr::new(node.outside_ip(v6), PORT));
    let bystanders = [crowd(&fixture.third.sandbox.netns, &outside), crowd(node.netns(), &outside)];
    let watch =
        UplinkWatch::start(&node, &fixture.mesh.iter().flat_map(|pod| pod.sandbox.ips()).collect::<Vec<_>>());

    // Twice: objects that a retired ztunnel's namespace keeps exist from the second time on.
    let plans = [(); 2]
        .map(|()| KINDS.map(|(name, change, _)| fixture.undisturbed(name, change)))
        .into_iter()
        .last()
        .unwrap();
    let rounds = plans.iter().map(|(points, _)| points.len()).max().unwrap();
    let (mut kills, mut missed) = (0, 0);
    for round in 0..rounds {
        let mut crowds = Some(mesh_crowd(&fixture));
        for (at, ((name, change, connects), (points, wanted))) in KINDS.iter().zip(&plans).enumerate() {
            let point = points.get(round);
            // These revert each other: once both were interrupted everywhere, they are done.
            let over = |kind: usize| plans[kind].0.len() <= round;
            if PAIRS.iter().any(|pair| pair.contains(&at) && pair.iter().all(|kind| over(*kind))) {
                continue;
            }
            let what = format!("{name}, killed at {point:?}");
            if at == FIRST_AFFECTED {
                for crowd in crowds.take().into_iter().flatten() {
                    let report = crowd.finish();
                    assert!(report.broken.is_empty(), "before {what}: {report:?}");
                }
            }
            match point {
                None => {
                    change(&mut fixture);
                    fixture.wait_state(wanted, &what);
                }
                Some(point) => {
                    let tracer = Tracer::attach(fixture.base.daemon(), "agent", Some(point));
                    let mut end = PlanEnd::after(&fixture.base);
                    change(&mut fixture);
                    if tracer.killed(|| end.is_here(&fixture.base)) {
                        kills += 1;
                    } else {
                        missed += 1;
                        println!("not reached: {what}");
                    }
                    if *connects {
                        assert!(fixture.base.is_captured(&fixture.mesh[0]), "{what}");
                    }
                    fixture.base.restart();
                    fixture.wait_state(wanted, &what);
                }
            }
            if *connects {
                assert!(fixture.base.is_captured(&fixture.mesh[0]), "{what}");
            }
        }
    }
    bystanders.into_iter().for_each(|crowd| crowd.finish().assert_unbroken());
    assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
    println!("{rounds} rounds, {kills} kills, {missed} not reached, {:?}", began.elapsed());
    assert!(missed * 10 <= kills, "{kills} kills, {missed} not reached");
}
