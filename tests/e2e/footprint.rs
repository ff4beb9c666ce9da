//! What an installation leaves on a node, for comparison: files, network configuration, rules, routes, links.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::machine::Machine;

/// State of the node by subject, without what belongs to single pods.
pub(crate) type Footprint = BTreeMap<&'static str, String>;

/// The state now.
pub(crate) fn of(machine: &Machine) -> Footprint {
    let etc = machine.path("/etc");
    let rules = "for tool in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $tool-save 2>/dev/null | grep -E '^(\\*|-|:)' | \
                 sed 's/ \\[.*//'; done; nft list ruleset 2>/dev/null | grep -c istio || true; ipset list -name";
    // Not of pods: their ends of links, and routes to them. Nor what changes with each boot.
    let routes = "ip rule; ip -6 rule; ip route show table all; ip -o link | sed 's/^[0-9]*: //; s/[@:].*//'";
    let without_pods = |text: &str| {
        text.lines()
            .filter(|line| !line.contains("veth") && !line.contains("fe80::"))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    BTreeMap::from([
        ("conflist", chain(machine).to_string()),
        ("conf dir", names(&etc.join("cni/net.d"))),
        ("bin dir", names(&machine.path("/opt/cni/bin"))),
        ("sockets and files of the agent", names(&machine.path("/run/istio-cni"))),
        ("ambient configuration", names(&etc.join("ambient-config"))),
        ("rules", machine.sh(rules)),
        ("routes and links", without_pods(&machine.sh(routes))),
    ])
}

/// Subject and line of what stays where the runtime calls the plugin until the last pod ends that started with it, and of what the
/// plugin may write then.
const KEPT: [(&str, &str); 2] =
    [("bin dir", "istio-cni"), ("sockets and files of the agent", "istio-cni.log")];

/// Remains of the installation after an uninstallation, for the reader; empty if nothing is left that has to go.
pub(crate) fn left(machine: &Machine, before: &Footprint) -> String {
    let after = of(machine);
    if machine.runtime.keeps_plugin() {
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

/// The network that the container runtime reads.
pub(crate) fn chain(machine: &Machine) -> Value {
    let text = fs::read(machine.path("/etc/cni/net.d/10-e2e.conflist")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or(Value::Null)
}

/// The plugin's entry in it.
pub(crate) fn entry(machine: &Machine) -> Value {
    let chain = chain(machine);
    let mut plugins = chain["plugins"].as_array().into_iter().flatten();
    plugins.find(|plugin| plugin["type"] == "istio-cni").cloned().unwrap_or_default()
}

/// What differs, for the reader; empty if nothing does.
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
