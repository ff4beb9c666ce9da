//! State of a node for comparison before and after an installation: files, network configuration, rules, routes, links.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::machine::Machine;

/// Pattern of rules that the network's plugins create for a pod: they contain its address, or are in its own chain of `portmap`.
const OF_PODS: &str = r"10\.244\.1\.|CNI-DN-";

/// State of the node by subject, without objects of single pods.
pub(crate) type Footprint = BTreeMap<&'static str, String>;

/// The current state.
pub(crate) fn of(machine: &Machine) -> Footprint {
    let etc = machine.path("/etc");
    // Without pods' rules, ends of links, and routes, and without values that change with each boot.
    let rules = format!(
        "for tool in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $tool-save 2>/dev/null | grep -E '^(\\*|-|:)' | \
         grep -vE '{OF_PODS}' | sed 's/ \\[.*//'; done; nft list ruleset 2>/dev/null | grep -c istio || true; ipset list -name"
    );
    let routes = "ip rule; ip -6 rule; ip route show table all | sed 's: linkdown::'; ip -o link | sed 's/^[0-9]*: //; s/[@:].*//'";
    let without_pods = |text: &str| {
        text.lines()
            .filter(|line| !line.contains("veth") && !line.contains("fe80::"))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    BTreeMap::from([
        ("networks", networks(machine).iter().map(|network| format!("{network}\n")).collect()),
        ("conf dir", names(&etc.join("cni/net.d")) + &names(&etc.join("cni/multus/net.d"))),
        ("bin dir", names(&machine.path("/opt/cni/bin")) + &names(&machine.path("/var/lib/cni/bin"))),
        ("sockets and files of the agent", names(&machine.path("/run/istio-cni"))),
        ("ambient configuration", names(&etc.join("ambient-config"))),
        ("rules", machine.sh(&rules)),
        ("routes and links", without_pods(&machine.sh(routes))),
    ])
}

const PLUGIN: &str = "istio-cni";

/// Subject and line of files that stay where the plugin is called until the end of the last pod that started with it, and of those
/// that the plugin may write then.
const KEPT: [(&str, &str); 2] = [("bin dir", PLUGIN), ("sockets and files of the agent", "istio-cni.log")];

/// Unexpected remains of the installation after an uninstallation, as text; empty if there are none. `keeps_plugin` means that the
/// plugin is called for pods that started with it.
pub(crate) fn left(machine: &Machine, before: &Footprint, keeps_plugin: bool) -> String {
    let after = of(machine);
    if keeps_plugin {
        return difference(&without_kept(before), &without_kept(&after));
    }
    difference(before, &after)
}

fn without_kept(state: &Footprint) -> Footprint {
    let goes = |subject: &str, line: &str| !KEPT.contains(&(subject, line));
    let lines_of = |(subject, text): (&&'static str, &String)| {
        let lines = text.lines().filter(|line| goes(subject, line)).map(|line| format!("{line}\n"));
        (*subject, lines.collect())
    };
    state.iter().map(lines_of).collect()
}

/// State of the node by subject that pods can change: addresses, records of calls, rules, routes and links.
pub(crate) fn of_pods(machine: &Machine) -> Footprint {
    let lib = machine.path("/var/lib/cni");
    let addresses = names(&lib.join("networks/e2e")) + &names(&lib.join("networks/second"));
    let rules = format!(
        "{{ nft --stateless list ruleset; iptables-legacy-save 2>/dev/null; }} | grep -E '{OF_PODS}' || true"
    );
    // A link gets its IPv6 address some time after it is created.
    let routes = "ip rule; ip route show table all | grep -v fe80:: | sed 's: linkdown::'; ip -o link | sed 's/^[0-9]*: //; s/[@:].*//'";
    BTreeMap::from([
        (
            "addresses",
            addresses.lines().filter(|name| name.contains('.')).map(|name| format!("{name}\n")).collect(),
        ),
        ("results", names(&lib.join("results")) + &names(&lib.join("multus"))),
        ("records", names(&machine.path("/run/istio-cni/pods"))),
        ("rules", machine.sh(&rules)),
        ("routes and links", machine.sh(routes)),
    ])
}

/// Remains of pods since `before`, as text.
pub(crate) fn left_of_pods(machine: &Machine, before: &Footprint) -> String {
    difference(before, &of_pods(machine))
}

/// Networks in the runtime's configuration directory, in the order of their files.
fn networks(machine: &Machine) -> Vec<Value> {
    let directory = machine.path("/etc/cni/net.d");
    let files = names(&directory);
    let files = files.lines().filter(|name| name.ends_with(".conf") || name.ends_with(".conflist"));
    let read = |name: &str| serde_json::from_slice(&fs::read(directory.join(name)).ok()?).ok();
    files.filter_map(read).collect()
}

/// The conflist with the plugin's entry.
pub(crate) fn chain(machine: &Machine) -> Value {
    let is_ours = |network: &Value| plugins(network).any(|plugin| plugin["type"] == PLUGIN);
    networks(machine).into_iter().find(is_ours).unwrap_or_default()
}

/// The plugin's entry.
pub(crate) fn entry(machine: &Machine) -> Value {
    plugins(&chain(machine)).find(|plugin| plugin["type"] == PLUGIN).cloned().unwrap_or_default()
}

fn plugins(network: &Value) -> impl Iterator<Item = &Value> {
    network["plugins"].as_array().into_iter().flatten()
}

/// Differences as text; empty if there are none.
fn difference(before: &Footprint, after: &Footprint) -> String {
    let mut text = String::new();
    for (subject, was) in before {
        let is = &after[subject];
        let more = is
            .lines()
            .filter(|line| !was.lines().any(|known| known == *line))
            .map(|line| format!(" +{line}"));
        let less = was
            .lines()
            .filter(|line| !is.lines().any(|known| known == *line))
            .map(|line| format!(" -{line}"));
        let lines: String = more.chain(less).collect();
        if !lines.is_empty() {
            text += &format!("{subject}:{lines}; ");
        }
    }
    text
}

fn names(directory: &Path) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.into_iter().map(|name| format!("{name}\n")).collect()
}
