//! A change as one transaction.

use model::Family;
use netlink::{MessageFlags, NetlinkProtocol, NetlinkRequest, Socket};
use rules::{Chain, Hook, HookJump, JumpPlace, Rule, RuleChange, RulePlace, SavedRule, Table, TableEdit};

use crate::{
    Error, encode,
    sets::KernelSets,
    uapi::{
        BATCH_BEGIN, BATCH_END, CHAIN_HOOK, CHAIN_NAME, CHAIN_TABLE, CHAIN_TYPE, DELETE_CHAIN, DELETE_RULE,
        HOOK_NUMBER, HOOK_PRIORITY, NEW_CHAIN, NEW_RULE, NEW_TABLE, RULE_CHAIN, RULE_HANDLE, RULE_POSITION,
        RULE_TABLE, TABLE_NAME, base_chain, batch_header, object_message,
    },
};

/// Reason why a transaction is impossible: a rule to be deleted or preceded has no handle, because a tool has listed
/// it; or a condition refers to a set that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine cannot make this change: {0}")]
pub struct Unsupported(pub String);

/// Returns the changes of both families as the messages of one transaction, for [`commit`]; empty if there is nothing
/// to change. Sets in rules are those of the calling thread's network namespace.
///
/// Missing tables and built-in chains are created; existing ones are unchanged, and keep their policy.
///
/// # Errors
/// [`Unsupported`].
pub fn transaction_messages(changes: &[(Family, RuleChange)]) -> Result<Vec<NetlinkRequest>, Unsupported> {
    let mut batch = Batch::default();
    for (family, change) in changes {
        for edit in &change.edits {
            TableWriter { family: *family, table: edit.table, batch: &mut batch }.write_edit(edit)?;
        }
    }
    Ok(batch.messages)
}

/// Applies the changes of [`transaction_messages`] in the calling thread's network namespace: all of them, or none.
///
/// The kernel is not asked to refuse if other components have changed rules since they were read (`NFNL_BATCH_GENID`):
/// a pod that may change its rules could keep itself from being redirected by doing so all the time. A chain of ours is
/// filled as a whole, and a rule to be deleted is identified by its handle, which is never reused.
///
/// # Errors
/// [`Error::Commit`].
pub fn commit(messages: Vec<NetlinkRequest>) -> Result<(), Error> {
    if messages.is_empty() {
        return Ok(()); // also on a kernel without nf_tables
    }
    let limit = |kind| NetlinkRequest::new(kind, MessageFlags::NONE, &batch_header());
    let done = Socket::open(NetlinkProtocol::Netfilter)
        .and_then(|mut socket| socket.send_transaction(limit(BATCH_BEGIN), messages, limit(BATCH_END)));
    done.map_err(Error::Commit)
}

/// Adds what makes a chain the built-in one of an iptables table.
pub(crate) fn put_hook(message: &mut NetlinkRequest, table: Table, hook: Hook) {
    let (kind, number, priority) = base_chain(table, hook);
    message.put_nested(CHAIN_HOOK, |attributes| {
        attributes.put_be32(HOOK_NUMBER, number).put_bytes(HOOK_PRIORITY, &priority.to_be_bytes());
    });
    message.put_str(CHAIN_TYPE, kind);
}

#[derive(Default)]
struct Batch {
    messages: Vec<NetlinkRequest>,
    /// Tables that exist after the messages so far; likewise built-in chains in `hooks`.
    tables: Vec<(Family, Table)>,
    hooks: Vec<(Family, Table, Hook)>,
    sets: KernelSets,
}

struct TableWriter<'a> {
    family: Family,
    table: Table,
    batch: &'a mut Batch,
}

impl TableWriter<'_> {
    fn write_edit(&mut self, edit: &TableEdit) -> Result<(), Unsupported> {
        self.ensure_table();
        for (chain, exists) in &edit.declare {
            if *exists {
                self.flush_chain(chain);
            } else {
                let message = self.chain_message(NEW_CHAIN, &chain.0);
                self.batch.messages.push(message);
            }
        }
        edit.deletes.iter().try_for_each(|rule| self.delete_rule(rule))?;
        for added in &edit.adds {
            let (place, before) = match added.place {
                RulePlace::End => (MessageFlags::APPEND, None),
                RulePlace::Before { handle, .. } => {
                    (MessageFlags::NONE, Some(require_handle(handle, &added.chain.0)?))
                }
            };
            self.add_rule(&added.chain.0, place, before, &added.rule)?;
        }
        edit.jumps.iter().try_for_each(|jump| self.add_jump(jump))?;
        for chain in &edit.removals {
            self.flush_chain(chain);
        }
        for chain in &edit.removals {
            let message = self.chain_message(DELETE_CHAIN, &chain.0);
            self.batch.messages.push(message);
        }
        Ok(())
    }

    fn ensure_table(&mut self) {
        let table = (self.family, self.table);
        if !self.batch.tables.contains(&table) {
            self.batch.tables.push(table);
            let name = [(TABLE_NAME, self.table.as_str())];
            let message = self.object_message(NEW_TABLE, MessageFlags::CREATE, &name);
            self.batch.messages.push(message);
        }
    }

    /// Creates a built-in chain if missing. A new chain accepts packets that reach its end; an existing one keeps its
    /// policy, because none is given.
    fn ensure_hook(&mut self, hook: Hook) {
        let place = (self.family, self.table, hook);
        if !self.batch.hooks.contains(&place) {
            self.batch.hooks.push(place);
            let mut message = self.chain_message(NEW_CHAIN, hook.as_str());
            put_hook(&mut message, self.table, hook);
            self.batch.messages.push(message);
        }
    }

    fn chain_message(&self, kind: u16, chain: &str) -> NetlinkRequest {
        let flags = if kind == NEW_CHAIN { MessageFlags::CREATE } else { MessageFlags::NONE };
        self.object_message(kind, flags, &[(CHAIN_TABLE, self.table.as_str()), (CHAIN_NAME, chain)])
    }

    fn rule_message(&self, kind: u16, flags: MessageFlags, chain: &str) -> NetlinkRequest {
        self.object_message(kind, flags, &[(RULE_TABLE, self.table.as_str()), (RULE_CHAIN, chain)])
    }

    fn object_message(&self, kind: u16, flags: MessageFlags, names: &[(u16, &str)]) -> NetlinkRequest {
        object_message(kind, flags, self.family.address_family(), names)
    }

    fn flush_chain(&mut self, chain: &Chain) {
        let message = self.rule_message(DELETE_RULE, MessageFlags::NONE, &chain.0);
        self.batch.messages.push(message);
    }

    fn delete_rule(&mut self, rule: &SavedRule) -> Result<(), Unsupported> {
        let handle = require_handle(rule.handle, &rule.chain)?;
        let mut message = self.rule_message(DELETE_RULE, MessageFlags::NONE, &rule.chain);
        message.put_bytes(RULE_HANDLE, &handle.to_be_bytes());
        self.batch.messages.push(message);
        Ok(())
    }

    fn add_jump(&mut self, jump: &HookJump) -> Result<(), Unsupported> {
        self.ensure_hook(jump.hook);
        let place = match jump.place {
            JumpPlace::First | JumpPlace::Early => MessageFlags::NONE,
            JumpPlace::Last => MessageFlags::APPEND,
        };
        self.add_rule(jump.hook.as_str(), place, None, &jump.rule)
    }

    /// Adds a rule. Without a flag and a handle, it precedes all others.
    fn add_rule(
        &mut self,
        chain: &str,
        place: MessageFlags,
        before: Option<u64>,
        rule: &Rule,
    ) -> Result<(), Unsupported> {
        let mut message = self.rule_message(NEW_RULE, MessageFlags::CREATE | place, chain);
        if !encode::write_rule(&mut message, self.family, rule, &mut self.batch.sets) {
            return Err(Unsupported(format!("this rule: {rule}")));
        }
        if let Some(handle) = before {
            message.put_bytes(RULE_POSITION, &handle.to_be_bytes());
        }
        self.batch.messages.push(message);
        Ok(())
    }
}

fn require_handle(handle: Option<u64>, chain: &str) -> Result<u64, Unsupported> {
    handle.ok_or_else(|| Unsupported(format!("a rule of chain {chain} has no handle")))
}
