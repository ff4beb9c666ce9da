//! What nf_tables holds of one owner, asked chain by chain: what that costs does not grow with the rules of others, and
//! takes no tool. It tells whether anything was changed, not what a rule says.

use std::collections::{BTreeMap, BTreeSet};

use model::Family;
use netlink::{
    Attribute, Attributes, Errno, ListBounds, MessageFlags, NetlinkProtocol, NetlinkRequest, Socket,
};
use nftables::{
    native::NativeListing,
    uapi::{
        CHAIN_NAME, CHAIN_TABLE, EXPRESSION_NAME, GET_CHAIN, GET_RULE, NFPROTO, RULE_CHAIN, RULE_EXPRESSIONS,
        RULE_HANDLE, RULE_TABLE,
    },
};
use rules::{Chain, ChainSet, Hook, Rule, RuleSet, SavedRule, SavedTable, SavedTables, Table};

use crate::{
    Error, ObservedTables,
    digest::{self, FnvHash},
    presence::{has_no_nf_tables, nft_tables},
};

/// How much is read of a chain, in bytes. A rule of ours has some 500 at most, and the longest of our chains some hundred.
const OWN_CHAIN: usize = 512 << 10;
/// Of a built-in chain: a few hundred rules. Our jumps stand at its beginning.
const HOOK: usize = 64 << 10;

/// Which rules are asked for: those of one owner.
#[derive(Clone, Copy)]
pub struct WantedRules<'a> {
    /// Owner of the rules.
    pub owner: ChainSet,
    /// Desired rules of each family. Their jumps determine which built-in chains are read.
    pub rules: &'a dyn Fn(Family) -> RuleSet,
}

/// One owner's chains, and the jumps into them, as nf_tables had them at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnRules {
    /// A number for what was wanted then.
    wanted: u64,
    chains: BTreeMap<(Family, Table, &'static str), ChainContent>,
    hooks: BTreeMap<(Family, Table, Hook), OwnJumps>,
    /// A number for what native tables hold; none: there are none.
    native: Option<u64>,
}

/// A chain of the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChainContent {
    rules: usize,
    hash: u64,
    /// There is no more of it.
    whole: bool,
}

/// A built-in chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnJumps {
    /// The first rule of the chain is one of the jumps.
    leads: bool,
    /// In their order: where each leads to, whether it has no conditions, and a number for all that it says.
    found: Box<[(&'static str, bool, u64)]>,
    whole: bool,
}

impl OwnJumps {
    /// Nothing further down can matter: all was read, or the first rule is the one.
    fn is_certain(&self) -> bool {
        self.whole || self.leads
    }

    /// The first rule is a jump that takes everything.
    fn takes_all(&self) -> bool {
        self.leads && self.found.first().is_some_and(|(_, plain, _)| *plain)
    }
}

impl OwnRules {
    /// Of the calling thread's namespace. A kernel without nf_tables has none.
    ///
    /// # Errors
    /// The kernel could not be asked, or its answer makes no sense.
    pub fn of_this_netns(wanted: &WantedRules<'_>) -> Result<OwnRules, Error> {
        let mut seen = OwnRules { wanted: number(wanted), ..OwnRules::default() };
        let Some(tables) = nft_tables()? else { return Ok(seen) };
        seen.native = native(wanted.owner)?;
        let mut reader = ChainReader::default();
        for (family, number) in NFPROTO {
            let desired = (wanted.rules)(family);
            for table in
                Table::ALL.into_iter().filter(|table| tables.contains(&(family, table.name().to_owned())))
            {
                for chain in wanted.owner.chains {
                    if let Some(content) = reader.own_chain(number, table, chain)? {
                        seen.chains.insert((family, table, *chain), content);
                    }
                }
                for hook in hooks(&desired, table) {
                    let jumps = reader.jumps(number, table, hook, wanted.owner)?;
                    seen.hooks.insert((family, table, hook), jumps);
                }
            }
        }
        Ok(seen)
    }

    /// Whether any chain of an owner's is in nf_tables.
    pub(crate) fn has_any(owner: ChainSet) -> Result<bool, Error> {
        let nothing = |_| RuleSet::default();
        Ok(!OwnRules::of_this_netns(&WantedRules { owner, rules: &nothing })?.chains.is_empty())
    }

    /// Nothing of the owner's was changed between `self` and `later`, as far as can be told.
    #[must_use]
    pub fn is_same(&self, later: &OwnRules) -> bool {
        self == later && self.hooks.values().all(OwnJumps::is_certain)
    }

    /// Returns these rules in the form of a save, for plans. A chain that is as it was when it was `verified` holds what is
    /// wanted. Of any other it is only known that it has to be made anew.
    pub(crate) fn observation(
        &self,
        wanted: &WantedRules<'_>,
        verified: Option<&OwnRules>,
    ) -> ObservedTables {
        let mut observed = ObservedTables { coarse: true, ..ObservedTables::default() };
        let verified = verified.filter(|verified| verified.wanted == self.wanted);
        for family in Family::BOTH {
            let desired = (wanted.rules)(family);
            let mut saved = SavedTables::default();
            for ((_, table, chain), content) in self.chains.iter().filter(|((of, ..), _)| *of == family) {
                let known = verified.and_then(|verified| verified.chains.get(&(family, *table, *chain)));
                let rules = desired.tables.get(table).map(|rules| rules.chain(&Chain((*chain).into())));
                let rules = rules.filter(|_| known == Some(content)).unwrap_or_default();
                let into = saved.tables.entry(*table).or_default();
                into.chains.push((*chain).to_owned());
                into.rules.extend(rules.iter().map(|rule| in_save(chain, rule)));
                if rules.is_empty() && content.rules > 0 {
                    into.rules.push(unread(chain));
                }
            }
            for ((_, table, hook), jumps) in self.hooks.iter().filter(|((of, ..), _)| *of == family) {
                jumps.fill(hook.name(), saved.tables.entry(*table).or_default());
            }
            observed.families.insert(family, saved);
        }
        observed
    }

    /// Returns what is wrong after our own change: the first chain that does not have as many rules as it was given.
    pub(crate) fn lacks(&self, wanted: &WantedRules<'_>) -> Option<String> {
        Family::BOTH.into_iter().find_map(|family| {
            let desired = (wanted.rules)(family);
            desired.tables.iter().find_map(|(table, rules)| {
                rules.chains.iter().find_map(|(chain, rules)| {
                    let found = self.chains.get(&(family, *table, &*chain.0));
                    let found = found.map_or(0, |content| content.rules);
                    (found != rules.len()).then(|| {
                        format!(
                            "{family} {}: chain {chain} has {found} rules, not {}",
                            table.name(),
                            rules.len()
                        )
                    })
                })
            })
        })
    }
}

impl OwnJumps {
    /// Adds what a plan has to know of the chain: whether the first rule is a jump, and which others are to go. If the
    /// chain is too long to be read, further jumps stay: they do what the first has done.
    fn fill(&self, hook: &str, table: &mut SavedTable) {
        table.chains.push(hook.to_owned());
        if !self.takes_all() {
            table.rules.push(unread(hook));
        }
        let plain = self.found.iter().filter(|(_, plain, _)| *plain);
        let known = if self.whole { usize::MAX } else { usize::from(self.takes_all()) };
        for (chain, ..) in plain.take(known) {
            table.rules.push(in_save(hook, &Rule::jump(Chain((*chain).into()))));
        }
    }
}

fn native(owner: ChainSet) -> Result<Option<u64>, Error> {
    let Some(prefix) = owner.native else { return Ok(None) };
    let listing = NativeListing::read(&[prefix], ListBounds::POD)?;
    let mut hash = FnvHash::default();
    listing.each(&mut |bytes| hash.bytes(bytes));
    Ok((!listing.is_empty()).then_some(hash.0))
}

fn number(wanted: &WantedRules<'_>) -> u64 {
    let mut hash = FnvHash::default();
    for family in Family::BOTH {
        for line in (wanted.rules)(family).lines() {
            for text in [line.table.name(), &line.chain, &line.rule] {
                hash.bytes(text.as_bytes());
            }
        }
    }
    hash.0
}

fn in_save(chain: &str, rule: &Rule) -> SavedRule {
    SavedRule { chain: chain.to_owned(), text: rule.to_string(), rule: Some(rule.clone()), handle: None }
}

fn unread(chain: &str) -> SavedRule {
    SavedRule { chain: chain.to_owned(), text: "(not read)".to_owned(), rule: None, handle: None }
}

fn hooks(desired: &RuleSet, table: Table) -> BTreeSet<Hook> {
    let jumps = desired.tables.get(&table).into_iter().flat_map(|rules| &rules.jumps);
    jumps.map(|jump| jump.hook).collect()
}

/// Reads chains, by one socket as long as it can be used.
#[derive(Default)]
struct ChainReader(Option<Socket>);

impl ChainReader {
    fn socket(&mut self) -> Result<Socket, netlink::Error> {
        self.0.take().map_or_else(|| Socket::open(NetlinkProtocol::Netfilter), Ok)
    }

    /// Reads a chain of the owner. `None` if there is no such chain.
    fn own_chain(&mut self, family: u8, table: Table, chain: &str) -> Result<Option<ChainContent>, Error> {
        let (mut content, mut hash) = (ChainContent { rules: 0, hash: 0, whole: true }, FnvHash::default());
        content.whole = self.read(family, table, chain, OWN_CHAIN, |attributes| {
            content.rules += 1;
            hash.number(digest::rule(chain, attributes)?.hash);
            // One that was made anew has another: what was read of it no longer names it.
            hash.bytes(attributes.find(RULE_HANDLE).map(|handle| handle.payload).unwrap_or_default());
            Ok(())
        })?;
        content.hash = hash.0;
        let is_there = content.rules > 0 || self.exists(family, table, chain)?;
        Ok(is_there.then_some(content))
    }

    fn jumps(&mut self, family: u8, table: Table, hook: Hook, owner: ChainSet) -> Result<OwnJumps, Error> {
        let (mut jumps, mut found, mut is_first) = (OwnJumps::default(), Vec::new(), true);
        jumps.whole = self.read(family, table, hook.name(), HOOK, |attributes| {
            let rule = digest::rule(hook.name(), attributes)?;
            let chain = rule.jumps_to.and_then(|to| owner.chains.iter().find(|chain| **chain == to));
            if let Some(chain) = chain {
                jumps.leads |= is_first;
                let mut hash = FnvHash::default();
                hash.number(rule.hash);
                hash.bytes(attributes.find(RULE_HANDLE).map(|handle| handle.payload).unwrap_or_default());
                found.push((*chain, is_plain(attributes)?, hash.0));
            }
            is_first = false;
            Ok(())
        })?;
        jumps.found = found.into_boxed_slice();
        Ok(jumps)
    }

    /// Hands over the rules of a chain in their order, up to so many bytes; true if that is all of them. A chain that does not
    /// exist has none.
    fn read(
        &mut self,
        family: u8,
        table: Table,
        chain: &str,
        bytes: usize,
        mut each: impl FnMut(&Attributes<'_>) -> Result<(), netlink::Malformed>,
    ) -> Result<bool, Error> {
        // struct nfgenmsg: family, version 0, resource 0
        let mut question = NetlinkRequest::new(GET_RULE, MessageFlags::NONE, &[family, 0, 0, 0]);
        question.str(RULE_TABLE, table.name()).str(RULE_CHAIN, chain);
        let asked = self.socket().and_then(|socket| socket.head(&question, bytes));
        let replies = match asked {
            Ok((replies, rest)) => {
                self.0 = rest;
                replies
            }
            Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(true),
            Err(source) => return Err(Error::Presence(source)),
        };
        let mut read = || {
            for reply in replies.iter() {
                let (_, attributes) = reply.header::<4>()?;
                let is = |kind, name: &str| {
                    Ok(attributes.find(kind).map(|found| found.str()).transpose()? == Some(name))
                };
                // A kernel before Linux 4.12 gives all rules, whatever it was asked for.
                if is(RULE_TABLE, table.name())? && is(RULE_CHAIN, chain)? {
                    each(&attributes)?;
                }
            }
            Ok(())
        };
        read().map_err(|malformed: netlink::Malformed| Error::Presence(malformed.into()))?;
        Ok(self.0.is_some())
    }

    fn exists(&mut self, family: u8, table: Table, chain: &str) -> Result<bool, Error> {
        let mut question = NetlinkRequest::new(GET_CHAIN, MessageFlags::NONE, &[family, 0, 0, 0]);
        question.str(CHAIN_TABLE, table.name()).str(CHAIN_NAME, chain);
        match self.socket().and_then(|mut socket| socket.get(question)) {
            Ok(replies) => Ok(!replies.is_empty()),
            Err(error) if error.errno() == Some(Errno::NOENT) || has_no_nf_tables(&error) => Ok(false),
            Err(source) => Err(Error::Presence(source)),
        }
    }
}

/// Whether a rule has a verdict, and nothing that a packet could fail to meet. (Who goes to a chain instead of jumping there
/// comes back elsewhere, but is redirected all the same.)
fn is_plain(attributes: &Attributes<'_>) -> Result<bool, netlink::Malformed> {
    for expression in attributes.find(RULE_EXPRESSIONS).iter().flat_map(Attribute::nested) {
        let parts = expression?.nested();
        let name = parts.find(EXPRESSION_NAME).map(|name| name.str()).transpose()?;
        if !matches!(name, Some("counter" | "immediate")) {
            return Ok(false);
        }
    }
    Ok(true)
}
