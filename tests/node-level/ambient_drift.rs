//! Node-level capture: drift on the node is repaired at once.

use std::time::{Duration, Instant};

use crate::fixtures::ambient::{Ambient, MESH};

/// A change is noticed within 100 ms; the rest is for repairs that follow one another, and for a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// Of legacy tables the kernel counts no changes.
const LATER: Duration = Duration::from_secs(60);

/// Runs a command, or hands several lines to `ipset restore`.
fn damage_by(node: &kit::Netns, damage: &str) {
    let _ = if damage.contains('\n') { node.pipe("ipset restore", damage) } else { node.sh(damage) };
}

fn assert_repaired(tool: &str) {
    let mut fixture = Ambient::new(&[("FORCE_IPTABLES_BINARY", tool)]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "web");
    fixture.settle();
    let node = fixture.node.netns().clone();
    let before = fixture.state(&[&ztunnel]);
    let (ip, rules_limit) = (pod.ip(true), if tool == "nft" { SOON } else { LATER });
    let damages = [
        (format!("iptables-{tool} -t mangle -F ztunnel-PREROUTING"), rules_limit),
        (format!("ip6tables-{tool} -t mangle -D PREROUTING -j ztunnel-PREROUTING"), rules_limit),
        ("ipset flush ztunnel-pods-ips".to_owned(), SOON),
        (format!("ipset del ztunnel-pods-ips-v6 {ip}"), SOON),
        ("ipset add ztunnel-pods-ips 10.99.99.99".to_owned(), SOON),
        // The number of members stays.
        (format!("del ztunnel-pods-ips-v6 {ip}\nadd ztunnel-pods-ips-v6 fd99::99"), SOON),
        ("ip -6 rule del pref 100".to_owned(), SOON),
        ("ip route flush table 101".to_owned(), SOON),
        ("ip link set istioin0 down".to_owned(), SOON),
        ("ip link del istioout0".to_owned(), SOON),
    ];
    let mut repairs = 0.0;
    for (damage, limit) in &damages {
        damage_by(&node, damage);
        let began = Instant::now();
        repairs += 1.0;
        let is_repaired = |fixture: &mut Ambient| {
            let count = fixture.daemon().metric("istio_cni_ambient_repairs_total{place=\"node\"}");
            count.is_some_and(|count| count >= repairs)
        };
        fixture.within(*limit, &format!("{damage}\n{before}"), |fixture| {
            is_repaired(fixture) && fixture.state(&[&ztunnel]) == before
        });
        println!("{damage}: after {:?}", began.elapsed());
    }
    let kinds = ["firewall", "sets", "network"].map(|kind| {
        let count = format!("istio_cni_ambient_drift_repair_seconds_count{{kind=\"{kind}\"}}");
        fixture.daemon().metric(&count).unwrap_or_default()
    });
    // A pass that began for another reason may have been faster with some.
    assert!(kinds.iter().all(|count| *count >= 1.0) && kinds.iter().sum::<f64>() >= 5.0, "{kinds:?}");
}

#[test]
fn drift_on_the_node_is_repaired_at_once() {
    assert_repaired("nft");
}

#[test]
fn drift_on_the_node_is_repaired_with_legacy_tables_too_whose_rules_take_longer() {
    assert_repaired("legacy");
}

/// Whether the history names the process; once the rules are back.
fn is_named(env: &[(&str, &str)]) -> bool {
    let mut fixture = Ambient::new(env);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    let before = fixture.state(&[&ztunnel]);
    fixture.node.netns().sh("nft flush chain ip mangle ztunnel-PREROUTING");
    let history = |fixture: &Ambient| String::from_utf8(fixture.container.exec(&["history"]).stdout).unwrap();
    fixture.eventually("it is repaired", |fixture| {
        history(fixture).contains("drift") && fixture.state(&[&ztunnel]) == before
    });
    history(&fixture).contains("drift, changed by nft (process ")
}

#[test]
fn the_process_that_changes_the_nodes_rules_is_named_only_if_that_is_wanted() {
    assert!(is_named(&[("DRIFT_ATTRIBUTION", "node")]) && !is_named(&[]));
}
