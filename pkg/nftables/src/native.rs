//! Native tables: those of family `inet`, as Istio creates them with `NATIVE_NFTABLES`.
//!
//! The kernel's extensions for x_tables are not needed. A table of an owner contains no foreign objects, so it is
//! compared as a whole, expression by expression, and written as a whole: anything that is not understood is not
//! desired.

mod encode;
mod listing;

use netlink::{MessageFlags, NetlinkRequest};
use rules::native::{NativeChain, NativeRule, NativeRules, NativeTable};

pub(crate) use listing::ListedRule;
pub use listing::{NativeListing, has_table_prefix, iptables_table};

use crate::{
    Unsupported,
    commit::put_hook,
    uapi::{
        CHAIN_NAME, CHAIN_TABLE, DELETE_RULE, DELETE_TABLE, INET, NEW_CHAIN, NEW_RULE, NEW_TABLE, RULE_CHAIN,
        RULE_TABLE, TABLE_NAME,
    },
};

/// Returns the messages of one transaction that changes an owner's tables (those in `found` whose names begin with the
/// prefix) to the desired ones; empty if they are equal.
///
/// # Errors
/// [`Unsupported`]: a rule with a condition or verdict that native tables cannot express.
pub fn transaction_messages(
    found: &NativeListing,
    prefix: &str,
    desired: &NativeRules,
) -> Result<Vec<NetlinkRequest>, Unsupported> {
    let expected = NativeListing::from_rules(desired)?;
    let mut messages = Vec::new();
    for table in &desired.tables {
        let (was, becomes) = (found.find_table(&table.name), expected.find_table(&table.name));
        if was.zip(becomes).is_some_and(|(was, becomes)| was.is_same_as(becomes)) {
            continue;
        }
        messages.push(table_message(NEW_TABLE, &table.name));
        match was.zip(becomes) {
            None => {}
            Some((was, becomes)) if was.can_become(becomes) => {
                messages.push(rule_message(DELETE_RULE, &table.name, None));
            }
            Some(_) => {
                messages.extend([DELETE_TABLE, NEW_TABLE].map(|kind| table_message(kind, &table.name)));
            }
        }
        fill_table(table, &mut messages)?;
    }
    for table in found.tables_named(prefix).filter(|table| expected.find_table(&table.name).is_none()) {
        messages.push(table_message(DELETE_TABLE, &table.name));
    }
    Ok(messages)
}

fn fill_table(table: &NativeTable, messages: &mut Vec<NetlinkRequest>) -> Result<(), Unsupported> {
    // Chains first, because rules jump to them.
    messages.extend(table.chains.iter().map(|chain| chain_message(&table.name, chain)));
    for chain in &table.chains {
        for rule in &chain.rules {
            let mut message = rule_message(NEW_RULE, &table.name, Some(&chain.name));
            if !encode::write_rule(&mut message, rule) {
                return Err(unsupported_rule(rule));
            }
            messages.push(message);
        }
    }
    Ok(())
}

fn unsupported_rule(rule: &NativeRule) -> Unsupported {
    Unsupported(format!("native tables cannot express this rule: {}", rule.rule))
}

fn table_message(kind: u16, name: &str) -> NetlinkRequest {
    let flags = if kind == NEW_TABLE { MessageFlags::CREATE } else { MessageFlags::NONE };
    let mut message = NetlinkRequest::new(kind, flags, &[INET, 0, 0, 0]);
    message.put_str(TABLE_NAME, name);
    message
}

fn chain_message(table: &str, chain: &NativeChain) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(NEW_CHAIN, MessageFlags::CREATE, &[INET, 0, 0, 0]);
    message.put_str(CHAIN_TABLE, table).put_str(CHAIN_NAME, &chain.name);
    if let Some((of, hook)) = chain.hook {
        put_hook(&mut message, of, hook);
    }
    message
}

fn rule_message(kind: u16, table: &str, chain: Option<&str>) -> NetlinkRequest {
    let flags =
        if kind == NEW_RULE { MessageFlags::CREATE | MessageFlags::APPEND } else { MessageFlags::NONE };
    let mut message = NetlinkRequest::new(kind, flags, &[INET, 0, 0, 0]);
    message.put_str(RULE_TABLE, table);
    if let Some(chain) = chain {
        message.put_str(RULE_CHAIN, chain);
    }
    message
}
