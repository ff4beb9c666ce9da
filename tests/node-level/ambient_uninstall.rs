//! State that remains when the agent ends: everything, or nothing.

use std::net::SocketAddr;
use std::sync::Arc;

use kit::{Echo, Live, LiveConnections, Netns, NodeOptions, UplinkWatch, Ztunnel, ZtunnelOptions};
use serde_json::Value;

use crate::ambient_paths::every;
use crate::fixtures::ambient::{Ambient, MESH, PLAIN, dump_of, ruleset_of};

const OUTSIDE: u16 = 9000;

/// Adds foreign objects to the node, the first half before the agent starts, the second while it runs; with `undo`, removes them.
fn foreign(netns: &Netns, tool: &str, part: u8, undo: bool) {
    let mut lines = Vec::new();
    for (ip, family, net, gateway) in
        [("ip -4", "", "10.77.0", "10.10.0.1"), ("ip -6", "6", "fd00:77:", "fd00:10::1")]
    {
        // All namespaces here share the lock of legacy tables, for which -w waits.
        let iptables = format!("ip{family}tables-{tool} -w");
        let last = if family.is_empty() { format!("{net}.{part}/32") } else { format!("{net}:{part}/128") };
        lines.extend([
            // Also in our tables and among our rules.
            format!("{ip} route add {last} via {gateway} dev eth0 table 100 metric 7"),
            format!("{ip} route add {last} via {gateway} dev eth0 table 13{part}"),
            format!("{ip} route add {last} via {gateway} dev eth0"),
            format!("{ip} rule add pref 10{part} from {last} lookup 13{part}"),
            format!("{ip} rule add pref 50{part} fwmark 0x200/0x200 lookup main"),
            format!("{iptables} -t mangle -N FOREIGN-{part}"),
            format!("{iptables} -t mangle -A PREROUTING -j FOREIGN-{part}"),
            format!("{iptables} -t mangle -A FOREIGN-{part} -m mark --mark 0x100/0x100 -j RETURN"),
            format!("{iptables} -t nat -A POSTROUTING -s {last} -j MASQUERADE"),
            format!("{iptables} -t filter -A FORWARD -s {last} -j ACCEPT"),
        ]);
        if part == 1 {
            // Other components use the other tool: our objects stay in their tables.
            lines.push(format!("ip{family}tables-{} -w -t mangle -A FORWARD -j ACCEPT", other(tool)));
        }
    }
    lines.push(format!("ipset create foreign-{part} hash:ip"));
    lines.push(format!("ipset add foreign-{part} 10.77.0.{part}"));
    if undo {
        let inverse = [
            (" add ", " del "),
            (" -A ", " -D "),
            (" -N ", " -X "),
            (" create ", " destroy "),
            (" hash:ip", ""),
        ];
        let undone = |line: String| inverse.iter().fold(line, |line, (from, to)| line.replace(from, to));
        lines = lines.into_iter().rev().map(undone).collect();
    }
    for line in lines {
        netns.sh(&line);
    }
}

fn other(tool: &str) -> &str {
    if tool == "nft" { "legacy" } else { "nft" }
}

/// A node with ztunnels and pods from before the agent.
struct Fixture {
    ztunnels: Vec<Ztunnel>,
    base: Ambient,
    tool: &'static str,
}

impl Fixture {
    fn new(tool: &'static str, ztunnels: usize, env: &[(&str, &str)]) -> Self {
        let base = Ambient::stopped(NodeOptions::default(), env);
        foreign(base.node.netns(), tool, 0, false);
        if tool == "legacy" {
            // Listing with the other tool creates its tables.
            base.dump();
        }
        let names = ["ztunnel-a", "ztunnel-b"];
        let ztunnels: Vec<_> = names[..ztunnels]
            .iter()
            .map(|name| {
                Ztunnel::start(
                    &base.node,
                    name,
                    ZtunnelOptions { dns_capture: true, ..ZtunnelOptions::default() },
                )
            })
            .collect();
        for netns in [&**base.node.netns()].into_iter().chain(ztunnels.iter().map(|z| &z.pod().netns)) {
            netns.sysctl("net/ipv4/conf/all/rp_filter", "1");
        }
        Self { ztunnels, base, tool }
    }

    /// Dumps of the node, and of each ztunnel.
    fn dumps(&self) -> Vec<String> {
        let inside = self.ztunnels.iter().map(|ztunnel| &ztunnel.pod().netns);
        let all = inside.clone().chain([&**self.base.node.netns()]);
        all.for_each(Netns::wait_until_addresses_are_usable); // otherwise there are tentative ones
        let dumps = inside.clone().map(|netns| dump_of(netns) + &ruleset_of(netns));
        let node = self.base.dump() + &ruleset_of(self.base.node.netns());
        std::iter::once(node).chain(dumps).collect()
    }

    fn activate_all(&mut self) {
        for ztunnel in &self.ztunnels {
            self.base.announce(ztunnel, true);
            self.base.wait_active(ztunnel);
        }
    }
}

/// Prints only the differences.
fn assert_same(found: &[String], expected: &[String], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let only = |one: &str, other: &str| {
            let other: Vec<_> = other.lines().collect();
            one.lines().filter(|line| !other.contains(line)).collect::<Vec<_>>().join("\n  ")
        };
        assert!(found == expected, "{what}\n+ {}\n- {}", only(found, expected), only(expected, found));
    }
}

#[test]
fn an_uninstallation_leaves_nothing_and_takes_nothing_of_others() {
    let cases: Vec<_> =
        ["nft", "legacy"].into_iter().flat_map(|tool| [0, 1, 2].map(|count| (tool, count))).collect();
    every(&cases, |(tool, count)| {
        let mut fixture = Fixture::new(tool, *count, &[("CLEANUP_ON_EXIT", "always")]);
        // Pods and their addresses stay, so they start before the first dump.
        let pods =
            [fixture.base.pod_without_plugin(MESH, "one"), fixture.base.pod_without_plugin(PLAIN, "two")];
        let before = fixture.dumps();
        fixture.base.start();
        fixture.activate_all();
        fixture.base.wait_enrolled(&pods[0], true);
        fixture.base.daemon().wait_until_ready();
        assert_ne!(fixture.dumps()[0], before[0]);
        foreign(fixture.base.node.netns(), fixture.tool, 1, false);
        let (status, log) = fixture.base.daemon.take().unwrap().terminate();
        assert!(status.success(), "{log}");
        assert_same(&without_foreign(&fixture), &before, &format!("{tool} with {count} ztunnels"));
        assert!(!fixture.base.config_file().exists(), "{log}");
    });
}

/// Foreign objects added meanwhile still exist; removes them as they were added.
fn without_foreign(fixture: &Fixture) -> Vec<String> {
    let netns = fixture.base.node.netns();
    foreign(netns, fixture.tool, 1, true);
    if fixture.tool == "legacy" {
        // Objects that the other tool has created by itself.
        for family in ["ip", "ip6"] {
            netns.sh(&format!("nft delete table {family} mangle"));
        }
    }
    fixture.dumps()
}

#[test]
fn tables_and_chains_that_came_with_our_rules_go_with_them() {
    let mut base = Ambient::stopped(NodeOptions::default(), &[("CLEANUP_ON_EXIT", "always")]);
    let node = Arc::clone(&base.node);
    let netns = node.netns();
    let dns = ZtunnelOptions { dns_capture: true, ..ZtunnelOptions::default() };
    let ztunnel = Ztunnel::start(&node, "ztunnel", dns);
    let inside = &ztunnel.pod().netns;
    let pod = base.pod_without_plugin(MESH, "one");
    // Foreign chains stay, with rules or without; also one that no iptables created.
    netns.sh("iptables-nft -t nat -A OUTPUT -j ACCEPT");
    netns.sh("iptables-nft -t nat -F OUTPUT");
    netns.sh("nft add table ip6 nat");
    let rulesets = || [&**netns, inside].map(ruleset_of);
    let before = rulesets();
    assert!(kit::has_line(&before[0], "table ip6 nat {"), "{before:?}");
    assert_eq!(before[1].trim(), "== nft list ruleset");
    base.start();
    base.announce(&ztunnel, true);
    base.wait_active(&ztunnel);
    base.wait_enrolled(&pod, true);
    base.daemon().wait_until_ready();
    for (family, ruleset) in [("ip", 0), ("ip6", 0), ("ip", 1), ("ip6", 1)] {
        let table = format!("table {family} mangle {{");
        assert!(kit::has_line(&rulesets()[ruleset], &table), "{:?}", rulesets());
    }
    // One object of ours is now used by another component.
    netns.sh("iptables-nft -t mangle -A FORWARD -j ACCEPT");
    netns.sh("ip6tables-nft -t mangle -P FORWARD DROP");
    let (status, log) = base.daemon.take().unwrap().terminate();
    assert!(status.success(), "{log}");
    let rules = netns.sh("iptables-nft-save -t mangle");
    assert!(rules.lines().any(|rule| rule == "-A FORWARD -j ACCEPT"), "{rules}");
    let rules = netns.sh("ip6tables-nft-save -t mangle");
    let policies: Vec<_> = rules.lines().map(|line| line.split(" [").next().unwrap()).collect();
    assert!(policies.contains(&":FORWARD DROP"), "{rules}");
    let chains = |family| netns.sh(&format!("nft list table {family} mangle")).matches("chain ").count();
    assert_eq!((chains("ip"), chains("ip6")), (1, 1), "{}", rulesets()[0]);
    for family in ["ip", "ip6"] {
        netns.sh(&format!("nft delete table {family} mangle"));
    }
    assert_eq!(rulesets(), before);
}

#[test]
fn a_stop_leaves_all_in_place_and_traffic_flows_on() {
    every(&["nft", "legacy"], |tool| {
        let mut fixture = Fixture::new(tool, 2, &[]);
        fixture.base.start();
        fixture.activate_all();
        let (first, second) = (fixture.base.pod(MESH, "first"), fixture.base.pod(MESH, "second"));
        let _outside = Echo::tcp(fixture.base.node.outside(), OUTSIDE);
        let node = Arc::clone(&fixture.base.node);
        let watch = UplinkWatch::start(&node, &first.sandbox.ips());
        let mut live = LiveConnections::start(&first.sandbox.netns, Live::default());
        for v6 in [false, true] {
            live.open(second.at(v6), 2);
            live.open((node.outside_ip(v6), OUTSIDE).into(), 2);
        }
        fixture.base.daemon().wait_until_ready();
        let before = fixture.dumps();
        let (status, log) = fixture.base.daemon.take().unwrap().terminate();
        assert!(status.success(), "{log}");
        assert_same(&fixture.dumps(), &before, tool);
        live.wait_round();
        live.finish().assert_unbroken();
        for v6 in [false, true] {
            let outside: SocketAddr = (node.outside_ip(v6), OUTSIDE).into();
            first.tcp(outside).unwrap();
            fixture.ztunnels[1].wait_seen(|seen| seen.dst == outside);
        }
        assert_eq!(watch.total().direct, 0, "{:?}", watch.total());
        // Pods end while there is no agent; the next agent handles the rest.
        fixture.base.start();
        fixture.base.daemon().wait_until_ready();
        assert_same(&fixture.dumps(), &before, &format!("{tool}, started again"));
    });
}

#[test]
fn the_command_takes_everything_away_unless_an_agent_runs() {
    let mut fixture = Fixture::new("nft", 1, &[("AMBIENT_TABLES", "1200,1201,1210,1220,1230")]);
    let pod = fixture.base.pod_without_plugin(MESH, "one");
    let before = fixture.dumps();
    fixture.base.start();
    fixture.activate_all();
    fixture.base.wait_enrolled(&pod, true);
    fixture.base.daemon().wait_until_ready();
    let state = fixture.base.container.exec(&["state", "-o", "json"]).stdout;
    let command = |fixture: &Fixture| {
        let mut command = fixture.base.container.start_with(&["uninstall"], &[]);
        (command.wait().code(), command.log())
    };
    let (status, log) = command(&fixture);
    let served =
        "an agent runs on this node, and would restore everything (/var/run/istio-cni/debug.sock is served)";
    let advice = "delete its DaemonSet, which removes everything by itself, or stop it first";
    assert!(status == Some(1) && kit::has_line(&log, &format!("install-cni: {served}: {advice}")), "{log}");
    fixture.base.wait_enrolled(&pod, true); // nothing has changed
    fixture.base.daemon.take().unwrap().kill();
    // Called by a person, it knows the agent's settings only from the last recorded state.
    std::fs::write(fixture.base.node.run_dir().join("last-state.json"), state).unwrap();
    for setting in ["AMBIENT_ENABLED", "AMBIENT_TABLES"] {
        fixture.base.container.set_env(setting, "");
    }
    let (status, log) = command(&fixture);
    assert!(
        status == Some(0) && kit::logged(&log, "no file or rule of Millrace remains on this node", "") == 1,
        "{log}"
    );
    assert_same(&fixture.dumps(), &before, "after the command");
    let chain = std::fs::read(fixture.base.node.net_d().join("10-kit.conflist")).unwrap();
    let chain: Value = serde_json::from_slice(&chain).unwrap();
    let types: Vec<_> = chain["plugins"].as_array().unwrap().iter().map(|plugin| &plugin["type"]).collect();
    assert_eq!(types, ["ptp"], "{chain}");
    assert!(!fixture.base.config_file().exists());
    let (status, log) = command(&fixture);
    assert_eq!(status, Some(0), "once more: {log}");
}
