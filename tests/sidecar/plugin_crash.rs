//! The plugin is killed at a random point of ADD, and the tools that it had started continue. The runtime then repeats ADD, after
//! which everything is correct.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::thread;
use std::time::Duration;

use kit::{FakeReply, Netns, istio};
use serde_json::json;

use crate::fixtures::plugin::{self, Call, DUAL, PluginFixture, bare_pod, difference, routes, saves_of};
use crate::fixtures::random::random;
use crate::fixtures::tables::Tables;

const SEED: u64 = 0x6d69_6c6c_7261_6365;

/// Every table of both families, the route and the address: the most that can be incomplete.
fn fixture() -> PluginFixture {
    PluginFixture::answering(|request| {
        let pod = istio::annotated(plugin::injected(request), "sidecar.istio.io/interceptionMode", "TPROXY");
        let pod = istio::with_proxy_env(pod, "ISTIO_META_DNS_CAPTURE", "true");
        FakeReply::Json(200, istio::with_proxy_env(pod, "ISTIO_DUAL_STACK", "true"))
    })
}

/// Environment of the plugin for rules in one kind of tables.
struct Target {
    tables: Tables,
    /// `PATH` of the plugin.
    path: String,
}

impl Target {
    fn new(tables: Tables, fixture: &PluginFixture) -> Self {
        let path = std::env::var("PATH").unwrap();
        if tables != Tables::Legacy {
            return Self { tables, path };
        }
        // A directory at the front, in which the plain names are the legacy tools, as on a node without others.
        let directory = fixture.node.dir().join("legacy");
        fs::create_dir(&directory).unwrap();
        for family in ["iptables", "ip6tables"] {
            for verb in ["", "-save", "-restore"] {
                let tool = format!("/usr/sbin/{family}-legacy{verb}");
                symlink(fs::canonicalize(tool).unwrap(), directory.join(format!("{family}{verb}"))).unwrap();
            }
        }
        Self { tables, path: format!("{}:{path}", directory.display()) }
    }

    /// Creates a pod. One with a chain in legacy tables gets legacy rules.
    fn pod(&self) -> Netns {
        let pod = bare_pod(DUAL);
        if self.tables == Tables::Legacy {
            pod.sh("iptables-legacy -w -N OTHERS");
            pod.sh("ip6tables-legacy -w -N OTHERS");
        }
        pod
    }

    fn state(&self, pod: &Netns) -> String {
        let mut native = Vec::new();
        if self.tables == Tables::Native {
            // `nft` lists tables and chains in order of creation.
            let rules = self.tables.rules(|command| pod.sh(command));
            native = rules.lines().map(|line| format!("{line}\n")).collect();
            native.sort();
        }
        native.concat() + &saves_of(pod, self.tables.saves()) + &routes(pod)
    }

    fn call<'s>(&self, fixture: &'s PluginFixture, command: &str, pod: &Netns) -> Call<'s> {
        fixture
            .call(command, pod)
            .env("PATH", &self.path)
            .with("native_nftables", json!(self.tables == Tables::Native))
    }
}

#[test]
fn an_add_after_one_that_was_killed_makes_everything_right() {
    rounds(Tables::Iptables, 55);
}

#[test]
fn the_same_with_native_tables() {
    rounds(Tables::Native, 25);
}

/// Each table is written separately there, so that more can be incomplete.
#[test]
fn the_same_with_legacy_tools() {
    if !Path::new("/usr/sbin/iptables-legacy").exists() {
        return kit::skip("no iptables-legacy");
    }
    rounds(Tables::Legacy, 20);
}

/// Runs `rounds` rounds in each of two workers.
fn rounds(tables: Tables, rounds: u64) {
    let fixture = fixture();
    let target = Target::new(tables, &fixture);
    let reference = target.pod();
    // The first one is slower than the others: it loads kernel modules.
    let typical =
        [(); 4].map(|()| target.call(&fixture, "ADD", &target.pod()).run().wall()).into_iter().min();
    let typical = typical.unwrap_or_default();
    target.call(&fixture, "ADD", &reference).run().ok();
    let want = target.state(&reference);
    assert_eq!(tables.jumps(&want, "ISTIO_OUTPUT"), 4, "mangle and nat of both families: {want}");
    let work = |worker: u64| {
        let mut dice = SEED + worker;
        let mut round = |round| {
            survives(&fixture, &target, &want, typical, &mut dice, &format!("worker {worker}, round {round}"))
        };
        (0..rounds).filter(|at| round(*at)).count()
    };
    let killed: usize = thread::scope(|scope| {
        let workers = [1, 2].map(|worker| {
            scope.spawn({
                let work = &work;
                move || work(worker)
            })
        });
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert!(killed as u64 > rounds / 2, "only {killed} of {} were killed in time: {typical:?}", 2 * rounds);
}

/// Runs one round; true if the first call was killed before its end.
fn survives(
    fixture: &PluginFixture,
    target: &Target,
    want: &str,
    typical: Duration,
    dice: &mut u64,
    round: &str,
) -> bool {
    let pod = target.pod();
    let after = Duration::from_micros(random(dice, typical.as_micros() as u64));
    let call = target.call(fixture, "ADD", &pod);
    let runtime = fixture.node.runtime().with_limit(after);
    let output = runtime.exec(&kit::binary("istio-cni"), &call.environment(), &call.input());
    assert!(output.killed || output.status.success(), "{round}: {output:?}");
    call.run().ok();
    let right = |when: &str| {
        let state = target.state(&pod);
        assert!(state == want, "{round}, killed after {after:?}, {when}: {:#?}", difference(&state, want));
    };
    right("right after ADD");
    wait_for_processes(&pod, round);
    right("after the last process of the killed one ended");
    target.call(fixture, "CHECK", &pod).run().ok();
    output.killed
}

/// Waits until no process is left in the pod's namespace, including tools without a parent.
fn wait_for_processes(pod: &Netns, round: &str) {
    let namespace = fs::metadata(pod.path()).unwrap().ino();
    let described =
        std::fmt::from_fn(|f| write!(f, "{round}: none is left of: {:?}", processes_in(namespace)));
    kit::until(described, || processes_in(namespace).is_empty());
}

fn processes_in(namespace: u64) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let here = processes.filter(|process| {
        fs::metadata(process.path().join("ns/net")).is_ok_and(|net| net.ino() == namespace)
    });
    here.filter_map(|process| fs::read_to_string(process.path().join("comm")).ok()).collect()
}
