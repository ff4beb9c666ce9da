//! `--iptables-trace-logging`: NFLOG rules before the deciding ones, for listeners on the group.

use std::borrow::Cow;

use super::SidecarConfig;
use crate::ir::{Chain, Rule, TableRules, Target};

/// Netlink group on which Istio's tools listen.
const GROUP: u16 = 1337;
/// Bytes of each packet: an IPv4 header.
const SIZE: u32 = 20;

/// Appends `rule`, and before it, if tracing, a log rule with the same conditions.
pub(super) fn push_traced_rule(
    config: &SidecarConfig,
    table: &mut TableRules,
    chain: &Chain,
    tag: &'static str,
    rule: Rule,
) {
    push_log_rule(config, table, chain, tag, &rule);
    table.push(chain, rule);
}

/// Appends, if tracing, a rule that logs packets that meet the conditions of `rule`.
pub(super) fn push_log_rule(
    config: &SidecarConfig,
    table: &mut TableRules,
    chain: &Chain,
    tag: &'static str,
    rule: &Rule,
) {
    if config.trace {
        let prefix = Cow::Owned(format!("\"{tag}\""));
        table.push(chain, rule.with_target(Target::Nflog { prefix, group: GROUP, size: SIZE }));
    }
}
