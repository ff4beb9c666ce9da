//! Pods that start between two agents, with a real agent and no credential.

use std::thread;
use std::time::{Duration, Instant};

use kit::{InpodOptions, Pod};

use crate::ambient_stage::{MESH, Peer, starting};
use crate::inpod_stage::InPod;

/// Time without an agent: what a rollout takes on a real node.
const GAP: Duration = Duration::from_secs(2);

#[test]
fn pods_that_start_between_two_agents_are_captured_within_five_seconds() {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    stage.daemon.take().unwrap().terminate();
    let chain = stage.node.conflist(&[stage.plugin()]);
    let (daemon, started) = thread::scope(|scope| {
        let (stage, chain) = (&stage, &chain);
        let start = |number| {
            let pod = Pod::new(MESH, &format!("between-{number}"));
            stage.manifests.put_pod(&starting(&pod));
            move || {
                let began = Instant::now();
                let sandbox = stage.node.add_pod(&stage.node.runtime(), chain, pod);
                (sandbox.unwrap_or_else(|error| panic!("{error}")), began.elapsed())
            }
        };
        let adds: Vec<_> = (0..8).map(|number| scope.spawn(start(number))).collect();
        thread::sleep(GAP);
        let daemon = stage.container.start_with(&stage.arguments, &[]);
        (daemon, adds.into_iter().map(|add| add.join().unwrap()).collect::<Vec<_>>())
    });
    stage.daemon = Some(daemon);
    for (sandbox, took) in started {
        let peer = &Peer::new(sandbox);
        assert!(took < Duration::from_secs(5), "{}: {took:?}", peer.sandbox.pod.name);
        assert!(stage.is_ruled(peer), "{}", peer.sandbox.pod.name);
        stage.wait_served(&ztunnel, peer);
    }
}
