//! The node's own namespace.

use std::borrow::Cow;

use model::{IfName, Mark};

use super::{
    Config, DNS, FORWARD, Host, KNOWN, Marks, OUTPUT, POSTROUTING, PREROUTING, RETURNED, SENT, Slot, both,
    marked, set_mark,
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
    let marks = &config.marks;
    rules.lead(Table::Mangle, Hook::Prerouting, &PREROUTING, &Rule::new(Target::Return));
    let mangle = rules.table(Table::Mangle);
    let established = Match::CtState(States::RelatedEstablished);
    mangle.push(&PREROUTING, Rule::new(Target::Goto(KNOWN)).when(established));
    // Seen before we came, or none of ours: decided at the first packet, and left at that.
    let foreign = Match::ConnMark(Is::eq(Mark { value: 0, mask: marks.slot_mask() }));
    mangle.push(&KNOWN, Rule::new(Target::Return).when(foreign));
    for chain in [&PREROUTING, &KNOWN] {
        by_link(config, host, |rule| mangle.push(chain, rule));
        // A first packet that is sent once more keeps its slot, also when the other has become the active one.
        mangle.push(chain, Rule::new(Target::RestoreMark(marks.way_mask())));
    }
    mangle.push(&PREROUTING, Rule::new(Target::Return).when(marked(marks.proxy_return)));
    if host.capture {
        mangle.push(&PREROUTING, set_mark(marks.outbound).tcp().when(member(host, Side::Source)));
        // A service's address becomes that of a pod only later: which pods are captured is for routes to say.
        let no_slot = Match::Mark(Is::eq(Mark { value: 0, mask: marks.slot_mask() | marks.outbound.mask }));
        mangle.push(&PREROUTING, set_mark(marks.any_slot).tcp().when(no_slot));
    }
    // As answers to a captured pod or to a client.
    mangle.push(&RETURNED, set_mark(marks.skip));
    for ((slot, chain), mark) in host.slots.iter().zip(SENT).zip(marks.slots) {
        let sent = slot.iter().flat_map(|slot| from_the_proxy(marks, slot, mark));
        sent.for_each(|rule| mangle.push(&chain, rule));
    }
}

/// What comes from a ztunnel is told by the link, without a look at its connection.
fn by_link(config: &Config, host: &Host<'_>, mut push: impl FnMut(Rule)) {
    push(Rule::new(Target::Goto(RETURNED)).input(&config.links.any));
    for (slot, chain) in host.slots.iter().zip(SENT) {
        slot.iter().for_each(|slot| push(Rule::new(Target::Goto(chain.clone())).input(&slot.veth)));
    }
}

/// What comes out of a ztunnel pod by its own link: under its own address, or under a client's.
fn from_the_proxy(marks: &Marks, slot: &Slot, mark: Mark) -> [Rule; 3] {
    let net = host_net(slot.ztunnel_ip);
    let as_client = |target| Rule::new(target).not_source(net);
    let answered = both(both(mark, marks.proxy), marks.proxy_return);
    [
        set_mark(both(mark, marks.connection_skip)).source(net),
        as_client(Target::SetMark(both(mark, marks.proxy))),
        as_client(Target::SetConnMark(answered)).when(Match::CtState(States::New)),
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

/// A connection whose first packet leaves by a slot's link belongs to that slot, and keeps to that link.
fn to_the_proxy(config: &Config, rules: &mut RuleSet) {
    let Config { links, marks, .. } = config;
    let any = Rule::new(Target::Return).output(&links.any).when(Match::CtState(States::New));
    rules.lead(Table::Mangle, Hook::Postrouting, &POSTROUTING, &any);
    let mut push = |link: &IfName, value: u32| {
        let mark = Mark { value, mask: marks.way_mask() };
        let rule = Rule::new(Target::SetConnMark(mark)).output(link);
        rules.table(Table::Mangle).push(&POSTROUTING, rule);
    };
    for ((inbound, outbound), slot) in links.inbound.iter().zip(&links.outbound).zip(marks.slots) {
        push(inbound, slot.value);
        push(outbound, slot.value | marks.outbound.value);
    }
}

/// On its way to the ztunnel a packet keeps its addresses, a service's among them, and is dropped by nobody. DNS is the
/// exception: it is sent to the ztunnel by address. A client of a service that others would masquerade stays who it is:
/// the ztunnel connects on under the address that it sees, and answers to the node's own would never come back.
fn kept_whole(config: &Config, host: &Host<'_>, rules: &mut RuleSet) {
    let outbound = Rule::new(Target::Accept).when(marked(config.marks.outbound));
    let accept = Rule::new(Target::Accept);
    rules.lead(Table::Nat, Hook::Prerouting, &PREROUTING, &Rule::new(Target::Return));
    rules.table(Table::Nat).push(&PREROUTING, outbound);
    if let Some(ip) = host.dns {
        let to_the_proxy = Rule::new(Target::Dnat { ip, port: config.ports.dns });
        let dns = to_the_proxy.udp().when(member(host, Side::Source)).dport(DNS);
        rules.table(Table::Nat).push(&PREROUTING, dns);
    }
    let to_a_slot = Rule::new(Target::Return).output(&config.links.any);
    rules.lead(Table::Nat, Hook::Postrouting, &POSTROUTING, &to_a_slot);
    rules.table(Table::Nat).push(&POSTROUTING, accept.clone());
    let to_the_outbound = Rule::new(Target::Return).output(&config.links.any_outbound);
    rules.lead(Table::Filter, Hook::Forward, &FORWARD, &to_the_outbound);
    rules.table(Table::Filter).push(&FORWARD, accept);
}

/// An address of a captured pod.
fn member(host: &Host<'_>, side: Side) -> Match {
    Match::Set { name: Cow::Owned(host.set.to_owned()), side, negated: false }
}
