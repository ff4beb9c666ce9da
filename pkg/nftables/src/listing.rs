//! Reading of the kernel's tables into the form of a save.

use std::collections::{BTreeMap, BTreeSet};

use model::Family;
use netlink::{
    Attributes, Errno, ListBounds, Malformed, NetlinkProtocol, NetlinkRequest, ReceivedMessage,
    ReplyMessages, Socket, allow_missing,
};
use rules::{ChainSet, Hook, SavedRule, SavedTables, SavedTablesBuilder, Table};

use crate::{
    Error, decode,
    maps::read_map_jumps,
    sets::KernelSets,
    uapi::{
        CHAIN_NAME, CHAIN_TABLE, CHAIN_USE, GENERATION_ID, GET_CHAIN, GET_GENERATION, GET_RULE, GET_TABLE,
        RULE_CHAIN, RULE_HANDLE, RULE_TABLE, TABLE_NAME, query_message,
    },
};

/// Maximum number of attempts to read while other components change rules.
const ATTEMPTS: u32 = 8;
/// Maximum number of bytes of the list of chains: some hundred chains. If there are more, ours are requested by name.
pub(crate) const CHAINS: usize = 64 << 10;
/// Maximum number of bytes of a built-in chain: a few hundred rules. Our jumps are at its beginning.
const BUILT_IN_CHAIN: usize = 64 << 10;

/// Reads the tables that iptables uses in the calling thread's network namespace, as far as they concern these owners
/// (see [`SavedTables::parse_for`]), without creating anything. A family that has none of these tables is absent. Rules
/// have their handles.
///
/// The owners' chains and the built-in ones are read by name, so foreign chains cost nothing, whatever their size. All
/// rules of a table are read, within the limits, only if a rule in a foreign chain jumps to a chain of ours.
///
/// # Errors
/// [`Error::Read`]: the kernel could not be queried, or its answer is malformed.
pub fn read_tables(owners: &[ChainSet], bounds: ListBounds) -> Result<BTreeMap<Family, SavedTables>, Error> {
    read_unchanged(|| {
        let objects = ObjectReader::new(bounds);
        ChainReader { objects, owners, sets: KernelSets::default(), left: bounds.bytes }.read_families()
    })
}

/// Reads until no rules were changed meanwhile. If they change all the time, the last result is returned: each chain
/// was read as of one moment, and comparing generations shows the change.
pub(crate) fn read_unchanged<T>(read: impl Fn() -> Result<T, netlink::Error>) -> Result<T, Error> {
    let mut socket = open_socket(ListBounds::POD).map_err(Error::Read)?;
    let mut generation = || request_generation(&mut socket).map_err(Error::Read);
    let mut last = Err(Error::Changing(ATTEMPTS));
    for _ in 0..ATTEMPTS {
        let before = generation()?;
        match read() {
            Err(netlink::Error::Interrupted(_)) => {}
            Err(error) => return Err(Error::Read(error)),
            Ok(found) if generation()? == before => return Ok(found),
            Ok(found) => last = Ok(found),
        }
    }
    last
}

/// Returns the generation of the calling thread's network namespace, which changes with each transaction.
///
/// # Errors
/// [`Error::Read`]: the kernel has no nf_tables, or does not reply.
pub fn read_generation() -> Result<u32, Error> {
    open_socket(ListBounds::POD).and_then(|mut socket| request_generation(&mut socket)).map_err(Error::Read)
}

fn open_socket(bounds: ListBounds) -> Result<Socket, netlink::Error> {
    Ok(Socket::open(NetlinkProtocol::Netfilter)?.with_bounds(bounds))
}

/// Returns the request for the generation of the namespace; the kernel replies with one message.
pub fn generation_request() -> NetlinkRequest {
    query_message(GET_GENERATION, 0, &[])
}

/// Like [`read_generation`], by a socket that is open already.
///
/// # Errors
/// As [`Socket::get_first`].
pub fn request_generation(socket: &mut Socket) -> Result<u32, netlink::Error> {
    let replies = socket.get_first(generation_request())?;
    let number = replies.iter().find_map(|reply| {
        let (_, attributes) = reply.split_header::<4>().ok()?;
        attributes.find(GENERATION_ID)?.read_be32().ok()
    });
    number.ok_or_else(|| Malformed("no generation in the answer").into())
}

/// A chain of an iptables table.
#[derive(Debug)]
struct FoundChain {
    family: Family,
    table: Table,
    name: String,
    /// Number of its rules, and of references to it.
    users: usize,
}

impl FoundChain {
    /// Parses a chain; `None`: its table is not one of iptables.
    fn from(reply: &ReceivedMessage<'_>) -> Result<Option<FoundChain>, Malformed> {
        let ([number, ..], attributes) = reply.split_header::<4>()?;
        let table = Table::from_name(attributes.find_name(CHAIN_TABLE));
        let Some((family, table)) = Family::from_address_family(*number).zip(table) else { return Ok(None) };
        let name = attributes.find_name(CHAIN_NAME).to_owned();
        let users = attributes.find_be32(CHAIN_USE)?.unwrap_or_default();
        Ok(Some(FoundChain { family, table, name, users: usize::try_from(users).unwrap_or(usize::MAX) }))
    }

    fn is_built_in(&self) -> bool {
        Hook::from_name(&self.name).is_some()
    }
}

/// Reader of objects, by one socket as long as it is usable.
pub(crate) struct ObjectReader {
    socket: Option<Socket>,
    pub(crate) bounds: ListBounds,
}

impl ObjectReader {
    pub(crate) fn new(bounds: ListBounds) -> ObjectReader {
        ObjectReader { socket: None, bounds }
    }

    fn open_or_reuse(&mut self) -> Result<Socket, netlink::Error> {
        self.socket.take().map_or_else(|| open_socket(self.bounds), Ok)
    }

    /// Like [`Socket::dump_head`]; also returns whether the list is complete.
    pub(crate) fn read_head(
        &mut self,
        question: &NetlinkRequest,
        bytes: usize,
    ) -> Result<(ReplyMessages, bool), netlink::Error> {
        let (replies, rest) = self.open_or_reuse()?.dump_head(question, bytes)?;
        self.socket = rest;
        Ok((replies, self.socket.is_some()))
    }

    /// Requests one object; `None`: it does not exist.
    pub(crate) fn find_object(
        &mut self,
        question: NetlinkRequest,
    ) -> Result<Option<ReplyMessages>, netlink::Error> {
        let mut socket = self.open_or_reuse()?;
        let replies = allow_missing(socket.get(question), Errno::NOENT);
        self.socket = Some(socket);
        Ok(replies?.filter(|replies| !replies.is_empty()))
    }

    /// Requests a list; also returns whether it is complete. If there are very many objects, those in `single` are
    /// requested one by one instead.
    pub(crate) fn list_or_find(
        &mut self,
        list: &NetlinkRequest,
        single: impl Iterator<Item = NetlinkRequest>,
    ) -> Result<(Vec<ReplyMessages>, bool), netlink::Error> {
        match self.read_head(list, CHAINS)? {
            (replies, true) => Ok((vec![replies], true)),
            _ => Ok((
                single.filter_map(|object| self.find_object(object).transpose()).collect::<Result<_, _>>()?,
                false,
            )),
        }
    }
}

/// Reader of chains.
struct ChainReader<'a> {
    objects: ObjectReader,
    owners: &'a [ChainSet],
    sets: KernelSets,
    /// Number of bytes that may still be read of our chains, one of which may have thousands of rules by a pod's annotations.
    left: usize,
}

impl ChainReader<'_> {
    fn read_families(mut self) -> Result<BTreeMap<Family, SavedTables>, netlink::Error> {
        let (chains, are_all) = self.list_chains()?;
        let mut families = BTreeMap::new();
        for family in Family::BOTH {
            let chains: Vec<&FoundChain> = chains.iter().filter(|chain| chain.family == family).collect();
            if chains.is_empty() {
                continue;
            }
            let mut builder = SavedTablesBuilder::new(self.owners);
            for chain in &chains {
                builder.add_chain(chain.table, &chain.name);
                if !are_all {
                    builder.note_foreign(chain.table);
                }
            }
            self.read_family(&chains, &mut builder)?;
            families.insert(family, builder.build());
        }
        self.sets.check_queries()?;
        Ok(families)
    }

    /// Returns all chains; if there are very many, the relevant ones, and `false`.
    fn list_chains(&mut self) -> Result<(Vec<FoundChain>, bool), netlink::Error> {
        let (replies, are_all) = self.objects.read_head(&query_message(GET_CHAIN, 0, &[]), CHAINS)?;
        if are_all {
            let found = replies.iter().map(|reply| FoundChain::from(&reply));
            return Ok((found.filter_map(Result::transpose).collect::<Result<_, _>>()?, true));
        }
        let built_in = Hook::ALL.iter().map(|hook| hook.as_str());
        let names: Vec<&str> =
            self.owners.iter().flat_map(|owner| owner.chains).copied().chain(built_in).collect();
        let mut found = Vec::new();
        for family in Family::BOTH {
            for table in Table::ALL {
                let query = |kind, names: &[(u16, &str)]| query_message(kind, family.address_family(), names);
                if self.objects.find_object(query(GET_TABLE, &[(TABLE_NAME, table.as_str())]))?.is_none() {
                    continue;
                }
                for name in &names {
                    let names = [(CHAIN_TABLE, table.as_str()), (CHAIN_NAME, *name)];
                    let reply = self.objects.find_object(query(GET_CHAIN, &names))?;
                    let reply = reply.iter().flat_map(ReplyMessages::iter).next();
                    found.extend(reply.map(|reply| FoundChain::from(&reply)).transpose()?.flatten());
                }
            }
        }
        Ok((found, false))
    }

    fn read_family(
        &mut self,
        chains: &[&FoundChain],
        builder: &mut SavedTablesBuilder<'_>,
    ) -> Result<(), netlink::Error> {
        let owners = self.owners;
        let is_ours = |name: &str| owners.iter().any(|owner| owner.contains(name));
        // Known references to each of our chains, and the rules that have been read, by handle.
        let mut known: BTreeMap<(Table, String), usize> = BTreeMap::new();
        let mut read: BTreeSet<(Table, u64)> = BTreeSet::new();
        let mut unread: BTreeSet<(Table, &str)> = BTreeSet::new();
        for chain in chains.iter().filter(|chain| is_ours(&chain.name) || chain.is_built_in()) {
            let mut use_of = |name: &str| *known.entry((chain.table, name.to_owned())).or_default() += 1;
            let is_complete = self.read_chain(chain, builder, |rule| {
                use_of(&chain.name);
                rule.target_chains().for_each(&mut use_of);
                read.extend(rule.handle.map(|handle| (chain.table, handle)));
            })?;
            if !is_complete {
                unread.insert((chain.table, &chain.name));
            }
        }
        let known_uses =
            |chain: &FoundChain| known.get(&(chain.table, chain.name.clone())).copied().unwrap_or_default();
        let ours = || chains.iter().copied().filter(|chain| is_ours(&chain.name));
        let used_elsewhere = ours().filter(|chain| chain.users > known_uses(chain));
        let tables: BTreeSet<Table> = used_elsewhere.map(|chain| chain.table).collect();
        let Some(family) = chains.first().map(|chain| chain.family) else { return Ok(()) };
        for table in tables {
            let Some(jumps) = self.read_remaining(family, table, &read, builder)? else { continue };
            let jumps_to = |chain: &FoundChain| jumps.iter().filter(|target| **target == chain.name).count();
            // The kernel does not list all rules of a chain that has more uses: see `maps`.
            let unlisted = ours()
                .filter(|chain| chain.table == table && chain.users > known_uses(chain) + jumps_to(chain));
            unread.extend(unlisted.map(|chain| (table, chain.name.as_str())));
        }
        for (table, chain) in unread {
            // In a chain of ours this counts as an unexpected rule.
            let text = "(more rules than are read)".to_owned();
            let rule = || SavedRule { chain: chain.to_owned(), text, rule: None, handle: None };
            builder.add_rule(table, chain, |_| false, rule);
        }
        Ok(())
    }

    /// Reads the beginning of a chain, and returns whether it is complete. `note` is called for each rule.
    fn read_chain(
        &mut self,
        chain: &FoundChain,
        builder: &mut SavedTablesBuilder<'_>,
        mut note: impl FnMut(&KernelRule<'_>),
    ) -> Result<bool, netlink::Error> {
        let names = [(RULE_TABLE, chain.table.as_str()), (RULE_CHAIN, chain.name.as_str())];
        let question = query_message(GET_RULE, chain.family.address_family(), &names);
        let bytes = if chain.is_built_in() { BUILT_IN_CHAIN } else { self.left };
        let found = allow_missing(self.objects.read_head(&question, bytes), Errno::NOENT)?;
        let Some((replies, is_complete)) = found else { return Ok(true) }; // it no longer exists
        for reply in replies.iter() {
            let Some(rule) = KernelRule::from(chain.family, chain.table, &reply)? else { continue };
            // A kernel before Linux 4.12 returns all rules, whatever was requested.
            if rule.chain == chain.name {
                if !chain.is_built_in() {
                    self.left = self.left.saturating_sub(reply.payload.len());
                }
                note(&rule);
                rule.add_to(builder, &mut self.sets);
            }
        }
        Ok(is_complete)
    }

    /// Reads all rules of a table for those that jump to our chains and have not been `read`: in foreign chains, or far
    /// down in a built-in one. Returns the targets of these jumps and of those in maps; `None`: there are more than the
    /// limits allow, and those beyond are not found.
    fn read_remaining(
        &mut self,
        family: Family,
        table: Table,
        read: &BTreeSet<(Table, u64)>,
        builder: &mut SavedTablesBuilder<'_>,
    ) -> Result<Option<Vec<String>>, netlink::Error> {
        let number = family.address_family();
        let question = query_message(GET_RULE, number, &[(RULE_TABLE, table.as_str())]);
        let (mut jumps, mut failure) = (Vec::new(), Ok(()));
        let is_read =
            |rule: &KernelRule<'_>| rule.handle.is_some_and(|handle| read.contains(&(table, handle)));
        let owners = self.owners;
        let is_ours = |name: &str| owners.iter().any(|owner| owner.contains(name));
        let mut socket = self.objects.open_or_reuse()?;
        let sets = &mut self.sets;
        let done = socket.dump_each(&question, &mut |reply| {
            let rule = KernelRule::from(family, table, reply);
            match rule.map(|rule| rule.filter(|rule| !is_read(rule) && !is_ours(rule.chain))) {
                Ok(Some(rule)) => {
                    jumps.extend(rule.target_chains().filter(|name| is_ours(name)).map(str::to_owned));
                    rule.add_to(builder, sets);
                }
                Ok(None) => {}
                Err(malformed) => failure = Err(malformed),
            }
        });
        match done.and_then(|()| read_map_jumps(&mut socket, number, table.as_str())) {
            Err(netlink::Error::Bounds(_)) => Ok(None),
            Ok(in_maps) => {
                self.objects.socket = Some(socket);
                failure?;
                jumps.extend(in_maps);
                Ok(Some(jumps))
            }
            Err(error) => Err(error),
        }
    }
}

/// A rule of a kernel message.
struct KernelRule<'a> {
    family: Family,
    table: Table,
    chain: &'a str,
    handle: Option<u64>,
    attributes: Attributes<'a>,
}

impl<'a> KernelRule<'a> {
    /// Parses a rule; `None`: a rule of another table.
    fn from(
        family: Family,
        table: Table,
        reply: &ReceivedMessage<'a>,
    ) -> Result<Option<KernelRule<'a>>, Malformed> {
        let ([number, ..], attributes) = reply.split_header::<4>()?;
        if *number != family.address_family() || attributes.find_name(RULE_TABLE) != table.as_str() {
            return Ok(None);
        }
        let chain = attributes.find_name(RULE_CHAIN);
        let handle = attributes.find(RULE_HANDLE).map(|handle| handle.read_array().map(u64::from_be_bytes));
        Ok(Some(KernelRule { family, table, chain, handle: handle.transpose()?, attributes }))
    }

    fn target_chains(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        decode::target_chains(&self.attributes)
    }

    fn add_to(&self, builder: &mut SavedTablesBuilder<'_>, sets: &mut KernelSets) {
        let is_ours = |is_owned: &dyn Fn(&str) -> bool| self.target_chains().any(is_owned);
        builder.add_rule(self.table, self.chain, is_ours, || self.decode_rule(sets));
    }

    fn decode_rule(&self, sets: &mut KernelSets) -> SavedRule {
        let rule = decode::read_rule(self.family, self.chain, &self.attributes, sets);
        SavedRule { handle: self.handle, ..rule }
    }
}
