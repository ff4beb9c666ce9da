//! Rules of other components that meet a packet before ours do and change what ours decide on: the packet's mark, whether its
//! connection is tracked, or where it goes. Whoever may administer a network namespace can make such rules, and they leave
//! ours as they are, so no comparison of our own rules finds them.
//!
//! Only the kernel is asked, without any tool. Rules are read only where a chain of another component meets packets before
//! ours, and only up to a number: more cannot be looked at, and are reported as such. The same goes for tables and chains of ours
//! that the kernel does not evaluate: that, too, leaves all rules as they are.

mod effect;
mod legacy;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use model::{Family, Mark};
use netlink::{
    Attribute, Attributes, DEFAULT_TIMEOUT, ListBounds, Malformed, MessageFlags, NetlinkProtocol,
    NetlinkRequest, ReceivedMessage, Socket,
};
use nftables::{
    native::{iptables_table, is_table_of},
    uapi::{
        CHAIN_HOOK, CHAIN_NAME, CHAIN_TABLE, CHAIN_USE, GET_CHAIN, GET_RULE, GET_TABLE, HOOK_NUMBER,
        HOOK_PRIORITY, INET, IPV4, IPV6, NETDEV, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, TABLE_DORMANT,
        TABLE_FLAGS, TABLE_NAME, base_chain,
    },
};
use rules::{ChainSet, Hook, Table};

use crate::{Backend, Error, presence::has_no_nf_tables};
use effect::{FoundEffect, RuleEffect};

/// `NF_INET_PRE_ROUTING`, `NF_INET_LOCAL_OUT`, `NF_INET_INGRESS`.
const HOOKS: [(u32, &str); 3] = [(0, "prerouting"), (3, "output"), (5, "ingress")];
/// `NF_IP_PRI_NAT_DST`: where a packet's destination is decided. Of chains of one priority the one that was made last comes
/// first.
const DECIDED: i32 = -100;
/// Tables with more rules of other components ahead of ours are not read.
const MOST_RULES: u32 = 512;
/// So much is reported of one namespace.
const MOST: usize = 8;
/// So much is looked for in one namespace.
const MOST_EFFECTS: usize = 512;
/// Of a name, so many characters are shown.
const LONGEST_NAME: usize = 32;
/// Tables of iptables in which we have rules ahead of all others there.
const NAT: &str = "nat";
pub(crate) const IPTABLES: [&str; 3] = ["raw", "mangle", NAT];

/// Returns the effects of other components' rules ahead of ours in the calling thread's network namespace, as text; empty
/// if there are none. `owner`: whose chains are ours; `marks`: those that ours ask for; `backend`: the one whose tables are compared
/// with what is desired. In others, rules are those of other components, whatever their names.
///
/// # Errors
/// The kernel could not be asked, or its answer makes no sense.
pub fn foreign_effects(owner: ChainSet, marks: &[Mark], backend: Backend) -> Result<Vec<String>, Error> {
    Ok(describe_effects(find_effects(owner, marks, Some(backend))?))
}

/// As [`foreign_effects`], but only of rules that set one of the marks, or one that cannot be determined. The others matter only
/// where ours are, because they may stand behind them.
///
/// # Errors
/// As there.
pub fn foreign_marks(owner: ChainSet, marks: &[Mark]) -> Result<Vec<String>, Error> {
    let mut found = find_effects(owner, marks, None)?;
    found.retain(|found| matches!(found.effect, RuleEffect::Marks(_) | RuleEffect::AnyMark));
    Ok(describe_effects(found))
}

/// `backend`: `None`: what has our names is ours in the tables of each.
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
        // Whatever others make, it must not keep the agent from restoring what is missing, nor busy.
        Err(netlink::Error::Bounds(_) | netlink::Error::Interrupted(_)) => Ok(vec![unlisted_tables()]),
        found => or_empty(found),
    }
}

fn unlisted_tables() -> FoundEffect {
    FoundEffect { place: "nf_tables".to_owned(), effect: RuleEffect::Unlisted }
}

/// A kernel without nf_tables has nothing there.
fn or_empty<T: Default>(found: Result<T, netlink::Error>) -> Result<T, Error> {
    match found {
        Err(error) if has_no_nf_tables(&error) => Ok(T::default()),
        found => found.map_err(Error::Presence),
    }
}

/// Returns which of iptables' tables and built-in chains of nf_tables the kernel does not evaluate although they have rules of
/// `owner`, in the calling thread's network namespace, a pod's; as text. Native tables are compared as a whole.
///
/// # Errors
/// As [`foreign_effects`], or there are more chains than any pod has.
pub fn inactive_rules(owner: ChainSet) -> Result<Vec<String>, Error> {
    let tables = or_empty(read_inactive(owner, ListBounds::POD))?;
    let iptables = tables.iter().filter(|((family, _), _)| *family != INET);
    Ok(describe_effects(iptables.flat_map(|(table, chains)| chains.inactive_effects(table)).collect()))
}

/// Tables that have chains of the owner, and which of their chains the kernel does not evaluate; `None`: all of them.
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

/// Chains and rules of one table, as far as they matter here.
#[derive(Debug, Default)]
struct TableChains {
    /// Chains of other components that packets meet before ours, and where.
    early: BTreeMap<String, String>,
    /// Rules outside of our chains, and jumps to other chains: at least as many as there are rules.
    rules: u32,
    /// The table has chains of ours.
    is_shared: bool,
    /// Built-in chains that ours are called from and that are not at their hook.
    unhooked: Vec<String>,
    /// The kernel asks none of its chains.
    is_dormant: bool,
}

impl TableChains {
    /// Chains of ours that the kernel does not evaluate (`None`: all of them), and why.
    fn inactive_parts(&self) -> impl Iterator<Item = (Option<&str>, &'static str)> {
        let dormant = self.is_dormant.then_some((None, "is dormant"));
        let unhooked = self.unhooked.iter().map(|chain| (Some(chain.as_str()), "is not at its hook"));
        dormant.into_iter().chain(unhooked).filter(|_| self.is_shared)
    }

    fn inactive_effects(&self, table: &TableKey) -> impl Iterator<Item = FoundEffect> {
        let place = place_name(table);
        self.inactive_parts().map(move |(chain, why)| FoundEffect {
            place: chain.map_or_else(|| place.clone(), |chain| format!("{place} {chain}")),
            effect: RuleEffect::Inactive(why),
        })
    }
}

/// Chains that are compared rule by rule elsewhere.
#[derive(Clone, Copy)]
struct OwnedChains {
    owner: ChainSet,
    /// The backend whose tables are compared; `None`: any.
    backend: Option<Backend>,
}

struct ForeignTables {
    socket: Socket,
    owned: OwnedChains,
    tables: BTreeMap<TableKey, TableChains>,
}

/// A rule, as far as it matters here.
#[derive(Debug)]
struct ForeignRule {
    chain: String,
    effects: Vec<RuleEffect>,
    jumps: effect::JumpTarget,
}

impl ForeignTables {
    fn read_chains(owned: OwnedChains, bounds: ListBounds) -> Result<ForeignTables, netlink::Error> {
        let timeout = bounds.time.min(DEFAULT_TIMEOUT);
        let mut socket = Socket::open_with_timeout(NetlinkProtocol::Netfilter, timeout)?.with_bounds(bounds);
        // struct nfgenmsg: any family, version 0, resource 0
        let replies = socket.dump(&NetlinkRequest::new(GET_CHAIN, MessageFlags::NONE, &[0; 4]))?;
        let mut tables = BTreeMap::new();
        for reply in replies.iter() {
            record_chain(&mut tables, owned, &reply)?;
        }
        let dormant = read_dormant(&mut socket)?;
        for ((family, table), chains) in &mut tables {
            chains.is_dormant = dormant.contains(&(*family, table.clone()));
            // Our jumps come before all else in the chains of iptables, so what follows there in `nat` decides nothing.
            if chains.is_shared && table == NAT && [IPV4, IPV6].contains(family) {
                chains.early.retain(|name, _| !["PREROUTING", "OUTPUT"].contains(&name.as_str()));
            }
        }
        tables.retain(|_, chains: &mut TableChains| {
            let has_rules_ahead = !chains.early.is_empty() && !chains.is_dormant;
            has_rules_ahead || chains.inactive_parts().next().is_some()
        });
        Ok(ForeignTables { socket, owned, tables })
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
                // Its rules cannot be asked for.
                found.push(FoundEffect { place, effect: RuleEffect::Unreadable });
                continue;
            }
            let rules = self.foreign_rules(family, &table, marks)?;
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

    /// The rules of a table outside of our chains.
    fn foreign_rules(
        &mut self,
        family: u8,
        table: &str,
        marks: &[Mark],
    ) -> Result<Vec<ForeignRule>, netlink::Error> {
        let mut question = NetlinkRequest::new(GET_RULE, MessageFlags::NONE, &[family, 0, 0, 0]);
        question.put_str(RULE_TABLE, table);
        let mut rules = Vec::new();
        for reply in self.socket.dump(&question)?.iter() {
            let (_, attributes) = reply.split_header::<4>()?;
            let chain = required_text(&attributes, RULE_CHAIN)?;
            // Kernels before Linux 4.15 do not leave out other tables.
            if required_text(&attributes, RULE_TABLE)? != table || self.owned.contains(family, table, chain) {
                continue;
            }
            let expressions = attributes.find(RULE_EXPRESSIONS);
            let (effects, jumps) =
                effect::rule_effects(expressions.iter().flat_map(Attribute::nested_attributes), marks)?;
            rules.push(ForeignRule { chain: chain.to_owned(), effects, jumps });
        }
        Ok(rules)
    }
}

/// The tables of which the kernel evaluates no chain.
fn read_dormant(socket: &mut Socket) -> Result<BTreeSet<TableKey>, netlink::Error> {
    let replies = socket.dump(&NetlinkRequest::new(GET_TABLE, MessageFlags::NONE, &[0; 4]))?;
    let mut dormant = BTreeSet::new();
    for reply in replies.iter() {
        let family = reply.payload.first().copied().unwrap_or_default();
        let (_, attributes) = reply.split_header::<4>()?;
        let flags = attributes.find(TABLE_FLAGS).map(|flags| flags.read_be32()).transpose()?.unwrap_or(0);
        let name = required_text(&attributes, TABLE_NAME)?;
        // Of tables whose names are not UTF-8, one that is dormant says nothing of the others.
        if flags & TABLE_DORMANT != 0 && !name.is_empty() {
            dormant.insert((family, name.to_owned()));
        }
    }
    Ok(dormant)
}

/// Whether a chain of this name is a built-in one that ours are called from in a pod, and is not where iptables has it. In native tables,
/// whose priority differs between versions, the hook counts.
fn is_unhooked(
    owner: ChainSet,
    (family, table): (u8, &str),
    chain: &str,
    hook: Option<&Attribute<'_>>,
) -> Result<bool, Malformed> {
    let (table, chain) = match (family, owner.native) {
        (IPV4 | IPV6, _) => (Table::from_name(table), chain.to_owned()),
        (INET, Some(prefix)) => (iptables_table(prefix, table), chain.to_ascii_uppercase()),
        _ => return Ok(false),
    };
    let known = Hook::from_name(&chain).filter(|hook| [Hook::Prerouting, Hook::Output].contains(hook));
    let Some((_, number, priority)) = table.zip(known).map(|(table, hook)| base_chain(table, hook)) else {
        return Ok(false);
    };
    Ok(!is_at_hook(hook, number, Some(priority).filter(|_| family != INET))?)
}

/// Whether a chain is a base chain of this hook and, if one is given, of this priority.
pub(crate) fn is_at_hook(
    hook: Option<&Attribute<'_>>,
    number: u32,
    priority: Option<i32>,
) -> Result<bool, Malformed> {
    let Some(hook) = hook.map(|hook| hook.nested_attributes()) else { return Ok(false) };
    let read = |kind| hook.find(kind).map(|found| found.read_be32()).transpose();
    let has_priority = |priority: i32| Ok(read(HOOK_PRIORITY)? == Some(priority.cast_unsigned()));
    Ok(read(HOOK_NUMBER)? == Some(number) && priority.map_or(Ok(true), has_priority)?)
}

/// Whether this is a native table of the owner's.
pub(crate) fn is_native_table(owner: ChainSet, family: u8, table: &str) -> bool {
    family == INET && owner.native.is_some_and(|prefix| is_table_of(prefix, table))
}

impl OwnedChains {
    /// Chains of iptables tables with a name of ours, and those of native tables.
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
    let family = reply.payload.first().copied().unwrap_or_default();
    let (_, attributes) = reply.split_header::<4>()?;
    let (table, name) = (required_text(&attributes, CHAIN_TABLE)?, required_text(&attributes, CHAIN_NAME)?);
    let chains = tables.entry((family, table.to_owned())).or_default();
    if is_unhooked(owned.owner, (family, table), name, attributes.find(CHAIN_HOOK).as_ref())? {
        chains.unhooked.push(name.to_owned());
    }
    if owned.contains(family, table, name) {
        chains.is_shared = true;
        return Ok(());
    }
    let number = |kind| {
        Ok::<_, Malformed>(attributes.find(kind).map(|found| found.read_be32()).transpose()?.unwrap_or(0))
    };
    let rules = number(CHAIN_USE)?;
    chains.rules = chains.rules.saturating_add(rules);
    if let Some(hook) = attributes.find(CHAIN_HOOK).filter(|_| rules > 0)
        && let Some(effect) = early_hook(family, &hook.nested_attributes())?
    {
        chains.early.insert(name.to_owned(), effect);
    }
    Ok(())
}

/// Where a chain with this hook meets packets, if that is before ours decide on them.
fn early_hook(family: u8, hook: &Attributes<'_>) -> Result<Option<String>, Malformed> {
    let number =
        |kind| Ok::<_, Malformed>(hook.find(kind).map(|found| found.read_be32()).transpose()?.unwrap_or(0));
    let (hook, priority) = (number(HOOK_NUMBER)?, number(HOOK_PRIORITY)?.cast_signed());
    let name = match family {
        NETDEV => Some("device"),
        INET | IPV4 | IPV6 => HOOKS.iter().find(|(of, _)| *of == hook).map(|(_, name)| *name),
        _ => None,
    };
    // A device's chains have priorities of their own, and come before all others.
    let is_early = family == NETDEV || hook == 5 || priority <= DECIDED;
    Ok(name.filter(|_| is_early).map(|name| format!("hook {name}, priority {priority}")))
}

fn required_text<'a>(attributes: &Attributes<'a>, kind: u16) -> Result<&'a str, Malformed> {
    Ok(attributes.find(kind).ok_or(Malformed("an object of nf_tables without a name"))?.read_name())
}

/// The chains that packets meet which enter these.
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

/// A name that a pod chose, for people: of one line, and not long.
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
