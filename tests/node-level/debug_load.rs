//! Pods start undisturbed while many clients request the debug state, several of which misbehave.

mod clients;

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clients::Crowd;
use kit::{Daemon, Pod, SetOnDrop};
use serde_json::Value;

use crate::fixtures::ambient::{Ambient, MESH, starting};

const ENROLLED: u8 = 60;
const REQUESTS: usize = 1000;
const QUIET: usize = 9;
/// Default timeout of the kubelet's probes.
const PROBE: Duration = Duration::from_secs(1);
/// Additional duration allowed for an ADD under load: far less than one observation, for which all requests wait.
const SLACK: Duration = Duration::from_millis(20);
/// Limit of any ADD: beyond it the plugin would act without the agent.
const SLOWEST: Duration = Duration::from_secs(10);
/// Limit of anonymous memory: the file mapping of a debug build alone is larger.
const ANONYMOUS_KIB: u64 = 12 * 1024;

/// Starts a pod of the mesh through the plugin, and ends it; returns the plugin's duration.
fn add(fixture: &Ambient, number: usize) -> Duration {
    let pod = Pod::new(MESH, &format!("pod-{number}"));
    fixture.manifests.put_pod(&starting(&pod));
    let (runtime, conflist) = (fixture.node.runtime(), fixture.node.conflist(&[fixture.plugin()]));
    let name = pod.name.clone();
    let sandbox = fixture.node.add_pod(&runtime, &conflist, pod).unwrap_or_else(|error| {
        panic!("{error}; the agent says:\n{}", fixture.daemon.as_ref().unwrap().log());
    });
    assert!(sandbox.ips().iter().all(|ip| fixture.has_member(*ip)), "enrolled when the ADD has ended");
    let call = sandbox.calls.iter().find(|call| call.plugin == "istio-cni").unwrap();
    let took = call.output.wall;
    drop(sandbox);
    fixture.manifests.remove_pod(MESH, &name);
    took
}

/// Asserts that the document is complete, has all pods, and is from an observation that began after the request.
fn check(began: SystemTime, body: &str) {
    let state: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    let began = i64::try_from(began.duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
    let at = state["observation"]["observedAt"].as_str().unwrap();
    assert!(at >= agent_protocol::rfc3339_micros(began).as_str(), "asked at {began}, and seen at {at}");
    assert!(state["pods"].as_array().unwrap().len() >= usize::from(ENROLLED));
}

/// Probes as the kubelet does until the flag is set; returns the times of the answers of each path.
fn probe(daemon: &Daemon, over: &AtomicBool) -> [Vec<Duration>; 2] {
    let mut times = [const { Vec::new() }; 2];
    while !over.load(Ordering::Relaxed) {
        for (path, times) in ["/healthz", "/readyz"].into_iter().zip(&mut times) {
            let began = Instant::now();
            let status = daemon.get(8000, path).map(|(status, _)| status);
            times.push(began.elapsed());
            assert_eq!(status, Some(200), "{path}");
        }
        thread::sleep(Duration::from_millis(50)); // many probes, but no considerable load
    }
    times
}

#[test]
fn who_asks_does_not_disturb_pods_that_start() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    for number in 1..=ENROLLED {
        let pod = Pod::new(MESH, &format!("there-{number}"));
        fixture.manifests.put_pod(&pod.manifest(&[IpAddr::from([10, 201, 0, number])]));
    }
    fixture.settle();
    let mut quiet: Vec<Duration> = (0..QUIET).map(|number| add(&fixture, number)).collect();
    quiet.sort();
    let median = quiet[QUIET / 2];

    let crowd = Crowd::start(fixture.node.netns(), REQUESTS, check);
    let (over, daemon) = (AtomicBool::new(false), fixture.daemon.as_ref().unwrap());
    let (mut busy, mut anonymous) = (Vec::new(), 0);
    let probes = thread::scope(|scope| {
        let end = SetOnDrop(&over); // even if an ADD fails: otherwise the probes would never end
        let probes = scope.spawn(|| probe(daemon, &over));
        while !crowd.is_done() && !probes.is_finished() {
            busy.push(add(&fixture, QUIET + busy.len()));
            anonymous = anonymous.max(daemon.anonymous_kib());
        }
        drop(end);
        probes.join().unwrap()
    });
    let answered = crowd.answered();
    crowd.end();
    busy.sort();
    let slowest = *busy.last().unwrap();
    println!(
        "{answered} answers; {} ADDs: median {:?}, slowest {slowest:?}, quiet {median:?}; probes {:?}; {anonymous} KiB anonymous of {}",
        busy.len(),
        busy[busy.len() / 2],
        probes.iter().flatten().max(),
        daemon.resident_kib()
    );
    assert_eq!(answered, REQUESTS);
    // If pods waited for observations, all of them would; single ones are delayed by other tests' processes.
    assert!(busy[busy.len() / 2] <= median * 4 + SLACK, "quiet {quiet:?}, then {busy:?}");
    assert!(slowest <= SLOWEST, "quiet {quiet:?}, then {busy:?}");
    // The kubelet acts on three late answers in a row.
    let is_late = |times: &[Duration]| times.iter().all(|took| *took >= PROBE);
    assert!(!probes.iter().any(|times| times.windows(3).any(is_late)), "{probes:?}");
    assert!(anonymous < ANONYMOUS_KIB, "{anonymous} KiB");
}

/// Each makes the thread that decides copy its state, as each observation does.
#[test]
fn simulations_are_as_rare_as_observations() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    fixture.settle();
    let daemon = fixture.daemon.as_ref().unwrap();
    let took = |path: &str| {
        let began = Instant::now();
        for _ in 0..20 {
            assert_eq!(daemon.get(clients::PORT, path).map(|(status, _)| status), Some(200), "{path}");
        }
        began.elapsed()
    };
    // Other tests may disturb one of them.
    let mut times = (0..3).map(|_| {
        let observed = took("/debug/state");
        (observed, took(&format!("/debug/simulate?namespace={MESH}&labels=a=b")))
    });
    assert!(times.any(|(observed, simulated)| simulated * 2 >= observed), "simulations are not delayed");
}
