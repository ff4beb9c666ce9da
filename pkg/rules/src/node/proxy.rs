//! Rules of a ztunnel pod's namespace.

use model::{IfName, IpNet, Port};

use super::{DNS, NodeRulesConfig, PREROUTING, UPLINK, ZtunnelParameters, set_mark};
use crate::ir::{Hook, JumpPlace, Rule, RuleSet, Table, Target};

/// Returns the rule set of one family in a ztunnel pod's namespace. Packets from the node are redirected to their
/// listener, whatever their address; packets that arrive on the pod's own interface for another address are replies to
/// a connection that was opened with that address. Packets of captured pods, and replies to them, traverse the fewest
/// rules.
pub fn ztunnel_rules(config: &NodeRulesConfig, ztunnel: &ZtunnelParameters<'_>) -> RuleSet {
    let NodeRulesConfig { marks, links, ports } = config;
    let mut rules = RuleSet::default();
    rules.add_jump(Table::Mangle, Hook::Prerouting, Rule::jump_to(PREROUTING), JumpPlace::First);
    let mangle = rules.table_mut(Table::Mangle);
    let mut push = |rule| mangle.push(&PREROUTING, rule);
    let from =
        |link: &IfName, port: Port| Rule::new(Target::Tproxy { port, mark: marks.tproxy }).input(link).tcp();
    if ztunnel.dns {
        push(from(&links.proxy_outbound, ports.dns).dport(DNS));
    }
    push(from(&links.proxy_outbound, ports.outbound));
    push(Rule::new(Target::Goto(UPLINK)).input(ztunnel.uplink));
    push(from(&links.proxy_inbound, ports.tunnel).dport(ports.tunnel));
    push(from(&links.proxy_inbound, ports.inbound));
    mangle.push(&UPLINK, set_mark(marks.original_source).not_dest(IpNet::from(ztunnel.ip)).tcp());
    rules
}
