//! The namespace of a ztunnel pod.

use model::{IfName, Port};

use super::{Config, DNS, PREROUTING, Ztunnel, set_mark};
use crate::ir::{Hook, Rule, RuleSet, Table, Target, host_net};

/// The rule set of one family in a ztunnel pod's namespace: what arrives from the node is handed to the listener for
/// it, whatever its address; what arrives by the pod's own interface for somebody else's address is an answer to a
/// connection that was opened under it.
#[must_use]
pub fn ztunnel(config: &Config, ztunnel: &Ztunnel<'_>) -> RuleSet {
    let Config { marks, links, ports } = config;
    let mut rules = RuleSet::default();
    rules.lead(Table::Mangle, Hook::Prerouting, &PREROUTING, &Rule::new(Target::Return));
    let mut push = |rule| rules.table(Table::Mangle).push(&PREROUTING, rule);
    let from =
        |link: &IfName, port: Port| Rule::new(Target::Tproxy { port, mark: marks.tproxy }).input(link).tcp();
    if ztunnel.dns {
        push(from(&links.proxy_outbound, ports.dns).dport(DNS));
    }
    push(from(&links.proxy_inbound, ports.tunnel).dport(ports.tunnel));
    push(from(&links.proxy_outbound, ports.outbound));
    push(from(&links.proxy_inbound, ports.inbound));
    let ours = host_net(ztunnel.ip);
    push(set_mark(marks.original_source).input(ztunnel.uplink).not_dest(ours).tcp());
    rules
}
