//! DNS over UDP: redirected in nat, and separated into two connection-tracking zones in raw, so that the application's
//! query to the proxy and the proxy's own query to the server never share a connection.

use model::Family;

use super::{DNS, DNS_PORT, OUTPUT_DNS, PRERT, SidecarConfig};
use crate::ir::{Hook, JumpPlace, Match, MatchValue, Rule, RuleSet, Table, Target};

/// Queries of the proxy to the servers.
const UPSTREAM_ZONE: u16 = 1;
/// Queries of the applications to the proxy.
const CAPTURED_ZONE: u16 = 2;

pub(super) fn add_rules(config: &SidecarConfig, family: Family, rules: &mut RuleSet) {
    let servers = config.dns_destinations(family);
    if !config.captures_dns() {
        return;
    }
    let question = Rule::new(Target::Return).udp().dport(DNS);
    let nat = rules.table_mut(Table::Nat);
    nat.chain_mut(&OUTPUT_DNS); // always jumped to, even if no server is of this family
    for owner in config.proxy_owners() {
        nat.push(&OUTPUT_DNS, question.clone().when(owner.to_match()));
    }
    for rule in config.owner_group_returns(&question) {
        nat.push(&OUTPUT_DNS, rule);
    }
    for server in &servers {
        let rule = question.with_target(Target::Redirect(DNS_PORT));
        nat.push(&OUTPUT_DNS, Rule { dest: server.map(MatchValue::eq), ..rule });
    }
    add_zone_rules(config, &servers, rules);
}

fn add_zone_rules(config: &SidecarConfig, servers: &[Option<model::IpNet>], rules: &mut RuleSet) {
    let raw = rules.table_mut(Table::Raw);
    let zone = |zone| Rule::new(Target::CtZone(zone)).udp();
    for owner in config.proxy_owners() {
        raw.push(&OUTPUT_DNS, zone(UPSTREAM_ZONE).dport(DNS).when(owner.to_match()));
        let answer = zone(CAPTURED_ZONE).when(Match::SourcePort(MatchValue::eq(DNS_PORT)));
        raw.push(&OUTPUT_DNS, answer.when(owner.to_match()));
    }
    for server in servers {
        raw.push(&OUTPUT_DNS, Rule { dest: server.map(MatchValue::eq), ..zone(CAPTURED_ZONE).dport(DNS) });
        let answer = zone(UPSTREAM_ZONE).when(Match::SourcePort(MatchValue::eq(DNS)));
        raw.push(&PRERT, Rule { source: server.map(MatchValue::eq), ..answer });
    }
    rules.add_jump(Table::Raw, Hook::Output, Rule::jump_to(OUTPUT_DNS).udp(), JumpPlace::Last);
    if !servers.is_empty() {
        rules.add_jump(Table::Raw, Hook::Prerouting, Rule::jump_to(PRERT).udp(), JumpPlace::Last);
    }
}
