//! Foreign rules that precede ours and affect their decision: they change the packet's mark, connection tracking, or
//! the destination. Any administrator of a network namespace can add such rules; they leave ours unchanged, so no
//! comparison of our own rules detects them.
//!
//! Only the kernel is queried, without any tool. Rules are read only where a foreign chain precedes ours, and only up
//! to a limit, beyond which they are reported as unreadable. Tables and chains of ours that the kernel does not
//! evaluate are reported, too: these also leave all rules unchanged.

mod effect;
mod legacy;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use model::{Family, Mark};
use netlink::{Attributes, DEFAULT_TIMEOUT, ListBounds, Malformed, NetlinkProtocol, ReceivedMessage, Socket};
use nftables::{
    native::{has_table_prefix, iptables_table},
    uapi::{
        CHAIN_BOUND, CHAIN_FLAGS, CHAIN_HOOK, CHAIN_NAME, CHAIN_TABLE, CHAIN_TYPE, CHAIN_USE, GET_CHAIN,
        GET_RULE, GET_TABLE, HOOK_NUMBER, HOOK_PRIORITY, INET, IPV4, IPV6, NETDEV, RULE_CHAIN,
        RULE_EXPRESSIONS, RULE_TABLE, TABLE_DORMANT, TABLE_FLAGS, TABLE_NAME, base_chain, query_message,
    },
};
use rules::{ChainSet, Hook, Table};

use crate::{Backend, Error, presence::or_empty};
use effect::{FoundEffect, RuleEffect};

/// `NF_INET_PRE_ROUTING`, `NF_INET_LOCAL_OUT`, `NF_INET_INGRESS`.
const HOOKS: [(u32, &str); 3] = [(0, "prerouting"), (3, "output"), (5, "ingress")];
/// `NF_IP_PRI_NAT_DST`, where a packet's destination is decided. Of chains with equal priority, the one that was
/// created last is evaluated first.
const DECIDED: i32 = -100;
/// Tables with more foreign rules ahead of ours are not read.
const MOST_RULES: u32 = 512;
/// Maximum number of reports per namespace.
const MOST: usize = 8;
/// Maximum number of effects that are collected per namespace.
const MOST_EFFECTS: usize = 512;
/// Maximum number of characters that are shown of a name.
const LONGEST_NAME: usize = 32;
/// Tables of iptables in which our jumps precede all other rules.
const NAT: &str = "nat";
pub(crate) const IPTABLES: [&str; 3] = ["raw", "mangle", NAT];
/// Reasons why rules of ours are inactive.
pub(crate) const DORMANT: &str = "is dormant, so the kernel does not evaluate our rules there";
const UNHOOKED: &str = "is not at its hook, so the kernel does not evaluate our rules there";
/// Only the type `route` routes packets anew whose marks change, and `nat` sees the first packet of a connection alone.
const OTHER_TYPE: &str = "is of another type, so our rules there have another effect";

/// Returns the effects of foreign rules ahead of ours in the calling thread's network namespace, as text; empty if
/// there are none. `owner`: owner of our chains; `marks`: marks that our rules match; `backend`: the one whose tables
/// are compared with the desired state. In other backends all rules count as foreign, whatever their names.
///
/// # Errors
/// The kernel could not be queried, or its answer is malformed.
pub fn foreign_effects(owner: ChainSet, marks: &[Mark], backend: Backend) -> Result<Vec<String>, Error> {
    Ok(describe_effects(find_effects(owner, marks, Some(backend))?))
}

/// Like [`foreign_effects`], but only for rules that set one of the marks, or an unknown mark. Other effects matter
/// only where ours exist, because these may follow them.
///
/// # Errors
/// As [`foreign_effects`].
pub fn foreign_marks(owner: ChainSet, marks: &[Mark]) -> Result<Vec<String>, Error> {
    let mut found = find_effects(owner, marks, None)?;
    found.retain(|found| matches!(found.effect, RuleEffect::Marks(_) | RuleEffect::AnyMark));
    Ok(describe_effects(found))
}

/// `backend`: `None` means that chains with our names are ours in each backend.
fn find_effects(
    owner: ChainSet,
    marks: &[Mark],
    backend: Option<Backend>,
) -> Result<Vec<FoundEffect>, Error> {
    let mut found = nf_tables(OwnedChains { owner, backend }, marks)?;
    let is_compared = backend.is_none_or(|backend| backend == Backend::Legacy);
    for family in Family::BOTH {
        found.extend(legacy::find_effects(owner, is_compared, marks, family)?);
    }
    Ok(found)
}

fn describe_effects(found: Vec<FoundEffect>) -> Vec<String> {
    let mut known = BTreeSet::new();
    let mut all: Vec<String> = found.into_iter().map(|one| one.to_string()).collect();
    all.retain(|effect| known.insert(effect.clone()));
    let more = all.len().saturating_sub(MOST);
    all.truncate(MOST);
    all.extend((more > 0).then(|| format!("and {more} more")));
    all
}

fn nf_tables(owned: OwnedChains, marks: &[Mark]) -> Result<Vec<FoundEffect>, Error> {
    let tables = ForeignTables::read_chains(owned, ListBounds::POD);
    match tables.and_then(|tables| tables.find_effects(marks)) {
        // Foreign objects must not keep the agent busy, or from restoring missing rules.
        Err(netlink::Error::Bounds(_) | netlink::Error::Interrupted(_)) => Ok(vec![unlisted_tables()]),
        found => or_empty(found),
    }
}

fn unlisted_tables() -> FoundEffect {
    FoundEffect { place: "nf_tables".to_owned(), effect: RuleEffect::Unlisted }
}

/// Returns, as text, which tables of iptables and which built-in chains of nf_tables the kernel does not evaluate
/// although they have rules of `owner`, in the calling thread's network namespace, a pod's. Native tables are compared
/// as a whole.
///
/// # Errors
/// As [`foreign_effects`], or there are more chains than any pod has.
pub fn inactive_rules(owner: ChainSet) -> Result<Vec<String>, Error> {
    let tables = or_empty(read_inactive(owner, ListBounds::POD))?;
    let iptables = tables.iter().filter(|((family, _), _)| *family != INET);
    Ok(describe_effects(iptables.flat_map(|(table, chains)| chains.inactive_effects(table)).collect()))
}

/// Returns tables that have chains of the owner, with those of their chains that the kernel does not evaluate; `None`:
/// all of them.
pub(crate) fn inactive_chains(
    owner: ChainSet,
    bounds: ListBounds,
) -> Result<Vec<(TableKey, Option<String>)>, Error> {
    let tables = or_empty(read_inactive(owner, bounds))?;
    let parts = tables.iter().flat_map(|(table, chains)| {
        chains.inactive_parts().map(|(chain, _)| (table.clone(), chain.map(str::to_owned)))
    });
    Ok(parts.collect())
}

fn read_inactive(
    owner: ChainSet,
    bounds: ListBounds,
) -> Result<BTreeMap<TableKey, TableChains>, netlink::Error> {
    Ok(ForeignTables::read_chains(OwnedChains { owner, backend: None }, bounds)?.tables)
}

/// Family and name.
pub(crate) type TableKey = (u8, String);

/// Chains and rules of one table, as far as relevant here.
#[derive(Debug, Default)]
struct TableChains {
    /// Foreign chains that precede ours, with their hooks.
    early: BTreeMap<String, String>,
    /// Upper bound of the number of rules outside of our chains: counts jumps to other chains, too.
    rules: u32,
    /// Number of chains that belong to one rule each.
    bound: usize,
    /// Whether the table has chains of ours.
    is_shared: bool,
    /// Built-in chains with jumps to ours that the kernel does not evaluate as such, with the reason.
    inactive: Vec<(String, &'static str)>,
    /// Whether the table is dormant.
    is_dormant: bool,
}

impl TableChains {
    /// Returns chains of ours that the kernel does not evaluate (`None`: all of them), with the reason.
    fn inactive_parts(&self) -> impl Iterator<Item = (Option<&str>, &'static str)> {
        let dormant = self.is_dormant.then_some((None, DORMANT));
        let inactive = self.inactive.iter().map(|(chain, why)| (Some(chain.as_str()), *why));
        dormant.into_iter().chain(inactive).filter(|_| self.is_shared)
    }

    fn inactive_effects(&self, table: &TableKey) -> impl Iterator<Item = FoundEffect> {
        let place = place_name(table);
        self.inactive_parts().map(move |(chain, why)| FoundEffect {
            place: chain.map_or_else(|| place.clone(), |chain| format!("{place} {chain}")),
            effect: RuleEffect::Inactive(why),
        })
    }
}

/// Chains whose rules are compared elsewhere.
#[derive(Clone, Copy)]
struct OwnedChains {
    owner: ChainSet,
    /// The backend whose tables are compared; `None`: any.
    backend: Option<Backend>,
}

struct ForeignTables {
    socket: Socket,
    /// Generation of the rules when they were read first.
    generation: u32,
    owned: OwnedChains,
    tables: BTreeMap<TableKey, TableChains>,
}

/// A rule, as far as relevant here.
#[derive(Debug)]
struct ForeignRule {
    chain: String,
    effects: Vec<RuleEffect>,
    jumps: effect::JumpTarget,
    /// Chains of which the kernel counts the rule as a use.
    uses: Vec<String>,
}

impl ForeignTables {
    fn read_chains(owned: OwnedChains, bounds: ListBounds) -> Result<ForeignTables, netlink::Error> {
        let mut socket = open_socket(bounds)?;
        let generation = nftables::request_generation(&mut socket)?;
        let replies = socket.dump(&query_message(GET_CHAIN, 0, &[]))?;
        let mut tables = BTreeMap::new();
        for reply in replies.iter() {
            record_chain(&mut tables, owned, &reply)?;
        }
        let dormant = read_dormant(&mut socket)?;
        for ((family, table), chains) in &mut tables {
            chains.is_dormant = dormant.contains(&(*family, table.clone()));
            // Our jumps precede all other rules in the chains of iptables, so later rules in `nat` affect only what ours
            // leave alone, such as connections to 127.0.0.1.
            if chains.is_shared && table == NAT && [IPV4, IPV6].contains(family) {
                chains.early.retain(|name, _| !["PREROUTING", "OUTPUT"].contains(&name.as_str()));
            }
        }
        tables.retain(|_, chains: &mut TableChains| {
            let has_rules_ahead = !chains.early.is_empty() && !chains.is_dormant;
            has_rules_ahead || chains.inactive_parts().next().is_some()
        });
        Ok(ForeignTables { socket, generation, owned, tables })
    }

    fn find_effects(mut self, marks: &[Mark]) -> Result<Vec<FoundEffect>, netlink::Error> {
        let mut found = Vec::new();
        let deadline = Instant::now() + ListBounds::POD.time;
        for (key, chains) in std::mem::take(&mut self.tables) {
            if found.len() > MOST_EFFECTS || Instant::now() >= deadline {
                found.push(unlisted_tables());
                break;
            }
            let place = place_name(&key);
            found.extend(chains.inactive_effects(&key));
            let (family, table) = key;
            if chains.is_dormant || chains.early.is_empty() {
                continue;
            }
            if chains.rules > MOST_RULES {
                found.push(FoundEffect { place, effect: RuleEffect::TooMany(chains.rules) });
                continue;
            }
            if table.is_empty() {
                // The rules of a table without a name cannot be requested.
                found.push(FoundEffect { place, effect: RuleEffect::Unreadable });
                continue;
            }
            let rules = self.foreign_rules(family, &table, marks)?;
            if self.has_unlisted_rules((family, &table), &chains, &rules)? {
                found.push(FoundEffect { place: place.clone(), effect: RuleEffect::Unreadable });
            }
            let reached = reached_chains(&rules, chains.early.keys().cloned().collect());
            for rule in rules.into_iter().filter(|rule| reached.contains(&rule.chain)) {
                let hook =
                    chains.early.get(&rule.chain).map_or_else(String::new, |hook| format!(" ({hook})"));
                let place = format!("{place} {}{hook}", printable_name(&rule.chain));
                found.extend(
                    rule.effects.into_iter().map(|effect| FoundEffect { place: place.clone(), effect }),
                );
            }
        }
        Ok(found)
    }

    /// Returns whether chains of a table have rules that the kernel does not list, behind one that is too long: more uses
    /// than their rules and the jumps to them. `false` if rules have changed since the chains were listed.
    fn has_unlisted_rules(
        &mut self,
        (family, table): (u8, &str),
        chains: &TableChains,
        rules: &[ForeignRule],
    ) -> Result<bool, netlink::Error> {
        let owned = self.owned;
        let is_foreign = |chain: &str| !owned.contains(family, table, chain);
        let uses = rules.iter().flat_map(|rule| &rule.uses).filter(|to| is_foreign(to));
        let listed = rules.len() + uses.count() + chains.bound;
        let has_more = |listed: usize| u32::try_from(listed).is_ok_and(|listed| chains.rules > listed);
        if !has_more(listed) {
            return Ok(false);
        }
        let in_maps = match nftables::read_map_jumps(&mut self.socket, family, table) {
            Err(netlink::Error::Bounds(_) | netlink::Error::Interrupted(_)) => {
                self.socket = open_socket(ListBounds::POD)?;
                return Ok(true);
            }
            in_maps => in_maps?,
        };
        let in_maps = in_maps.iter().filter(|to| is_foreign(to)).count();
        // The uses change while a transaction is prepared, which the kernel may still refuse.
        Ok(has_more(listed + in_maps)
            && self.count_rules(family, table)? == chains.rules
            && nftables::request_generation(&mut self.socket)? == self.generation)
    }

    /// Lists the chains of a family again, and returns [`TableChains::rules`] of a table.
    fn count_rules(&mut self, family: u8, table: &str) -> Result<u32, netlink::Error> {
        let mut tables = BTreeMap::new();
        for reply in self.socket.dump(&query_message(GET_CHAIN, family, &[]))?.iter() {
            record_chain(&mut tables, self.owned, &reply)?;
        }
        Ok(tables.get(&(family, table.to_owned())).map_or(0, |chains: &TableChains| chains.rules))
    }

    /// Returns the rules of a table outside of our chains.
    fn foreign_rules(
        &mut self,
        family: u8,
        table: &str,
        marks: &[Mark],
    ) -> Result<Vec<ForeignRule>, netlink::Error> {
        let mut rules = Vec::new();
        for reply in self.socket.dump(&query_message(GET_RULE, family, &[(RULE_TABLE, table)]))?.iter() {
            let (_, attributes) = reply.split_header::<4>()?;
            let chain = required_text(&attributes, RULE_CHAIN)?;
            // Kernels before Linux 4.15 do not filter by table.
            if required_text(&attributes, RULE_TABLE)? != table || self.owned.contains(family, table, chain) {
                continue;
            }
            let (effects, jumps, uses) =
                effect::rule_effects(attributes.find_nested(RULE_EXPRESSIONS), marks)?;
            rules.push(ForeignRule { chain: chain.to_owned(), effects, jumps, uses });
        }
        Ok(rules)
    }
}

fn open_socket(bounds: ListBounds) -> Result<Socket, netlink::Error> {
    let timeout = bounds.time.min(DEFAULT_TIMEOUT);
    Ok(Socket::open_with_timeout(NetlinkProtocol::Netfilter, timeout)?.with_bounds(bounds))
}

/// Returns the dormant tables.
fn read_dormant(socket: &mut Socket) -> Result<BTreeSet<TableKey>, netlink::Error> {
    let replies = socket.dump(&query_message(GET_TABLE, 0, &[]))?;
    let mut dormant = BTreeSet::new();
    for reply in replies.iter() {
        let (&[family, ..], attributes) = reply.split_header::<4>()?;
        let flags = attributes.find_be32(TABLE_FLAGS)?.unwrap_or(0);
        let name = required_text(&attributes, TABLE_NAME)?;
        // A dormant table whose name is not UTF-8 must not be confused with others.
        if flags & TABLE_DORMANT != 0 && !name.is_empty() {
            dormant.insert((family, name.to_owned()));
        }
    }
    Ok(dormant)
}

/// Returns why the kernel does not evaluate a chain as the built-in one with jumps to ours in a pod; `None`: it does, or
/// has no such name. For native tables, whose priority differs between versions, only the hook is compared.
fn inactive_reason(
    owner: ChainSet,
    (family, table): (u8, &str),
    chain: &str,
    attributes: &Attributes<'_>,
) -> Result<Option<&'static str>, Malformed> {
    let (table, chain) = match (family, owner.native) {
        (IPV4 | IPV6, _) => (Table::from_name(table), chain.to_owned()),
        (INET, Some(prefix)) => (iptables_table(prefix, table), chain.to_ascii_uppercase()),
        _ => return Ok(None),
    };
    let known = Hook::from_name(&chain).filter(|hook| [Hook::Prerouting, Hook::Output].contains(hook));
    let Some((table, hook)) = table.zip(known) else { return Ok(None) };
    compare_base_chain(attributes, base_chain(table, hook), family == INET)
}

/// Returns why the kernel does not evaluate a chain as one of this type, hook and priority; `None`: it does. `is_native`:
/// only the hook is compared.
pub(crate) fn compare_base_chain(
    chain: &Attributes<'_>,
    (kind, number, priority): (&str, u32, i32),
    is_native: bool,
) -> Result<Option<&'static str>, Malformed> {
    let Some(hook) = chain.find(CHAIN_HOOK).map(|hook| hook.nested_attributes()) else {
        return Ok(Some(UNHOOKED));
    };
    let has_priority = is_native || hook.find_be32(HOOK_PRIORITY)? == Some(priority.cast_unsigned());
    if hook.find_be32(HOOK_NUMBER)? != Some(number) || !has_priority {
        return Ok(Some(UNHOOKED));
    }
    let is_of_type = is_native || chain.find(CHAIN_TYPE).is_some_and(|found| found.read_name() == kind);
    Ok((!is_of_type).then_some(OTHER_TYPE))
}

/// Returns whether this is a native table of the owner.
pub(crate) fn is_native_table(owner: ChainSet, family: u8, table: &str) -> bool {
    family == INET && owner.native.is_some_and(|prefix| has_table_prefix(prefix, table))
}

impl OwnedChains {
    /// Returns whether a chain is compared elsewhere: chains of iptables tables with a name of ours, and those of
    /// native tables.
    fn contains(self, family: u8, table: &str, chain: &str) -> bool {
        let (backend, is_named) = match family {
            IPV4 | IPV6 => (Backend::Nft, IPTABLES.contains(&table) && self.owner.contains(chain)),
            INET => (Backend::Native, is_native_table(self.owner, family, table)),
            _ => return false,
        };
        is_named && self.backend.is_none_or(|compared| compared == backend)
    }
}

fn record_chain(
    tables: &mut BTreeMap<TableKey, TableChains>,
    owned: OwnedChains,
    reply: &ReceivedMessage<'_>,
) -> Result<(), netlink::Error> {
    let (&[family, ..], attributes) = reply.split_header::<4>()?;
    let (table, name) = (required_text(&attributes, CHAIN_TABLE)?, required_text(&attributes, CHAIN_NAME)?);
    let chains = tables.entry((family, table.to_owned())).or_default();
    if let Some(why) = inactive_reason(owned.owner, (family, table), name, &attributes)? {
        chains.inactive.push((name.to_owned(), why));
    }
    if owned.contains(family, table, name) {
        chains.is_shared = true;
        return Ok(());
    }
    let rules = attributes.find_be32(CHAIN_USE)?.unwrap_or(0);
    chains.rules = chains.rules.saturating_add(rules);
    chains.bound += usize::from(attributes.find_be32(CHAIN_FLAGS)?.unwrap_or(0) & CHAIN_BOUND != 0);
    if let Some(hook) = attributes.find(CHAIN_HOOK).filter(|_| rules > 0)
        && let Some(effect) = early_hook(family, &hook.nested_attributes())?
    {
        chains.early.insert(name.to_owned(), effect);
    }
    Ok(())
}

/// Returns the hook and priority of a chain, if it precedes ours.
fn early_hook(family: u8, hook: &Attributes<'_>) -> Result<Option<String>, Malformed> {
    let number = |kind| Ok::<_, Malformed>(hook.find_be32(kind)?.unwrap_or(0));
    let (hook, priority) = (number(HOOK_NUMBER)?, number(HOOK_PRIORITY)?.cast_signed());
    let name = match family {
        NETDEV => Some("device"),
        INET | IPV4 | IPV6 => HOOKS.iter().find(|(of, _)| *of == hook).map(|(_, name)| *name),
        _ => None,
    };
    // A device's chains have their own priorities, and precede all others.
    let is_early = family == NETDEV || hook == 5 || priority <= DECIDED;
    Ok(name.filter(|_| is_early).map(|name| format!("hook {name}, priority {priority}")))
}

fn required_text<'a>(attributes: &Attributes<'a>, kind: u16) -> Result<&'a str, Malformed> {
    Ok(attributes.find(kind).ok_or(Malformed("an object of nf_tables without a name"))?.read_name())
}

/// Returns the chains that packets reach from these.
fn reached_chains(rules: &[ForeignRule], early: BTreeSet<String>) -> BTreeSet<String> {
    let mut reached = early;
    let leads_anywhere = |rule: &&ForeignRule| matches!(rule.jumps, effect::JumpTarget::Anywhere);
    loop {
        let before = reached.len();
        let met: Vec<&ForeignRule> = rules.iter().filter(|rule| reached.contains(&rule.chain)).collect();
        if met.iter().any(leads_anywhere) {
            return rules.iter().map(|rule| rule.chain.clone()).chain(reached).collect();
        }
        for rule in met {
            if let effect::JumpTarget::To(chain) = &rule.jumps {
                reached.insert(chain.clone());
            }
        }
        if reached.len() == before {
            return reached;
        }
    }
}

/// Makes a name chosen by a pod printable: one line of limited length.
fn printable_name(name: &str) -> String {
    let name = if name.is_empty() { "?" } else { name };
    let clean = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    name.chars().take(LONGEST_NAME).map(clean).collect()
}

pub(crate) fn place_name((family, table): &TableKey) -> String {
    format!("nf_tables {} {}", family_name(*family), printable_name(table))
}

fn family_name(family: u8) -> &'static str {
    match family {
        INET => "inet",
        IPV4 => "ip",
        IPV6 => "ip6",
        NETDEV => "netdev",
        _ => "other",
    }
}
