//! Pods that start between two agents, with a real agent and no credential.

use std::thread;
use std::time::{Duration, Instant};

use kit::{InpodOptions, Pod};

use crate::fixtures::ambient::{MESH, Peer, starting};
use crate::fixtures::inpod::InPod;

/// Time without an agent: as in a rollout on a real node.
const GAP: Duration = Duration::from_secs(2);

#[test]
fn pods_that_start_between_two_agents_are_captured_within_five_seconds() {
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    fixture.daemon.take().unwrap().terminate();
    let chain = fixture.node.conflist(&[fixture.plugin()]);
    let (daemon, started) = thread::scope(|scope| {
        let (fixture, chain) = (&fixture, &chain);
        let start = |number| {
            let pod = Pod::new(MESH, &format!("between-{number}"));
            fixture.manifests.put_pod(&starting(&pod));
            move || {
                let began = Instant::now();
                let sandbox = fixture.node.add_pod(&fixture.node.runtime(), chain, pod);
                (sandbox.unwrap_or_else(|error| panic!("{error}")), began.elapsed())
            }
        };
        let adds: Vec<_> = (0..8).map(|number| scope.spawn(start(number))).collect();
        thread::sleep(GAP);
        let daemon = fixture.container.start_with(&fixture.arguments, &[]);
        (daemon, adds.into_iter().map(|add| add.join().unwrap()).collect::<Vec<_>>())
    });
    fixture.daemon = Some(daemon);
    for (sandbox, took) in started {
        let peer = &Peer::new(sandbox);
        assert!(took < Duration::from_secs(5), "{}: {took:?}", peer.sandbox.pod.name);
        assert!(fixture.is_ruled(peer), "{}", peer.sandbox.pod.name);
        fixture.wait_served(&ztunnel, peer);
    }
}
