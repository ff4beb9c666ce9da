//! Pods that start between two agents, with a real agent and no credential.

use std::thread;
use std::time::{Duration, Instant};

use kit::{InpodOptions, Pod, PodSandbox};
use serde_json::Value;

use crate::fixtures::ambient::{MESH, Peer, starting};
use crate::fixtures::inpod::InPod;

/// Time without an agent: as in a rollout on a real node.
const GAP: Duration = Duration::from_secs(2);
const PROMISE: Duration = Duration::from_secs(5);

/// Starts eight pods at once, while `meanwhile` runs; returns its value, and the pods, each with the time that its ADD took.
fn start_pods<T>(
    fixture: &InPod,
    chain: &Value,
    name: &str,
    meanwhile: impl FnOnce() -> T,
) -> (T, Vec<(PodSandbox, Duration)>) {
    thread::scope(|scope| {
        let start = |number| {
            let pod = Pod::new(MESH, &format!("{name}-{number}"));
            fixture.manifests.put_pod(&starting(&pod));
            move || {
                let began = Instant::now();
                let sandbox = fixture.node.add_pod(&fixture.node.runtime(), chain, pod);
                (sandbox.unwrap_or_else(|error| panic!("{error}")), began.elapsed())
            }
        };
        let adds: Vec<_> = (0..8).map(|number| scope.spawn(start(number))).collect();
        (meanwhile(), adds.into_iter().map(|add| add.join().unwrap()).collect())
    })
}

#[test]
fn pods_that_start_between_two_agents_are_captured_within_five_seconds() {
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    fixture.daemon.take().unwrap().terminate();
    let chain = fixture.node.conflist(&[fixture.plugin()]);
    let (daemon, started) = start_pods(&fixture, &chain, "between", || {
        thread::sleep(GAP);
        fixture.container.start_with(&fixture.arguments, &[])
    });
    fixture.daemon = Some(daemon);
    // On a slower machine, pods that start beside an agent take longer, too.
    let ((), others) = start_pods(&fixture, &chain, "beside", || ());
    let usual = others.iter().map(|(_, took)| *took).max().unwrap();
    for (sandbox, took) in started {
        let peer = &Peer::new(sandbox);
        let limit = PROMISE.max(GAP + usual * 4);
        assert!(took < limit, "{}: {took:?}, usually {usual:?}", peer.sandbox.pod.name);
        assert!(fixture.is_ruled(peer), "{}", peer.sandbox.pod.name);
        fixture.wait_served(&ztunnel, peer);
    }
}
