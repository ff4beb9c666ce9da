//! `install-cni check`, and the checks at the agent's start: a healthy node has no findings, and a resource that is in use or
//! denied is reported as such. A check that could not run never passes.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use kit::{Echo, NodeOptions, Pod, Proto, TempDir};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, PORT};
use crate::fixtures::inpod::{IPTABLES, InPod, RELAYED, wait_relayed};

/// Severity of each check by its code; `ok` for one that passed.
type Checks = BTreeMap<String, (String, String)>;

fn checks_of(all: &Value) -> Checks {
    let check = |check: &Value| {
        let text = |member: &str| check[member].as_str().unwrap_or("ok").to_owned();
        (text("code"), (text("severity"), text("message")))
    };
    all.as_array().unwrap().iter().map(check).collect()
}

/// Exit status and checks.
fn check(fixture: &InPod, arguments: &[&str]) -> (i32, Checks) {
    let output = fixture.container.exec(&[&["check", "-o", "json"], arguments].concat());
    let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else { panic!("{output:?}") };
    assert_eq!(answer["schema"], "millrace.node-preflight/v1");
    (output.status.code().unwrap(), checks_of(&answer["checks"]))
}

/// Checks that did not pass.
fn failed(checks: &Checks) -> Vec<(&str, &str)> {
    let severities = checks.iter().map(|(code, (severity, _))| (code.as_str(), severity.as_str()));
    severities.filter(|(_, severity)| *severity != "ok").collect()
}

/// Waits for the findings of the agent at its start.
fn of_agent(fixture: &mut InPod) -> Checks {
    fixture.eventually("the agent has checked the node", |fixture| !state_checks(fixture).is_empty());
    state_checks(fixture)
}

/// None while the agent does not serve its state yet.
fn state_checks(fixture: &Ambient) -> Checks {
    let state = fixture.container.exec(&["state", "-o", "json"]).stdout;
    let state = serde_json::from_slice::<Value>(&state);
    state.map_or_else(|_| Checks::new(), |state| checks_of(&state["preflight"]))
}

/// Writes a token as the API server issues it.
fn set_token(fixture: &InPod, issued: i64, expires: i64) {
    let claims = json!({"iat": issued, "exp": expires}).to_string();
    let mut encoded = String::new();
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for three in claims.as_bytes().chunks(3) {
        let bits =
            three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let letters = (0..=three.len()).map(|at| LETTERS[(bits >> (18 - 6 * at)) as usize & 63] as char);
        encoded.extend(letters);
    }
    fixture.container.set_account(&format!("e30.{encoded}.c2ln"), "no certificate");
}

fn now() -> i64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Everything that the agent has to create on the node: tables, sets, policy rules, routes.
fn objects(fixture: &InPod) -> String {
    let netns = fixture.node.netns();
    ["nft list ruleset", "ipset list -n", "ip rule", "ip -6 rule", "ip address", "ip route show table all"]
        .map(|command| netns.sh(command))
        .concat()
}

#[test]
fn a_healthy_node_passes_before_and_with_an_agent_and_nothing_of_it_changes() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    set_token(&fixture, now() - 10, now() + 3600);
    let before = objects(&fixture);
    let (status, found) = check(&fixture, &["--fail-on", "warning"]);
    assert_eq!((status, failed(&found)), (0, vec![]), "{found:#?}");
    for code in [
        "pod-rules",
        "policy-rules",
        "address-sets",
        "node-rules",
        "sidecar-rules",
        "tproxy",
        "clock",
        "selinux",
        "apparmor",
        "user-namespace",
        // Findings about the agent's container, in which this runs.
        "port-taken",
        "few-files",
        "little-memory",
    ] {
        assert!(found.contains_key(code), "{code}: {found:#?}");
    }
    assert!(found["no-network"].1.ends_with("10-kit.conflist; our entry is not in it"), "{found:#?}");
    assert_eq!(objects(&fixture), before);
    fixture.start();
    let started = of_agent(&mut fixture);
    assert_eq!(failed(&started), vec![], "{started:#?}\n{}", fixture.log());
    let (status, found) = check(&fixture, &["--fail-on", "warning"]);
    assert_eq!((status, failed(&found)), (0, vec![]), "{found:#?}");
    // Checks that need the agent's process use its own result.
    for code in ["port-taken", "few-files", "little-memory"] {
        assert_eq!(found.get(code), started.get(code), "{code}");
        assert!(found.contains_key(code), "{code}");
    }
    assert!(found["no-network"].1.ends_with("10-kit.conflist; our entry is in it"), "{found:#?}");
    let output = fixture.container.exec(&["check", "-o", "sarif"]);
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["rules"].as_array().unwrap().len(), found.len());
    assert_eq!(run["results"], json!([]));
    let output = fixture.container.exec(&["check", "-o", "junit"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let head = format!(
        "<testsuite name=\"install-cni check\" tests=\"{}\" failures=\"0\" errors=\"0\" skipped=\"0\">",
        found.len()
    );
    assert!(text.lines().any(|line| line == head), "{text}");
}

#[test]
fn addresses_ports_and_the_clock_that_contradict_are_found_at_the_start() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    let netns = std::sync::Arc::clone(fixture.node.netns());
    netns.sh("ip address add 169.254.7.127/32 dev lo");
    let _listener = netns.run(|| TcpListener::bind("127.0.0.1:15014").unwrap());
    set_token(&fixture, now() + 600, now() + 3600);
    fixture.start();
    let found = of_agent(&mut fixture);
    let expected = vec![("clock", "warning"), ("port-taken", "warning"), ("probe-address-taken", "warning")];
    assert_eq!(failed(&found), expected, "{found:#?}");
    assert_eq!(found["probe-address-taken"].1, "169.254.7.127 is an address of lo");
    assert_eq!(found["port-taken"].1, "another process listens on TCP port 15014");
    assert_eq!(check(&fixture, &[]).0, 0, "nothing of it keeps pods from being captured");
    assert_eq!(check(&fixture, &["--fail-on", "warning"]).0, 1);
    // The page and the commands show the findings.
    let state = fixture.container.exec(&["state", "-o", "json"]).stdout;
    let state: Value = serde_json::from_slice(&state).unwrap();
    let codes: Vec<&str> = state["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["code"].as_str().unwrap())
        .collect();
    assert!(
        ["clock", "port-taken", "probe-address-taken"].iter().all(|code| codes.contains(code)),
        "{codes:?}"
    );
    assert_eq!(fixture.daemon().logged("check of the node failed", "code=port-taken"), 1);
}

#[test]
fn an_address_that_was_chosen_may_be_the_nodes_own() {
    let fixture = InPod::stopped(NodeOptions::default(), &[("HOST_PROBE_SNAT_IP", "169.254.9.9")]);
    fixture.node.netns().sh("ip address add 169.254.9.9/32 dev lo");
    let (_, found) = check(&fixture, &[]);
    assert_eq!(found["probe-address-taken"].0, "ok", "{found:#?}");
}

/// Objects of an earlier CNI plugin in each pod concern us, those on the node do not.
#[test]
fn numbers_that_others_have_in_pods_are_found() {
    let fixture = InPod::stopped(NodeOptions::default(), &[]);
    let numbers = || check(&fixture, &["--fail-on", "warning"]).1["pod-numbers-taken"].clone();
    let found = |pods: u32| ("ok".to_owned(), format!("network namespaces of pods examined: {pods}"));
    assert_eq!(numbers(), found(0));
    let pod = fixture.node.pod(Pod::new("shop", "web"), &[]);
    let harmless = [
        "ip rule add priority 100 fwmark 0x4000/0x4000 lookup 7",
        "ip -6 rule add priority 9 fwmark 0x200/0xf00 lookup 7",
        "ip rule add priority 50 from 192.0.2.1 lookup 101",
        "ip -6 rule add priority 200 fwmark 0x539 lookup 133", // rule of a sidecar
        "iptables-nft -t mangle -A OUTPUT -j MARK --set-xmark 0x4000/0x4000",
        "ip6tables-legacy -w -t mangle -A OUTPUT -j CONNMARK --set-xmark 0x10000/0xff0000",
    ];
    harmless.iter().for_each(|command| drop(pod.netns.sh(command)));
    for command in
        ["ip rule add priority 100 fwmark 0x539/0xfff lookup 7", "ip -6 rule add priority 5 lookup 100"]
    {
        fixture.node.netns().sh(command);
    }
    assert_eq!(numbers(), found(1));
    let place = format!("in /netns/{}: ", pod.netns.name());
    for (made, gone, shown) in [
        (
            "ip rule add priority 100 fwmark 0x539/0xfff lookup 7",
            "ip rule del priority 100 lookup 7 fwmark 0x539/0xfff",
            "policy rule \"100: from all fwmark 0x539/0xfff lookup 7\" (IPv4)",
        ),
        (
            "ip -6 rule add priority 32764 fwmark 0x111/0xfff prohibit",
            "ip -6 rule del priority 32764",
            "policy rule \"32764: from all fwmark 0x111/0xfff prohibit\" (IPv6)",
        ),
        (
            "ip -6 rule add priority 40 from fd00::9 lookup 100",
            "ip -6 rule del priority 40",
            "policy rule \"40: from fd00::9/128 lookup 100\" (IPv6)",
        ),
        (
            "ip rule add priority 41 lookup 7",
            "ip rule del priority 41",
            "policy rule \"41: from all lookup 7\" (IPv4)",
        ),
        (
            "ip route add 192.0.2.0/24 dev lo table 100",
            "ip route flush table 100",
            "route \"192.0.2.0/24 dev #1 table 100\" (IPv4)",
        ),
        (
            "ip6tables-nft -t mangle -A OUTPUT -j MARK --set-mark 0x539",
            "ip6tables-nft -t mangle -F OUTPUT",
            "nf_tables ip6 mangle OUTPUT (hook output, priority -150) sets the mark 0x539, which is ztunnel's",
        ),
        (
            "iptables-legacy -w -t mangle -A PREROUTING -j MARK --set-xmark 0x111/0xfff",
            "iptables-legacy -w -t mangle -F PREROUTING",
            "IPv4 mangle PREROUTING of the legacy tables sets the mark 0x111, which is ztunnel's",
        ),
    ] {
        pod.netns.sh(made);
        assert_eq!(numbers(), ("warning".to_owned(), format!("{place}{shown}")));
        pod.netns.sh(gone);
    }
    assert_eq!(numbers(), found(1));
}

/// The documentation states that marks of the node do not matter: a veth pair clears them, in both directions.
#[test]
fn marks_that_others_set_on_the_node_reach_no_pod_and_those_of_pods_not_the_node() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.mesh_pod("app");
    fixture.node.netns().pipe(
        "nft -f -",
        "table inet foreign { chain out { type filter hook postrouting priority 400; counter meta mark set 0x539; }; }",
    );
    for tool in ["ip", "ip -6"] {
        for (priority, mark) in [(7, "0x539/0xfff"), (8, "0x111/0xfff")] {
            fixture.node.netns().sh(&format!("{tool} rule add priority {priority} fwmark {mark} prohibit"));
        }
    }
    for v6 in [false, true] {
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        let _ = kit::connect(fixture.node.outside(), Proto::Tcp, pod.at(v6)).unwrap();
        wait_relayed(&ztunnel, fixture.node.outside_ip(v6), pod.at(v6));
        let _ = pod.tcp(outside).unwrap();
        wait_relayed(&ztunnel, pod.ip(v6), outside);
        let probe = kit::connect(fixture.node.netns(), Proto::Tcp, pod.at(v6)).unwrap();
        assert!(!RELAYED.contains(&probe.peer.port()), "{probe:?}");
    }
    let marked = fixture.node.netns().sh("nft list table inet foreign");
    assert!(
        !marked.split_whitespace().collect::<Vec<_>>().windows(2).any(|pair| pair == ["packets", "0"]),
        "{marked}"
    );
}

#[test]
fn another_agents_socket_and_rules_in_legacy_tables_are_found() {
    let fixture = InPod::stopped(NodeOptions::default(), &[]);
    let run_dir = fixture.node.run_dir();
    let listener = UnixListener::bind(run_dir.join("pluginevent.sock")).unwrap();
    fixture.node.netns().sh("iptables-legacy -w -t nat -N KUBE-POSTROUTING");
    fixture.node.netns().sh("iptables-legacy -w -t nat -A KUBE-POSTROUTING -j ACCEPT");
    for command in
        ["nft add table inet firewalld", "nft add table ip kube-proxy", "iptables-nft -N ufw-user-input"]
    {
        fixture.node.netns().sh(command);
    }
    let (status, found) = check(&fixture, &[]);
    assert_eq!((status, failed(&found)), (1, vec![("socket-taken", "error")]), "{found:#?}");
    assert_eq!(found["socket-taken"].1, "a process serves /var/run/istio-cni/pluginevent.sock");
    let tables = "legacy tables hold rules in 1 chain, by their names of kube-proxy or the kubelet; \
        nf_tables have those of firewalld, kube-proxy or the kubelet, ufw";
    assert_eq!(found["legacy-tables"].1, tables);
    // Left by an agent that has ended.
    drop(listener);
    let (status, found) = check(&fixture, &[]);
    assert_eq!((status, failed(&found)), (0, vec![]), "{found:#?}");
}

/// Legacy tables are requested, but the image has no tools: no pod can be captured.
#[test]
fn an_error_keeps_the_agent_not_ready_while_the_installer_goes_on() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[("FORCE_IPTABLES_BINARY", "legacy")]);
    let empty = TempDir::new().unwrap();
    fixture.container.add_mount(empty.path(), "/usr/sbin");
    let (status, found) = check(&fixture, &[]);
    let expected = vec![
        ("node-rules", "error"),
        ("pod-rules", "error"),
        ("sidecar-rules", "warning"),
        ("tproxy", "warning"),
    ];
    assert_eq!((status, failed(&found)), (1, expected), "{found:#?}");
    let arguments = fixture.arguments.clone();
    fixture.daemon = Some(fixture.container.start_with(&arguments, &[]));
    let installed = fixture.container.bin_dir().join("istio-cni");
    fixture.daemon().wait_for("the plugin is installed", |_| installed.exists());
    let found = of_agent(&mut fixture);
    assert_eq!(failed(&found), vec![("node-rules", "error"), ("pod-rules", "error")], "{found:#?}");
    let network = fixture.container.net_d().join("10-kit.conflist");
    fixture.daemon().wait_for("our entry is in the network", |_| {
        let network: Option<Value> = serde_json::from_slice(&fs::read(&network).unwrap()).ok();
        network.is_some_and(|network| {
            network["plugins"].as_array().unwrap().last().unwrap()["type"] == "istio-cni"
        })
    });
    let why = |code: &str| format!("{} ({code})", found[code].1);
    let why = format!("capture is impossible on this node: {}; {}", why("pod-rules"), why("node-rules"));
    fixture.daemon().wait_for("nothing but that keeps it from being ready", |daemon| {
        daemon.get(8000, "/readyz").is_some_and(|(status, body)| status == 503 && body.trim() == why)
    });
    assert_eq!(fixture.daemon().get(8000, "/healthz").unwrap().0, 200);
    let output = fixture.container.exec(&["verify", "-o", "json"]);
    let verified: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = format!("error: pod-rules: {}, see docs/preflight.md#pod-rules", found["pod-rules"].1);
    let is_named = verified["differences"].as_array().unwrap().contains(&error.into());
    assert!(output.status.code() == Some(1) && is_named, "{verified:#}");
}

/// Legacy tables are changed without a netfilter socket.
#[test]
fn a_kernel_without_netfilter_and_one_that_cannot_be_asked_differ() {
    for (refused, status, code, severity) in
        [("netfilter", 1, "address-sets", "error"), ("netns", 2, "pod-rules", "unknown")]
    {
        let mut fixture = InPod::stopped(NodeOptions::default(), &[IPTABLES]);
        fixture.container.set_refused(refused);
        let (found_status, found) = check(&fixture, &[]);
        assert_eq!((found_status, found[code].0.as_str()), (status, severity), "{refused}: {found:#?}");
        let tried =
            ["pod-rules", "address-sets", "node-rules", "sidecar-rules", "tproxy", "connection-tracking"];
        let good: Vec<_> = tried.iter().filter(|code| found[**code].0 == "ok").collect();
        assert!(good.is_empty(), "{refused}: {good:?} {found:#?}");
    }
}

/// From within a user namespace the kernel does not show that of process 1, so the check has no result.
#[test]
fn a_user_namespace_of_the_agents_own_is_never_good() {
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(kit::binary("install-cni"))
        .args(["check", "-o", "json", "--ambient-enabled", "--host-proc=/proc"])
        .output()
        .unwrap();
    let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else { panic!("{output:?}") };
    let (severity, message) = checks_of(&answer["checks"]).remove("user-namespace").unwrap();
    let expected = "user IDs are mapped, and /proc/1/ns/user cannot be read: Permission denied (os error 13)";
    assert_eq!((severity.as_str(), message.as_str()), ("unknown", expected));
}
