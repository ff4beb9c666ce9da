//! Running pods whose rules are missing: at the agent's start, and later.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use kit::{Echo, Live, LiveConnections, Pod, PodSandbox, Proto, Serve, UserNetns};

use super::{
    in_place::{ProcessNode, answered_by, dual_stack, rules_of},
    *,
};

fn rules(daemon: &Daemon, result: &str) -> f64 {
    daemon
        .metric(&format!(r#"istio_cni_repair_sidecar_rules_total{{result="{result}"}}"#))
        .unwrap_or_default()
}

/// Waits for the result of the next observation of the rules, which may be half a minute away.
fn wait_for_pass(daemon: &Daemon, what: &str, holds: impl Fn(&Daemon) -> bool) {
    let described = std::fmt::from_fn(|f| write!(f, "{what}:\n{}", daemon.log()));
    kit::until_within(Duration::from_secs(60), described, || holds(daemon));
}

fn sidecar_in(sandbox: &PodSandbox) -> Echo {
    Echo::start(&sandbox.netns, &Serve::new(Proto::Tcp, 15001).named("sidecar").owned_by(1337, 1337))
}

fn flush(sandbox: &PodSandbox, kind: &str) {
    if kind == "nft" {
        // In one transaction: between several the agent would restore rules.
        sandbox.netns.sh("nft flush ruleset");
        return;
    }
    for tool in [format!("iptables-{kind}"), format!("ip6tables-{kind}")] {
        for action in ["-F", "-X"] {
            sandbox.netns.sh(&format!("{tool} -w -t nat {action}")); // other tests share the lock
        }
    }
}

/// From the agent's start on, in both families and in tables of either kind.
#[test]
fn rules_that_are_missing_are_restored_at_the_start_and_whenever_they_are_removed() {
    let Some(own) = ProcessNode::start("repair-running") else { return };
    let node = &own.node;
    let _service = Echo::start(node.0.node.outside(), &Serve::new(Proto::Tcp, 8080).named("service"));
    let pods = [("nft", 11), ("legacy", 12)].map(|(kind, pid)| {
        let sandbox = own.add(kind, pid, "Running", |pod| dual_stack(pod, true));
        if kind == "legacy" {
            for tool in ["iptables-legacy", "ip6tables-legacy"] {
                sandbox.netns.sh(&format!("{tool} -w -t nat -N OTHERS"));
            }
        }
        let server = sidecar_in(&sandbox);
        (kind, sandbox, server)
    });
    let targets = [false, true].map(|v6| SocketAddr::new(node.0.node.outside_ip(v6), 8080));
    let answers = |sandbox| targets.map(|target| answered_by(sandbox, target));
    for (kind, sandbox, _) in &pods {
        assert_eq!(answers(sandbox), ["service", "service"], "{kind}: nobody redirects it");
    }
    let mut daemon = node.0.daemon();
    daemon.wait_for("both are redirected", |daemon| rules(daemon, "success") == 2.0);
    for (kind, sandbox, _) in &pods {
        assert_eq!(answers(sandbox), ["sidecar", "sidecar"], "{kind}");
        let uid = json!(sandbox.pod.uid);
        kit::until("it is told", || node.events(&uid, "SidecarRulesRestored").len() == 1);
    }
    // The kernel reports a change of nf_tables immediately; changes of legacy tables are found by polling.
    let [(_, of_nft, _), (_, of_legacy, _)] = &pods;
    flush(of_nft, "nft");
    let began = Instant::now();
    wait_for_pass(&daemon, "it is redirected again", |daemon| rules(daemon, "success") == 3.0);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    println!("restored after {:?} at most", began.elapsed());
    let drift = r#"istio_cni_repair_sidecar_drift_seconds_count{kind="firewall"}"#;
    assert_eq!(daemon.metric(drift), Some(1.0), "{}", daemon.log());
    let name = format!("{}/{}", of_nft.pod.namespace, of_nft.pod.name);
    let changes = || {
        let told = node.0.container.exec(&["history", &name, "-o", "json"]);
        serde_json::from_slice::<Vec<Value>>(&told.stdout).unwrap_or_default()
    };
    let is_known = |change: &Value| {
        let what = change["action"].as_str().unwrap_or_default();
        change["cause"] == "drift"
            && what.contains("ISTIO_OUTPUT")
            && what.contains("; changed by nft (process ")
    };
    let what = std::fmt::from_fn(|f| write!(f, "the history names the process: {:#?}", changes()));
    kit::until(what, || changes().iter().any(is_known));
    flush(of_legacy, "legacy");
    wait_for_pass(&daemon, "both are redirected again", |daemon| rules(daemon, "success") == 4.0);
    for (kind, sandbox, _) in &pods {
        assert_eq!(answers(sandbox), ["sidecar", "sidecar"], "{kind}");
    }
    // The next agent finds everything in place.
    let before = pods.each_ref().map(|(_, sandbox, _)| rules_of(sandbox));
    drop(daemon);
    let daemon = node.0.daemon();
    let late = own.add("late", 13, "Running", |_| {});
    wait_for_pass(&daemon, "a pass has ended", |daemon| rules(daemon, "success") == 1.0);
    assert!(kit::plugin_rules::is_redirected(&late.netns, "iptables-save"));
    assert_eq!(pods.each_ref().map(|(_, sandbox, _)| rules_of(sandbox)), before);
    assert_eq!(rules(&daemon, "fail"), 0.0);
    node.assert_allowed();
}

/// Whichever rule was removed, in either family.
#[test]
fn each_kind_of_drift_is_repaired_at_once() {
    let Some(own) = ProcessNode::start("repair-kinds-of-drift") else { return };
    let redirect = own.add("redirect", 11, "Running", |pod| dual_stack(pod, true));
    let tproxy = own.add("tproxy", 12, "Running", |pod| {
        pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("TPROXY");
        dual_stack(pod, true);
    });
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("both are redirected", |daemon| rules(daemon, "success") == 2.0);
    let state = |sandbox: &PodSandbox| {
        let network = [
            "ip rule",
            "ip -6 rule",
            "ip route show table all",
            "ip -6 route show table all",
            "ip -6 address",
        ];
        [rules_of(sandbox), network.map(|command| sandbox.netns.sh(command)).to_vec()].concat()
    };
    let damages = [
        (&redirect, "nft flush chain ip nat ISTIO_OUTPUT"),
        (&redirect, "iptables-nft -t nat -D ISTIO_REDIRECT 1"),
        (&redirect, "ip6tables-nft -t nat -D PREROUTING -p tcp -j ISTIO_INBOUND"),
        (&redirect, "nft flush ruleset"),
        (&redirect, "ip -6 address del ::6/128 dev lo"),
        (&tproxy, "iptables-nft -t mangle -F ISTIO_TPROXY"),
        (&tproxy, "ip rule del fwmark 0x539"),
        (&tproxy, "ip -6 route flush table 133"),
    ];
    let before = [&redirect, &tproxy].map(state);
    for (count, (sandbox, damage)) in (3_u32..).zip(damages) {
        let before = &before[usize::from(sandbox.pod.name == "tproxy")];
        sandbox.netns.sh(damage);
        let began = Instant::now();
        let what = std::fmt::from_fn(|f| {
            write!(f, "{damage}\n{:#?}\n{before:#?}\n{}", state(sandbox), daemon.log())
        });
        kit::until(what, || rules(&daemon, "success") >= f64::from(count) && state(sandbox) == *before);
        println!("{damage}: after {:?}", began.elapsed());
    }
}

/// IPv6 is redirected, and has no address while a rule of IPv4 is restored.
#[test]
fn a_family_that_has_no_address_for_the_moment_keeps_its_rules() {
    let Some(own) = ProcessNode::start("repair-family") else { return };
    let sandbox = own.add("web", 11, "Running", |pod| dual_stack(pod, true));
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it is redirected", |daemon| rules(daemon, "success") == 1.0);
    let before = rules_of(&sandbox);
    let address = sandbox.netns.sh("ip -o -6 address show dev eth0 scope global");
    let address = address.split_whitespace().nth(3).unwrap();
    // In this order: the address of lo is restored while the pod has another one.
    sandbox.netns.sh(&format!("ip -6 address del {address} dev eth0"));
    sandbox.netns.sh("ip -6 address del ::6/128 dev lo");
    sandbox.netns.sh("nft flush chain ip nat ISTIO_OUTPUT");
    wait_for_pass(&daemon, "IPv4 is restored", |daemon| rules(daemon, "success") == 2.0);
    assert_eq!(rules_of(&sandbox), before);
    // All of them are restored while the address is missing.
    flush(&sandbox, "nft");
    wait_for_pass(&daemon, "both are restored", |daemon| rules(daemon, "success") == 3.0);
    assert_eq!(rules_of(&sandbox), before);
    sandbox.netns.sh(&format!("ip -6 address add {address} dev eth0 nodad"));
    wait_for_pass(&daemon, "the address of lo is restored", |daemon| rules(daemon, "success") == 4.0);
    let addresses = sandbox.netns.sh("ip -6 address show dev lo");
    assert!(addresses.split_whitespace().any(|word| word == "::6/128"), "{addresses}");
    assert_eq!(rules(&daemon, "fail"), 0.0, "{}", daemon.log());
}

fn explained(own: &ProcessNode, sandbox: &PodSandbox) -> [String; 2] {
    let name = format!("{}/{}", sandbox.pod.namespace, sandbox.pod.name);
    let told = own.node.0.container.exec(&["explain", &name, "-o", "json"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap_or_default();
    ["capture", "code"].map(|member| told[member].as_str().unwrap_or_default().to_owned())
}

/// Two repairs in a row are followed by two observations, 2 s apart.
#[test]
fn a_pod_is_captured_again_soon_after_the_last_repair() {
    let Some(own) = ProcessNode::start("repair-conflict-ends") else { return };
    let sandbox = own.add("web", 11, "Running", |_| {});
    let mut daemon = own.node.0.daemon();
    for repairs in [1.0, 2.0, 3.0] {
        daemon.wait_for("it is redirected", |daemon| rules(daemon, "success") == repairs);
        if repairs < 3.0 {
            flush(&sandbox, "nft");
        }
    }
    assert_eq!(explained(&own, &sandbox), ["pending", "unstable"]);
    let began = Instant::now();
    wait_for_pass(&daemon, "it is captured again", |_| {
        explained(&own, &sandbox) == ["captured", "captured-sidecar"]
    });
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed()); // a pass: every 30 s
}

/// A process in the pod, or a program of the node, that removes them without a pause.
#[test]
fn a_writer_that_does_not_stop_meets_a_pause_and_is_named_in_an_event() {
    let Some(own) = ProcessNode::start("repair-conflict") else { return };
    let sandbox = own.add("web", 11, "Running", |_| {});
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it is redirected", |daemon| rules(daemon, "success") == 1.0);
    let (explained, pending) = (|| explained(&own, &sandbox), ["pending", "unstable"]);
    let (ends, mut states) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (ends, netns) = (&ends, sandbox.netns.second_handle());
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    netns.sh("nft flush ruleset");
                }
            });
        }
        let began = Instant::now();
        let is_seen = |states: &[[String; 2]]| states.iter().filter(|state| **state == pending).count() > 5;
        while began.elapsed() < Duration::from_secs(if is_seen(&states) { 15 } else { 60 }) {
            states.push(explained());
            std::thread::sleep(Duration::from_millis(500)); // the attack itself
        }
        ends.store(true, Ordering::Relaxed);
    });
    // Once there are two repairs, which the back-off delays to several seconds.
    let after = states.iter().skip_while(|state| **state != pending);
    assert!(after.clone().count() > 5 && after.clone().all(|state| *state == pending), "{states:?}");
    let repairs = rules(&daemon, "success") + rules(&daemon, "fail");
    assert!((3.0..20.0).contains(&repairs), "{}", daemon.log());
    wait_for_pass(&daemon, "it is redirected again", |_| {
        kit::plugin_rules::is_redirected(&sandbox.netns, "iptables-nft-save")
    });
    let uid = json!(sandbox.pod.uid);
    let events = || own.node.events(&uid, "CaptureUnstable");
    kit::until("it is told", || events().len() == 1);
    let message = events().remove(0)["message"].as_str().unwrap().to_owned();
    let beginning = "Rules that redirect its traffic to its sidecar are removed or changed repeatedly, and have been restored ";
    assert!(message.starts_with(beginning), "{message}");
    assert!(message.ends_with("The pod is pending until its rules stay in place."), "{message}");
    // The third in a series is a conflict at the latest: one Event covers the following ones.
    let told = own.node.events(&uid, "SidecarRulesRestored").len();
    assert!(told < 3, "{told} of {repairs} repairs are told one by one");
    assert!(own.node.events(&uid, "RepairFailed").is_empty(), "{}", daemon.log());
    wait_for_pass(&daemon, "it is captured again", |_| explained() == ["captured", "captured-sidecar"]);
}

/// The rules are complete, but the kernel does not evaluate them. Tables shared with other components stay unchanged; a native one
/// of ours is recreated.
#[test]
fn rules_in_a_dormant_table_count_as_missing() {
    let Some(mut own) = ProcessNode::start("repair-dormant") else { return };
    let shared = own.add("shared", 11, "Running", |_| {});
    let daemon = own.node.0.daemon();
    wait_for_pass(&daemon, "it is redirected", |daemon| rules(daemon, "success") == 1.0);
    let tables = |sandbox: &PodSandbox| sandbox.netns.sh("nft --stateless list ruleset");
    shared.netns.pipe("nft -f -", "add table ip nat { flags dormant; }");
    let dormant = tables(&shared);
    wait_for_pass(&daemon, "it is reported", |daemon| rules(daemon, "fail") == 1.0);
    let uid = json!(shared.pod.uid);
    let events = || own.node.events(&uid, "RepairFailed");
    kit::until("it is told", || events().len() == 1);
    let why = "nf_tables ip nat is dormant, so the kernel does not evaluate our rules there";
    let message = format!("its rules cannot be compared and restored: its rules are in place, but {why}");
    assert_eq!(events()[0]["message"], message);
    drop(daemon);
    own.node.0.container.set_env("NATIVE_NFTABLES", "true");
    let native = own.add("native", 12, "Running", |_| {});
    let daemon = own.node.0.daemon();
    // The next agent has no rules to compare with.
    wait_for_pass(&daemon, "it redirects one", |daemon| rules(daemon, "success") == 1.0);
    wait_for_pass(&daemon, "it reports the other", |daemon| rules(daemon, "fail") == 1.0);
    assert_eq!(tables(&shared), dormant);
    // The order of chains is that of the rules, which are what is restored.
    let content = || tables(&native).lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let before = content();
    native.netns.pipe("nft -f -", "add table inet istio-proxy-nat { flags dormant; }");
    wait_for_pass(&daemon, "it is made anew", |daemon| rules(daemon, "success") == 2.0);
    assert_eq!(content(), before);
}

/// A pod that starts after the agent's last regular pass does not wait for the next one.
#[test]
fn rules_of_a_pod_that_has_just_started_are_observed_at_once() {
    let Some(own) = ProcessNode::start("repair-started") else { return };
    let daemon = own.node.0.daemon();
    for (at, name) in ["first", "second"].into_iter().enumerate() {
        let sandbox = own.add(name, 11 + at as u32, "Running", |_| {});
        let done = 2.0 * at as f64;
        let began = Instant::now();
        wait_for_pass(&daemon, "it is redirected", |daemon| rules(daemon, "success") == done + 1.0);
        flush(&sandbox, "nft");
        wait_for_pass(&daemon, "it is redirected again", |daemon| rules(daemon, "success") == done + 2.0);
        assert!(began.elapsed() < Duration::from_secs(15), "{name}: {:?}", began.elapsed());
    }
}

/// A broken pod waits until the plugin is installed; no other pod waits for it.
#[test]
fn running_pods_keep_their_rules_while_the_plugin_is_not_installed_and_a_pod_is_broken() {
    let Some(own) = ProcessNode::start("repair-not-installed") else { return };
    let sandbox = own.add("web", 11, "Running", |_| {});
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it is redirected", |daemon| rules(daemon, "success") == 1.0);
    fs::remove_file(own.node.0.conflist()).unwrap();
    daemon.wait_for("the plugin is not installed", |daemon| !daemon.is_ready());
    own.node.broken("waits");
    let broken = "istio_cni_repair_broken_pods";
    daemon.wait_for("a pod is broken", |daemon| daemon.metric(broken) == Some(1.0));
    flush(&sandbox, "nft");
    wait_for_pass(&daemon, "it is redirected again", |daemon| rules(daemon, "success") == 2.0);
    assert_eq!(daemon.metric(broken), Some(1.0), "{}", daemon.log());
    assert_eq!(["success", "skip", "fail"].map(|result| repairs(&daemon, "repair", result)), [0.0; 3]);
}

/// The request for a broken pod takes as long as the API server does; no running pod waits for it.
#[test]
fn running_pods_keep_their_rules_while_the_api_server_does_not_answer_about_a_broken_one() {
    let Some(own) = ProcessNode::start("repair-unanswered") else { return };
    let sandbox = own.add("web", 11, "Running", |_| {});
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it is redirected", |daemon| rules(daemon, "success") == 1.0);
    let conflist = fs::read(own.node.0.conflist()).unwrap();
    fs::remove_file(own.node.0.conflist()).unwrap();
    daemon.wait_for("the plugin is not installed", |daemon| !daemon.is_ready());
    own.node.broken("waits");
    daemon.wait_for("a pod is broken", |daemon| daemon.metric("istio_cni_repair_broken_pods") == Some(1.0));
    let port = kit::ApiServer::address().1;
    own.node.0.node.netns().sh(&format!("iptables-nft -I OUTPUT -p tcp --dport {port} -j DROP"));
    fs::write(own.node.0.conflist(), conflist).unwrap();
    daemon.wait_for("the plugin is installed", Daemon::is_ready);
    kit::until("it is requested", || {
        let shown = own.node.0.node.netns().sh("iptables-nft -L OUTPUT -v -x -n");
        shown.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.contains(&"DROP") && words.first() != Some(&"0")
        })
    });
    flush(&sandbox, "nft");
    wait_for_pass(&daemon, "it is redirected again", |daemon| rules(daemon, "success") == 2.0);
    assert_eq!(repairs(&daemon, "repair", "fail"), 0.0, "{}", daemon.log());
    daemon.wait_for("the request has failed", |daemon| repairs(daemon, "repair", "fail") >= 1.0);
}

#[test]
fn a_pod_that_the_plugin_would_not_redirect_is_left_alone() {
    let Some(own) = ProcessNode::start("repair-others") else { return };
    let plain = own.add("plain", 11, "Running", |pod| pod["metadata"]["annotations"] = json!({}));
    let opted_out = own.add("opted-out", 12, "Running", |pod| {
        pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("NONE");
    });
    let by_itself = own.add("by-itself", 13, "Running", |pod| {
        pod["spec"]["initContainers"] = json!([{"name": "istio-init", "image": "proxyv2"}]);
    });
    let wanted = own.add("wanted", 14, "Running", |_| {});
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("the one with a sidecar is redirected", |daemon| rules(daemon, "success") == 1.0);
    assert!(kit::plugin_rules::is_redirected(&wanted.netns, "iptables-save"));
    for sandbox in [plain, opted_out, by_itself] {
        assert_eq!(rules_of(&sandbox), Vec::<String>::new(), "{}", sandbox.pod.name);
    }
    assert_eq!((rules(&daemon, "fail"), rules(&daemon, "skip")), (0.0, 0.0));
}

/// Charts up to 1.20 name these namespaces in the plugin's entry alone, which a ConfigMap or a file can change at any time.
#[test]
fn pods_of_namespaces_that_the_plugins_entry_excludes_are_left_alone() {
    let Some(mut own) = ProcessNode::start("repair-excluded") else { return };
    let container = &mut own.node.0.container;
    let file = container.root().join("etc/template");
    fs::write(&file, kit::NETWORK_CONFIG.replace("kube-system", own.node.0.name)).unwrap();
    container.set_env("CNI_NETWORK_CONFIG_FILE", "/etc/template");
    let running = own.add("web", 11, "Running", |_| {});
    let broken = own.add("broken", 12, "Pending", |_| {});
    own.node.fail("broken", 126);
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("the broken one was looked at", |daemon| repairs(daemon, "repair", "skip") == 1.0);
    let log = std::fmt::from_fn(|f| f.write_str(&daemon.log()));
    // Running pods are compared within a second.
    kit::holds_for(Duration::from_secs(3), log, || {
        [&running, &broken].iter().all(|sandbox| rules_of(sandbox).is_empty())
    });
    let event = kit::until("it is told", || own.node.events(&json!(broken.pod.uid), "RepairSkipped").pop());
    let why = "not redirected: its namespace is in kubernetes.exclude_namespaces";
    assert!(event["message"].as_str().unwrap().contains(why), "{event}");
    fs::write(&file, kit::NETWORK_CONFIG).unwrap();
    wait_for_pass(&daemon, "it is redirected", |daemon| rules(daemon, "success") == 1.0);
    assert!(kit::plugin_rules::is_redirected(&running.netns, "iptables-save"));
}

#[test]
fn a_dry_run_only_tells_what_is_missing() {
    let Some(mut own) = ProcessNode::start("repair-dry-running") else { return };
    own.node.0.container.set_env("REPAIR_DRY_RUN", "true");
    let sandbox = own.add("web", 11, "Running", |_| {});
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it was looked at", |daemon| rules(daemon, "skip") == 1.0);
    let uid = json!(sandbox.pod.uid);
    kit::until("it is told", || own.node.events(&uid, "RepairSkipped").len() == 1);
    assert_eq!(rules_of(&sandbox), Vec::<String>::new());
    assert_eq!(rules(&daemon, "success"), 0.0);
}

/// A node on which the agent's own plugin redirects pods and records the rules.
fn start_with_plugin(name: &'static str) -> Option<ProcessNode> {
    let mut own = ProcessNode::start(name)?;
    let fixture = &mut own.node.0;
    let (net_d, socket) = (fixture.node.net_d(), fixture.node.run_dir().join("log.sock"));
    let template = kit::NETWORK_CONFIG.replace("__LOG_UDS_ADDRESS__", socket.to_str().unwrap());
    fixture.container.set_env("CNI_NET_DIR", net_d.to_str().unwrap());
    fixture.container.set_env("CNI_NETWORK_CONFIG", &template);
    Some(own)
}

/// Creates a sandbox of this pod through the plugin; returns it with its rules.
fn add_by_plugin(own: &ProcessNode, object: &Value) -> (PodSandbox, Vec<String>) {
    let conflist: Value = serde_json::from_slice(&fs::read(own.node.0.conflist()).unwrap()).unwrap();
    let runtime = own.node.0.node.runtime().with_plugins(&own.node.0.container.bin_dir());
    let added = own.node.0.node.add_pod(&runtime, &conflist, Pod::from_object(object));
    let sandbox = added.unwrap_or_else(|error| panic!("{error}"));
    let redirected = rules_of(&sandbox);
    assert!(!redirected.is_empty());
    (sandbox, redirected)
}

/// Removes a single rule. The others redirect most of the pod's traffic.
fn remove_last(sandbox: &PodSandbox, redirected: &[String]) {
    let last = redirected.iter().rev().find(|rule| rule.starts_with("-A ISTIO_OUTPUT")).unwrap();
    sandbox.netns.sh(&format!("iptables-nft -t nat {}", last.replacen("-A", "-D", 1)));
}

/// Reports the pod as running in this sandbox, with its first process there.
fn run_in(own: &ProcessNode, pid: u32, sandbox: &PodSandbox) {
    own.processes.add_pod(pid, sandbox);
    own.node.0.api.admin().patch_status(&own.node.path(&sandbox.pod.name), &sandbox.manifest()["status"]);
}

/// The pod's UID is unchanged, and the rules of the new ADD are the baseline, even if one is missing
/// when the agent first observes them.
#[test]
fn a_pod_whose_sandbox_was_replaced_keeps_what_the_plugin_left_in_the_new_one() {
    let Some(own) = start_with_plugin("repair-replaced") else { return };
    let daemon = own.node.0.daemon();
    let object = own.node.create("web", |_| {});
    let (mut first, redirected) = add_by_plugin(&own, &object);
    run_in(&own, 11, &first);
    remove_last(&first, &redirected);
    wait_for_pass(&daemon, "the pod is known", |daemon| rules(daemon, "success") == 1.0);
    first.delete().unwrap_or_else(|error| panic!("{error}"));
    fs::remove_dir_all(own.processes.path().join("11")).unwrap();
    let (second, redirected) = add_by_plugin(&own, &object);
    remove_last(&second, &redirected);
    let began = Instant::now();
    run_in(&own, 12, &second);
    wait_for_pass(&daemon, "it is restored", |daemon| rules(daemon, "success") == 2.0);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(rules_of(&second), redirected);
    // The first namespace, which the agent holds open, has no address, and so no traffic.
    assert_eq!(rules(&daemon, "fail"), 0.0, "{}", daemon.log());
    assert!(own.node.events(&json!(second.pod.uid), "RepairFailed").is_empty());
}

/// A single missing rule is detected.
#[test]
fn what_the_plugin_left_is_restored_also_when_the_agent_was_not_there() {
    let Some(own) = start_with_plugin("repair-recorded") else { return };
    let daemon = own.node.0.daemon();
    let (sandbox, redirected) = add_by_plugin(&own, &own.node.create("web", |_| {}));
    drop(daemon);
    run_in(&own, 11, &sandbox);
    remove_last(&sandbox, &redirected);
    assert_ne!(rules_of(&sandbox), redirected);
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it is restored", |daemon| rules(daemon, "success") == 1.0);
    assert_eq!(rules_of(&sandbox), redirected);
    // The record of an ADD stays valid, so that the next agent has nothing to restore.
    drop(daemon);
    let daemon = own.node.0.daemon();
    let _late = own.add("late", 12, "Running", |_| {});
    wait_for_pass(&daemon, "a pass has ended", |daemon| rules(daemon, "success") == 1.0);
    assert_eq!(rules_of(&sandbox), redirected);
}

/// Annotations of a running pod do not change its rules, not even those that no ADD would accept.
#[test]
fn rules_of_the_add_are_restored_whatever_the_annotations_are_now() {
    let Some(own) = start_with_plugin("repair-annotated") else { return };
    let daemon = own.node.0.daemon();
    let (sandbox, redirected) = add_by_plugin(&own, &own.node.create("web", |_| {}));
    run_in(&own, 11, &sandbox);
    let _late = own.add("late", 12, "Running", |_| {});
    wait_for_pass(&daemon, "a pass has ended", |daemon| rules(daemon, "success") == 1.0);
    for (restored, ports) in [(2.0, "443"), (3.0, "all of them")] {
        let annotations = json!({"traffic.sidecar.istio.io/excludeOutboundPorts": ports});
        let path = own.node.path(&sandbox.pod.name);
        own.node.0.api.admin().patch(&path, &json!({"metadata": {"annotations": annotations}}));
        flush(&sandbox, "nft");
        wait_for_pass(&daemon, "it is restored", |daemon| rules(daemon, "success") == restored);
        assert_eq!(rules_of(&sandbox), redirected, "{ports}");
    }
    // So does the next agent, which never saw the earlier annotations.
    drop(daemon);
    flush(&sandbox, "nft");
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it is restored", |daemon| rules(daemon, "success") == 1.0);
    assert_eq!(rules_of(&sandbox), redirected);
    assert_eq!(rules(&daemon, "fail"), 0.0, "{}", daemon.log());
}

/// Rules of another version redirect the pod; no record has the rules to restore.
#[test]
fn rules_of_another_version_stay_until_somebody_removes_them() {
    let Some(own) = ProcessNode::start("repair-version") else { return };
    let sandbox = own.add("web", 11, "Running", |_| {});
    for rule in [
        "-N ISTIO_OUTPUT",
        "-A OUTPUT -p tcp -j ISTIO_OUTPUT",
        "-A ISTIO_OUTPUT -m owner ! --uid-owner 1337 -p tcp -j REDIRECT --to-ports 15001",
    ] {
        sandbox.netns.sh(&format!("iptables-nft -t nat {rule}"));
    }
    let theirs = rules_of(&sandbox);
    let daemon = own.node.0.daemon();
    let late = own.add("late", 12, "Running", |_| {});
    wait_for_pass(&daemon, "a pass has ended", |daemon| rules(daemon, "success") == 1.0);
    assert_eq!(rules_of(&sandbox), theirs);
    flush(&sandbox, "nft");
    wait_for_pass(&daemon, "it is redirected again", |daemon| rules(daemon, "success") == 2.0);
    assert_eq!(rules_of(&sandbox), rules_of(&late));
}

/// Adds the only process of a pod with `hostUsers: false` and this address, and a link from the pod to the node.
fn add_users_pod(own: &ProcessNode, inside: &UserNetns, name: &str) {
    let (netns, node) = (inside.name(), own.node.0.node.netns());
    let _ =
        inside.ip(&format!("link add eth0 netns {netns} type veth peer name users0 netns {}", node.name()));
    for line in ["link set lo up", "address add 10.77.0.2/24 dev eth0", "link set eth0 up"] {
        let _ = inside.ip(&format!("-n {netns} {line}"));
    }
    node.sh("ip address add 10.77.0.1/24 dev users0");
    node.sh("ip link set users0 up");
    let pod = own.node.create(name, |pod| {
        pod["metadata"]["annotations"]["cni.istio.io/existing-connections"] = "reset".into();
    });
    let status = json!({"phase": "Running", "podIP": "10.77.0.2", "podIPs": [{"ip": "10.77.0.2"}]});
    own.node.0.api.admin().patch_status(&own.node.path(name), &status);
    let (process, uid) = (own.processes.path().join("11"), pod["metadata"]["uid"].as_str().unwrap());
    fs::create_dir_all(process.join("ns")).unwrap();
    fs::write(process.join("cgroup"), format!("0::/kubepods/burstable/pod{uid}/0123\n")).unwrap();
    let real = PathBuf::from(format!("/proc/{}", inside.pid()));
    for file in ["stat", "uid_map", "gid_map"] {
        fs::write(process.join(file), fs::read(real.join(file)).unwrap()).unwrap();
    }
    symlink(Path::new("/var/run/netns").join(netns), process.join("ns/net")).unwrap();
    symlink(real.join("ns/user"), process.join("ns/user")).unwrap();
}

/// The kernel accepts rules about users only from within their namespace, and shows the owner of a socket as the node's user.
#[test]
fn a_pod_with_users_of_its_own_is_repaired_and_its_proxy_keeps_its_connections() {
    if !kit::has_other_users() {
        return kit::skip("the machine lends us no users to map");
    }
    let Some(own) = ProcessNode::start("repair-users") else { return };
    let inside = UserNetns::new("repair-users");
    add_users_pod(&own, &inside, "web");
    let service = own.node.0.node.netns().run(|| TcpListener::bind("10.77.0.1:8080")).unwrap();
    service.set_nonblocking(true).unwrap();
    let mut accepted = Vec::new();
    let mut clients = ["1337", "1000"].map(|user| {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--net", "--target", &inside.pid().to_string(), "--setuid", user]);
        command.args(["--setgid", user, "bash", "-c", "exec 3<>/dev/tcp/10.77.0.1/8080; cat <&3"]);
        let client = command.stdin(Stdio::null()).spawn().unwrap();
        kit::until("it is connected", || service.accept().map(|(stream, _)| accepted.push(stream)).is_ok());
        client
    });
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("it is redirected", |daemon| rules(daemon, "success") == 1.0);
    let saved = inside.ip(&format!("netns exec {} iptables-save -t nat", inside.name()));
    let is_exempt = saved.lines().any(|line| line == "-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN");
    assert!(is_exempt, "{saved}");
    let [proxy, app] = &mut clients;
    kit::until("the application's connection is closed", || app.try_wait().unwrap().is_some());
    assert!(proxy.try_wait().unwrap().is_none(), "{}", daemon.log());
    assert_eq!(rules(&daemon, "fail"), 0.0, "{}", daemon.log());
    drop(accepted);
    clients.iter_mut().for_each(|client| drop(client.wait()));
}

/// A plaintext connection continues outside the mesh, unless the pod's annotation requests otherwise.
#[test]
fn every_connection_after_a_repair_is_redirected_and_none_of_them_breaks() {
    let Some(own) = ProcessNode::start("repair-live") else { return };
    let sandbox = own.add("web", 11, "Running", |_| {});
    let strict = own.add("strict", 12, "Running", |pod| {
        pod["metadata"]["annotations"]["cni.istio.io/existing-connections"] = "reset".into();
    });
    let _service = Echo::start(own.node.0.node.outside(), &Serve::new(Proto::Tcp, 8080).named("service"));
    let _sidecars = [&sandbox, &strict].map(sidecar_in);
    let target = SocketAddr::new(own.node.0.node.outside_ip(false), 8080);
    let mut clients =
        [&sandbox, &strict].map(|sandbox| LiveConnections::start(&sandbox.netns, Live::default()));
    for live in &mut clients {
        assert!(live.open(target, 20).iter().all(|one| one.seen.server == "service"), "plaintext");
        live.wait_round();
    }
    let mut daemon = own.node.0.daemon();
    daemon.wait_for("both are redirected", |daemon| rules(daemon, "success") == 2.0);
    for live in &mut clients {
        assert!(live.open(target, 20).iter().all(|one| one.seen.server == "sidecar"));
        live.wait_round();
    }
    let [live, strict] = clients;
    live.finish().assert_unbroken();
    assert_eq!(strict.finish().broken.len(), 20);
    let said = |words: &str| daemon.logged("repaired a pod with open connections", words);
    assert_eq!(said("20 existing connections continue to bypass the proxy"), 1, "{}", daemon.log());
    assert_eq!(said("20 existing connections closed"), 1, "{}", daemon.log());
}
