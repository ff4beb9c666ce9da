//! The node's own namespace.

use std::borrow::Cow;

use model::{IfName, Mark};

use super::{
    Config, DNS, FORWARD, Host, Marks, OUTPUT, POSTROUTING, PREROUTING, Slot, both, marked, set_mark,
};
use crate::ir::{Hook, Is, Match, Rule, RuleSet, Side, States, Table, Target, host_net};

/// The rule set of one family in the node's namespace.
#[must_use]
pub fn host(config: &Config, host: &Host<'_>) -> RuleSet {
    let mut rules = RuleSet::default();
    arriving(config, host, &mut rules);
    made_here(&config.marks, host, &mut rules);
    to_the_proxy(config, &mut rules);
    kept_whole(config, host, &mut rules);
    rules
}

/// Where an arriving packet goes. The order is from what is common and none of our business to what is to be captured.
fn arriving(config: &Config, host: &Host<'_>, rules: &mut RuleSet) {
    let (marks, links) = (&config.marks, &config.links);
    rules.lead(Table::Mangle, Hook::Prerouting, &PREROUTING, &Rule::new(Target::Return));
    let mut push = |rule| rules.table(Table::Mangle).push(&PREROUTING, rule);
    let skip = || set_mark(marks.skip);
    // Seen before we came, or none of ours: decided at the first packet, and left at that.
    let foreign = Match::ConnMark(Is::eq(Mark { value: 0, mask: marks.ours() }));
    push(Rule::new(Target::Return).when(Match::CtState(States::RelatedEstablished)).when(foreign));
    // What a ztunnel hands back, as answers to a captured pod or to a client.
    push(skip().input(&links.any_inbound));
    push(skip().input(&links.any_outbound));
    let present = host.slots.iter().zip(marks.slots).filter_map(|(slot, mark)| Some((slot.as_ref()?, mark)));
    for (slot, mark) in present {
        from_the_proxy(marks, slot, mark).into_iter().for_each(&mut push);
    }
    // Answers to the ztunnel's own connections.
    push(skip().when(Match::ConnMark(Is::eq(marks.connection_skip))));
    push(Rule::new(Target::Return).when(marked(marks.skip)));
    // Captured connections keep their slot, also when the other has become the active one.
    push(Rule::new(Target::RestoreMark(marks.slot_mask())));
    push(set_mark(marks.proxy_return).when(Match::ConnMark(Is::eq(marks.proxy))));
    push(Rule::new(Target::Return).when(marked(marks.proxy_return)));
    if host.capture {
        push(set_mark(marks.outbound).tcp().when(member(host, Side::Source)));
        // A service's address becomes that of a pod only later: which pods are captured is for routes to say.
        let no_slot = Match::Mark(Is::eq(Mark { value: 0, mask: marks.slot_mask() | marks.outbound.mask }));
        push(set_mark(marks.any_slot).tcp().when(no_slot));
    }
}

/// What comes out of a ztunnel pod by its own link: under a client's address, or under its own.
fn from_the_proxy(marks: &Marks, slot: &Slot, mark: Mark) -> [Rule; 4] {
    let net = host_net(slot.ztunnel_ip);
    let as_client = |target| Rule::new(target).input(&slot.veth).not_source(net);
    let as_itself = |target| Rule::new(target).input(&slot.veth).source(net);
    let opening = Match::CtState(States::New);
    let proxied = both(mark, marks.proxy);
    [
        as_client(Target::SetMark(proxied)),
        as_client(Target::SetConnMark(proxied)).when(opening.clone()),
        as_itself(Target::SetMark(both(mark, marks.connection_skip))),
        as_itself(Target::SetConnMark(marks.connection_skip)).when(opening),
    ]
}

/// IPVS forwards from here, not from FORWARD: without a socket, to the address of a captured pod. Only a connection's
/// beginning counts: the last packets of the kubelet's probes have no socket any more either.
fn made_here(marks: &Marks, host: &Host<'_>, rules: &mut RuleSet) {
    let no_slot = Mark { value: 0, mask: marks.slot_mask() };
    rules.lead(Table::Mangle, Hook::Output, &OUTPUT, &Rule::new(Target::Return).tcp());
    let mut push = |rule| rules.table(Table::Mangle).push(&OUTPUT, rule);
    push(Rule::new(Target::RestoreMark(marks.slot_mask())).when(Match::ConnMark(Is::ne(no_slot))));
    push(Rule::new(Target::Return).when(Match::Mark(Is::ne(no_slot))));
    if !host.capture {
        return;
    }
    push(
        set_mark(marks.any_slot)
            .when(Match::CtState(States::New))
            .when(Match::SocketExists { negated: true })
            .when(member(host, Side::Dest)),
    );
}

/// A connection that leaves by a slot's link belongs to that slot.
fn to_the_proxy(config: &Config, rules: &mut RuleSet) {
    let links = &config.links;
    let any = Rule::new(Target::Return).output(&links.any);
    rules.lead(Table::Mangle, Hook::Postrouting, &POSTROUTING, &any);
    let mut push = |link: &IfName, mark| {
        let rule = Rule::new(Target::SetConnMark(mark)).output(link);
        rules.table(Table::Mangle).push(&POSTROUTING, rule);
    };
    for ((inbound, outbound), mark) in links.inbound.iter().zip(&links.outbound).zip(config.marks.slots) {
        push(inbound, mark);
        push(outbound, mark);
    }
}

/// On its way to the ztunnel a packet keeps its addresses, a service's among them, and is dropped by nobody. DNS is the
/// exception: it is sent to the ztunnel by address. A client of a service that others would masquerade stays who it is:
/// the ztunnel connects on under the address that it sees, and answers to the node's own would never come back.
fn kept_whole(config: &Config, host: &Host<'_>, rules: &mut RuleSet) {
    let outbound = Rule::new(Target::Accept).when(marked(config.marks.outbound));
    let accept = Rule::new(Target::Accept);
    rules.lead(Table::Nat, Hook::Prerouting, &PREROUTING, &Rule::new(Target::Return));
    rules.table(Table::Nat).push(&PREROUTING, outbound.clone());
    if let Some(ip) = host.dns {
        let to_the_proxy = Rule::new(Target::Dnat { ip, port: config.ports.dns });
        let dns = to_the_proxy.udp().when(member(host, Side::Source)).dport(DNS);
        rules.table(Table::Nat).push(&PREROUTING, dns);
    }
    let to_a_slot = Rule::new(Target::Return).output(&config.links.any);
    rules.lead(Table::Nat, Hook::Postrouting, &POSTROUTING, &to_a_slot);
    rules.table(Table::Nat).push(&POSTROUTING, accept.clone());
    rules.lead(Table::Filter, Hook::Forward, &FORWARD, &outbound);
    rules.table(Table::Filter).push(&FORWARD, accept);
}

/// An address of a captured pod.
fn member(host: &Host<'_>, side: Side) -> Match {
    Match::Set { name: Cow::Owned(host.set.to_owned()), side, negated: false }
}
