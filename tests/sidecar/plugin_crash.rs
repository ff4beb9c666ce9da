//! The plugin is killed at a random point of ADD, and what it had started goes on without it. Then ADD comes again, as
//! a runtime does it, and everything is right.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kit::{FakeReply, Netns, istio};
use serde_json::json;

use crate::fixtures::plugin::{self, Call, DUAL, PluginFixture, bare_pod, difference, routes, saves_of};
use crate::fixtures::random::random;

const SEED: u64 = 0x6d69_6c6c_7261_6365;

/// Every table of both families, the route and the address: the most that can be half done.
fn fixture() -> PluginFixture {
    PluginFixture::answering(|request| {
        let pod = istio::annotated(plugin::injected(request), "sidecar.istio.io/interceptionMode", "TPROXY");
        let pod = istio::with_proxy_env(pod, "ISTIO_META_DNS_CAPTURE", "true");
        FakeReply::Json(200, istio::with_proxy_env(pod, "ISTIO_DUAL_STACK", "true"))
    })
}

/// The tools of one backend, as a node has them in its `PATH`; or native tables, which need none.
struct Tools {
    path: String,
    save: [&'static str; 2],
    is_native: bool,
}

impl Tools {
    /// What the machine's operator chose.
    fn default(_: &PluginFixture) -> Self {
        let save = ["iptables-save", "ip6tables-save"];
        Self { path: std::env::var("PATH").unwrap(), save, is_native: false }
    }

    fn native(fixture: &PluginFixture) -> Self {
        Self { is_native: true, ..Self::default(fixture) }
    }

    /// A directory in front, in which the plain names are the legacy tools.
    fn legacy(fixture: &PluginFixture) -> Self {
        let directory = fixture.node.dir().join("legacy");
        fs::create_dir(&directory).unwrap();
        for family in ["iptables", "ip6tables"] {
            for verb in ["", "-save", "-restore"] {
                let tool = format!("/usr/sbin/{family}-legacy{verb}");
                symlink(fs::canonicalize(tool).unwrap(), directory.join(format!("{family}{verb}"))).unwrap();
            }
        }
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
        Self { path, save: ["iptables-legacy-save", "ip6tables-legacy-save"], is_native: false }
    }

    /// A fresh pod. One that holds a chain in legacy tables gets legacy rules.
    fn pod(&self) -> Netns {
        let pod = bare_pod(DUAL);
        if self.save[0].contains("legacy") {
            pod.sh("iptables-legacy -w -N OTHERS");
            pod.sh("ip6tables-legacy -w -N OTHERS");
        }
        pod
    }

    fn state(&self, pod: &Netns) -> String {
        let mut native: Vec<String> = Vec::new();
        if self.is_native {
            // `nft` shows tables and chains in the order in which they were made.
            native = pod.sh("nft --stateless list ruleset").lines().map(|line| format!("{line}\n")).collect();
            native.sort();
        }
        native.concat() + &saves_of(pod, self.save) + &routes(pod)
    }

    /// Jumps into our chain of outgoing packets: of mangle and nat, in native tables for both families at once.
    fn jumps(&self, state: &str) -> usize {
        if self.is_native {
            return 2 * state.matches("jump istio-output\n").count();
        }
        state.matches("-j ISTIO_OUTPUT\n").count()
    }

    fn call<'s>(&self, fixture: &'s PluginFixture, command: &str, pod: &Netns) -> Call<'s> {
        fixture.call(command, pod).env("PATH", &self.path).with("native_nftables", json!(self.is_native))
    }
}

#[test]
fn an_add_after_one_that_was_killed_makes_everything_right() {
    rounds(Tools::default, 55);
}

#[test]
fn the_same_with_native_tables() {
    rounds(Tools::native, 25);
}

/// Where each table is written on its own, so that more can be half done.
#[test]
fn the_same_with_legacy_tools() {
    if !Path::new("/usr/sbin/iptables-legacy").exists() {
        return kit::skip("no iptables-legacy");
    }
    rounds(Tools::legacy, 20);
}

/// So many rounds in each of two workers.
fn rounds(tools: impl Fn(&PluginFixture) -> Tools, rounds: u64) {
    let fixture = fixture();
    let tools = tools(&fixture);
    let reference = tools.pod();
    // The first one is slower than the others: it loads modules of the kernel.
    let typical = [(); 4].map(|()| tools.call(&fixture, "ADD", &tools.pod()).run().wall()).into_iter().min();
    let typical = typical.unwrap_or_default();
    tools.call(&fixture, "ADD", &reference).run().ok();
    let want = tools.state(&reference);
    assert_eq!(tools.jumps(&want), 4, "mangle and nat of both families: {want}");
    let work = |worker: u64| {
        let mut dice = SEED + worker;
        let mut round = |round| {
            survives(&fixture, &tools, &want, typical, &mut dice, &format!("worker {worker}, round {round}"))
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

/// One round; true when the first call was killed before its end.
fn survives(
    fixture: &PluginFixture,
    tools: &Tools,
    want: &str,
    typical: Duration,
    dice: &mut u64,
    round: &str,
) -> bool {
    let pod = tools.pod();
    let after = Duration::from_micros(random(dice, typical.as_micros() as u64));
    let call = tools.call(fixture, "ADD", &pod);
    let runtime = fixture.node.runtime().with_limit(after);
    let output = runtime.exec(&kit::binary("istio-cni"), &call.environment(), &call.input());
    assert!(output.killed || output.status.success(), "{round}: {output:?}");
    call.run().ok();
    let right = |when: &str| {
        let state = tools.state(&pod);
        assert!(state == want, "{round}, killed after {after:?}, {when}: {:#?}", difference(&state, want));
    };
    right("right after ADD");
    wait_for_processes(&pod, round);
    right("after the last process of the killed one ended");
    tools.call(fixture, "CHECK", &pod).run().ok();
    output.killed
}

/// Nothing may stay in the pod's namespace, nor any tool without a parent.
fn wait_for_processes(pod: &Netns, round: &str) {
    let namespace = fs::metadata(pod.path()).unwrap().ino();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let left = processes_in(namespace);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{round}: processes are left: {left:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn processes_in(namespace: u64) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let here = processes.filter(|process| {
        fs::metadata(process.path().join("ns/net")).is_ok_and(|net| net.ino() == namespace)
    });
    here.filter_map(|process| fs::read_to_string(process.path().join("comm")).ok()).collect()
}
