//! Tables of the native dialect as the kernel has them, in a form in which two can be compared.

use std::collections::BTreeMap;

use netlink::{Attribute, Attributes, ListBounds, MessageFlags, NetlinkRequest, Socket};
use rules::native::{NativeChain, NativeRules};

use super::encode;
use crate::{
    Error, Unsupported,
    listing::unchanged,
    uapi::{
        BITWISE_MASK, BITWISE_OPERATION, BITWISE_XOR, CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE,
        CHAIN_TYPE, CMP_DATA, DATA_VALUE, DATA_VERDICT, EXPRESSION_DATA, EXPRESSION_NAME, GET_CHAIN,
        GET_RULE, GET_TABLE, HOOK_NUMBER, HOOK_PRIORITY, IMMEDIATE_DATA, INET, LOG_PREFIX, NAT_FLAGS,
        REDIR_FLAGS, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, TABLE_NAME, VERDICT_CHAIN, VERDICT_CODE,
        base_chain,
    },
};

/// `NF_ACCEPT`, as the policy of a chain.
const ACCEPTS: u32 = 1;

/// The tables of some owners in the calling thread's network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NativeListing {
    pub(super) tables: BTreeMap<String, ListedTable>,
}

/// Its chains, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ListedTable {
    pub(super) chains: BTreeMap<String, ListedChain>,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ListedChain {
    pub(super) base: Option<BaseChain>,
    rules: Vec<ListedRule>,
}

/// Where packets enter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct BaseChain {
    kind: String,
    hook: u32,
    priority: i32,
    /// What reaches its end goes on.
    accepts: bool,
}

/// A rule: its expressions with their attributes, without what counts packets and what kernels of different versions add.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ListedRule(Vec<(String, BTreeMap<u16, Vec<u8>>)>);

impl NativeListing {
    /// Reads the tables of the owners whose tables begin with one of the prefixes, without making any.
    ///
    /// # Errors
    /// As [`listing`](crate::listing).
    pub fn read(prefixes: &[&str], bounds: ListBounds) -> Result<NativeListing, Error> {
        unchanged(bounds, |socket| read(socket, prefixes))
    }

    /// What the kernel will show when these rules are in place.
    ///
    /// # Errors
    /// [`Unsupported`].
    pub fn expected(rules: &NativeRules) -> Result<NativeListing, Unsupported> {
        let mut listing = NativeListing::default();
        for table in &rules.tables {
            let chains: Result<_, Unsupported> =
                table.chains.iter().map(|chain| Ok((chain.name.clone(), expected(chain)?))).collect();
            listing.tables.insert(table.name.clone(), ListedTable { chains: chains? });
        }
        Ok(listing)
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The tables whose names begin with the prefix.
    #[must_use]
    pub fn of(&self, prefix: &str) -> NativeListing {
        let tables = self.tables.iter().filter(|(name, _)| is_table_of(prefix, name));
        NativeListing { tables: tables.map(|(name, table)| (name.clone(), table.clone())).collect() }
    }

    /// Packets are led into one of the tables.
    #[must_use]
    pub fn is_led_into(&self) -> bool {
        let chains = self.tables.values().flat_map(|table| table.chains.values());
        chains.into_iter().any(|chain| chain.base.is_some() && !chain.rules.is_empty())
    }

    /// In which tables and chains this is not what is `expected`, for people.
    #[must_use]
    pub fn differences(&self, expected: &NativeListing) -> Vec<String> {
        let mut words = Vec::new();
        for (name, table) in &expected.tables {
            match self.tables.get(name) {
                None => words.push(format!("inet {name}: the table is missing")),
                Some(found) => {
                    words.extend(found.differences(table).map(|what| format!("inet {name}: {what}")));
                }
            }
        }
        let unwanted = self.tables.keys().filter(|name| !expected.tables.contains_key(*name));
        words.extend(unwanted.map(|name| format!("inet {name}: the table should not exist")));
        words
    }
}

impl ListedTable {
    fn differences<'a>(&'a self, expected: &'a ListedTable) -> impl Iterator<Item = String> + 'a {
        let wrong = expected.chains.iter().filter_map(|(name, chain)| match self.chains.get(name) {
            None => Some(format!("chain {name} is missing")),
            Some(found) if found.base != chain.base => Some(format!("chain {name} is at another hook")),
            Some(found) if found.rules != chain.rules => Some(format!(
                "chain {name} has other rules ({}, wanted: {})",
                found.rules.len(),
                chain.rules.len()
            )),
            Some(_) => None,
        });
        let unwanted = self.chains.keys().filter(|name| !expected.chains.contains_key(*name));
        wrong.chain(unwanted.map(|name| format!("chain {name} should not exist")))
    }

    /// Its chains can be filled as they are: none has to go, or to move to another hook.
    pub(super) fn can_become(&self, wanted: &ListedTable) -> bool {
        let fits = |(name, chain): (&String, &ListedChain)| {
            wanted.chains.get(name).is_some_and(|wanted| wanted.base == chain.base)
        };
        self.chains.iter().all(fits)
    }
}

/// Whether a table is one of the owner whose tables begin with the prefix: `istio-proxy-nat` for `istio-proxy`.
#[must_use]
pub fn is_table_of(prefix: &str, table: &str) -> bool {
    let rest = table.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
    rest.is_some_and(|rest| rules::Table::ALL.iter().any(|table| table.name() == rest))
}

fn expected(chain: &NativeChain) -> Result<ListedChain, Unsupported> {
    let base = chain.hook.map(|(table, hook)| {
        let (kind, hook, priority) = base_chain(table, hook);
        BaseChain { kind: kind.to_owned(), hook, priority, accepts: true }
    });
    let mut listed = ListedChain { base, rules: Vec::new() };
    for rule in &chain.rules {
        let mut request = NetlinkRequest::new(0, MessageFlags::NONE, &[]);
        if !encode::rule(&mut request, rule) {
            return Err(Unsupported(format!("in the native dialect, this rule: {}", rule.rule)));
        }
        let message = request.finish(0, MessageFlags::NONE).unwrap_or_default(); // too long: compares as another one
        let attributes = Attributes::new(message.get(HEADER..).unwrap_or_default());
        listed.rules.push(ListedRule::new(&attributes));
    }
    Ok(listed)
}

/// Size of `struct nlmsghdr`.
const HEADER: usize = 16;

fn read(socket: &mut Socket, prefixes: &[&str]) -> Result<NativeListing, netlink::Error> {
    let is_wanted = |name: &str| prefixes.iter().any(|prefix| is_table_of(prefix, name));
    let mut listing = NativeListing::default();
    for reply in socket.dump(&NetlinkRequest::new(GET_TABLE, MessageFlags::NONE, &[INET, 0, 0, 0]))?.iter() {
        let ([family, ..], attributes) = reply.header::<4>()?;
        let name = text(attributes.find(TABLE_NAME));
        if *family == INET && is_wanted(name) {
            listing.tables.insert(name.to_owned(), ListedTable::default());
        }
    }
    let chains = socket.dump(&NetlinkRequest::new(GET_CHAIN, MessageFlags::NONE, &[INET, 0, 0, 0]))?;
    for reply in chains.iter() {
        let ([family, ..], attributes) = reply.header::<4>()?;
        let [table, chain] = [CHAIN_TABLE, CHAIN_NAME].map(|kind| text(attributes.find(kind)));
        if *family == INET && is_wanted(table) {
            let chains = &mut listing.tables.entry(table.to_owned()).or_default().chains;
            chains.insert(chain.to_owned(), ListedChain { base: base_of(&attributes), rules: Vec::new() });
        }
    }
    for (name, table) in &mut listing.tables {
        let mut question = NetlinkRequest::new(GET_RULE, MessageFlags::NONE, &[INET, 0, 0, 0]);
        question.str(RULE_TABLE, name);
        for reply in socket.dump(&question)?.iter() {
            let ([family, ..], attributes) = reply.header::<4>()?;
            // A kernel before Linux 4.12 gives all rules, whatever it was asked for.
            if *family == INET && text(attributes.find(RULE_TABLE)) == name {
                let chain = table.chains.entry(text(attributes.find(RULE_CHAIN)).to_owned()).or_default();
                chain.rules.push(ListedRule::new(&attributes));
            }
        }
    }
    Ok(listing)
}

/// The kernel takes any bytes as a name. One that is no text is not ours, and counts as empty, which none of ours is.
fn text(attribute: Option<Attribute<'_>>) -> &str {
    attribute.and_then(|found| found.str().ok()).unwrap_or_default()
}

fn base_of(attributes: &Attributes<'_>) -> Option<BaseChain> {
    let hook = attributes.find(CHAIN_HOOK)?.nested();
    let number = |found: Option<Attribute<'_>>| found.and_then(|found| found.be32().ok()).unwrap_or_default();
    Some(BaseChain {
        kind: text(attributes.find(CHAIN_TYPE)).to_owned(),
        hook: number(hook.find(HOOK_NUMBER)),
        priority: number(hook.find(HOOK_PRIORITY)).cast_signed(),
        accepts: number(attributes.find(CHAIN_POLICY)) == ACCEPTS,
    })
}

impl ListedRule {
    /// Takes any bytes.
    pub(crate) fn new(attributes: &Attributes<'_>) -> ListedRule {
        let mut expressions = Vec::new();
        for element in attributes.find(RULE_EXPRESSIONS).iter().flat_map(Attribute::nested) {
            // One that is cut short is none of ours.
            let parts = element.as_ref().map_or(Attributes::new(&[]), Attribute::nested);
            let name = text(parts.find(EXPRESSION_NAME)).to_owned();
            let data = parts.find(EXPRESSION_DATA).filter(|_| name != "counter");
            let data = data.iter().flat_map(Attribute::nested).filter_map(Result::ok);
            let told = data.filter(|attribute| !is_ignored(&name, attribute));
            let told = told.map(|attribute| (attribute.kind, value(&name, &attribute))).collect();
            expressions.push((name, told));
        }
        ListedRule(expressions)
    }
}

/// What follows from the rest, and what only some kernels tell.
fn is_ignored(name: &str, attribute: &Attribute<'_>) -> bool {
    match (name, attribute.kind) {
        ("redir", REDIR_FLAGS) | ("nat", NAT_FLAGS) => true,
        ("bitwise", BITWISE_OPERATION) => attribute.payload == [0; 4],
        _ => false,
    }
}

/// The bytes that say something: of nested data those inside, of a name those before its end.
fn value(name: &str, attribute: &Attribute<'_>) -> Vec<u8> {
    let is_data = matches!(
        (name, attribute.kind),
        ("cmp", CMP_DATA) | ("immediate", IMMEDIATE_DATA) | ("bitwise", BITWISE_MASK | BITWISE_XOR)
    );
    if !is_data {
        let is_text = (name, attribute.kind) == ("log", LOG_PREFIX);
        return if is_text { text(Some(*attribute)).into() } else { attribute.payload.to_vec() };
    }
    let data = attribute.nested();
    match (data.find(DATA_VALUE), data.find(DATA_VERDICT)) {
        (Some(value), _) => value.payload.to_vec(),
        (None, Some(verdict)) => {
            let verdict = verdict.nested();
            let code = verdict.find(VERDICT_CODE).map(|code| code.payload).unwrap_or_default();
            let chain = text(verdict.find(VERDICT_CHAIN));
            [code, chain.as_bytes()].concat()
        }
        (None, None) => Vec::new(),
    }
}
