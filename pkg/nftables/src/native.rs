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
        RULE_TABLE, TABLE_NAME, object_message,
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
    for (table, becomes) in desired.tables.iter().zip(&expected.tables) {
        let was = found.find_table(&table.name);
        if was.is_some_and(|was| was.is_same_as(becomes)) {
            continue;
        }
        messages.push(table_message(NEW_TABLE, &table.name));
        match was {
            None => {}
            Some(was) if was.can_become(becomes) => {
                let all = [(RULE_TABLE, table.name.as_str())];
                messages.push(object_message(DELETE_RULE, MessageFlags::NONE, INET, &all));
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
            let names = [(RULE_TABLE, table.name.as_str()), (RULE_CHAIN, chain.name.as_str())];
            let mut message =
                object_message(NEW_RULE, MessageFlags::CREATE | MessageFlags::APPEND, INET, &names);
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
    object_message(kind, flags, INET, &[(TABLE_NAME, name)])
}

fn chain_message(table: &str, chain: &NativeChain) -> NetlinkRequest {
    let names = [(CHAIN_TABLE, table), (CHAIN_NAME, chain.name.as_str())];
    let mut message = object_message(NEW_CHAIN, MessageFlags::CREATE, INET, &names);
    if let Some((of, hook)) = chain.hook {
        put_hook(&mut message, of, hook);
    }
    message
}
