//! Native tables of the kernel, in a form for comparisons.
//!
//! Lists instead of maps keep the plugin small, which includes this. A pod has at most three tables of ten chains.

use netlink::{Attribute, Attributes, ListBounds, MessageFlags, NetlinkRequest, ReplyMessages};
use rules::{
    ChainSet, Hook, Table,
    native::{NativeChain, NativeRules, NativeTable, chain_name, table_name},
};

use super::encode;
use crate::{
    Error, Unsupported, decode,
    listing::{ObjectReader, read_unchanged},
    uapi::{
        BITWISE_MASK, BITWISE_OPERATION, BITWISE_XOR, CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE,
        CHAIN_TYPE, CHAIN_USE, CMP_DATA, DATA_VALUE, DATA_VERDICT, EXPRESSION_DATA, EXPRESSION_NAME,
        GET_CHAIN, GET_RULE, GET_TABLE, HOOK_NUMBER, HOOK_PRIORITY, IMMEDIATE_DATA, INET, LOG_PREFIX,
        NAT_FLAGS, REDIR_FLAGS, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, TABLE_DORMANT, TABLE_FLAGS,
        TABLE_NAME, TABLE_USE, VERDICT_CHAIN, VERDICT_CODE, base_chain, query_message,
    },
};

/// `NF_ACCEPT`, as the policy of a chain.
const ACCEPTS: u32 = 1;

/// The tables of some owners in the calling thread's network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeListing {
    pub(super) tables: Vec<ListedTable>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListedTable {
    pub(super) name: String,
    /// Whether the table is dormant.
    is_dormant: bool,
    /// Whether it contains more than was read, and so more than any table of ours.
    has_more: bool,
    chains: Vec<ListedChain>,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ListedChain {
    name: String,
    base: Option<BaseChain>,
    rules: Vec<ListedRule>,
}

/// Hook of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BaseChain {
    kind: String,
    hook: u32,
    priority: i32,
    /// Whether the policy is accept: packets that reach the end of the chain continue.
    accepts: bool,
}

/// A rule: its expressions with their attributes as bytes, without counters and without attributes that only some
/// kernels add.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedRule(Vec<u8>);

impl NativeListing {
    /// Reads the tables of these owners, without creating any. Neither very many foreign objects nor a table of ours
    /// beyond the limits keeps them from being read.
    ///
    /// # Errors
    /// As [`read_tables`](crate::read_tables).
    pub fn read(owners: &[ChainSet], bounds: ListBounds) -> Result<NativeListing, Error> {
        read_unchanged(|| read_listing(&mut ObjectReader::new(bounds), owners))
    }

    /// Returns the tables that the kernel will show when these rules are in place.
    ///
    /// # Errors
    /// [`Unsupported`].
    pub fn from_rules(rules: &NativeRules) -> Result<NativeListing, Unsupported> {
        let tables = rules.tables.iter().map(expected_table).collect::<Result<_, _>>()?;
        Ok(NativeListing { tables })
    }

    /// Returns whether there are no tables.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Returns the tables whose names begin with the prefix.
    pub(super) fn tables_named(&self, prefix: &str) -> impl Iterator<Item = &ListedTable> {
        self.tables.iter().filter(move |table| has_table_prefix(prefix, &table.name))
    }

    /// Returns whether packets are sent into a table of the owner.
    pub fn has_jump_into(&self, prefix: &str) -> bool {
        let mut chains = self.tables_named(prefix).flat_map(|table| &table.chains);
        chains.any(|chain| chain.base.is_some() && !chain.rules.is_empty())
    }

    /// Returns the differences of an owner's tables from the desired ones, as text.
    ///
    /// # Errors
    /// [`Unsupported`].
    pub fn differences(&self, prefix: &str, desired: &NativeRules) -> Result<Vec<String>, Unsupported> {
        let expected = NativeListing::from_rules(desired)?;
        let mut all = Vec::new();
        for (table, desired) in expected.tables.iter().zip(&desired.tables) {
            match self.find_table(&table.name) {
                None => all.push(format!("inet {}: the table is missing", table.name)),
                Some(found) => found.collect_differences(table, desired, &mut all),
            }
        }
        for table in self.tables_named(prefix).filter(|table| expected.find_table(&table.name).is_none()) {
            all.push(format!("inet {}: the table should not exist", table.name));
        }
        Ok(all)
    }

    pub(super) fn find_table(&self, name: &str) -> Option<&ListedTable> {
        self.tables.iter().find(|table| table.name == name)
    }
}

impl ListedTable {
    fn find_chain(&self, name: &str) -> Option<&ListedChain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    fn collect_differences(
        &self,
        expected: &ListedTable,
        desired: &NativeTable,
        differences: &mut Vec<String>,
    ) {
        if self.is_dormant {
            differences.push(format!("inet {}: the table is dormant", self.name));
        }
        if self.has_more {
            differences.push(format!("inet {}: the table holds more than is read", self.name));
        }
        let mut differs =
            |chain: &str, how: &str| differences.push(format!("inet {}: chain {chain} {how}", self.name));
        for (chain, desired) in expected.chains.iter().zip(&desired.chains) {
            match self.find_chain(&chain.name) {
                None => differs(&chain.name, "is missing"),
                Some(found) if found.base != chain.base => differs(&chain.name, "is at another hook"),
                Some(found) => {
                    if let Some(how) = found.first_difference(chain, desired) {
                        differs(&chain.name, &how);
                    }
                }
            }
        }
        for chain in self.chains.iter().filter(|chain| expected.find_chain(&chain.name).is_none()) {
            differs(&chain.name, "should not exist");
        }
    }

    /// Returns whether the table equals `desired`, whatever the order of its chains.
    pub(super) fn is_same_as(&self, desired: &ListedTable) -> bool {
        let has = |chain: &ListedChain| self.find_chain(&chain.name) == Some(chain);
        self.is_dormant == desired.is_dormant
            && !self.has_more
            && self.chains.len() == desired.chains.len()
            && desired.chains.iter().all(has)
    }

    /// Returns whether the table's chains can be refilled: they are evaluated and known, and none must be removed, or
    /// moved to another hook.
    pub(super) fn can_become(&self, desired: &ListedTable) -> bool {
        let fits = |chain: &ListedChain| {
            desired.find_chain(&chain.name).is_some_and(|desired| desired.base == chain.base)
        };
        !self.is_dormant && !self.has_more && self.chains.iter().all(fits)
    }
}

impl ListedChain {
    /// Returns the first difference of the rules, as text; `None`: they are equal.
    fn first_difference(&self, expected: &ListedChain, desired: &NativeChain) -> Option<String> {
        let differing =
            expected.rules.iter().enumerate().find(|(index, rule)| self.rules.get(*index) != Some(rule));
        let Some((index, _)) = differing else {
            return (self.rules.len() > expected.rules.len()).then(|| "has an unexpected rule".to_owned());
        };
        let text = desired.rules.get(index).map(|desired| desired.rule.to_string()).unwrap_or_default();
        let found = self.rules.get(index);
        // A rule that is found at the next position was not replaced: another one precedes it or is missing.
        let is_missing = found.is_none() || found == expected.rules.get(index + 1);
        let number = index + 1;
        Some(match is_missing {
            true => format!("lacks rule {number}: {text}"),
            false => format!("rule {number} differs, expected {text}"),
        })
    }
}

/// Returns whether a table belongs to the owner with this name prefix: `istio-proxy-nat` for `istio-proxy`.
pub fn has_table_prefix(prefix: &str, table: &str) -> bool {
    iptables_table(prefix, table).is_some()
}

/// Returns the iptables table that the owner's table replaces: `nat` for `istio-proxy-nat`. `None`: it is not the
/// owner's.
pub fn iptables_table(prefix: &str, table: &str) -> Option<Table> {
    table.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-')).and_then(Table::from_name)
}

fn expected_table(table: &NativeTable) -> Result<ListedTable, Unsupported> {
    let chains = table.chains.iter().map(expected_chain).collect::<Result<_, _>>()?;
    Ok(ListedTable { name: table.name.clone(), chains, ..ListedTable::default() })
}

fn expected_chain(chain: &NativeChain) -> Result<ListedChain, Unsupported> {
    let base = chain.hook.map(|(table, hook)| {
        let (kind, hook, priority) = base_chain(table, hook);
        BaseChain { kind: kind.to_owned(), hook, priority, accepts: true }
    });
    let mut listed = ListedChain { name: chain.name.clone(), base, rules: Vec::new() };
    for rule in &chain.rules {
        let mut request = NetlinkRequest::new(0, MessageFlags::NONE, &[]);
        if !encode::write_rule(&mut request, rule) {
            return Err(super::unsupported_rule(rule));
        }
        let message = request.finish(0, MessageFlags::NONE).unwrap_or_default(); // too long: compares as different
        let attributes = Attributes::new(message.get(HEADER..).unwrap_or_default());
        listed.rules.push(ListedRule::new(&attributes));
    }
    Ok(listed)
}

/// Size of `struct nlmsghdr`.
const HEADER: usize = 16;

fn read_listing(objects: &mut ObjectReader, owners: &[ChainSet]) -> Result<NativeListing, netlink::Error> {
    let mut listing = NativeListing::default();
    let prefixes = || owners.iter().filter_map(|owner| owner.native);
    let names = prefixes().flat_map(|prefix| Table::ALL.map(|table| table_name(prefix, table)));
    let single = names.map(|name| query_message(GET_TABLE, INET, &[(TABLE_NAME, &name)]));
    let (replies, _) = objects.list_or_find(&query_message(GET_TABLE, INET, &[]), single)?;
    let mut uses = Vec::new();
    for reply in replies.iter().flat_map(ReplyMessages::iter) {
        let (family, attributes) = reply.split_header::<4>()?;
        let name = attributes.find_name(TABLE_NAME);
        let is_ours =
            family.first() == Some(&INET) && prefixes().any(|prefix| has_table_prefix(prefix, name));
        if is_ours {
            let is_dormant = number_or_zero(&attributes, TABLE_FLAGS) & TABLE_DORMANT != 0;
            listing.tables.push(ListedTable { name: name.to_owned(), is_dormant, ..ListedTable::default() });
            uses.push(number_or_zero(&attributes, TABLE_USE));
        }
    }
    if listing.is_empty() {
        return Ok(listing);
    }
    let (chain_uses, are_all) = read_chains(objects, owners, &mut listing)?;
    for ((table, uses), mut unlisted) in listing.tables.iter_mut().zip(uses).zip(chain_uses) {
        let question = query_message(GET_RULE, INET, &[(RULE_TABLE, &table.name)]);
        let (replies, is_all) = objects.read_head(&question, objects.bounds.bytes)?;
        // All objects of our tables are chains.
        table.has_more = !is_all || (!are_all && usize::try_from(uses) != Ok(table.chains.len()));
        for reply in replies.iter() {
            let (family, attributes) = reply.split_header::<4>()?;
            // A kernel before Linux 4.12 returns all rules, whatever was requested.
            if family.first() == Some(&INET) && attributes.find_name(RULE_TABLE) == table.name {
                let listed = 1 + decode::target_chains(&attributes).count();
                unlisted = unlisted.saturating_sub(u32::try_from(listed).unwrap_or(u32::MAX));
                let name = attributes.find_name(RULE_CHAIN);
                let chain = table.chains.iter_mut().find(|chain| chain.name == name);
                // A chain that was just created belongs to another generation.
                chain.into_iter().for_each(|chain| chain.rules.push(ListedRule::new(&attributes)));
            }
        }
        // The kernel does not list all rules of a chain that has more uses: see `maps`.
        table.has_more |= unlisted > 0;
    }
    Ok(listing)
}

/// Reads the chains of the tables, or only those with names of ours if there are very many. Returns the sum of their
/// uses for each table, and whether these are all chains.
fn read_chains(
    objects: &mut ObjectReader,
    owners: &[ChainSet],
    listing: &mut NativeListing,
) -> Result<(Vec<u32>, bool), netlink::Error> {
    let tables: Vec<String> = listing.tables.iter().map(|table| table.name.clone()).collect();
    let names = || {
        let built_in = Hook::ALL.map(|hook| hook.as_str().to_ascii_lowercase());
        owners.iter().flat_map(|owner| owner.chains).map(|chain| chain_name(chain)).chain(built_in)
    };
    let single = tables.iter().flat_map(|table| {
        names().map(move |name| query_message(GET_CHAIN, INET, &[(CHAIN_TABLE, table), (CHAIN_NAME, &name)]))
    });
    let (replies, are_all) = objects.list_or_find(&query_message(GET_CHAIN, INET, &[]), single)?;
    let mut uses = vec![0_u32; tables.len()];
    for reply in replies.iter().flat_map(ReplyMessages::iter) {
        let (family, attributes) = reply.split_header::<4>()?;
        let name = attributes.find_name(CHAIN_TABLE);
        let mut found = listing.tables.iter_mut().zip(&mut uses);
        let found = found.find(|(table, _)| table.name == name && family.first() == Some(&INET));
        if let Some((table, uses)) = found {
            *uses = uses.saturating_add(number_or_zero(&attributes, CHAIN_USE));
            let name = attributes.find_name(CHAIN_NAME).to_owned();
            table.chains.push(ListedChain { name, base: decode_base_chain(&attributes), rules: Vec::new() });
        }
    }
    Ok((uses, are_all))
}

fn number_or_zero(attributes: &Attributes<'_>, kind: u16) -> u32 {
    attributes.find_be32(kind).ok().flatten().unwrap_or_default()
}

fn decode_base_chain(attributes: &Attributes<'_>) -> Option<BaseChain> {
    let hook = attributes.find(CHAIN_HOOK)?.nested_attributes();
    Some(BaseChain {
        kind: attributes.find_name(CHAIN_TYPE).to_owned(),
        hook: number_or_zero(&hook, HOOK_NUMBER),
        priority: number_or_zero(&hook, HOOK_PRIORITY).cast_signed(),
        accepts: number_or_zero(attributes, CHAIN_POLICY) == ACCEPTS,
    })
}

/// Highest attribute number of the expressions that we write.
const MOST: u16 = 8;

impl ListedRule {
    /// Accepts any bytes.
    pub(crate) fn new(attributes: &Attributes<'_>) -> ListedRule {
        let mut rule = ListedRule::default();
        for element in attributes.find_nested(RULE_EXPRESSIONS) {
            // A truncated one is not ours.
            let parts = element.as_ref().map_or(Attributes::new(&[]), Attribute::nested_attributes);
            let name = parts.find_name(EXPRESSION_NAME);
            rule.add_bytes(0, name.as_bytes());
            if let Some(data) = parts.find(EXPRESSION_DATA).filter(|_| name != "counter") {
                rule.add_attributes(name, &data);
            }
        }
        rule
    }

    /// Adds attributes in the order of their numbers, which is not the kernel's.
    fn add_attributes(&mut self, name: &str, data: &Attribute<'_>) {
        let is_unknown =
            |attribute: Result<Attribute<'_>, _>| attribute.map_or(true, |found| found.kind > MOST);
        if data.nested_attributes().any(is_unknown) {
            self.add_bytes(u16::MAX, data.payload); // unlike any of ours
        }
        for kind in 1..=MOST {
            let found = data.nested_attributes().find(kind).filter(|attribute| !is_ignored(name, attribute));
            let Some(attribute) = found else { continue };
            match (name, kind) {
                ("cmp", CMP_DATA)
                | ("immediate", IMMEDIATE_DATA)
                | ("bitwise", BITWISE_MASK | BITWISE_XOR) => {
                    let data = attribute.nested_attributes();
                    let verdict = data.find_nested(DATA_VERDICT);
                    let value = data.find(DATA_VALUE).or(verdict.find(VERDICT_CODE));
                    self.add_bytes(kind, value.map(|value| value.payload).unwrap_or_default());
                    self.add_bytes(kind, verdict.find_name(VERDICT_CHAIN).as_bytes());
                }
                ("log", LOG_PREFIX) => self.add_bytes(kind, attribute.read_name().as_bytes()),
                _ => self.add_bytes(kind, attribute.payload),
            }
        }
    }

    /// Adds bytes with their length, so that following bytes cannot be mistaken for a part of them.
    fn add_bytes(&mut self, kind: u16, bytes: &[u8]) {
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(bytes.len().to_ne_bytes());
        self.0.extend(bytes);
    }
}

/// Returns whether an attribute is not compared: it follows from the others, or only some kernels report it.
fn is_ignored(name: &str, attribute: &Attribute<'_>) -> bool {
    match (name, attribute.kind) {
        ("redir", REDIR_FLAGS) | ("nat", NAT_FLAGS) => true,
        ("bitwise", BITWISE_OPERATION) => attribute.payload == [0; 4],
        _ => false,
    }
}
