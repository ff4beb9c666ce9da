//! In-pod capture: foreign changes are repaired, and a replaced network namespace is captured again.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::Echo;
use serde_json::Value;

use crate::fixtures::ambient::{MESH, PLAIN, PORT, dump_of};
use crate::fixtures::inpod::{IPTABLES, InPod};

/// Time within which all pods are observed.
const MINUTE: Duration = Duration::from_secs(60);
/// The kernel reports a change immediately; plus an allowance for a busy machine.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn what_others_change_in_a_pod_is_put_back_at_once() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[IPTABLES]);
    let damages: [(&str, &str); 8] = [
        ("a rule", "iptables-nft -t nat -D ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT"),
        ("a jump", "ip6tables-nft -t nat -D OUTPUT -j ISTIO_OUTPUT"),
        ("all rules", "nft flush ruleset"),
        ("the policy rule", "ip rule del pref 32764"),
        ("the route", "ip -6 route flush table 100"),
        ("another route instead", "ip route replace blackhole default table 100"),
        ("another route instead of IPv6's", "ip -6 route replace unreachable default table 100"),
        ("a rule before ours", "iptables-nft -t nat -I OUTPUT 1 -p tcp -j ACCEPT"),
    ];
    let peers: Vec<_> =
        damages.iter().enumerate().map(|(at, _)| fixture.mesh_pod(&format!("pod-{at}"))).collect();
    for peer in &peers {
        fixture.wait_captured(peer);
        peer.sandbox.netns.wait_until_addresses_are_usable(); // otherwise the dump has tentative addresses
    }
    let before: Vec<String> = peers.iter().map(|peer| dump_of(&peer.sandbox.netns)).collect();
    for ((_, damage), peer) in damages.iter().zip(&peers) {
        peer.sandbox.netns.sh(damage);
    }
    let began = Instant::now();
    for (((what, _), peer), before) in damages.iter().zip(&peers).zip(&before) {
        let is_back = || {
            let now = dump_of(&peer.sandbox.netns);
            // A foreign rule stays, after ours.
            let foreign = "-A OUTPUT -p tcp -j ACCEPT\n";
            let first = now
                .find("-A OUTPUT -j ISTIO_OUTPUT")
                .zip(now.find(foreign))
                .is_none_or(|(ours, theirs)| ours < theirs);
            first && now.replace(foreign, "") == *before
        };
        let netns = &peer.sandbox.netns;
        let described = std::fmt::from_fn(|f| write!(f, "{what}\n{}\n{}", dump_of(netns), fixture.log()));
        kit::until_within(SOON.saturating_sub(began.elapsed()), described, is_back);
    }
    println!("all were put right within {:?}", began.elapsed());
    let repairs = "istio_cni_ambient_repairs_total{place=\"pod\"}";
    // The repair is counted when the rules have been observed again.
    fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(repairs) == Some(8.0));
    // Each by a notification, those of firewall rules with the process that changed them.
    let counted = |daemon: &kit::Daemon| {
        ["firewall", "policy_rules", "routes"].map(|kind| {
            let count = format!("istio_cni_ambient_drift_repair_seconds_count{{kind=\"{kind}\"}}");
            daemon.metric(&count).unwrap_or_default()
        })
    };
    fixture.daemon().wait_for("so is each kind", |daemon| counted(daemon).iter().sum::<f64>() >= 8.0);
    let kinds = counted(fixture.daemon());
    assert_eq!(kinds.iter().sum::<f64>(), 8.0, "{kinds:?}");
    let lines = kit::log_lines(&fixture.log());
    let mut writers = lines.iter().filter_map(|line| line.field("writer"));
    assert!(kinds[0] >= 4.0 && writers.any(|writer| writer.starts_with("nft (process ")), "{kinds:?}");
}

/// The kernel has no generation for these; one of the changes leaves the table's size unchanged.
#[test]
fn what_others_change_in_legacy_tables_is_put_back_within_a_minute() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[("FORCE_IPTABLES_BINARY", "legacy")]);
    let peers: Vec<_> = (0..3).map(|at| fixture.mesh_pod(&format!("pod-{at}"))).collect();
    for peer in &peers {
        fixture.wait_captured(peer);
        peer.sandbox.netns.wait_until_addresses_are_usable(); // as above
    }
    let before: Vec<String> = peers.iter().map(|peer| dump_of(&peer.sandbox.netns)).collect();
    let chain = peers[0].sandbox.netns.sh("iptables-legacy -w -t nat -S ISTIO_OUTPUT");
    let accept = "-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT";
    let mark = chain.lines().position(|line| line == accept).unwrap();
    let damages = [
        format!(
            "iptables-legacy -w -t nat -R ISTIO_OUTPUT {mark} -p tcp -m mark --mark 0x112/0xfff -j ACCEPT"
        ),
        "ip6tables-legacy -w -t nat -D OUTPUT -j ISTIO_OUTPUT".to_owned(),
        "iptables-legacy -w -t mangle -F".to_owned(),
    ];
    for (damage, peer) in damages.iter().zip(&peers) {
        peer.sandbox.netns.sh(damage);
    }
    let began = Instant::now();
    for ((damage, peer), before) in damages.iter().zip(&peers).zip(&before) {
        let netns = &peer.sandbox.netns;
        let described = std::fmt::from_fn(|f| write!(f, "{damage}\n{}\n{}", dump_of(netns), fixture.log()));
        let left = MINUTE.saturating_sub(began.elapsed());
        kit::until_within(left, described, || dump_of(netns) == *before);
    }
    println!("all were put right within {:?}", began.elapsed());
    let repairs = "istio_cni_ambient_repairs_total{place=\"pod\"}";
    // The repair is counted when the rules have been observed again. Each shows that something was changed.
    fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(repairs) == Some(3.0));
}

#[test]
fn drift_on_the_node_is_repaired_at_once() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let peer = fixture.captured_pod("app");
    let (tool, ip) = (fixture.tables.iptables(), peer.ip(false));
    // The kernel has no generation for legacy tables.
    let rules_limit = if tool == "iptables-legacy" { MINUTE } else { SOON };
    let damages = [
        (format!("{tool} -w -t nat -F ISTIO_POSTRT"), rules_limit),
        (format!("{tool} -w -t nat -D POSTROUTING -j ISTIO_POSTRT"), rules_limit),
        (format!("ipset del istio-inpod-probes-v4 {ip}"), SOON),
        ("ipset flush istio-inpod-probes-v6".to_owned(), SOON),
        ("ipset add istio-inpod-probes-v4 10.99.99.99".to_owned(), SOON),
        // The number of members does not change.
        (format!("del istio-inpod-probes-v4 {ip}\nadd istio-inpod-probes-v4 10.99.99.99"), SOON),
    ];
    let before = node_state(&fixture);
    for (damage, limit) in &damages {
        let node = fixture.node.netns();
        let _ = if damage.contains('\n') { node.pipe("ipset restore", damage) } else { node.sh(damage) };
        let began = Instant::now();
        fixture.within(*limit, damage, |fixture| node_state(fixture) == before);
        println!("{damage}: after {:?}", began.elapsed());
    }
    let count = |kind| format!("istio_cni_ambient_drift_repair_seconds_count{{kind=\"{kind}\"}}");
    // A regular observation may have detected some of them first.
    for kind in ["firewall", "sets"] {
        let metric = count(kind);
        fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(&metric) >= Some(1.0));
    }
}

/// The rules and sets for the node's probes.
fn node_state(fixture: &InPod) -> String {
    let tool = fixture.tables.iptables();
    let node = fixture.node.netns();
    let rules = node.sh(&format!("{tool}-save -t nat"));
    let is_ours = |line: &&str| line.split(' ').any(|word| word.trim_start_matches(':') == "ISTIO_POSTRT");
    let ours = rules.lines().filter(is_ours);
    let mut sets: Vec<String> = Vec::new();
    for set in ["v4", "v6"] {
        let members = node.sh(&format!("ipset save istio-inpod-probes-{set}"));
        sets.extend(members.lines().filter(|line| line.starts_with("add")).map(str::to_owned));
    }
    sets.sort();
    ours.map(str::to_owned).chain(sets).collect::<Vec<_>>().join("\n")
}

/// The sandbox of a living pod was recreated without a notification.
#[test]
fn a_namespace_that_is_replaced_is_captured_again() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let first = fixture.running_pod(MESH, "app");
    fixture.wait_served(&ztunnel, &first);
    // Processes of the pod in other namespaces do not mislead the agent.
    let other = fixture.running_pod(PLAIN, "other");
    let _ = fixture.processes.add(&first.sandbox.pod.uid, &other.sandbox.netns);
    // From now on the pod, unchanged in the API, has another namespace and another address.
    let sandbox = fixture.node.pod(kit::Pod::new(MESH, "elsewhere"), &[]);
    let second = crate::fixtures::ambient::Peer::new(sandbox);
    let uid = first.sandbox.pod.uid.clone();
    fixture.manifests.put_pod(&first.sandbox.pod.manifest(&second.sandbox.ips()));
    fixture.processes.remove(102); // ztunnel has 101
    let _ = fixture.processes.add(&uid, &second.sandbox.netns);
    let began = Instant::now();
    fixture.within(MINUTE, "it is captured again", |fixture| fixture.is_ruled(&second));
    println!("it was found within {:?}", began.elapsed());
    fixture.wait_logged("pod has another network namespace; capturing it again", "pod=app");
    fixture.eventually("ztunnel serves it there", |_| {
        second.tcp((fixture.node.outside_ip(false), PORT).into()).is_ok()
            && ztunnel.seen().iter().any(|one| one.src.ip() == second.ip(false))
    });
    assert!(fixture.is_bare(&other));
    assert_eq!(ztunnel.protocol_error(), None);
}

/// Processes in ten pods that make transactions without a pause, none of which concerns our rules: at most 2 % of a core in a
/// release build. The rules of one of these pods that lost some are restored nevertheless.
#[test]
fn ten_pods_that_write_without_a_pause_cost_little() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[IPTABLES]);
    let peers: Vec<_> = (0..10).map(|at| fixture.running_pod(MESH, &format!("pod-{at}"))).collect();
    for peer in &peers {
        fixture.wait_served(&ztunnel, peer);
        fixture.wait_captured(peer);
    }
    let transactions = "yes 'add table ip zz; delete table ip zz' | timeout 45 nice -n 19 nft -i >/dev/null";
    thread::scope(|scope| {
        for peer in &peers {
            let netns = peer.sandbox.netns.second_handle();
            scope
                .spawn(move || netns.run(|| Command::new("sh").args(["-c", transactions]).status().unwrap()));
        }
        thread::sleep(Duration::from_secs(15)); // the first observations, which are still fast
        let (before, began) = (fixture.daemon().cpu_time(), Instant::now());
        thread::sleep(Duration::from_secs(20)); // the measurement itself
        let cpu = (fixture.daemon().cpu_time() - before).as_secs_f64() / began.elapsed().as_secs_f64();
        println!("{:.2} % of a core", cpu * 100.0);
        assert!(cpu < 0.05, "{cpu}");
        peers[0].sandbox.netns.sh("ip rule del pref 32764");
        fixture.within(SOON, "it is captured again", |fixture| fixture.is_ruled(&peers[0]));
    });
}

/// A process in a pod that removes rules without a pause, mostly before the agent has observed the restored ones.
#[test]
fn a_writer_that_is_faster_than_the_agent_meets_a_pause_and_is_reported_as_drift() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[IPTABLES]);
    let peer = fixture.running_pod(MESH, "app");
    fixture.wait_served(&ztunnel, &peer);
    fixture.wait_captured(&peer);
    let cpu = fixture.daemon().cpu_time();
    let ends = AtomicBool::new(false);
    let pod = format!("{MESH}/app");
    let changes = |fixture: &InPod| {
        let shown = fixture.container.exec(&["history", &pod, "-o", "json"]);
        serde_json::from_slice::<Vec<Value>>(&shown.stdout).unwrap()
    };
    let uncaptured = thread::scope(|scope| {
        for _ in 0..2 {
            let (ends, netns) = (&ends, peer.sandbox.netns.second_handle());
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    netns.sh("nft flush ruleset");
                }
            });
        }
        thread::sleep(Duration::from_secs(20)); // the attack itself
        let mut in_state = |state: &str| {
            let series = format!("istio_cni_mesh_pods{{redirection=\"ambient\",state=\"{state}\"}}");
            fixture.daemon().metric(&series).unwrap_or_default()
        };
        // Once it has been restored often enough, and while the attack goes on.
        let is_uncaptured = || in_state("pending") + in_state("unknown") >= 1.0;
        let uncaptured = kit::found_within(SOON, is_uncaptured).is_some();
        ends.store(true, Ordering::Relaxed);
        uncaptured
    });
    let cpu = fixture.daemon().cpu_time() - cpu;
    println!("{cpu:?} of CPU\n{:#?}", changes(&fixture));
    assert!(uncaptured, "{}", fixture.log());
    assert!(cpu < Duration::from_secs(2), "{cpu:?}");
    fixture.within(SOON, "it is captured again", |fixture| fixture.is_ruled(&peer));
    fixture.within(MINUTE, "it stays so", |fixture| fixture.explain(&pod).code == "captured");
    let of = |what: &str| {
        let is = |change: &&Value| {
            change["cause"] == what
                || change["action"].as_str().is_some_and(|action| action.starts_with(what))
        };
        changes(&fixture).iter().filter(is).count()
    };
    assert_eq!(of("joined the mesh"), 1);
    let is_undone = |change: &Value| change["cause"] == "drift" && change["error"] == "removed again at once";
    assert!(changes(&fixture).iter().any(is_undone), "{:#?}", changes(&fixture));
}

#[test]
fn a_dormant_table_of_the_nodes_probes_is_reported() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[IPTABLES]);
    let _pod = fixture.captured_pod("web");
    let node = fixture.node.netns().clone();
    let _ = node.sh("nft add table ip nat { flags dormant ; }");
    let why = "nf_tables ip nat is dormant, so the kernel does not evaluate our rules there";
    let problem = format!("the node's probes are not exempt: {why}");
    let shown = |fixture: &InPod| {
        let state: Value =
            serde_json::from_slice(&fixture.container.exec(&["state", "-o", "json"]).stdout).unwrap();
        state["node"]["problem"].clone()
    };
    kit::until_within(SOON, "it is reported", || shown(&fixture) == problem.as_str());
    let _ = node.sh("nft add table ip nat");
    kit::until_within(SOON, "it is over", || shown(&fixture).is_null());
}

#[test]
fn a_repair_of_the_probe_sets_is_in_the_history() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[IPTABLES]);
    let _pod = fixture.captured_pod("web");
    fixture.node.netns().sh("ipset flush istio-inpod-probes-v4");
    kit::until_within(SOON, "the repair is in the history", || {
        let history = fixture.container.exec(&["history", "-o", "json"]).stdout;
        let history: Vec<Value> = serde_json::from_slice(&history).unwrap();
        let repair = "restored: 1 addresses added to sets, and 0 removed";
        history.iter().any(|change| change["action"] == repair)
    });
}
