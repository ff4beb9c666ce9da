//! Switch of the active ztunnel, on a node with 250 enrolled pods.

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kit::{Node, NodeOptions, Ztunnel, ZtunnelOptions};

use super::{
    fixture::{Fixture, MESH, with_other_users},
    sampler::{Report, Sampler},
    spread, upstream,
};

const PODS: u32 = 250;
/// Time without a message, after which a change is complete.
const QUIET: Duration = Duration::from_millis(300);

/// One switch.
struct Switch {
    /// Milliseconds by the agent's own clock.
    told: f64,
    /// Milliseconds from the first to the last message of the kernel about links, addresses, routes and rules.
    seen: f64,
    messages: usize,
    report: Report,
}

pub(crate) fn run(rounds: usize) {
    let mut fixture = Fixture::start(&[]);
    fixture.fill_with_links(MESH, PODS);
    let pair = [fixture.ztunnel("ztunnel-a"), fixture.ztunnel("ztunnel-b")];
    fixture.wait_members(PODS as usize);
    println!("A switch with {PODS} enrolled pods; median (least, greatest).");
    let prepared = (0..rounds).map(|round| measure(&mut fixture, &pair[round % 2])).collect::<Vec<_>>();
    print("to a ztunnel that was there", &prepared);
    let [old, other] = pair;
    retire(&mut fixture, old);
    let (announced, last) = fresh(&mut fixture, other, rounds.min(10), true);
    print("to one that came while another was active, and was ready later", &announced);
    let (fresh, _last) = fresh(&mut fixture, last, rounds.min(10), false);
    print("to one that is ready at first sight, links and rules made included", &fresh);
    drop(fixture);
    re_enacted(rounds.min(5));
    println!();
}

/// Switches to ever new ztunnels; the agent sees each before it is ready, or not.
fn fresh(
    fixture: &mut Fixture,
    mut active: Ztunnel,
    rounds: usize,
    announced: bool,
) -> (Vec<Switch>, Ztunnel) {
    let mut switches = Vec::new();
    for round in 0..rounds {
        let name = format!("ztunnel-{announced}-{round}");
        let next = Ztunnel::start(&fixture.node, &name, ZtunnelOptions::default());
        if announced {
            fixture.announce(&next, false);
        }
        thread::sleep(QUIET);
        switches.push(measure(fixture, &next));
        retire(fixture, std::mem::replace(&mut active, next));
    }
    (switches, active)
}

fn retire(fixture: &mut Fixture, ztunnel: Ztunnel) {
    fixture.manifests.remove_pod("istio-system", ztunnel.name());
    drop(ztunnel.delete());
    thread::sleep(QUIET);
    fixture.daemon.wait_until_ready();
}

fn measure(fixture: &mut Fixture, next: &Ztunnel) -> Switch {
    let (sum, count) = fixture.switches();
    let monitor = Monitor::start(&fixture.node);
    let sampler = Sampler::start(&fixture.node);
    thread::sleep(Duration::from_millis(50)); // polling interval
    fixture.announce(next, true);
    thread::sleep(QUIET);
    fixture.daemon.wait_for("a switch", |_| true);
    kit::until("the switch is counted", || fixture.switches().1 > count);
    let report = sampler.finish();
    let (seen, messages) = monitor.finish();
    Switch { told: (fixture.switches().0 - sum) * 1000.0, seen, messages, report }
}

/// `ip monitor`, whose clock differs from the agent's.
struct Monitor {
    child: Child,
    file: std::path::PathBuf,
}

impl Monitor {
    fn start(node: &Node) -> Monitor {
        let file = node.dir().join("monitor");
        let mut command = Command::new("ip");
        command.args(["-4", "-tshort", "monitor", "link", "address", "route", "rule"]);
        command.stdin(Stdio::null()).stdout(fs::File::create(&file).unwrap());
        Monitor { child: node.netns().spawn(&mut command), file }
    }

    /// Milliseconds from the first to the last message, and their number.
    fn finish(mut self) -> (f64, usize) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let text = fs::read_to_string(&self.file).unwrap();
        let times: Vec<f64> = text.lines().filter_map(time_of_day).collect();
        let (first, last) = (times.first().copied().unwrap_or(0.0), times.last().copied().unwrap_or(0.0));
        ((last - first) * 1000.0, times.len())
    }
}

/// Seconds in a line such as `[2026-01-01T12:34:56.123456] ...`.
fn time_of_day(line: &str) -> Option<f64> {
    let time = line.strip_prefix('[')?.split_once(']')?.0.split_once('T')?.1;
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    Some((parts.next()?? * 60.0 + parts.next()??) * 60.0 + parts.next()??)
}

fn print(name: &str, switches: &[Switch]) {
    let of = |value: fn(&Switch) -> f64| spread(&switches.iter().map(value).collect::<Vec<_>>());
    let (told, seen) = (of(|switch| switch.told), of(|switch| switch.seen));
    println!("{name}: {} switches", switches.len());
    println!("  by the agent's metric        {:>8.2} ms ({:.2}, {:.2})", told.0, told.1, told.2);
    let messages = of(|switch| switch.messages as f64).0;
    println!("  by {messages:>4} kernel messages      {:>8.2} ms ({:.2}, {:.2})", seen.0, seen.1, seen.2);
    let reports: Vec<&Report> = switches.iter().map(|switch| &switch.report).collect();
    print_reports(&reports);
}

fn print_reports(reports: &[&Report]) {
    let sum = |value: fn(&Report) -> usize| reports.iter().map(|report| value(report)).sum::<usize>();
    let rates: Vec<f64> = reports.iter().map(|report| report.rate()).collect();
    let slowest = reports.iter().map(|report| report.slowest).max().unwrap_or_default();
    println!(
        "  {} looks at {:.0} Hz (least {:.0}, longest gap {:.1?}): {} incomplete",
        sum(|report| report.samples),
        spread(&rates).0,
        spread(&rates).1,
        slowest,
        sum(|report| report.incomplete),
    );
    for (state, count) in reports.iter().flat_map(|report| &report.states).take(3) {
        println!("    such as {state:?}, {count} times");
    }
}

/// Measures the original's commands, one at a time.
fn re_enacted(rounds: usize) {
    let node = Arc::new(Node::new(NodeOptions::default()));
    with_other_users(&node);
    let pair = ["a", "b"].map(|name| Ztunnel::start(&node, name, ZtunnelOptions::default()));
    let host = node.ip(false).to_string();
    let scripts = pair.each_ref().map(|ztunnel| {
        let interfaces = ztunnel.pod().result["interfaces"].as_array().cloned().unwrap_or_default();
        let outside =
            interfaces.iter().find(|interface| interface["sandbox"].as_str().unwrap_or("").is_empty());
        let veth = outside.and_then(|interface| interface["name"].as_str()).unwrap();
        upstream::script(&host, veth, ztunnel, PODS)
    });
    let mut times = Vec::new();
    let mut reports = Vec::new();
    run_script(&node, &scripts[0].0);
    for round in 1..=rounds {
        let sampler = Sampler::start(&node);
        thread::sleep(Duration::from_millis(50)); // polling interval
        times.push(run_script(&node, &scripts[round % 2].0));
        thread::sleep(Duration::from_millis(50)); // the last state is sampled, too
        reports.push(sampler.finish());
    }
    let (median, least, most) = spread(&times);
    println!("re-enacted sequence of Istio 1.20: {rounds} switches of {} commands", scripts[0].1);
    println!("  from first to last           {median:>8.2} ms ({least:.2}, {most:.2})");
    let holes: Vec<f64> = reports.iter().map(|report| report.hole.as_secs_f64() * 1000.0).collect();
    println!("  something was missing for    {:>8.2} ms", spread(&holes).0);
    let states: Vec<f64> = reports.iter().map(|report| report.states.len() as f64).collect();
    println!("  different incomplete states  {:>8}", spread(&states).0);
    print_reports(&reports.iter().collect::<Vec<_>>());
}

/// Runs the script; returns milliseconds. Commands fail where the original's do: nothing exists before the first time.
fn run_script(node: &Node, script: &str) -> f64 {
    let file = node.dir().join("script");
    fs::write(&file, script).unwrap();
    let mut command = Command::new("bash");
    command.arg(&file).stderr(Stdio::null()).stdout(Stdio::null());
    let began = Instant::now();
    node.netns().output(&mut command);
    began.elapsed().as_secs_f64() * 1000.0
}
