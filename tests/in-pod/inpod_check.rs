//! CHECK of a pod with in-pod capture: the result depends on its rules alone, whichever component is unavailable.

use std::time::{Duration, Instant};

use crate::fixtures::ambient::MESH;
use crate::fixtures::inpod::InPod;

/// Less than an ADD waits for the next agent. The plugin limits itself to 2 s, whichever component is unavailable; the other plugins
/// of the chain run, too.
const LIMIT: Duration = Duration::from_secs(5);
/// Flushes all rules of a namespace, in all kinds of tables.
const FLUSH: &str = "nft flush ruleset; for tool in iptables-legacy ip6tables-legacy; do \
                     for table in raw mangle nat; do $tool -t $table -F; done; done";

#[test]
fn a_pod_that_its_rules_hold_is_in_order_without_ztunnel_and_agent() {
    for env in [&[][..], &[("NATIVE_NFTABLES", "true")]] {
        let (mut fixture, ztunnel) = InPod::with_ztunnel(env);
        let (held, lost, seen) =
            (fixture.mesh_pod("held"), fixture.mesh_pod("lost"), fixture.mesh_pod("seen"));
        for peer in [&held, &lost, &seen] {
            fixture.wait_captured(peer);
        }
        let check = |peer: &crate::fixtures::ambient::Peer| {
            let began = Instant::now();
            let checked = peer.sandbox.check().map(drop);
            assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
            checked
        };
        let succeeds = |what: &str| check(&held).unwrap_or_else(|error| panic!("{what}: {error}"));
        let bypasses = |what: &str, peer: &crate::fixtures::ambient::Peer| {
            // The agent restores the rules, with a longer delay the more often they are removed.
            let began = Instant::now();
            let error = loop {
                peer.sandbox.netns.pipe("sh", FLUSH);
                if let Err(error) = check(peer) {
                    break error;
                }
                assert!(began.elapsed() < Duration::from_secs(30), "{what}");
            };
            let message = format!(
                "pod {MESH}/{} bypasses the mesh: its traffic is not redirected",
                peer.sandbox.pod.name
            );
            assert_eq!((error.code(), &error.error["msg"]), (Some(999), &message.into()), "{what}");
        };
        succeeds("all is there");
        bypasses("the agent knows that it belongs to the mesh", &seen);
        drop(ztunnel);
        succeeds("no ztunnel");
        fixture.daemon.take().unwrap().kill();
        succeeds("no ztunnel and no agent");
        lost.sandbox.netns.pipe("sh", FLUSH);
        check(&lost).unwrap_or_else(|error| panic!("it may have left the mesh since: {error}"));
    }
}
