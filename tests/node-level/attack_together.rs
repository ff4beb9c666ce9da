//! All attacks at the same time on one node: well-behaved pods start undisturbed, the agent survives, and its memory stays small.

mod attackers;
mod measure;

use std::time::Duration;

use kit::{InpodOptions, fill_with_services};

use self::{
    attackers::{Attack, NODE_RULES, Target},
    measure::{Adds, Watch},
};
use crate::{fixtures::ambient::MESH, fixtures::inpod::InPod};

const ADDS: usize = 50;
/// Ends the test even on a node on which every ADD fails.
const LIMIT: Duration = Duration::from_secs(90);
/// Limit of half of the ADDs. The 99th percentile, which is the maximum of so few, may be five times that on a busy machine.
const SLOW: Duration = Duration::from_secs(1);
/// Limit of the agent's anonymous memory.
const AGENT_KIB: u64 = 64 * 1024;

#[test]
fn pods_start_and_the_agent_lives_while_all_attack_together() {
    let mut fixture = InPod::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let conflist = fixture.node.conflist(&[fixture.plugin()]);
    let agent = fixture.daemon().pid();
    let (ambient, processes) = fixture.split();
    let node = &ambient.node;
    let target = Target { node, manifests: &ambient.manifests, conflist, namespace: MESH };
    let quiet = Adds::measure(&target, ADDS / 5, LIMIT);
    fill_with_services(node.netns(), NODE_RULES);
    let watch = Watch::start(agent, node.netns());
    let attack = Attack::begin(&target, |pod, netns| {
        let _ = processes.add(&pod.uid, netns);
    });
    let adds = Adds::measure(&target, ADDS, LIMIT);
    let (seen, effort) = (watch.take(), attack.effort());
    drop((attack, watch));
    println!(
        "{} ADDs: median {:?}, 99th of 100 {:?}, {} failed; quiet {:?}; {seen:?}; hostile starts and connections {effort:?}",
        adds.count(),
        adds.median(),
        adds.p99(),
        adds.failed.len(),
        quiet.median()
    );
    assert!(adds.failed.is_empty(), "{} of {} failed: {:?}", adds.failed.len(), adds.count(), adds.failed[0]);
    assert!(adds.median() < SLOW && adds.p99() < SLOW * 5, "{:?}, {:?}", adds.median(), adds.p99());
    assert!(seen.agent_kib < AGENT_KIB, "{seen:?}");
    assert!(seen.failed_probes < 3, "the kubelet restarts an agent after three failures: {seen:?}");
    ambient.daemon().wait_until_ready();
}
