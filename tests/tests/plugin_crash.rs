//! The plugin is killed at a random point of ADD, and what it had started goes on without it. Then ADD comes again, as
//! a runtime does it, and everything is right.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::{Duration, Instant};

use kit::{FakeReply, Netns, istio};

use crate::plugin_calls::stage::{self, DUAL, Stage, bare_pod, difference, routes, saves};

/// Rounds of each of the two workers.
const ROUNDS: u64 = 60;
const SEED: u64 = 0x6d69_6c6c_7261_6365;

/// Every table of both families, the route and the address: the most that can be half done.
fn stage() -> Stage {
    Stage::answering(|request| {
        let pod = istio::annotated(stage::injected(request), "sidecar.istio.io/interceptionMode", "TPROXY");
        let pod = istio::with_proxy_env(pod, "ISTIO_META_DNS_CAPTURE", "true");
        FakeReply::Json(200, istio::with_proxy_env(pod, "ISTIO_DUAL_STACK", "true"))
    })
}

fn state(pod: &Netns) -> String {
    saves(pod) + &routes(pod)
}

/// A number below `bound`; the same sequence in each run (Knuth's MMIX generator).
fn random(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

#[test]
fn an_add_after_one_that_was_killed_makes_everything_right() {
    let stage = stage();
    let reference = bare_pod(DUAL);
    let typical = (0..3).map(|_| {
        let pod = bare_pod(DUAL);
        stage.call("ADD", &pod).run().wall()
    });
    let typical = typical.max().unwrap();
    stage.call("ADD", &reference).run().ok();
    let want = state(&reference);
    let killed: u64 = thread::scope(|scope| {
        let workers = [1, 2].map(|worker| {
            scope.spawn({
                let (stage, want) = (&stage, &want);
                move || {
                    let mut dice = SEED + worker;
                    (0..ROUNDS)
                        .filter(|round| {
                            survives(
                                stage,
                                want,
                                &format!("worker {worker}, round {round}"),
                                typical,
                                &mut dice,
                            )
                        })
                        .count() as u64
                }
            })
        });
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    println!("{killed} of {} calls were killed; one takes {typical:?}", 2 * ROUNDS);
    assert!(killed > ROUNDS / 2, "only {killed} calls were killed in time: {typical:?}");
}

/// One round; true when the first call was killed before its end.
fn survives(stage: &Stage, want: &str, round: &str, typical: Duration, dice: &mut u64) -> bool {
    let pod = bare_pod(DUAL);
    let after = Duration::from_micros(random(dice, typical.as_micros() as u64));
    let call = stage.call("ADD", &pod);
    let runtime = stage.node.runtime().with_limit(after);
    let output = runtime.exec(&kit::binary("istio-cni"), &call.environment(), &call.input());
    assert!(output.killed || output.status.success(), "{round}: {output:?}");
    call.run().ok();
    let right = |when: &str| {
        let state = state(&pod);
        assert!(state == want, "{round}, killed after {after:?}, {when}: {:#?}", difference(&state, want));
    };
    right("right after ADD");
    wait_for_processes(&pod, round);
    right("after the last process of the killed one ended");
    stage.call("CHECK", &pod).run().ok();
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
