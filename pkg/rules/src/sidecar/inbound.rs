//! Inbound capture: nat for REDIRECT, mangle for TPROXY.

use model::{Family, IfName, IpNet, Mark};

use super::{
    DIVERT, IN_REDIRECT, INBOUND, InboundMode, NetworkSelection, OUTPUT, PRERT, PortSelection, REDIRECT,
    SidecarConfig, TPROXY,
};
use super::{passthrough_source, trace};
use crate::ir::{CtStates, Hook, JumpPlace, Match, MatchValue, Rule, RuleSet, Table, TableRules, Target};

/// Added to the TPROXY mark for the proxy's traffic to the pod's own address over loopback, the only traffic on `lo`
/// that is inbound.
const LOOPED: u32 = 1;

pub(super) fn add_rules(config: &SidecarConfig, family: Family, rules: &mut RuleSet) {
    virtual_machines(config, family, rules);
    let tproxy_mark = config.local_route().map(|route| route.mark);
    if config.inbound_mode == InboundMode::Redirect {
        add_redirect_rules(config, rules);
    } else if let Some(mark) = tproxy_mark {
        add_tproxy_rules(config, family, mark, rules);
    }
    early_packets(config, tproxy_mark, rules);
    nat_jump(config, rules);
}

/// Adds the rules for virtual machines behind this pod, whose traffic is outbound, and never inbound.
fn virtual_machines(config: &SidecarConfig, family: Family, rules: &mut RuleSet) {
    let nat = rules.table_mut(Table::Nat);
    for interface in &config.kubevirt_interfaces {
        let from_vm = Rule::jump_to(REDIRECT).input(interface);
        let captured: Vec<Rule> = match &config.include_networks {
            NetworkSelection::All => vec![from_vm.clone()],
            NetworkSelection::List(nets) => nets
                .iter()
                .filter(|net| Family::from_ip(net.addr()) == family)
                .map(|net| from_vm.clone().dest(net.trunc()))
                .collect(),
        };
        for rule in captured.into_iter().chain([from_vm.with_target(Target::Return)]) {
            trace::push_traced_rule(config, nat, &INBOUND, "KubevirtCommand", rule);
        }
    }
}

fn add_redirect_rules(config: &SidecarConfig, rules: &mut RuleSet) {
    let nat = rules.table_mut(Table::Nat);
    for interface in &config.exclude_interfaces {
        let rule = Rule::new(Target::Return).input(interface);
        trace::push_traced_rule(config, nat, &INBOUND, "ExcludeInterfaceCommand", rule);
    }
    if !config.include_inbound.is_none() {
        trace::push_log_rule(config, nat, &INBOUND, "JumpInbound", &Rule::new(Target::Return).tcp());
    }
    skip_tunnel(config, nat);
    let label = inbound_label(config, nat);
    for rule in config.include_inbound.rules(&Rule::jump_to(IN_REDIRECT).tcp()) {
        trace::push_traced_rule(config, nat, &INBOUND, label, rule);
    }
}

/// Exempts ports if all others are captured, and returns the label of the rules that capture them.
fn inbound_label(config: &SidecarConfig, table: &mut TableRules) -> &'static str {
    if config.include_inbound != PortSelection::All {
        return "IncludeInboundPort";
    }
    for rule in config.exclude_inbound.rules(&Rule::new(Target::Return).tcp()) {
        trace::push_traced_rule(config, table, &INBOUND, "ExcludeInboundPort", rule);
    }
    "InboundCapture"
}

fn skip_tunnel(config: &SidecarConfig, table: &mut TableRules) {
    table.push(&INBOUND, Rule::new(Target::Return).tcp().dport(config.tunnel_port));
}

fn add_tproxy_rules(config: &SidecarConfig, family: Family, mark: Mark, rules: &mut RuleSet) {
    let mangle = rules.table_mut(Table::Mangle);
    mangle.push(&DIVERT, Rule::new(Target::SetMark(mark)));
    mangle.push(&DIVERT, Rule::new(Target::Accept));
    let to_proxy = Target::Tproxy { port: config.inbound_port, mark };
    mangle.push(&TPROXY, Rule::new(to_proxy).not_dest(config.loopback_net(family)).tcp());

    skip_own_loop(mangle, family, mark);
    for interface in &config.kubevirt_interfaces {
        mangle.push(&INBOUND, Rule::new(Target::Return).input(interface));
    }
    trace::push_log_rule(config, mangle, &INBOUND, "JumpInbound", &Rule::new(Target::Return).tcp());
    skip_tunnel(config, mangle);
    let label = inbound_label(config, mangle);
    for rule in config.include_inbound.rules(&Rule::new(Target::Return).tcp()) {
        divert_or_tproxy(config, mangle, label, &rule);
    }
    remember_mark(config, family, mark, rules);
}

/// Exempts traffic that the proxy has marked, and loopback traffic, except the pod's connections to itself through the
/// proxy.
fn skip_own_loop(mangle: &mut TableRules, family: Family, mark: Mark) {
    let looped = Mark { value: mark.value.wrapping_add(LOOPED), ..mark };
    let from_lo = Rule::new(Target::Return).input(&IfName::lo()).tcp();
    mangle.push(&INBOUND, Rule::new(Target::Return).tcp().when(Match::Mark(MatchValue::eq(mark))));
    mangle.push(&INBOUND, from_lo.clone().source(IpNet::from(passthrough_source(family))));
    mangle.push(&INBOUND, from_lo.when(Match::Mark(MatchValue::ne(looped))));
}

fn divert_or_tproxy(config: &SidecarConfig, mangle: &mut TableRules, tag: &'static str, conditions: &Rule) {
    let known =
        conditions.with_target(Target::Jump(DIVERT)).when(Match::CtState(CtStates::RelatedEstablished));
    mangle.push(&INBOUND, known);
    trace::push_traced_rule(config, mangle, &INBOUND, tag, conditions.with_target(Target::Jump(TPROXY)));
}

/// Adds rules that keep the mark on the connection, so that the application's replies reach the proxy.
fn remember_mark(config: &SidecarConfig, family: Family, mark: Mark, rules: &mut RuleSet) {
    let looped = Mark { value: mark.value.wrapping_add(LOOPED), ..mark };
    let mangle = rules.table_mut(Table::Mangle);
    // As in nat: traffic that leaves by an excluded interface keeps its mark, and so its route.
    for interface in &config.exclude_interfaces {
        mangle.push(&OUTPUT, Rule::new(Target::Return).output(interface));
    }
    let lo = IfName::lo();
    mangle.push(&OUTPUT, Rule::new(Target::Return).output(&lo).tcp().when(Match::Mark(MatchValue::eq(mark))));
    for owner in config.proxy_owners() {
        let rule = Rule::new(Target::SetMark(looped))
            .not_dest(config.loopback_net(family))
            .output(&lo)
            .tcp()
            .when(owner.to_match());
        mangle.push(&OUTPUT, rule);
    }
    mangle.push(
        &OUTPUT,
        Rule::new(Target::RestoreMark(u32::MAX)).tcp().when(Match::ConnMark(MatchValue::eq(mark))),
    );
    rules.add_jump(Table::Mangle, Hook::Output, Rule::jump_to(OUTPUT).tcp(), JumpPlace::Last);
}

/// Adds the rules of mangle PREROUTING: excluded interfaces first, then invalid packets, then inbound capture, then the
/// mark.
fn early_packets(config: &SidecarConfig, tproxy_mark: Option<Mark>, rules: &mut RuleSet) {
    if tproxy_mark.is_none() && !config.drop_invalid {
        return;
    }
    let mangle = rules.table_mut(Table::Mangle);
    for interface in &config.exclude_interfaces {
        mangle.push(&PRERT, Rule::new(Target::Return).input(interface));
    }
    if config.drop_invalid {
        mangle.push(&PRERT, Rule::new(Target::Drop).when(Match::CtState(CtStates::Invalid)));
    }
    if let Some(mark) = tproxy_mark {
        mangle.push(&PRERT, Rule::jump_to(INBOUND).tcp());
        mangle.push(&PRERT, Rule::new(Target::SaveMark).tcp().when(Match::Mark(MatchValue::eq(mark))));
    }
    rules.add_jump(Table::Mangle, Hook::Prerouting, Rule::jump_to(PRERT), JumpPlace::Last);
}

/// Adds a jump in nat PREROUTING only if inbound traffic is decided in nat. For virtual machines the jump is first,
/// because KubeVirt has its own rules there.
fn nat_jump(config: &SidecarConfig, rules: &mut RuleSet) {
    let redirects = config.inbound_mode == InboundMode::Redirect && !config.include_inbound.is_none();
    let has_vms = !config.kubevirt_interfaces.is_empty();
    if redirects || has_vms {
        let place = if has_vms { JumpPlace::First } else { JumpPlace::Last };
        rules.add_jump(Table::Nat, Hook::Prerouting, Rule::jump_to(INBOUND).tcp(), place);
    }
}
