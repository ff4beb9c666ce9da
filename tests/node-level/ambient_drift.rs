//! Node-level capture: drift on the node, and in a ztunnel's network namespace, is repaired immediately.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kit::{NodeOptions, Pod};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH};

/// A change is detected within 100 ms; the rest is for consecutive repairs, and for a busy machine. The agent observes everything
/// every 30 s anyway.
const SOON: Duration = Duration::from_secs(20);
/// The kernel has no generation for legacy tables.
const LATER: Duration = Duration::from_secs(60);

/// Another link has the name of ours.
const REPLACED_LINK: &str =
    "link del istioout0\nlink add istioout0 type veth peer name other\nlink set istioout0 up";

/// Runs a command, or passes several lines about links to `ip`, and others to `ipset restore`.
fn damage_by(node: &kit::Netns, damage: &str) {
    let _ = match damage.contains('\n') {
        true if damage.starts_with("link") => node.pipe("ip -batch -", damage),
        true => node.pipe("ipset restore", damage),
        false => node.sh(damage),
    };
}

fn assert_repaired(tool: &str) {
    let mut fixture = Ambient::new(&[("FORCE_IPTABLES_BINARY", tool)]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "web");
    fixture.settle();
    let (node, inside) = (fixture.node.netns().clone(), &ztunnel.pod().netns);
    // Otherwise the kernel notices the carrier of the links later, and changes the state.
    [&*node, inside].into_iter().for_each(kit::Netns::wait_until_addresses_are_usable);
    let before = fixture.state(&[&ztunnel]);
    let (ip, rules_limit) = (pod.ip(true), if tool == "nft" { SOON } else { LATER });
    let damages = [
        (&*node, format!("iptables-{tool} -w -t mangle -F ztunnel-PREROUTING"), rules_limit),
        (&node, format!("ip6tables-{tool} -w -t mangle -D PREROUTING -j ztunnel-PREROUTING"), rules_limit),
        (&node, "ipset flush ztunnel-pods-ips".to_owned(), SOON),
        (&node, format!("ipset del ztunnel-pods-ips-v6 {ip}"), SOON),
        (&node, "ipset add ztunnel-pods-ips 10.99.99.99".to_owned(), SOON),
        // The number of members does not change.
        (&node, format!("del ztunnel-pods-ips-v6 {ip}\nadd ztunnel-pods-ips-v6 fd99::99"), SOON),
        (&node, "ip -6 rule del pref 100".to_owned(), SOON),
        (&node, "ip route flush table 101".to_owned(), SOON),
        (&node, "ip link set istioin0 down".to_owned(), SOON),
        (&node, "ip link del istioout0".to_owned(), SOON),
        (&node, REPLACED_LINK.to_owned(), SOON),
        (inside, format!("iptables-{tool} -w -t mangle -F"), rules_limit),
        (inside, format!("ip6tables-{tool} -w -t mangle -F"), rules_limit),
        (inside, "ip -6 rule del pref 20000".to_owned(), SOON),
        (inside, "ip route flush table 100".to_owned(), SOON),
        (inside, "ip link set pistioin down".to_owned(), SOON),
        (inside, "ip -4 address flush dev pistioout".to_owned(), SOON),
    ];
    let mut repairs = 0.0;
    for (netns, damage, limit) in &damages {
        // The agent observes all lines together: otherwise its repair of the first could make the next one fail.
        stop_agent(&mut fixture);
        damage_by(netns, damage);
        fixture.daemon().signal(rustix::process::Signal::CONT);
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
    let failed = "istio_cni_ambient_plan_steps_total{kind=\"create-links\",result=\"failure\"}";
    assert_eq!(fixture.daemon().metric(failed), None, "{}", fixture.log());
    let kinds = ["firewall", "sets", "network"].map(|kind| {
        let count = format!("istio_cni_ambient_drift_repair_seconds_count{{kind=\"{kind}\"}}");
        fixture.daemon().metric(&count).unwrap_or_default()
    });
    // A pass that began for another reason may have detected some of them first.
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

#[test]
fn a_watched_namespace_ends_with_its_ztunnel_and_takes_the_links_along() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    fixture.settle();
    // Only the kernel shows it: no component notifies the agent that the pod has ended.
    ztunnel.delete();
    let is_there = |fixture: &Ambient| {
        let found = fixture.node.netns().output(Command::new("ip").args(["link", "show", "istioin0"]));
        found.status.success()
    };
    fixture.within(SOON, "the link is gone", |fixture| !is_there(fixture));
}

/// Whether the history names the process, once the rules are restored.
fn is_named(env: &[(&str, &str)]) -> bool {
    let mut fixture = Ambient::new(env);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    fixture.wait_quiet();
    let before = fixture.state(&[&ztunnel]);
    let repairs = |fixture: &Ambient| {
        let count = "istio_cni_ambient_repairs_total{place=\"node\"}";
        fixture.daemon.as_ref().unwrap().metric(count).unwrap_or_default()
    };
    let history = |fixture: &Ambient| String::from_utf8(fixture.container.exec(&["history"]).stdout).unwrap();
    // A pass in progress finds the change before the kernel's notification is read, and cannot name the process.
    (0..3).any(|_| {
        let earlier = repairs(&fixture);
        fixture.node.netns().sh("nft flush chain ip mangle ztunnel-PREROUTING");
        fixture.eventually("it is repaired", |fixture| {
            let changes = fixture.container.exec(&["history", "-o", "json"]).stdout;
            let changes: Vec<Value> = serde_json::from_slice(&changes).unwrap();
            let mut causes = changes.iter().filter_map(|change| change["cause"].as_str()?.split(", ").next());
            let is_drift = causes.any(|cause| cause == "drift");
            is_drift && repairs(fixture) > earlier && fixture.state(&[&ztunnel]) == before
        });
        history(&fixture).contains("drift, changed by nft (process ")
    })
}

#[test]
fn the_process_that_changes_the_nodes_rules_is_named_only_if_that_is_wanted() {
    assert!(is_named(&[("DRIFT_ATTRIBUTION", "node")]) && !is_named(&[]));
}

/// Gauges do not keep their last value.
#[test]
fn pods_are_unknown_while_passes_fail() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "web");
    fixture.wait_enrolled(&pod, true);
    let counted = |fixture: &Ambient, state: &str| {
        let sample = format!("istio_cni_mesh_pods{{redirection=\"ambient\",state=\"{state}\"}}");
        fixture.daemon.as_ref().unwrap().metric(&sample)
    };
    fixture.eventually("it is counted", |fixture| counted(fixture, "captured") == Some(1.0));
    // No other process can change a table with an owner.
    let mut nft = Command::new("nft");
    nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null());
    let mut owner = fixture.node.netns().run(|| nft.spawn().unwrap());
    let change = "delete table ip mangle; add table ip mangle { flags owner; }\n";
    owner.stdin.as_mut().unwrap().write_all(change.as_bytes()).unwrap();
    fixture.eventually("it is unknown", |fixture| {
        (counted(fixture, "unknown"), counted(fixture, "captured")) == (Some(1.0), Some(0.0))
    });
    // A former object proves nothing about a pod that starts now.
    let late = fixture.add(Pod::new(MESH, "late"), &fixture.node.conflist(&[fixture.plugin()]));
    assert!(late.is_err());
    owner.kill().unwrap();
    let _ = owner.wait().unwrap();
    fixture.eventually("it is captured", |fixture| counted(fixture, "captured") == Some(1.0));
}

/// Stops all threads of the agent.
fn stop_agent(fixture: &mut Ambient) {
    fixture.daemon().signal(rustix::process::Signal::STOP);
    let tasks = format!("/proc/{}/task", fixture.daemon().pid());
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat"));
        // One that was about to end may have ended.
        stat.map_or(true, |stat| stat.rsplit_once(") ").unwrap().1.starts_with('T'))
    };
    kit::until("every thread is stopped", || {
        std::fs::read_dir(&tasks).unwrap().all(|task| is_stopped(task.unwrap()))
    });
}

#[test]
fn policy_rules_that_were_all_removed_are_restored_beside_a_foreign_one() {
    const FOREIGN: &str = "ip rule add pref 100 fwmark 0x1 lookup 77";
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    let node = fixture.node.netns().clone();
    let _ = node.sh(FOREIGN);
    fixture.wait_quiet();
    let before = fixture.state(&[&ztunnel]);
    let remove_ours = || {
        for family in ["-4", "-6"] {
            let _ = node.sh(&format!("ip {family} rule flush"));
            let _ = node.sh(&format!("ip {family} rule add pref 32766 lookup main"));
        }
        let _ = node.sh("ip rule add pref 32767 lookup default");
        let _ = node.sh(FOREIGN);
    };
    // The agent observes nothing before all of them are gone.
    stop_agent(&mut fixture);
    remove_ours();
    fixture.daemon().signal(rustix::process::Signal::CONT);
    fixture.within(SOON, &before, |fixture| fixture.state(&[&ztunnel]) == before);
    drop(fixture.daemon.take());
    remove_ours();
    fixture.start();
    fixture.within(SOON, &before, |fixture| fixture.state(&[&ztunnel]) == before);
}

/// Its connections would be routed over the links of another slot.
#[test]
fn a_ztunnel_keeps_its_slot_although_the_routes_that_show_it_were_removed() {
    let mut fixture = Ambient::new(&[]);
    let first = fixture.ztunnel("ztunnel-a");
    let second = fixture.ztunnel("ztunnel-b");
    first.delete();
    fixture.manifests.remove_pod("istio-system", "ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    fixture.wait_quiet();
    let before = fixture.state(&[&second]);
    // The agent observes nothing before the routes of both families are gone.
    stop_agent(&mut fixture);
    for family in ["-4", "-6"] {
        let _ = fixture.node.netns().sh(&format!("ip {family} route flush table 131"));
    }
    assert_ne!(fixture.state(&[&second]), before);
    fixture.daemon().signal(rustix::process::Signal::CONT);
    fixture.within(SOON, &before, |fixture| fixture.state(&[&second]) == before);
}

/// Puts a directory in the place of a file, so that no file can replace it, even by root.
fn block_file(file: &Path) {
    std::fs::rename(file, file.with_extension("aside")).unwrap();
    std::fs::create_dir(file).unwrap();
}

#[test]
fn drift_is_repaired_at_once_while_another_problem_persists() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "web");
    fixture.settle();
    block_file(&fixture.config_file());
    let repair = |fixture: &mut Ambient| {
        let began = Instant::now();
        fixture.node.netns().sh("ipset flush ztunnel-pods-ips");
        fixture.within(SOON, "it is repaired", |fixture| fixture.has_member(pod.ip(false)));
        began.elapsed()
    };
    repair(&mut fixture);
    fixture.wait_logged("reconcile failed", "config.json: it is a directory");
    std::thread::sleep(Duration::from_secs(8)); // until passes are repeated every 5 s only
    let mut times = [(); 4].map(|()| repair(&mut fixture));
    times.sort();
    // At intervals of 5 s, three of them would take that long; a busy machine delays single ones.
    assert!(times[1] < Duration::from_secs(3), "{times:?}");
    println!("{times:?}");
    assert!(!fixture.daemon().is_ready());
}

#[test]
fn a_repair_that_failed_at_first_is_counted_as_one_of_drift() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    fixture.wait_quiet();
    let before = fixture.state(&[&ztunnel]);
    let journal = fixture.node.run_dir().join("settings-before.json");
    block_file(&journal);
    fixture.node.netns().sh("nft flush chain ip mangle ztunnel-PREROUTING");
    fixture.wait_logged("reconcile failed", "cannot keep the journal");
    // Meanwhile the agent notices the change, also if a pass in progress has found it before.
    let is_damaged = || fixture.state(&[&ztunnel]) != before;
    kit::holds_for(Duration::from_secs(1), "it is not repaired", is_damaged);
    std::fs::remove_dir(&journal).unwrap();
    std::fs::rename(journal.with_extension("aside"), &journal).unwrap();
    fixture.within(SOON, "it is repaired", |fixture| fixture.state(&[&ztunnel]) == before);
    let count = "istio_cni_ambient_drift_repair_seconds_count{kind=\"firewall\"}";
    fixture.within(SOON, "it is counted", |fixture| fixture.daemon().metric(count) == Some(1.0));
}

/// Nothing of ours is there yet, so the numbers are the other component's.
#[test]
fn priorities_of_another_component_are_refused() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
    let node = fixture.node.netns().clone();
    let _ = node.sh("ip rule add pref 100 fwmark 0x1 lookup 77");
    let _ = node.sh("ip rule add pref 100 lookup local"); // no conflict
    fixture.daemon = Some(fixture.container.start_with(&fixture.arguments, &[]));
    fixture.wait_said("other components use what the node path needs (1 objects, the first: rule 100:");
    assert!(!fixture.daemon().is_ready());
    let _ = node.sh("ip rule del pref 100 fwmark 0x1");
    fixture.daemon().wait_for("it is applied", |daemon| daemon.is_ready());
}

/// Returns a transaction that replaces the built-in chain of the node's rules in `filter` with one that has the same jump.
fn replaced_forward(chain: &str) -> String {
    let chain_name = "chain ip filter FORWARD";
    let jump = "ip filter FORWARD meta mark & 0x3000 != 0 counter jump ztunnel-FORWARD";
    format!("nft flush {chain_name} ; delete {chain_name} ; add {chain_name} {chain} ; add rule {jump}")
}

/// No object of ours is changed, so nothing is repaired.
fn assert_overruled(cases: &[(&str, &str, &str)]) {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "web");
    fixture.wait_enrolled(&pod, true);
    let node = fixture.node.netns().clone();
    let counted = |fixture: &mut Ambient, state: &str| {
        let sample = format!("istio_cni_mesh_pods{{redirection=\"ambient\",state=\"{state}\"}}");
        fixture.daemon().metric(&sample) == Some(1.0)
    };
    for (damage, undo, reason) in cases {
        fixture.within(SOON, "it is captured", |fixture| counted(fixture, "captured"));
        let _ = node.sh(damage);
        fixture.within(SOON, &format!("{damage}: it bypasses the mesh"), |fixture| {
            counted(fixture, "bypassing")
                && fixture.daemon().metric("istio_cni_ambient_overruled_pods") == Some(1.0)
        });
        let explained = fixture.explain("mesh/web");
        let (code, message) = (explained.code.as_str(), explained.message);
        assert!(code == "overruled" && message.ends_with(&format!(" ({reason}).")), "{code}: {message}");
        assert_eq!(fixture.container.exec(&["list", "--bypassing"]).status.code(), Some(1));
        let _ = node.sh(undo);
    }
    fixture.within(SOON, "it is captured", |fixture| {
        counted(fixture, "captured") && fixture.daemon().is_ready()
    });
}

#[test]
fn pods_bypass_the_mesh_while_the_kernel_does_not_evaluate_the_nodes_rules() {
    let unhook = replaced_forward("");
    let hook = replaced_forward("{ type filter hook forward priority 0 ; }");
    assert_overruled(&[
        (
            "nft add table ip mangle { flags dormant ; }",
            "nft add table ip mangle",
            "nf_tables ip mangle is dormant, so the kernel does not evaluate our rules there",
        ),
        (
            &unhook,
            &hook,
            "nf_tables ip filter FORWARD is not at its hook, so the kernel does not evaluate our rules there",
        ),
    ]);
}

#[test]
fn pods_bypass_the_mesh_while_policy_rules_or_routes_of_others_precede_ours() {
    assert_overruled(&[
        (
            // As WireGuard's wg-quick creates it: before all rules except the one for local addresses.
            "ip rule add lookup main suppress_prefixlength 0",
            "ip rule del lookup main suppress_prefixlength 0",
            "rule 99: from all lookup main suppress_prefixlength 0",
        ),
        ("ip rule add pref 5 lookup main", "ip rule del pref 5", "rule 5: from all lookup main"),
        (
            "ip route add default dev lo table 101 metric 1",
            "ip route del default dev lo table 101 metric 1",
            "route default dev lo table 101 metric 1",
        ),
        (
            // With the metric of ours, which stays behind it.
            "ip route prepend default dev lo table 101 metric 1024",
            "ip route del default dev lo table 101 metric 1024",
            "route default dev lo table 101 metric 1024",
        ),
        (
            "ip route add 198.51.100.0/24 dev lo table 101",
            "ip route del 198.51.100.0/24 dev lo table 101",
            "route 198.51.100.0/24 dev lo table 101",
        ),
    ]);
}

#[test]
fn the_history_names_pods_whose_addresses_were_added_or_removed() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let [pod, other] = ["web", "other"].map(|name| fixture.pod(MESH, name));
    fixture.settle();
    let history = |fixture: &Ambient, pod: &str| -> Vec<(String, String)> {
        let changes = fixture.container.exec(&["history", pod, "-o", "json"]).stdout;
        let changes: Vec<Value> = serde_json::from_slice(&changes).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        // Where a pass adds it, because rules have just changed, its causes are `ADD of mesh/web` and facts that came with it.
        let cause = |change: &Value| {
            let causes = text(&change["cause"]).replace(&format!(" of {pod}"), "");
            if causes.split(", ").any(|one| one == "ADD") { "ADD".to_owned() } else { causes }
        };
        changes.iter().map(|change| (cause(change), text(&change["action"]))).collect()
    };
    let added = |ips: &str| format!("added to the sets of captured addresses: {ips}");
    let ips = format!("{}, {}", pod.ip(false), pod.ip(true));
    assert_eq!(history(&fixture, "mesh/web"), [("ADD".to_owned(), added(&ips))]);
    fixture.node.netns().sh(&format!("ipset del ztunnel-pods-ips {}", other.ip(false)));
    fixture.within(SOON, "the repair is in its history", |fixture| {
        let repair = ("drift".to_owned(), added(&other.ip(false).to_string()));
        history(fixture, "mesh/other").last() == Some(&repair)
    });
    fixture.restart();
    let since = |fixture: &Ambient| {
        let state = fixture.container.exec(&["state", "-o", "json"]).stdout;
        let state: Value = serde_json::from_slice(&state).unwrap();
        let of_pod = |pod: &Value| (pod["name"] == "web").then(|| pod["lastTransitionTime"].clone());
        state["pods"].as_array().unwrap().iter().find_map(of_pod)
    };
    assert_eq!((fixture.explain("mesh/web").code.as_str(), since(&fixture)), ("captured", Some(Value::Null)));
}

#[test]
fn a_pod_that_starts_while_a_repair_is_delayed_is_captured_at_once() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    let node = fixture.node.netns().clone();
    let is_whole = || node.sh("iptables-nft -t mangle -S ztunnel-PREROUTING").lines().count() > 1;
    let repairs = |fixture: &mut Ambient| {
        let count = "istio_cni_ambient_drift_repair_seconds_count{kind=\"firewall\"}";
        fixture.daemon().metric(count).unwrap_or_default()
    };
    let (mut before, mut took) = (0.0, Duration::ZERO);
    // Each pause between two repairs is twice as long as the one before.
    fixture.within(LATER, "a repair is delayed", |fixture| {
        before = repairs(fixture);
        let began = Instant::now();
        node.sh("nft flush chain ip mangle ztunnel-PREROUTING");
        // Meanwhile the agent notices it. On a busy machine, the repair before may have been slow without a pause.
        let meanwhile = Duration::from_millis(300);
        if took > Duration::from_secs(1) && kit::found_within(meanwhile, is_whole).is_none() {
            return true;
        }
        fixture.within(SOON, "it is repaired", |_| is_whole());
        took = began.elapsed();
        false
    });
    let _late = fixture.pod(MESH, "late");
    assert!(is_whole(), "{}", fixture.dump());
    fixture.within(SOON, "it is counted as drift", |fixture| repairs(fixture) > before);
}

/// Between two polls of the agent, the rules are restored and damaged again, so that both show the same.
#[test]
fn damage_that_is_repeated_right_after_its_repair_is_noticed() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    fixture.wait_quiet();
    let node = fixture.node.netns().clone();
    let is_whole = || node.sh("iptables-nft -t mangle -S ztunnel-PREROUTING").lines().count() > 1;
    let count = "istio_cni_ambient_drift_repair_seconds_count{kind=\"firewall\"}";
    // Repairs of damage that only the clock has found do not count; on a busy machine, it finds some of them first.
    for _ in 0..8 {
        if fixture.daemon().metric(count) >= Some(5.0) {
            break;
        }
        node.sh("nft flush chain ip mangle ztunnel-PREROUTING");
        fixture.within(LATER, "it is repaired", |_| is_whole());
    }
    fixture.within(SOON, "five were noticed", |fixture| fixture.daemon().metric(count) >= Some(5.0));
}

#[test]
fn an_add_right_after_a_change_waits_for_its_repair() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "web");
    fixture.settle();
    let socket = fixture.node.run_dir().join("agent.sock");
    let uid = &pod.sandbox.pod.uid;
    let request = json!({
        "verb": "add", "namespace": MESH, "name": "web", "uid": uid, "container": "c2", "ips": pod.sandbox.ips(),
    });
    // The agent has noticed the change in time in a few of these cases at most.
    for _ in 0..10 {
        fixture.node.netns().sh("ip link del istioin0");
        let mut client = UnixStream::connect(&socket).unwrap();
        writeln!(client, "{request}").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&answer["enrolled"], &answer["error"]), (&json!(true), &Value::Null));
    }
}

#[test]
fn a_process_that_removes_the_nodes_rules_again_and_again_makes_the_pods_pending() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    let node = fixture.node.netns().clone();
    let is_repaired = || node.sh("iptables-nft -t mangle -S ztunnel-PREROUTING").lines().count() > 1;
    fixture.within(LATER, "it is pending", |fixture| {
        node.sh("nft flush chain ip mangle ztunnel-PREROUTING");
        fixture.within(SOON, "it is repaired", |_| is_repaired());
        fixture.explain("mesh/web").code == "unstable"
    });
    fixture.within(LATER, "it is captured", |fixture| fixture.explain("mesh/web").code == "captured");
}
