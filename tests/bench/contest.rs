//! Programs that run in turn.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use kit::{Container, Daemon, Netns, Pod};
use serde_json::{Value, json};

use crate::{
    ambient::spread,
    base::{BenchNode, NODE},
    measure::{self, Cost},
    peer::{ISTIO, Peer},
    results,
};

/// One row of the table.
pub(crate) struct Contest {
    pub(crate) name: String,
    /// The program and its arguments.
    command: Vec<String>,
    input: Input,
}

enum Input {
    /// A call of a plugin for this pod, with or without its annotations, and with an agent at this socket, if there is one.
    Plugin(Pod, bool, Option<PathBuf>),
    /// A call of Istio's plugin for this pod.
    Istio(Pod),
    /// This text, in the namespace of a new pod.
    Text(String),
}

/// Costs of a contest, run by run.
pub(crate) struct Results {
    pub(crate) name: String,
    pub(crate) costs: Vec<Cost>,
    /// Number of programs that one run executes beside its own.
    pub(crate) children: usize,
    /// Requests to the API server per run.
    pub(crate) requests: f64,
}

/// All contests; the first is the baseline.
pub(crate) fn all(base: &BenchNode, against: Option<&Path>, peer: Option<&Peer>) -> Vec<Contest> {
    let text = |name: &str, command: &[&str], input: &str| Contest {
        name: name.to_owned(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        input: Input::Text(input.to_owned()),
    };
    let empty = kit::binary("empty").to_string_lossy().into_owned();
    let commands = base.commands.to_string_lossy().into_owned();
    let mut contests = vec![text("an empty static program", &[&empty], "")];
    contests.extend(plugin(base, "istio-cni", &kit::binary("istio-cni")));
    contests.extend(against.into_iter().flat_map(|path| plugin(base, "against", path)));
    contests.extend(peer.into_iter().flat_map(|peer| beside(base, peer)));
    contests.push(text(
        "iptables-nft-restore, the same rules",
        &["iptables-nft-restore", "--noflush"],
        &base.restore,
    ));
    contests.push(text(
        "iptables-legacy-restore, the same rules",
        &["iptables-legacy-restore", "--noflush"],
        &base.restore,
    ));
    contests.push(text("one iptables command per rule", &["sh", &commands], ""));
    contests
}

fn plugin(base: &BenchNode, who: &str, path: &Path) -> Vec<Contest> {
    let calls = [
        ("ADD, excluded namespace", Pod::new("kube-system", "dns"), true),
        ("ADD, plain pod, annotations delivered", base.plain.clone(), true),
        ("ADD, plain pod, no annotations", base.plain.clone(), false),
        ("ADD, sidecar pod", base.sidecar.clone(), true),
        ("ADD, sidecar pod, dual stack", base.dual.clone(), true),
    ];
    let contest = |(name, pod, annotations): (&str, Pod, bool), agent: Option<PathBuf>| Contest {
        name: format!("{who} {name}{}", if agent.is_some() { ", agent" } else { "" }),
        command: vec![path.to_string_lossy().into_owned()],
        input: Input::Plugin(pod, annotations, agent),
    };
    let answered = calls.clone().into_iter().skip(2).map(|call| contest(call, Some(socket(base))));
    let answered: Vec<Contest> = answered.collect();
    calls.map(|call| contest(call, None)).into_iter().chain(answered).collect()
}

/// Istio's programs, each row named [`ISTIO`] and the name of ours, and our tool, which is measured only beside Istio's.
fn beside(base: &BenchNode, peer: &Peer) -> Vec<Contest> {
    let plugin = [
        ("istio-cni ADD, excluded namespace", Pod::new("kube-system", "dns")),
        ("istio-cni ADD, plain pod, no annotations", base.plain.clone()),
        ("istio-cni ADD, sidecar pod", base.sidecar.clone()),
        ("istio-cni ADD, sidecar pod, dual stack", base.dual.clone()),
    ];
    let plugin = plugin.map(|(name, pod)| Contest {
        name: format!("{ISTIO}{name}"),
        command: vec![peer.plugin.to_string_lossy().into_owned()],
        input: Input::Istio(pod),
    });
    let tool = |whose: &str, path: &Path| Contest {
        name: format!("{whose}istio-iptables, the rules of a sidecar pod"),
        command: [&path.to_string_lossy(), "-p", "15001", "-z", "15006", "-u", "1337", "-g", "1337"]
            .into_iter()
            .chain(["-m", "REDIRECT", "-b", "*", "-d", "15020,15021,15090", "-i", "*", "-o", "15020"])
            .map(str::to_owned)
            .collect(),
        input: Input::Text(String::new()),
    };
    let tools = [tool("", &kit::binary("istio-iptables")), tool(ISTIO, &peer.tool)];
    plugin.into_iter().chain(tools).collect()
}

/// Number of pods that start concurrently.
const AT_ONCE: usize = 20;
/// Milliseconds until the last of as many ADDs of Istio 1.20.8 ended, measured separately.
const UPSTREAM_AT_ONCE: f64 = 680.0;

/// Sidecar pods that start concurrently, for which the agent answers.
pub(crate) fn at_once(base: &BenchNode, peer: Option<&Peer>, rounds: usize) {
    let plugin = kit::binary("istio-cni").to_string_lossy().into_owned();
    let empty = kit::binary("empty").to_string_lossy().into_owned();
    let idle = vec![vec![empty]; AT_ONCE].join(&[measure::BESIDE.to_owned()][..]);
    let named = ["sidecar pods, agent", "empty programs", "Istio's sidecar pods"];
    let mut costs: [(String, Vec<[f64; 2]>); 3] = named.map(|name| (name.to_owned(), Vec::new()));
    for _ in 0..rounds {
        let ours = crowd(base, &plugin, |netns| base.call(&base.sidecar, netns, true, Some(&socket(base))));
        let floor = measure::run(base.node.netns(), &idle, &[], "");
        let theirs = peer.map(|peer| {
            crowd(base, &peer.plugin.to_string_lossy(), |netns| base.istio_call(&base.sidecar, netns))
        });
        for ((_, kept), cost) in costs.iter_mut().zip([Some(ours), Some(floor), theirs]) {
            kept.extend(cost.map(|cost| [cost.wall, cost.cpu / AT_ONCE as f64]));
        }
    }
    let of =
        |who: usize, what: usize| spread(&costs[who].1.iter().map(|cost| cost[what]).collect::<Vec<f64>>());
    let ((last, least, most), cpu, floor) = (of(0, 0), of(0, 1).0, of(1, 0).0);
    println!(
        "{AT_ONCE} sidecar ADDs at once, agent: the last one is done after {last:.1} ms ({least:.1}, {most:.1}), \
         1/{:.0} of Istio 1.20.8's {UPSTREAM_AT_ONCE} (bound 1/10); {cpu:.2} ms of CPU each; {AT_ONCE} empty programs: {floor:.1} ms\n",
        UPSTREAM_AT_ONCE / last
    );
    if peer.is_some() {
        let ((wall, least, most), its_cpu) = (of(2, 0), of(2, 1).0);
        println!(
            "the same by Istio's, which asks the API server: {wall:.1} ms ({least:.1}, {most:.1}), {:.1} times as long; \
             {its_cpu:.2} ms of CPU each, {:.1} times as much\n",
            wall / last,
            its_cpu / cpu
        );
    }
    results::write("add-at-once", ["last_ms", "cpu_ms_each"], costs);
}

/// Calls a plugin for many pods concurrently, each with the input created for its namespace.
fn crowd(base: &BenchNode, plugin: &str, call: impl Fn(&Netns) -> (Vec<(String, String)>, String)) -> Cost {
    let pods: Vec<Netns> = (0..AT_ONCE).map(|_| base.pod_netns()).collect();
    let mut input = String::new();
    let calls = pods.iter().map(|netns| {
        let (env, stdin) = call(netns);
        input = stdin; // the same for all
        let variables = env.into_iter().map(|(key, value)| format!("{key}={value}"));
        variables.chain([plugin.to_owned()]).collect()
    });
    let calls: Vec<Vec<String>> = calls.collect();
    measure::run(base.node.netns(), &calls.join(&[measure::BESIDE.to_owned()][..]), &[], &input)
}

fn socket(base: &BenchNode) -> PathBuf {
    base.node.run_dir().join("agent.sock")
}

/// An agent without ambient mode that has seen the pods. It also runs beside contests that do not use it.
pub(crate) fn agent(base: &BenchNode) -> (Daemon, Container) {
    base.node.write_conflist("10-kit.conflist", &base.node.conflist(&[]));
    let container = Container::new(&base.node).with_env("NODE_NAME", NODE);
    container.set_account(&base.token, base.api.ca_pem());
    let mut daemon = container.start();
    daemon.wait_until_ready();
    daemon.wait_for("it answers without a request", |_| {
        let before = asked(base);
        let answers = |pod: &Pod| ask(base, pod).is_some_and(|answer| answer["pod"].is_object());
        [&base.sidecar, &base.dual, &base.plain].into_iter().all(answers) && asked(base) == before
    });
    (daemon, container)
}

fn ask(base: &BenchNode, pod: &Pod) -> Option<Value> {
    let mut stream = UnixStream::connect(socket(base)).ok()?;
    let request = json!({"verb": "check", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid});
    writeln!(stream, "{request}").ok()?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).ok()?;
    serde_json::from_str(&answer).ok()
}

/// Number of requests so far, of the plugin and of the agent.
fn asked(base: &BenchNode) -> usize {
    base.api.requests().iter().filter(|request| request.user.contains("istio-cni")).count()
}

/// Runs every contest once per round, after one round that does not count.
pub(crate) fn run(base: &BenchNode, contests: &[Contest], rounds: usize) -> Vec<Results> {
    let mut results: Vec<Results> = contests.iter().map(|contest| contest.prepare(base)).collect();
    for _ in 0..rounds {
        for (contest, result) in contests.iter().zip(&mut results) {
            let netns = base.pod_netns();
            result.costs.push(contest.once(base, &netns));
        }
    }
    results
}

impl Contest {
    /// Counts children and requests, in untimed runs.
    fn prepare(&self, base: &BenchNode) -> Results {
        let before = asked(base);
        let netns = base.pod_netns();
        self.once(base, &netns);
        let requests = (asked(base) - before) as f64;
        Results { name: self.name.clone(), costs: Vec::new(), children: self.children(base), requests }
    }

    fn once(&self, base: &BenchNode, pod: &Netns) -> Cost {
        match &self.input {
            Input::Text(text) => measure::run(pod, &self.command, &[], text),
            Input::Plugin(subject, annotations, agent) => {
                let (env, stdin) = base.call(subject, pod, *annotations, agent.as_deref());
                measure::run(base.node.netns(), &self.command, &env, &stdin)
            }
            Input::Istio(subject) => {
                let (env, stdin) = base.istio_call(subject, pod);
                measure::run(base.node.netns(), &self.command, &env, &stdin)
            }
        }
    }

    /// Number of programs executed beside the first, counted by strace.
    fn children(&self, base: &BenchNode) -> usize {
        let pod = base.pod_netns();
        let log = base.node.dir().join("strace");
        let traced =
            ["strace", "-f", "-qq", "-e", "trace=execve", "-o", &log.to_string_lossy()].map(str::to_owned);
        let contest = Contest {
            name: String::new(),
            command: [&traced[..], &self.command].concat(),
            input: self.input.copy(),
        };
        contest.once(base, &pod);
        let lines = fs::read_to_string(&log).unwrap();
        lines.lines().filter(|line| line.ends_with("= 0")).count().saturating_sub(1)
    }
}

impl Input {
    fn copy(&self) -> Input {
        match self {
            Input::Text(text) => Input::Text(text.clone()),
            Input::Plugin(pod, annotations, agent) => Input::Plugin(pod.clone(), *annotations, agent.clone()),
            Input::Istio(pod) => Input::Istio(pod.clone()),
        }
    }
}
