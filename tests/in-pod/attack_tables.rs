//! What a pod with NET_ADMIN makes in its network namespace so that our rules can be read, changed or removed no more.

use std::time::Duration;

use kit::{Echo, InpodOptions};

use crate::fixtures::ambient::{MESH, PORT};
use crate::fixtures::inpod::{InPod, wait_relayed};

/// All pods are looked at within this time.
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn very_many_rules_or_chains_beside_native_tables_keep_no_rules_from_being_restored() {
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let with_chain = |table: &str| format!("add table inet {table}\nadd chain inet {table} evil\n");
    let rules = |table: &str| {
        let rule = format!("add rule inet {table} evil ip saddr 192.0.2.1 tcp dport 1 counter accept\n");
        with_chain(table) + &rule.repeat(10_000)
    };
    let chains = (0..100_000).map(|chain| format!("add chain inet evil c{chain}\n"));
    let chains = with_chain("istio-ambient-nat") + &with_chain("evil") + &chains.collect::<String>();
    let attacks = [
        ("nat", rules("istio-ambient-nat"), "captured"),
        ("raw", rules("istio-proxy-raw"), "captured"),
        ("chains", chains, "overruled"),
    ];
    let pods = attacks.each_ref().map(|(name, ..)| fixture.mesh_pod(name));
    for pod in &pods {
        fixture.wait_captured(pod);
    }
    let flush = fixture.tables.flush_nat("OUTPUT");
    for ((_, attack, _), pod) in attacks.iter().zip(&pods) {
        let _ = pod.sandbox.netns.pipe("nft -f -", attack);
        pod.sandbox.netns.sh(&flush);
    }
    let outside = (fixture.node.outside_ip(false), PORT).into();
    for ((name, _, code), pod) in attacks.iter().zip(&pods) {
        let pod_name = format!("{MESH}/{name}");
        fixture.within(MINUTE, name, |fixture| {
            fixture.is_ruled(pod) && fixture.explain(&pod_name).code == *code
        });
        let _ = pod.tcp(outside).unwrap();
        wait_relayed(&ztunnel, pod.ip(false), outside);
    }
}
