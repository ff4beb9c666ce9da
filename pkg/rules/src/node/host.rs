//! Rules of the node's own namespace.

use std::borrow::Cow;

use model::{IpNet, Mark};

use super::{
    DNS, FIRST, FORWARD, KNOWN, NodeMarks, NodeParameters, NodeRulesConfig, OUTPUT, POSTROUTING, PREROUTING,
    RETURNED, SENT, ZtunnelEndpoint, combine_marks, set_mark,
};
use crate::ir::{
    AddressSide, Chain, CtStates, Hook, JumpPlace, Match, MatchValue, Rule, RuleSet, Table, TableRules,
    Target,
};

/// Returns the rule set of one family in the node's namespace.
pub fn host_rules(config: &NodeRulesConfig, host: &NodeParameters<'_>) -> RuleSet {
    let mut rules = RuleSet::default();
    add_prerouting_rules(config, host, &mut rules);
    made_here(&config.marks, host, &mut rules);
    add_forward_rules(config, &mut rules);
    accept_established(config, host, &mut rules);
    rules
}

/// Adds the rules for arriving packets. Frequent packets come first, of a slot's connections and of foreign ones, then
/// those that need a decision.
fn add_prerouting_rules(config: &NodeRulesConfig, host: &NodeParameters<'_>, rules: &mut RuleSet) {
    let marks = &config.marks;
    rules.add_jump(Table::Mangle, Hook::Prerouting, Rule::jump_to(PREROUTING), JumpPlace::First);
    let mangle = rules.table_mut(Table::Mangle);
    // Packets of a slot, including a retransmitted first packet, even if the other slot has become active.
    mangle.push(&PREROUTING, Rule::new(Target::Goto(KNOWN)).when(has_slot(marks)));
    add_known_rules(config, host, mangle);
    // Connections from before our rules, or not ours: decided by their first packet, and not again.
    let established = Match::CtState(CtStates::RelatedEstablished);
    mangle.push(&PREROUTING, Rule::new(Target::Return).when(established));
    mangle.push(&PREROUTING, Rule::new(Target::Goto(RETURNED)).input(&config.links.any));
    for ((slot, chain), mark) in host.slots.iter().zip(SENT).zip(marks.slots) {
        let Some(slot) = slot else { continue };
        mangle.push(&PREROUTING, Rule::new(Target::Goto(chain.clone())).input(&slot.veth));
        from_the_proxy(marks, slot, mark).into_iter().for_each(|rule| mangle.push(&chain, rule));
    }
    if host.capture {
        // A Service's address is translated to that of a pod only later: policy routes decide which pods are captured.
        mangle.push(&PREROUTING, set_mark(marks.any_slot).tcp());
        mangle.push(
            &PREROUTING,
            set_mark(marks.outbound).tcp().when(match_captured_pod(host, AddressSide::Source)),
        );
    }
}

/// Adds the rules for packets of connections with a slot. Packets from a ztunnel, recognised by the link, are routed as
/// without capture, as replies to a captured pod, or with a client's address. All others are sent to the ztunnel.
fn add_known_rules(config: &NodeRulesConfig, host: &NodeParameters<'_>, mangle: &mut TableRules) {
    let veths = host.slots.iter().flatten().map(|slot| &slot.veth);
    for link in std::iter::once(&config.links.any).chain(veths) {
        mangle.push(&KNOWN, Rule::new(Target::Goto(RETURNED)).input(link));
    }
    mangle.push(&KNOWN, Rule::new(Target::RestoreMark(config.marks.path_mask())));
    mangle.push(&RETURNED, set_mark(config.marks.skip));
}

/// Returns the rules for first packets that a ztunnel sends by its pod's own link, with its own address or a client's.
fn from_the_proxy(marks: &NodeMarks, slot: &ZtunnelEndpoint, mark: Mark) -> [Rule; 3] {
    let net = IpNet::from(slot.ztunnel_ip);
    let as_client = |target| Rule::new(target).not_source(net);
    let answered = combine_marks(combine_marks(mark, marks.proxy), marks.proxy_return);
    [
        set_mark(combine_marks(mark, marks.connection_skip)).source(net),
        as_client(Target::SetMark(combine_marks(mark, marks.proxy))),
        as_client(Target::SetConnMark(answered)),
    ]
}

/// Adds the rules for packets that the node sends. IPVS forwards from OUTPUT, not from FORWARD: without a socket, to
/// the address of a captured pod. Only the start of a connection counts, because the last packets of the kubelet's
/// probes have no socket, either.
fn made_here(marks: &NodeMarks, host: &NodeParameters<'_>, rules: &mut RuleSet) {
    rules.add_jump(Table::Mangle, Hook::Output, Rule::jump_to(OUTPUT).tcp(), JumpPlace::First);
    let mut push = |rule| rules.table_mut(Table::Mangle).push(&OUTPUT, rule);
    push(Rule::new(Target::RestoreMark(marks.slot_mask())).when(has_slot(marks)));
    push(Rule::new(Target::Return).when(is_marked(marks)));
    if !host.capture {
        return;
    }
    push(
        set_mark(marks.any_slot)
            .when(Match::CtState(CtStates::New))
            .when(Match::SocketExists { negated: true })
            .when(match_captured_pod(host, AddressSide::Dest)),
    );
}

/// Assigns a connection whose first packet leaves by a slot's link to that slot and link. Foreign packets need no
/// comparison of links: in FORWARD, packets to a ztunnel are recognised by their mark, and `nat` processes only first
/// packets. Both are needed: IPVS bypasses FORWARD, and a retransmitted first packet does not traverse `nat` again,
/// though its pod may have been enrolled meanwhile, or its ztunnel have ended.
fn belongs_to_a_slot(config: &NodeRulesConfig, table: Table, chain: &Chain, rules: &mut RuleSet) {
    let NodeRulesConfig { links, marks, .. } = config;
    for ((inbound, outbound), slot) in links.inbound.iter().zip(&links.outbound).zip(marks.slots) {
        for (link, value) in [(inbound, slot.value), (outbound, slot.value | marks.outbound.value)] {
            let mark = Mark { value, mask: marks.path_mask() };
            rules.table_mut(table).push(chain, Rule::new(Target::SetConnMark(mark)).output(link));
        }
    }
}

/// Accepts packets to a ztunnel, so that no other rule drops them, and assigns their connection to a slot: to another
/// one, if its slot's ztunnel ended before it replied. Marks are matched before links, because names are more expensive
/// to compare.
fn add_forward_rules(config: &NodeRulesConfig, rules: &mut RuleSet) {
    let NodeRulesConfig { links, marks, .. } = config;
    let marked = Rule::jump_to(FORWARD).when(is_marked(marks));
    rules.add_jump(Table::Filter, Hook::Forward, marked, JumpPlace::First);
    let filter = rules.table_mut(Table::Filter);
    filter.push(&FORWARD, Rule::jump_to(FIRST).when(Match::CtState(CtStates::New)));
    filter.push(&FORWARD, Rule::new(Target::Accept).output(&links.any_outbound));
    belongs_to_a_slot(config, Table::Filter, &FIRST, rules);
}

/// Keeps the addresses of packets to the ztunnel, including a Service's. DNS is the exception: it is sent to the
/// ztunnel by address. The client of a Service is exempt from masquerading by other components: the ztunnel connects
/// with the source address that it sees, and replies to the node's own address would never return.
fn accept_established(config: &NodeRulesConfig, host: &NodeParameters<'_>, rules: &mut RuleSet) {
    let outbound = Rule::new(Target::Accept).when(Match::Mark(MatchValue::eq(config.marks.outbound)));
    rules.add_jump(Table::Nat, Hook::Prerouting, Rule::jump_to(PREROUTING), JumpPlace::First);
    rules.table_mut(Table::Nat).push(&PREROUTING, outbound);
    if let Some(ip) = host.dns {
        let to_the_proxy = Rule::new(Target::Dnat { ip, port: config.ports.dns });
        let dns = to_the_proxy.udp().when(match_captured_pod(host, AddressSide::Source)).dport(DNS);
        rules.table_mut(Table::Nat).push(&PREROUTING, dns);
    }
    let to_a_slot = Rule::jump_to(POSTROUTING).output(&config.links.any);
    rules.add_jump(Table::Nat, Hook::Postrouting, to_a_slot, JumpPlace::First);
    belongs_to_a_slot(config, Table::Nat, &POSTROUTING, rules);
    rules.table_mut(Table::Nat).push(&POSTROUTING, Rule::new(Target::Accept));
}

/// Returns a match for packets whose connection has a slot.
fn has_slot(marks: &NodeMarks) -> Match {
    Match::ConnMark(MatchValue::ne(no_slot(marks)))
}

/// Returns a match for packets to a slot, or to the active one.
fn is_marked(marks: &NodeMarks) -> Match {
    Match::Mark(MatchValue::ne(no_slot(marks)))
}

fn no_slot(marks: &NodeMarks) -> Mark {
    Mark { value: 0, mask: marks.slot_mask() }
}

/// Returns a match for an address of a captured pod.
fn match_captured_pod(host: &NodeParameters<'_>, side: AddressSide) -> Match {
    Match::Set { name: Cow::Owned(host.set.to_owned()), side, negated: false }
}
