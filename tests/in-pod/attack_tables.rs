//! Objects that a pod with NET_ADMIN creates in its network namespace to prevent our rules from being read, changed or removed.

use std::io::Write as _;
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::time::Duration;

use kit::{Echo, WorkloadState};
use report::CaptureState;
use serde_json::json;

use crate::attack_rules::RTNL;
use crate::fixtures::ambient::{MESH, PLAIN, PORT, Peer};
use crate::fixtures::inpod::{InPod, ours, wait_relayed};
use crate::fixtures::tables::Tables;

/// Time within which all pods are observed.
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn very_many_rules_or_chains_beside_native_tables_keep_no_rules_from_being_restored() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
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

/// After our rules, before them, and in our table, while the pod joins, is repaired, and leaves.
#[test]
fn very_many_policy_rules_or_routes_keep_nothing_from_working() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let (outside, flush) =
        ((fixture.node.outside_ip(false), PORT).into(), fixture.tables.flush_nat("OUTPUT"));
    let soon = if fixture.tables == Tables::Legacy { MINUTE } else { Duration::from_secs(20) };
    // The kernel compares each with all before it, so few and long ones; the last one is the first here.
    let long = "iif no-such-device0 oif no-such-device0 fwmark 2/2 ipproto tcp sport 1-2 dport 1-2 \
                uidrange 0-0 suppress_prefixlength 0";
    let rules = |priorities: Range<u32>| -> String {
        let rule = |at| format!("rule add pref {at} from 192.0.2.1 to 192.0.2.2 {long} lookup 9\n");
        priorities.rev().map(rule).collect()
    };
    let routes = (0..60_000).map(|at| format!("route add 2001:db8:1::{at:x}/128 dev lo table 100\n"));
    let attacks = [
        ("ip -4 -batch -", rules(40_000..70_000), "captured"),
        ("ip -4 -batch -", rules(10_000..20_000), "overruled"),
        ("ip -6 -batch -", routes.collect(), "overruled"),
    ];
    for (at, (command, input, code)) in attacks.into_iter().enumerate() {
        let name = format!("pod-{at}");
        let pod = fixture.running_pod(PLAIN, &name);
        let writes = RTNL.write().unwrap_or_else(PoisonError::into_inner);
        let _ = pod.sandbox.netns.pipe(command, &input);
        drop(writes);
        let mut manifest = pod.sandbox.manifest();
        let mut set_mode = |fixture: &InPod, mode: &str| {
            manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": mode});
            fixture.manifests.put_pod(&manifest);
        };
        let is_captured = |fixture: &mut InPod| {
            fixture.is_ruled(&pod) && fixture.explain(&format!("{PLAIN}/{name}")).code == code
        };
        set_mode(&fixture, "ambient");
        fixture.within(MINUTE, "it joins", is_captured);
        pod.sandbox.netns.sh(&flush);
        fixture.within(soon, "they are restored", |fixture| fixture.is_ruled(&pod));
        let _ = pod.tcp(outside).unwrap();
        wait_relayed(&ztunnel, pod.ip(false), outside);
        fixture.within(MINUTE, "it is captured again", is_captured);
        set_mode(&fixture, "none");
        let _ = ztunnel.wait_for_state(&pod.sandbox.pod.uid, WorkloadState::Gone);
        fixture.within(MINUTE, "it leaves", |fixture| {
            let state = fixture.explain(&format!("{PLAIN}/{name}")).capture;
            fixture.is_bare(&pod) && state == Some(CaptureState::Outside)
        });
    }
}

#[test]
fn a_pod_leaves_the_mesh_whatever_leads_to_our_chains() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let restore = match fixture.tables {
        Tables::Legacy => ["iptables-legacy-restore", "ip6tables-legacy-restore"],
        Tables::Iptables | Tables::Native => ["iptables-nft-restore", "ip6tables-nft-restore"],
    };
    let chain = |tool: &str| {
        format!(
            "printf '*nat\\n:ISTIO_OUTPUT -\\n:\\377 -\\n-A \\377 -j ISTIO_OUTPUT\\nCOMMIT\\n' | {tool} -w --noflush\n"
        )
    };
    let map = |family: &str| {
        format!(
            "nft 'add table {family} nat; add chain {family} nat ISTIO_OUTPUT; \
             add map {family} nat evil {{ type inet_service : verdict; elements = {{ 1 : jump ISTIO_OUTPUT }}; }}'\n"
        )
    };
    let attacks = [("nameless", restore.map(chain).concat()), ("mapped", ["ip", "ip6"].map(map).concat())];
    for (name, attack) in attacks {
        let pod = fixture.running_pod(MESH, name);
        fixture.wait_captured(&pod);
        let _ = pod.sandbox.netns.pipe("sh -e -s", &attack);
        let mut manifest = pod.sandbox.manifest();
        manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
        fixture.manifests.put_pod(&manifest);
        let _ = ztunnel.wait_for_state(&pod.sandbox.pod.uid, WorkloadState::Gone);
        fixture.within(MINUTE, name, |fixture| {
            let state = fixture.explain(&format!("{MESH}/{name}")).capture;
            ours(&pod)[1..] == [0, 0] && state == Some(CaptureState::Outside)
        });
    }
}

/// Replaces a table by one that only this process of the pod can change, while it runs.
fn own_table(pod: &Peer, table: &str) -> Child {
    let mut nft = Command::new("nft");
    nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null());
    let mut owner = pod.sandbox.netns.run(|| nft.spawn().unwrap());
    let change = format!("add table {table}; delete table {table}; add table {table} {{ flags owner; }}\n");
    owner.stdin.as_mut().unwrap().write_all(change.as_bytes()).unwrap();
    owner
}

#[test]
fn a_table_that_another_process_owns_is_named() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let tables = match fixture.tables {
        Tables::Iptables => ["ip nat", "ip6 nat"],
        Tables::Native | Tables::Legacy => ["inet istio-ambient-nat", "inet istio-ambient-mangle"],
    };
    for (at, table) in tables.into_iter().enumerate() {
        let pod = fixture.captured_pod(&format!("pod-{at}"));
        let mut owner = own_table(&pod, table);
        let words = format!("nf_tables {table} is owned by another process");
        let name = format!("{MESH}/pod-{at}");
        fixture.within(MINUTE, table, |fixture| fixture.explain(&name).to_string().contains(&words));
        // Unused tables do not prevent a pod from being captured.
        if fixture.tables != Tables::Legacy {
            let is_named = |fixture: &mut InPod| {
                let verified = fixture.container.exec(&["verify"]);
                String::from_utf8_lossy(&verified.stdout).contains(&words)
                    && fixture.daemon().log().contains(&words)
            };
            fixture.within(MINUTE, table, is_named);
        }
        owner.kill().unwrap();
        let _ = owner.wait().unwrap();
        fixture.within(MINUTE, table, |fixture| {
            fixture.is_ruled(&pod) && fixture.explain(&name).code == "captured"
        });
    }
}
