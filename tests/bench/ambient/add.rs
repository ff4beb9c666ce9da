//! ADD of a pod on an ambient node with 250 enrolled pods: through the agent, and without it.

use std::{cell::Cell, fs, path::PathBuf};

use kit::{ApiServer, Auth, Netns, Pod, istio};
use serde_json::{Value, json};

use super::fixture::{Fixture, MESH, PLAIN};
use crate::{
    base::{self, BenchNode},
    contest::Results,
    measure::{self, Cost},
    table,
};

const PODS: u32 = 250;
const SOCKET: &str = "agent.sock";

/// One row of the table.
struct Row {
    name: &'static str,
    command: Vec<String>,
    /// The pod and the plugin's configuration; `None` for a program that is no plugin.
    call: Option<(Pod, Value)>,
}

struct Ground<'a> {
    base: &'a BenchNode,
    netns: Netns,
    calls: Cell<u8>,
    log: PathBuf,
    node: std::sync::Arc<kit::Node>,
}

pub(crate) fn run(base: &BenchNode, rounds: usize) {
    let mut fixture = Fixture::start(&[]);
    let _ztunnels = [fixture.ztunnel("ztunnel-a"), fixture.ztunnel("ztunnel-b")];
    fixture.fill_with_links(MESH, PODS);
    fixture.wait_members(PODS as usize);
    let rows = rows(base, &fixture);
    let ground = Ground {
        base,
        netns: base.pod_netns(),
        calls: Cell::new(0),
        log: fixture.node.dir().join("strace"),
        node: std::sync::Arc::clone(&fixture.node),
    };
    let mut results: Vec<Results> = rows.iter().map(|row| ground.prepare(row)).collect();
    for _ in 0..rounds {
        for (row, result) in rows.iter().zip(&mut results) {
            result.costs.push(ground.once(row, &row.command));
        }
    }
    println!(
        "ADD on a node with {PODS} enrolled pods. Istio 1.20.8, measured apart: 36 ms, 4 children, 3 requests."
    );
    table::print_rows("ambient-add", &results, rounds);
    for phase in ["facts", "enrol", "total"] {
        let metric = |name: &str| {
            fixture
                .daemon
                .metric(&format!("istio_cni_ambient_add_seconds_{name}{{phase=\"{phase}\"}}"))
                .unwrap_or(0.0)
        };
        println!(
            "  within the agent, {phase:<6} {:>8.0} us on average",
            metric("sum") / metric("count") * 1e6
        );
    }
    println!();
}

fn rows(base: &BenchNode, fixture: &Fixture) -> Vec<Row> {
    // Not under the agent's name for its own.
    let text = base.api.kubeconfig(&Auth::Token(base.token.clone()));
    let kubeconfig = istio::write_file(&fixture.node, "kubeconfig-of-bench", &text);
    let label = json!({"istio.io/dataplane-mode": "ambient"});
    for (name, labels) in [(MESH, label), (PLAIN, json!({}))] {
        base.api.admin().create("/api/v1/namespaces", &json!({"metadata": {"name": name, "labels": labels}}));
    }
    let known = |namespace: &str| {
        let pod = Pod::from_object(&base.api.create_pod(&ApiServer::pod(namespace, "new")));
        let mut manifest = pod.manifest(&[]);
        manifest["status"] = json!({"phase": "Pending"});
        fixture.manifests.put_pod(&manifest);
        pod
    };
    let (mesh, plain) = (known(MESH), known(PLAIN));
    base::wait_known(&fixture.container, MESH, PODS as usize + 1);
    base::wait_known(&fixture.container, PLAIN, 1);
    let program = |name: &str| vec![kit::binary(name).to_string_lossy().into_owned()];
    let add = |name: &'static str, pod: &Pod, socket: &str| Row {
        name,
        command: program("istio-cni"),
        call: Some((pod.clone(), fixture.plugin(&kubeconfig, socket))),
    };
    vec![
        Row { name: "an empty static program", command: program("empty"), call: None },
        add("ADD, ambient pod", &mesh, SOCKET),
        add("ADD, plain pod", &plain, SOCKET),
        add("ADD, ambient pod, agent away", &mesh, "nobody.sock"),
        add("ADD, plain pod, agent away", &plain, "nobody.sock"),
    ]
}

impl Ground<'_> {
    /// Counts children and requests, in untimed runs.
    fn prepare(&self, row: &Row) -> Results {
        let asked =
            || self.base.api.requests().iter().filter(|request| request.user.contains("istio-cni")).count();
        let before = asked();
        self.once(row, &row.command);
        let requests = (asked() - before) as f64;
        let children = self.children(row);
        Results { name: row.name.to_owned(), costs: Vec::new(), children, requests }
    }

    fn children(&self, row: &Row) -> usize {
        let log = self.log.to_string_lossy().into_owned();
        let traced = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", &log].map(str::to_owned);
        self.once(row, &[&traced[..], &row.command].concat());
        let lines = fs::read_to_string(&self.log).unwrap();
        lines.lines().filter(|line| line.ends_with("= 0")).count().saturating_sub(1)
    }

    /// One run, in which an enrolled pod has another address than in the previous run.
    fn once(&self, row: &Row, command: &[String]) -> Cost {
        let Some((pod, conf)) = &row.call else { return measure::run(self.node.netns(), command, &[], "") };
        self.calls.set(self.calls.get().wrapping_add(1));
        let (env, _) = self.base.call(pod, &self.netns, false, None);
        let mut stdin = conf.clone();
        let address = format!("10.201.0.{}/24", self.calls.get());
        stdin["prevResult"] = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": self.netns.path()}],
            "ips": [{"address": address, "interface": 0}],
        });
        measure::run(self.node.netns(), command, &env, &stdin.to_string())
    }
}
