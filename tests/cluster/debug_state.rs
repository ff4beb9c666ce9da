//! The debug state compared with the kernel's own tools.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kit::{InpodOptions, Netns, Pod, SetOnDrop};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, Peer, starting};
use crate::fixtures::inpod::InPod;

/// Sends a request to an agent's socket, and returns status and body.
pub(crate) fn ask(socket: &Path, path: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The debug state of a fixture's agent.
pub(crate) fn state(fixture: &Ambient) -> Value {
    let (status, body) = ask(&fixture.node.run_dir().join("debug.sock"), "/debug/state");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// The pod of this name in a state.
pub(crate) fn pod<'a>(state: &'a Value, namespace: &str, name: &str) -> &'a Value {
    let pods = state["pods"].as_array().unwrap();
    let is = |pod: &&Value| pod["namespace"] == namespace && pod["name"] == name;
    pods.iter().find(is).unwrap_or_else(|| panic!("no {namespace}/{name} in {pods:#?}"))
}

fn json(netns: &Netns, command: &str) -> Vec<Value> {
    let text = netns.sh(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command}: {error}: {text}"))
}

/// The observed objects of a kind in a place, each formatted by `tell`.
fn observed(state: &Value, kind: &str, place: &str, tell: impl Fn(&Value) -> String) -> BTreeSet<String> {
    let all = state["network"][kind]["observed"].as_array().unwrap_or_else(|| panic!("{kind}: {state:#}"));
    let here = |found: &&Value| found.get("netns").is_none_or(|at| at == place);
    all.iter().filter(here).map(tell).collect()
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Policy rules in the tool's output: ours match a mark.
fn rules(netns: &Netns) -> BTreeSet<String> {
    let of = |family: u8| {
        let found = json(netns, &format!("ip -N -j -{family} rule"));
        let ours = found.into_iter().filter(|rule| rule.get("fwmark").is_some());
        ours.map(move |rule| {
            let mask = rule.get("fwmask").map_or_else(|| "0xffffffff".to_owned(), word);
            format!("{family} {} {}/{mask} {}", rule["priority"], word(&rule["fwmark"]), word(&rule["table"]))
        })
        .collect::<Vec<_>>()
    };
    [4, 6].into_iter().flat_map(of).collect()
}

fn told_rule(rule: &Value) -> String {
    let hex = |value: &Value| format!("{:#x}", value.as_u64().unwrap());
    format!(
        "{} {} {}/{} {}",
        rule["family"],
        rule["priority"],
        hex(&rule["mark"]),
        hex(&rule["mask"]),
        rule["table"]
    )
}

/// Routes of our tables in the tool's output.
fn routes(netns: &Netns, tables: &[u64]) -> BTreeSet<String> {
    let of = |family: u8| {
        let found = json(netns, &format!("ip -N -j -{family} route show table all"));
        let table = |route: &Value| word(&route["table"]).parse::<u64>().unwrap_or(254);
        let ours = found.into_iter().filter(move |route| tables.contains(&table(route)));
        ours.map(move |route| {
            let kind = route.get("type").map_or_else(|| "1".to_owned(), word);
            let via = route.get("gateway").map_or_else(|| word(&route["via"]["host"]), word);
            let metric = route.get("metric").map_or_else(|| "0".to_owned(), word);
            format!(
                "{family} {kind} {} via {via} dev {} {} {metric}",
                word(&route["dst"]),
                word(&route["dev"]),
                table(&route)
            )
        })
        .collect::<Vec<_>>()
    };
    [4, 6].into_iter().flat_map(of).collect()
}

/// With `-N`, the tool prints numbers.
fn told_route(route: &Value) -> String {
    let kind = match route["type"].as_str().unwrap() {
        "unicast" => "1",
        "local" => "2",
        "blackhole" => "6",
        "unreachable" => "7",
        other => panic!("{other}"),
    };
    // For IPv6, the tool prints loopback as the device of unreachable routes.
    let nowhere = matches!(kind, "6" | "7") && route["family"] == 6;
    let device = if nowhere { "lo".to_owned() } else { word(&route["device"]) };
    format!(
        "{} {kind} {} via {} dev {device} {} {}",
        route["family"],
        word(&route["destination"]),
        word(&route["gateway"]),
        route["table"],
        route["metric"]
    )
}

/// Rules in our chains, and jumps to them, in the tools' output: family, table and line of the save.
fn firewall(netns: &Netns, ours: &[&str]) -> BTreeSet<String> {
    let of = |(family, tool): (u8, &str)| {
        let (mut table, mut found) = (String::new(), Vec::new());
        for line in netns.sh(tool).lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            }
            let leads = |chain: &&str| {
                line.starts_with(&format!("-A {chain} ")) || line.ends_with(&format!("-j {chain}"))
            };
            if line.starts_with("-A ") && ours.iter().any(leads) {
                found.push(format!("{family} {table} {line}"));
            }
        }
        found
    };
    [(4, "iptables-nft-save"), (6, "ip6tables-nft-save")].into_iter().flat_map(of).collect()
}

fn told_firewall(rule: &Value) -> String {
    let [table, chain, rest] = ["table", "chain", "rule"].map(|key| rule[key].as_str().unwrap());
    format!("{} {table} -A {chain} {rest}", rule["family"])
}

/// Number of rules in each of our chains, in the kernel's own format.
fn nft_chains(netns: &Netns, ours: &[&str]) -> Vec<(String, usize)> {
    let listed: Value = serde_json::from_str(&netns.sh("nft -j list ruleset")).unwrap();
    let objects = listed["nftables"].as_array().unwrap();
    let rules = objects.iter().filter_map(|object| object.get("rule"));
    let mut chains: Vec<String> = rules
        .filter(|rule| ours.iter().any(|chain| rule["chain"] == *chain))
        .map(|rule| [&rule["family"], &rule["table"], &rule["chain"]].map(word).join(" "))
        .collect();
    chains.sort();
    chains.chunk_by(|a, b| a == b).map(|same| (same[0].clone(), same.len())).collect()
}

fn told_chains(state: &Value, place: &str, ours: &[&str]) -> Vec<(String, usize)> {
    let all = state["network"]["firewall"]["observed"].as_array().unwrap();
    let here = all.iter().filter(|rule| rule["netns"] == place);
    let mut chains: Vec<String> = here
        .filter(|rule| ours.iter().any(|chain| rule["chain"] == *chain))
        .map(|rule| {
            let family = if rule["family"] == 4 { "ip" } else { "ip6" };
            format!("{family} {} {}", word(&rule["table"]), word(&rule["chain"]))
        })
        .collect();
    chains.sort();
    chains.chunk_by(|a, b| a == b).map(|same| (same[0].clone(), same.len())).collect()
}

fn members(netns: &Netns) -> BTreeSet<String> {
    netns.sh("ipset save").lines().filter(|line| line.starts_with("add ")).map(str::to_owned).collect()
}

fn told_member(member: &Value) -> String {
    format!("add {} {} comment {}", word(&member["set"]), word(&member["ip"]), member["uid"])
}

const CHAINS: [&str; 11] = [
    "ztunnel-PREROUTING",
    "ztunnel-INPUT",
    "ztunnel-FORWARD",
    "ztunnel-OUTPUT",
    "ztunnel-POSTROUTING",
    "ztunnel-RETURNED",
    "ztunnel-SENT-0",
    "ztunnel-SENT-1",
    "ztunnel-KNOWN",
    "ztunnel-FIRST",
    "ztunnel-UPLINK",
];
const KINDS: [&str; 6] = ["ipsets", "rules", "routes", "links", "sysctls", "firewall"];

/// Asserts that the state has exactly the objects in a place that the tools list.
fn assert_as_the_tools_show(state: &Value, place: &str, netns: &Netns, tables: &[u64]) {
    assert_eq!(observed(state, "rules", place, told_rule), rules(netns), "{place}");
    assert_eq!(observed(state, "routes", place, told_route), routes(netns, tables), "{place}");
    assert_eq!(observed(state, "firewall", place, told_firewall), firewall(netns, &CHAINS), "{place}");
    assert_eq!(told_chains(state, place, &CHAINS), nft_chains(netns, &CHAINS), "{place}");
    for sysctl in state["network"]["sysctls"]["observed"].as_array().unwrap() {
        if sysctl["netns"] == place {
            let name = sysctl["name"].as_str().unwrap();
            assert_eq!(word(&sysctl["value"]), netns.read_sysctl(name).trim(), "{place}: {name}");
        }
    }
    let shown: BTreeSet<String> = json(netns, "ip -j address show")
        .iter()
        .filter(|link| {
            let name = link["ifname"].as_str().unwrap().trim_start_matches('p');
            name.starts_with("istioin") || name.starts_with("istioout")
        })
        .map(|link| {
            let up = link["flags"].as_array().unwrap().contains(&"UP".into());
            let mut own: Vec<String> = link["addr_info"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|address| address["scope"] != "link")
                .map(|address| format!("{}/{}", word(&address["local"]), address["prefixlen"]))
                .collect();
            own.sort();
            format!("{} {up} {}", word(&link["ifname"]), own.join(" "))
        })
        .collect();
    let told = observed(state, "links", place, |link| {
        let own = link["addresses"].as_array().unwrap().iter().map(word).collect::<Vec<_>>();
        format!("{} {} {}", word(&link["name"]), link["up"], own.join(" "))
    });
    assert_eq!(told, shown, "{place}");
}

/// A pod with an injected sidecar, started through the plugin.
pub(crate) fn injected(fixture: &Ambient, name: &str) -> Peer {
    let pod = Pod::new(PLAIN, name).annotation("sidecar.istio.io/status", "{}");
    let with_proxy = |mut manifest: Value| {
        manifest["spec"]["containers"] = serde_json::json!([{"name": "app"}, {"name": "istio-proxy"}]);
        manifest
    };
    fixture.manifests.put_pod(&with_proxy(starting(&pod)));
    let conflist = fixture.node.conflist(&[fixture.plugin()]);
    let peer = Peer::new(fixture.node.add_pod(&fixture.node.runtime(), &conflist, pod).unwrap());
    fixture.manifests.put_pod(&with_proxy(peer.sandbox.manifest()));
    peer
}

#[test]
fn every_object_of_the_node_is_as_the_kernels_own_tools_show_it() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let (web, plain) = (fixture.pod(MESH, "web"), fixture.pod(PLAIN, "plain"));
    fixture.settle();
    let seen = state(&fixture);
    assert_eq!(seen["schema"], "millrace.state/v1");
    assert_eq!(seen["observation"]["unobserved"], Value::Array(Vec::new()));
    let tables = [100, 101, 110, 111, 120, 121, 130, 131];
    assert_as_the_tools_show(&seen, "node", fixture.node.netns(), &tables);
    assert_as_the_tools_show(&seen, "ztunnel 0", &ztunnel.pod().netns, &[100]);
    assert_eq!(observed(&seen, "ipsets", "", told_member), members(fixture.node.netns()));
    for kind in KINDS {
        let found = &seen["network"][kind];
        assert_eq!(found["differences"], Value::Array(Vec::new()), "{kind}");
        assert!(!found["observed"].as_array().unwrap().is_empty(), "{kind}");
        assert_eq!(
            found["desired"].as_array().unwrap().len(),
            found["observed"].as_array().unwrap().len(),
            "{kind}"
        );
    }
    assert_eq!(seen["plan"], Value::Array(Vec::new()));
    let health = ["installer", "agent"]
        .map(|part| serde_json::json!({"component": part, "healthy": true, "message": ""}));
    assert_eq!(seen["health"], Value::from(health.to_vec()));
    let pods = [(&web, MESH, "captured", "node"), (&plain, PLAIN, "outside", "null")];
    for (peer, namespace, capture, way) in pods {
        let told = pod(&seen, namespace, &peer.sandbox.pod.name);
        assert_eq!((word(&told["capture"]).as_str(), word(&told["mode"]).as_str()), (capture, way));
        let ips: BTreeSet<String> = peer.sandbox.ips().iter().map(ToString::to_string).collect();
        assert_eq!(told["ips"].as_array().unwrap().iter().map(word).collect::<BTreeSet<_>>(), ips);
    }
    let told = &seen["ztunnels"][0];
    assert_eq!((&told["active"], &told["slot"], &told["ready"]), (&true.into(), &0.into(), &true.into()));
    assert_eq!(told["uid"], ztunnel.pod().pod.uid.as_str());
    assert!(!seen["history"].as_array().unwrap().is_empty());
    assert!(
        seen["installation"].as_array().unwrap().iter().all(|file| file["correct"] == true),
        "{:#}",
        seen["installation"]
    );
}

/// Runs a command repeatedly meanwhile. The command fails where nothing was repaired.
fn while_repeated<T>(netns: &Netns, command: &str, run: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    let words: Vec<&str> = command.split(' ').collect();
    thread::scope(|scope| {
        let _ended = SetOnDrop(&ended);
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let _ = netns.output(Command::new(words[0]).args(&words[1..]));
            }
        });
        run()
    })
}

#[test]
fn what_somebody_took_away_is_a_difference_and_a_step_of_the_plan() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let web = fixture.pod(MESH, "web");
    fixture.settle();
    let ip = web.ip(false);
    let damages = [
        ("rules", "ip -4 rule del priority 102".to_owned(), "priority 102", "add-rule"),
        ("routes", format!("ip route del {ip} table 100 metric 1024"), "metric 1024", "routes"),
        ("ipsets", format!("ipset del ztunnel-pods-ips {ip}"), "ztunnel-pods-ips", "add-members"),
        (
            "firewall",
            "iptables -t mangle -D PREROUTING -j ztunnel-PREROUTING".to_owned(),
            "PREROUTING",
            "firewall",
        ),
        ("links", "ip link set istioout0 down".to_owned(), "istioout0", "set-up"),
        ("sysctls", "sysctl -qw net.ipv4.conf.istioin0.rp_filter=1".to_owned(), "rp_filter", "set-sysctl"),
    ];
    for (kind, damage, what, step) in damages {
        // The agent repairs it faster than it answers, until repairs back off.
        let seen = while_repeated(fixture.node.netns(), &damage, || {
            kit::until(format!("{damage} makes a difference"), || {
                let seen = state(&fixture);
                let differs = seen["network"][kind]["differences"] != Value::Array(Vec::new());
                differs.then_some(seen)
            })
        });
        let found = seen["network"][kind]["differences"].to_string();
        assert!(found.contains(what), "{damage}: {found}");
        let steps: Vec<String> =
            seen["plan"].as_array().unwrap().iter().map(|step| word(&step["kind"])).collect();
        assert!(steps.iter().any(|one| one == step), "{damage}: {steps:?}");
        let capture = match kind {
            "rules" | "ipsets" | "firewall" => "bypassing",
            "routes" | "links" => "held", // by the route below the missing one
            _ => "captured",
        };
        assert_eq!(pod(&seen, MESH, "web")["capture"], capture, "{damage}: {}", seen["network"]);
        fixture.settle();
        // It is pending until everything was found in place often enough.
        fixture.within(Duration::from_secs(60), "it is repaired", |fixture| {
            let seen = state(fixture);
            seen["network"][kind]["differences"] == Value::Array(Vec::new())
                && pod(&seen, MESH, "web")["capture"] == "captured"
        });
    }
}

#[test]
fn a_pod_with_a_sidecar_is_compared_with_what_the_plugin_made() {
    let mut fixture = Ambient::new(&[]);
    let sidecar = injected(&fixture, "injected");
    fixture.settle();
    let told = pod(&state(&fixture), PLAIN, "injected").clone();
    assert_eq!((&told["capture"], &told["mode"]), (&"captured".into(), &"sidecar".into()), "{told:#}");
    let netns = &sidecar.sandbox.netns;
    netns.sh("iptables-nft -t nat -D ISTIO_OUTPUT 1");
    let told = pod(&state(&fixture), PLAIN, "injected").clone();
    assert_eq!(told["capture"], "bypassing", "{told:#}");
    let [first, second] = ["-p tcp -m tcp --dport 15020 -j RETURN", "-s 127.0.0.6/32 -o lo -j RETURN"];
    let difference = format!("IPv4 nat: chain ISTIO_OUTPUT rule 1 is {second}, expected {first}");
    assert_eq!(told["kernel"]["differences"], json!([difference]), "{told:#}");
}

#[test]
fn capture_from_within_is_as_the_kernels_own_tools_show_it() {
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let web = fixture.mesh_pod("web");
    fixture.wait_served(&ztunnel, &web);
    fixture.wait_captured(&web);
    let is_captured = |seen: &Value| pod(seen, MESH, "web")["capture"] == "captured";
    let seen = kit::until("it is shown", || Some(state(&fixture)).filter(is_captured));
    assert_eq!(seen["observation"]["unobserved"], Value::Array(Vec::new()));
    assert_eq!(observed(&seen, "ipsets", "", told_member), members(fixture.node.netns()));
    assert_eq!(
        observed(&seen, "firewall", "node", told_firewall),
        firewall(fixture.node.netns(), &["ISTIO_POSTRT", "ISTIO_PROBES"])
    );
    for kind in ["ipsets", "firewall"] {
        assert_eq!(seen["network"][kind]["differences"], Value::Array(Vec::new()), "{kind}");
    }
    assert_eq!(seen["plan"], Value::Array(Vec::new()));
    let told = pod(&seen, MESH, "web");
    assert_eq!((&told["capture"], &told["mode"]), (&"captured".into(), &"in-pod".into()), "{told:#}");
    assert_eq!(told["ztunnel"]["acknowledged"], true);
    let inode =
        std::fs::metadata(web.sandbox.netns.path()).map(|found| std::os::unix::fs::MetadataExt::ino(&found));
    assert_eq!(told["kernel"]["netns"]["inode"], inode.unwrap());
    let (status, body) = ask(&fixture.node.run_dir().join("debug.sock"), "/debug/explain?pod=mesh/web");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &answer["code"], &answer["capture"]),
        (200, &json!("captured"), &json!("captured")),
        "{body}"
    );
}
