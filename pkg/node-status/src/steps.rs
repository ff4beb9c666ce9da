//! Steps of a plan, formatted as commands.

use std::net::IpAddr;

use model::{Family, PodUid};
use node_plan::{NetnsPlace, NodeConfig, Operation, PathRule, RouteEdit};
use report::PlanStep;

use crate::node::{place_name, policy_rule};

pub(super) fn plan_step(operation: &Operation, config: &NodeConfig) -> PlanStep {
    PlanStep {
        kind: operation.kind().to_owned(),
        message: operation.to_string(),
        operations: operation_commands(operation, config),
    }
}

/// Formats an operation as commands. A command in a ztunnel's namespace is marked as such.
fn operation_commands(operation: &Operation, config: &NodeConfig) -> Vec<String> {
    let at = |at: &NetnsPlace| match at {
        NetnsPlace::Node => String::new(),
        NetnsPlace::Ztunnel(_) => format!("[{}] ", place_name(at)),
    };
    match operation {
        Operation::CreateSet(family) => {
            let kind = if *family == Family::V6 { "inet6" } else { "inet" };
            vec![format!("ipset create {} hash:ip family {kind} comment", config.set_name(*family))]
        }
        Operation::DestroySet(family) => vec![format!("ipset destroy {}", config.set_name(*family))],
        Operation::AddMembers(members) => {
            let add = |(ip, uid): &(IpAddr, PodUid)| {
                format!("ipset add {} {ip} comment \"{uid}\"", config.set_name(Family::from_ip(*ip)))
            };
            members.iter().map(add).collect()
        }
        Operation::RemoveMembers(ips) => {
            ips.iter().map(|ip| format!("ipset del {} {ip}", config.set_name(Family::from_ip(*ip)))).collect()
        }
        Operation::CreatePair(pair) => vec![format!("ip link add {} peer {}", pair.node, pair.ztunnel)],
        Operation::DeleteLink(place, name) => vec![format!("{}ip link delete {name}", at(place))],
        Operation::SetUp(place, name) => vec![format!("{}ip link set {name} up", at(place))],
        Operation::AddAddress(place, link, net) => {
            let setting = Operation::required_setting(link, net);
            let enabled = setting.map(|name| sysctl_command(&at(place), &name, "0"));
            enabled.into_iter().chain([format!("{}ip address add {net} dev {link}", at(place))]).collect()
        }
        Operation::SetSysctls(place, settings) => {
            let set = |(name, value): &(String, String)| sysctl_command(&at(place), name, value);
            settings.iter().map(set).collect()
        }
        Operation::RestoreSysctl(place, name, value) => vec![sysctl_command(&at(place), name, value)],
        Operation::AddRule(place, rule) => vec![rule_command("add", place, rule)],
        Operation::DeleteRule(place, rule) => vec![rule_command("delete", place, rule)],
        Operation::Routes(place, edits) => edits
            .iter()
            .map(|edit| match edit {
                RouteEdit::Replace(put) => format!("{}ip route replace {put}", at(place)),
                RouteEdit::Delete(gone) => format!("{}ip route delete {gone}", at(place)),
            })
            .collect(),
        Operation::Firewall { place, changes, .. } => changes
            .iter()
            .flat_map(|(family, change)| {
                let tool = if *family == Family::V6 { "ip6tables-restore" } else { "iptables-restore" };
                let head = format!("{}{tool} --noflush", at(place));
                let text = change.restore_text();
                let lines: Vec<String> = text.lines().map(|line| format!("    {line}")).collect();
                [head].into_iter().chain(lines)
            })
            .collect(),
        // No command corresponds to "if it is empty"; `nft list tables` shows which is.
        Operation::RemoveChains(_) => Vec::new(),
    }
}

fn sysctl_command(at: &str, name: &str, value: &str) -> String {
    format!("{at}sysctl -w {name}={value}")
}

fn rule_command(verb: &str, at: &NetnsPlace, rule: &PathRule) -> String {
    let shown = policy_rule(&place_name(at), rule).to_string();
    shown.replacen(" rule ", &format!(" rule {verb} "), 1)
}
