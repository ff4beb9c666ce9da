//! Outbound capture, in nat.

use model::{Family, IfName, IpNet};

use super::{
    DNS, DNS_PORT, IN_REDIRECT, NetworkSelection, OUTPUT, OUTPUT_DNS, REDIRECT, SidecarConfig, SocketOwner,
};
use super::{passthrough_source, trace};
use crate::ir::{Hook, JumpPlace, Match, MatchValue, Rule, RuleSet, Table, TableRules, Target};

pub(super) fn add_rules(config: &SidecarConfig, family: Family, rules: &mut RuleSet) {
    let dns = config.captures_dns();
    let nat = rules.table_mut(Table::Nat);
    skip_interfaces(config, nat);
    if dns {
        // The jump from OUTPUT then matches every protocol: datagrams to port 53 branch here, and only TCP continues.
        nat.push(&OUTPUT, Rule::jump_to(OUTPUT_DNS).udp().dport(DNS));
        nat.push(&OUTPUT, Rule::new(Target::Return).not_tcp());
    }
    trace::push_log_rule(config, nat, &OUTPUT, "JumpOutbound", &Rule::new(Target::Return).tcp());
    for rule in config.exclude_outbound.rules(&Rule::new(Target::Return).tcp()) {
        nat.push(&OUTPUT, rule);
    }
    let lo = IfName::lo();
    nat.push(&OUTPUT, Rule::new(Target::Return).source(IpNet::from(passthrough_source(family))).output(&lo));
    for owner in config.proxy_owners() {
        own_traffic(config, family, owner, nat);
    }
    for rule in config.owner_group_returns(&Rule::new(Target::Return)) {
        nat.push(&OUTPUT, rule);
    }
    dns_over_tcp(config, family, nat);
    nat.push(&OUTPUT, Rule::new(Target::Return).dest(config.loopback_net(family)));
    add_network_rules(config, family, nat);
    let rule = Rule::jump_to(OUTPUT);
    rules.add_jump(Table::Nat, Hook::Output, if dns { rule } else { rule.tcp() }, JumpPlace::Last);
}

fn skip_interfaces(config: &SidecarConfig, nat: &mut TableRules) {
    for interface in &config.exclude_interfaces {
        let rule = Rule::new(Target::Return).output(interface);
        trace::push_traced_rule(config, nat, &OUTPUT, "ExcludeInterfaceCommand", rule);
    }
}

/// Exempts the proxy's own traffic from capture, except connections to its own pod by the pod's address, which are
/// redirected to the inbound listener.
fn own_traffic(config: &SidecarConfig, family: Family, owner: SocketOwner, nat: &mut TableRules) {
    let lo = IfName::lo();
    let dns = config.captures_dns();
    let to_self = Rule::jump_to(IN_REDIRECT).not_dest(config.loopback_net(family)).output(&lo).tcp();
    let not_tunnel = match owner {
        SocketOwner::User(_) if dns => Match::DestPorts(MatchValue::ne(vec![DNS, config.tunnel_port])),
        _ => Match::DestPort(MatchValue::ne(config.tunnel_port)),
    };
    nat.push(&OUTPUT, to_self.when(not_tunnel).when(owner.to_match()));
    if !captures_loopback(config) {
        let local = Rule::new(Target::Return).output(&lo);
        let local = if dns { local.tcp().when(Match::DestPort(MatchValue::ne(DNS))) } else { local };
        nat.push(&OUTPUT, local.when(owner.to_negated_match()));
    }
    nat.push(&OUTPUT, Rule::new(Target::Return).when(owner.to_match()));
}

/// Returns whether a captured network is a loopback one: connections between processes of the pod are then redirected
/// to the proxy, too.
fn captures_loopback(config: &SidecarConfig) -> bool {
    match &config.include_networks {
        NetworkSelection::All => false,
        NetworkSelection::List(nets) => nets.iter().any(|net| net.addr().is_loopback()),
    }
}

fn dns_over_tcp(config: &SidecarConfig, family: Family, nat: &mut TableRules) {
    for server in config.dns_destinations(family) {
        let rule = Rule::new(Target::Redirect(DNS_PORT)).tcp().dport(DNS);
        nat.push(&OUTPUT, Rule { dest: server.map(MatchValue::eq), ..rule });
    }
}

fn add_network_rules(config: &SidecarConfig, family: Family, nat: &mut TableRules) {
    let of_family = |net: &&IpNet| Family::from_ip(net.addr()) == family;
    for net in config.exclude_networks.iter().filter(of_family) {
        nat.push(&OUTPUT, Rule::new(Target::Return).dest(net.trunc()));
    }
    for rule in config.include_outbound.rules(&Rule::jump_to(REDIRECT).tcp()) {
        nat.push(&OUTPUT, rule);
    }
    match &config.include_networks {
        NetworkSelection::All => nat.push(&OUTPUT, Rule::jump_to(REDIRECT)),
        NetworkSelection::List(nets) => {
            let mut nets = nets.iter().filter(of_family).peekable();
            let any = nets.peek().is_some();
            for net in nets {
                nat.push(&OUTPUT, Rule::jump_to(REDIRECT).dest(net.trunc()));
            }
            if any {
                nat.push(&OUTPUT, Rule::new(Target::Return));
            }
        }
    }
}
