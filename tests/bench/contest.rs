//! Who runs, in turn.

use std::{fs, path::Path};

use kit::{Netns, Pod};

use crate::{
    base::BenchNode,
    measure::{self, Cost},
};

/// One row of the table.
pub(crate) struct Contest {
    pub(crate) name: String,
    /// The program and its arguments.
    command: Vec<String>,
    input: Input,
}

enum Input {
    /// A call of a plugin for this pod, with or without its annotations.
    Plugin(Pod, bool),
    /// This text, in a fresh pod's namespace.
    Text(String),
}

/// What a contest cost, run by run.
pub(crate) struct Results {
    pub(crate) name: String,
    pub(crate) costs: Vec<Cost>,
    /// Programs that one run executes beside its own.
    pub(crate) children: usize,
    /// Requests to the API server per run.
    pub(crate) requests: f64,
}

/// All contests; the first is the floor.
pub(crate) fn all(base: &BenchNode, against: Option<&Path>) -> Vec<Contest> {
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
    let contest = |(name, pod, annotations)| Contest {
        name: format!("{who} {name}"),
        command: vec![path.to_string_lossy().into_owned()],
        input: Input::Plugin(pod, annotations),
    };
    calls.map(contest).into_iter().collect()
}

/// Every contest once per round, after one round that does not count.
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
    /// Counts children and requests, in runs that are not timed.
    fn prepare(&self, base: &BenchNode) -> Results {
        let asked =
            || base.api.requests().iter().filter(|request| request.user.contains("istio-cni")).count();
        let before = asked();
        let netns = base.pod_netns();
        self.once(base, &netns);
        let requests = (asked() - before) as f64;
        Results { name: self.name.clone(), costs: Vec::new(), children: self.children(base), requests }
    }

    fn once(&self, base: &BenchNode, pod: &Netns) -> Cost {
        match &self.input {
            Input::Text(text) => measure::run(pod, &self.command, &[], text),
            Input::Plugin(subject, annotations) => {
                let (env, stdin) = base.call(subject, pod, *annotations);
                measure::run(base.node.netns(), &self.command, &env, &stdin)
            }
        }
    }

    /// Programs executed beside the first, as strace sees them.
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
            Input::Plugin(pod, annotations) => Input::Plugin(pod.clone(), *annotations),
        }
    }
}
