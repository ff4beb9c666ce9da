//! Attempts of a pod of the mesh to bypass it: with NET_ADMIN by its own rules, which nothing can prevent and which are reported;
//! with NET_RAW by ztunnel's mark, which leaves no trace, so that pods with this capability are counted.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use kit::{Echo, Pod, Proto, TrafficClient};
use report::{CaptureState, Explanation, PodVerdict};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PORT, Peer};
use crate::fixtures::inpod::{InPod, relayed, wait_relayed};
use crate::fixtures::tables::Tables;

/// Time within which a change that the kernel reports is observed, however busy the machine is.
const SOON: Duration = Duration::from_secs(20);
/// Time within which all pods are observed.
const MINUTE: Duration = Duration::from_secs(60);
/// ztunnel's mark, and that of its connections to the application.
const MARKS: [u32; 2] = [0x539, 0x111];

/// Runs an nft batch in the pod, as a container with NET_ADMIN would.
fn nft(pod: &Peer, rules: &str) {
    pod.sandbox.netns.pipe("nft -f -", rules);
}

/// Runs a script in the pod's network namespace and returns its stdout.
fn shell(pod: &Peer, script: &str) -> String {
    pod.sandbox.netns.pipe("sh -e -s", script)
}

fn explain(fixture: &Ambient, pod: &str) -> Explanation {
    fixture.explain(&format!("{MESH}/{pod}"))
}

/// Whether a connection of the pod with this mark reaches the external host without ztunnel, whose own connections have other
/// ports.
fn bypasses(fixture: &Ambient, pod: &Peer, mark: Option<u32>) -> bool {
    /// Below the ephemeral ports.
    static PORTS: AtomicU16 = AtomicU16::new(20_000);
    let source = SocketAddr::new(pod.ip(false), PORTS.fetch_add(1, Ordering::Relaxed));
    let outside = SocketAddr::new(fixture.node.outside_ip(false), PORT);
    let client = TrafficClient::new(Proto::Tcp).from(source).within(Duration::from_secs(1));
    let client = mark.into_iter().fold(client, TrafficClient::marked);
    client.connect(&pod.sandbox.netns, outside).is_ok_and(|seen| seen.peer.port() == source.port())
}

fn has_said(fixture: &mut InPod, words: &str) -> bool {
    fixture.daemon().log().contains(words)
}

/// Starts a captured pod whose container has this security context.
fn captured_pod(fixture: &mut InPod, name: &str, context: &Value) -> Peer {
    let peer = fixture.starting(Pod::new(MESH, name));
    fixture.processes.add(&peer.sandbox.pod.uid, &peer.sandbox.netns);
    let mut manifest = peer.sandbox.manifest();
    manifest["spec"]["containers"] = json!([{"name": "app", "securityContext": context}]);
    fixture.manifests.put_pod(&manifest);
    fixture.wait_captured(&peer);
    peer
}

/// An attack: name, action, and reported finding.
type Attack = (&'static str, fn(&Peer), &'static str);

const ATTACKS: [Attack; 15] = [
    (
        "marks",
        |pod| {
            nft(
                pod,
                "table inet evil { chain out { type route hook output priority -400; meta mark set 0x539; }; }",
            );
        },
        "nf_tables inet evil out (hook output, priority -400) sets the mark 0x539",
    ),
    (
        "in-parts",
        |pod| {
            nft(
                pod,
                "table ip evil { chain out { type route hook output priority -200; jump more; }; chain more { \
                 meta mark set meta mark or 0x500; meta mark set meta mark or 0x39; }; }",
            );
        },
        "nf_tables ip evil more sets the mark 0x539",
    ),
    (
        "untracked",
        |pod| {
            nft(
                pod,
                "table ip evil { chain out { type filter hook output priority -300; tcp dport 8080 notrack; }; \
                 chain in { type filter hook prerouting priority -300; tcp sport 8080 notrack; }; }",
            );
        },
        "nf_tables ip evil out (hook output, priority -300) exempts packets from connection tracking",
    ),
    (
        "iptables",
        |pod| {
            pod.sandbox.netns.sh("iptables-nft -t mangle -A OUTPUT -p tcp -j MARK --set-mark 0x539");
        },
        "nf_tables ip mangle OUTPUT (hook output, priority -150) sets the mark 0x539",
    ),
    (
        "set-marks",
        |pod| {
            shell(
                pod,
                "ipset create marks hash:net skbinfo; ipset add marks 0.0.0.0/1 skbmark 0x539; ipset add marks 128.0.0.0/1 skbmark 0x539; \
                 iptables-nft -t mangle -A OUTPUT -p tcp -j SET --map-set marks dst --map-mark",
            );
        },
        "nf_tables ip mangle OUTPUT (hook output, priority -150) sets a mark whose value cannot be determined",
    ),
    (
        "shifted-marks",
        |pod| {
            shell(
                pod,
                "iptables-nft -t mangle -A OUTPUT -p tcp -j CONNMARK --set-xmark 0xa72/0xffffffff --right-shift-mark 1; \
                 iptables-nft -t mangle -A OUTPUT -p tcp -j CONNMARK --restore-mark",
            );
        },
        "nf_tables ip mangle OUTPUT (hook output, priority -150) sets a mark whose value cannot be determined",
    ),
    (
        "legacy",
        |pod| {
            pod.sandbox.netns.sh("iptables-legacy -w -t mangle -A OUTPUT -p tcp -j MARK --set-mark 0x539");
        },
        "IPv4 mangle OUTPUT of the legacy tables sets the mark 0x539",
    ),
    (
        "nat-first",
        |pod| {
            nft(
                pod,
                "table ip evil { chain out { type nat hook output priority -150; tcp dport 8080 dnat to 10.10.0.1:8080; }; }",
            );
        },
        "nf_tables ip evil out (hook output, priority -150) diverts packets (nat)",
    ),
    (
        "too-many",
        |pod| {
            let mut rules =
                "add table ip evil\nadd chain ip evil out { type filter hook output priority -300; }\n"
                    .to_owned();
            rules.push_str(&"add rule ip evil out tcp dport 1 counter\n".repeat(600));
            nft(pod, &rules);
        },
        "nf_tables ip evil has 600 rules ahead of ours, too many to be examined",
    ),
    (
        "too-many-chains",
        |pod| {
            let chains = (0..100_000).map(|chain| format!("add chain ip evil c{chain}\n"));
            nft(pod, &("add table ip evil\n".to_owned() + &chains.collect::<String>()));
        },
        "nf_tables cannot be listed within 4 MiB and 2 s",
    ),
    (
        "policy-rule",
        |pod| {
            pod.sandbox.netns.sh("ip rule add pref 1 fwmark 0x111 lookup main");
        },
        "policy rule \"1: from all fwmark 0x111 lookup main\" (IPv4) precedes ours",
    ),
    (
        "policy-rule-of-its-address",
        |pod| {
            pod.sandbox.netns.sh(&format!("ip rule add pref 1 from {} lookup main", pod.ip(false)));
        },
        " dev eth0 table main\" (IPv4) takes packets from ",
    ),
    (
        "rule-to-some",
        |pod| {
            pod.sandbox.netns.sh("ip rule add pref 5 to 198.51.100.0/24 lookup main");
        },
        "policy rule \"5: from all to 198.51.100.0/24 lookup main\" (IPv4) precedes ours",
    ),
    (
        "route-to-some",
        |pod| {
            pod.sandbox.netns.sh("ip -6 route add 2001:db8:9::/64 dev eth0 table 100");
        },
        "route \"2001:db8:9::/64 dev eth0",
    ),
    (
        "route-ahead",
        |pod| {
            pod.sandbox.netns.sh("ip -6 route add unreachable default metric 1 table 100");
        },
        "a policy rule or route (IPv6) that discards packets takes packets from ",
    ),
];

#[test]
fn a_pod_whose_loopback_is_down_gets_its_rules_back() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let pod = captured_pod(&mut fixture, "lo-down", &json!({"capabilities": {"add": ["NET_ADMIN"]}}));
    let soon = if fixture.tables == Tables::Legacy { MINUTE } else { SOON };
    let flush = fixture.tables.flush_nat("OUTPUT");
    pod.sandbox.netns.sh("ip link set lo down");
    // Each repair fails, because the policy route cannot be added, and restores the rules.
    let flushes = if fixture.tables == Tables::Legacy { 1 } else { 6 };
    for _ in 0..flushes {
        pod.sandbox.netns.sh(&flush);
        fixture.within(soon, "nothing leaves in plaintext", |fixture| !bypasses(fixture, &pod, None));
    }
    pod.sandbox.netns.sh("ip link set lo up");
    fixture.within(soon, "it is as before", |fixture| fixture.is_ruled(&pod));
    let outside = (fixture.node.outside_ip(false), PORT).into();
    let _ = pod.tcp(outside).unwrap();
    wait_relayed(&ztunnel, pod.ip(false), outside);
}

#[test]
fn rules_of_others_that_precede_ours_are_reported() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let admin = json!({"capabilities": {"add": ["NET_ADMIN"]}});
    let pods: Vec<_> = ATTACKS.iter().map(|(name, ..)| captured_pod(&mut fixture, name, &admin)).collect();
    let honest = captured_pod(&mut fixture, "honest", &admin);
    for pod in pods.iter().chain([&honest]) {
        assert!(!bypasses(&fixture, pod, None), "{}", pod.sandbox.pod.name);
    }
    // Rules that pods have for their own purposes are no bypass.
    nft(
        &honest,
        "table inet own { chain out { type filter hook output priority -300; meta mark set 0x40000; ip daddr 192.0.2.1 drop; }; \
         chain late { type filter hook output priority 0; meta mark set 0x539; }; \
         chain post { type nat hook postrouting priority 100; oifname eth1 masquerade; }; }",
    );
    // In a table with our chains, a rule after ours has no effect.
    if fixture.tables == Tables::Iptables {
        honest.sandbox.netns.sh(
            "iptables-nft -t nat -A OUTPUT -d 127.0.0.11/32 -p udp -j DNAT --to-destination 127.0.0.11:5353",
        );
    }
    honest.sandbox.netns.sh("ip rule add from 192.0.2.7 lookup 200");
    honest.sandbox.netns.sh("ip rule add pref 5 fwmark 0xca6c lookup main");
    for ((_, attack, _), pod) in ATTACKS.iter().zip(&pods) {
        attack(pod);
    }
    for ((name, _, words), pod) in ATTACKS.iter().zip(&pods) {
        // Attacks that need their own mark to bypass, or that only could.
        let marks = if name.starts_with("policy-rule") { Some(MARKS[1]) } else { None };
        let only_could =
            ["too-many", "too-many-chains", "nat-first", "rule-to-some", "route-to-some", "route-ahead"];
        if !only_could.contains(name) {
            kit::until(format_args!("{name} is an attack"), || bypasses(&fixture, pod, marks));
        }
        let answer = explain(&fixture, name);
        let state = (answer.code.as_str(), answer.capture, answer.verdict);
        assert_eq!(state, ("overruled", Some(CaptureState::Bypassing), PodVerdict::Unhealthy), "{answer}");
        assert!(answer.message.contains(words), "{answer}");
    }
    // The agent observes them in its regular pass, without a request.
    let wanted = f64::from(u32::try_from(ATTACKS.len()).unwrap());
    let began = Instant::now();
    fixture.within(MINUTE, "all are seen", |fixture| {
        fixture.daemon().metric("istio_cni_ambient_overruled_pods") == Some(wanted)
    });
    println!("all were seen within {:?}", began.elapsed());
    assert_eq!(explain(&fixture, "honest").code, "captured");
    let listed = fixture.container.exec(&["list", "--bypassing", "-o", "json"]);
    let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed.len(), ATTACKS.len(), "{listed:?}");
    // Pods that remove the rules are captured as before.
    for pod in &pods {
        pod.sandbox.netns.output(Command::new("nft").args(["delete", "table", "ip", "evil"]));
    }
    let is_well = |name: &str| explain(&fixture, name).code == "captured";
    assert!(is_well("in-parts") && is_well("untracked") && is_well("nat-first") && is_well("too-many"));
    assert_eq!(ztunnel.protocol_error(), None);
    assert!(!relayed(&ztunnel, honest.ip(true), honest.at(true)));
    assert!(!has_said(&mut fixture, "panicked"));
}

/// The agent observes both immediately, and reports the time of this state, not of an earlier one.
#[test]
fn since_when_rules_of_others_precede_ours_is_shown_and_recorded() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let pod = captured_pod(&mut fixture, "web", &json!({"capabilities": {"add": ["NET_ADMIN"]}}));
    let since = |fixture: &InPod, state: &str| -> Option<String> {
        let listed = fixture.container.exec(&["list", "-o", "json"]);
        let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).ok()?;
        let web = listed.iter().find(|pod| pod["name"] == "web" && pod["capture"] == state)?;
        web["lastTransitionTime"].as_str().map(str::to_owned)
    };
    fixture.within(SOON, "captured", |fixture| since(fixture, "captured").is_some());
    let captured = since(&fixture, "captured");
    nft(&pod, "table ip evil { chain out { type filter hook output priority -300; meta mark set 0x539; }; }");
    fixture.within(SOON, "bypassing, since later", |fixture| since(fixture, "bypassing") > captured);
    let bypassing = since(&fixture, "bypassing");
    pod.sandbox.netns.sh("nft delete table ip evil");
    fixture.within(SOON, "captured, since later again", |fixture| since(fixture, "captured") > bypassing);
    let history = fixture.container.exec(&["history", "mesh/web", "-o", "json"]);
    let changes: Vec<Value> = serde_json::from_slice(&history.stdout).unwrap();
    let drift = changes.iter().filter(|change| change["cause"] == "drift");
    let actions: Vec<&str> = drift.filter_map(|change| change["action"].as_str()).collect();
    let starts = ["nf_tables ip evil out (hook output", "none; changed by nft"];
    let starts = starts.map(|start| format!("rules of other components that precede ours: {start}"));
    assert_eq!(actions.len(), 2, "{changes:#?}");
    assert!(actions.iter().zip(&starts).all(|(action, start)| action.starts_with(start)), "{changes:#?}");
    assert!(has_said(&mut fixture, "rules of another component precede those of the pod"));
}

/// No comparison with the desired state would cover them.
#[test]
fn rules_with_our_names_in_other_tables_are_removed() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let admin = json!({"capabilities": {"add": ["NET_ADMIN"]}});
    let attacks = [
        (
            "native",
            Tables::Native,
            "nft add table inet istio-ambient-mangle '{ chain x { type filter hook output priority -200; meta mark set 0x539; }; }'",
            "nft list ruleset | grep -c 'set 0x00000539' || true",
        ),
        (
            "legacy",
            Tables::Legacy,
            "iptables-legacy -w -t mangle -N ISTIO_OUTPUT; iptables-legacy -w -t mangle -A ISTIO_OUTPUT -j MARK --set-mark 0x539; \
             iptables-legacy -w -t mangle -A OUTPUT -j ISTIO_OUTPUT; nft add table ip anything",
            "iptables-legacy -w -t mangle -S | grep -c 'set-xmark 0x539' || true",
        ),
    ];
    for (name, of, attack, count) in attacks {
        if fixture.tables == of {
            continue; // there, rules are compared one by one
        }
        let pod = captured_pod(&mut fixture, name, &admin);
        shell(&pod, attack);
        fixture.within(MINUTE, &format!("{name}: they are removed"), |_| shell(&pod, count).trim() == "0");
        fixture.within(MINUTE, &format!("{name}: it is captured"), |fixture| {
            explain(fixture, name).code == "captured"
        });
        assert!(!bypasses(&fixture, &pod, None), "{name}");
    }
}

/// The kernel lets a process with NET_RAW set ztunnel's mark, and no rule can distinguish it from ztunnel's.
#[test]
fn a_mark_bypasses_the_mesh_and_pods_that_may_set_one_are_counted() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let classes: [(&str, Value); 5] = [
        ("none", json!({"capabilities": {"drop": ["ALL"]}})),
        ("runtime-default", Value::Null),
        ("net-raw", json!({"capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]}})),
        ("net-admin", json!({"capabilities": {"add": ["NET_ADMIN"]}})),
        ("privileged", json!({"privileged": true})),
    ];
    let mut peers = Vec::new();
    for (name, context) in &classes {
        peers.push(captured_pod(&mut fixture, name, context));
    }
    for (name, _) in &classes {
        let sample = format!("istio_cni_ambient_privileged_pods{{privilege=\"{name}\"}}");
        fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(&sample) == Some(1.0));
        let answer = explain(&fixture, name);
        assert_eq!(answer.code, "captured", "{answer}");
        let privileges = ["asks for NET_RAW", "has NET_ADMIN", "is privileged"];
        let warnings =
            privileges.map(|has| format!("One of its containers {has}: with that, it can bypass the mesh."));
        let warning = classes.iter().position(|(class, _)| class == name).unwrap().checked_sub(2);
        let expected: Vec<_> = warning.map(|at| &warnings[at]).into_iter().collect();
        let found: Vec<_> = answer.details.iter().filter(|detail| warnings.contains(detail)).collect();
        assert_eq!(found, expected, "{answer}");
    }
    let pod = &peers[2];
    assert!(!bypasses(&fixture, pod, None));
    kit::until("it bypasses, as docs/security.md says", || bypasses(&fixture, pod, Some(MARKS[0])));
}

/// The kernel accepts any bytes as a name.
#[test]
fn a_name_that_is_not_utf_8_does_not_keep_rules_from_being_restored() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let pod = captured_pod(&mut fixture, "nameless", &json!({"capabilities": {"add": ["NET_ADMIN"]}}));
    let flush = fixture.tables.flush_nat("ISTIO_OUTPUT");
    shell(&pod, &format!("ip rule add iif \"$(printf '\\377')\" lookup main; {flush}"));
    let repairs = "istio_cni_ambient_repairs_total{place=\"pod\"}";
    fixture.within(MINUTE, "they are restored", |fixture| fixture.daemon().metric(repairs) >= Some(1.0));
    assert!(!bypasses(&fixture, &pod, None));
}

/// The rules in it are unchanged.
#[test]
fn a_table_of_ours_that_the_kernel_does_not_evaluate_is_reported() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let admin = json!({"capabilities": {"add": ["NET_ADMIN"]}});
    let attacks = [
        ("dormant", "add table ip nat { flags dormant; }", "nf_tables ip nat is dormant"),
        (
            "unhooked",
            "delete table ip nat\nadd table ip nat\nadd chain ip nat OUTPUT\nadd chain ip nat ISTIO_OUTPUT\n\
             add rule ip nat OUTPUT jump ISTIO_OUTPUT",
            "nf_tables ip nat OUTPUT is not at its hook",
        ),
    ];
    let pods = attacks.map(|(name, ..)| captured_pod(&mut fixture, name, &admin));
    for ((name, attack, words), pod) in attacks.iter().zip(&pods) {
        assert!(!bypasses(&fixture, pod, None), "{name}");
        nft(pod, attack);
        fixture.within(MINUTE, "it is reported", |fixture| {
            let answer = explain(fixture, name);
            answer.code == "overruled" && answer.message.contains(words)
        });
        kit::until(format_args!("{name} is an attack"), || bypasses(&fixture, pod, None));
    }
}
