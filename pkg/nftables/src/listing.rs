//! What the kernel holds, in the form of a save.

use std::collections::BTreeMap;

use model::Family;
use netlink::{
    Attribute, ListBounds, Malformed, MessageFlags, NetlinkProtocol, NetlinkRequest, ReceivedMessage, Socket,
};
use rules::{ChainSet, SavedRule, SavedTables, SavedTablesBuilder, Table, Target};

use crate::{
    Error,
    decode::{self, DecodedRule},
    sets::KernelSets,
    uapi::{
        CHAIN_NAME, CHAIN_TABLE, GENERATION_ID, GET_CHAIN, GET_GENERATION, GET_RULE, RULE_CHAIN, RULE_HANDLE,
        RULE_TABLE, header,
    },
};

/// How often everything is read again because somebody changed it meanwhile.
const ATTEMPTS: u32 = 8;

/// Reads what the calling thread's network namespace holds of the tables that iptables knows, as far as it concerns these
/// owners (see [`SavedTables::parse_for`]), without making anything. A family that has none of these tables is absent. Rules
/// have their handles. Each list is read within the bounds.
///
/// # Errors
/// [`Error::Read`], also for more than the bounds allow; [`Error::Changing`] if others change rules all the time.
pub fn listing(owners: &[ChainSet], bounds: ListBounds) -> Result<BTreeMap<Family, SavedTables>, Error> {
    unchanged(bounds, |socket| read(socket, owners))
}

/// Reads again until nobody has changed rules meanwhile.
pub(crate) fn unchanged<T>(
    bounds: ListBounds,
    read: impl Fn(&mut Socket) -> Result<T, netlink::Error>,
) -> Result<T, Error> {
    let mut socket = open(bounds).map_err(Error::Read)?;
    for _ in 0..ATTEMPTS {
        let before = generation_of(&mut socket).map_err(Error::Read)?;
        match read(&mut socket) {
            Err(netlink::Error::Interrupted(_)) => {}
            Err(error) => return Err(Error::Read(error)),
            Ok(found) if generation_of(&mut socket).map_err(Error::Read)? == before => return Ok(found),
            Ok(_) => {}
        }
    }
    Err(Error::Changing(ATTEMPTS))
}

/// A number that changes whenever rules of the calling thread's network namespace do.
///
/// # Errors
/// [`Error::Read`]: the kernel has no nf_tables, or does not answer.
pub fn generation() -> Result<u32, Error> {
    GenerationReader::open()?.read()
}

/// Reads the same number again and again, for the namespace in which it was opened, at the cost of one small request.
#[derive(Debug)]
pub struct GenerationReader(Socket);

impl GenerationReader {
    /// Opens it in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Read`]: the kernel does not give a socket.
    pub fn open() -> Result<GenerationReader, Error> {
        open(ListBounds::POD).map(GenerationReader).map_err(Error::Read)
    }

    /// Returns a number that changes whenever rules of the namespace do.
    ///
    /// # Errors
    /// As [`generation`].
    pub fn read(&mut self) -> Result<u32, Error> {
        generation_of(&mut self.0).map_err(Error::Read)
    }
}

fn open(bounds: ListBounds) -> Result<Socket, netlink::Error> {
    Ok(Socket::open(NetlinkProtocol::Netfilter)?.bounded(bounds))
}

fn generation_of(socket: &mut Socket) -> Result<u32, netlink::Error> {
    let replies = socket.get_first(NetlinkRequest::new(GET_GENERATION, MessageFlags::NONE, &[0; 4]))?;
    let number = replies.iter().find_map(|reply| {
        let (_, attributes) = reply.header::<4>().ok()?;
        attributes.find(GENERATION_ID)?.be32().ok()
    });
    number.ok_or_else(|| Malformed("no generation in the answer").into())
}

fn read(socket: &mut Socket, owners: &[ChainSet]) -> Result<BTreeMap<Family, SavedTables>, netlink::Error> {
    let chains = socket.dump(&NetlinkRequest::new(GET_CHAIN, MessageFlags::NONE, &[0; 4]))?;
    let mut sets = KernelSets::default();
    let mut families = BTreeMap::new();
    for family in Family::BOTH {
        let (mut builder, mut tables) = (SavedTablesBuilder::new(owners), Vec::new());
        for reply in chains.iter() {
            let ([number, ..], attributes) = reply.header::<4>()?;
            let name = attributes.find(CHAIN_NAME).map(name_in).unwrap_or_default();
            let Some(table) = table_of(family, *number, attributes.find(CHAIN_TABLE)) else { continue };
            builder.chain(table, name);
            if !tables.contains(&table) {
                tables.push(table);
            }
        }
        for table in &tables {
            read_rules(socket, family, *table, &mut sets, &mut builder)?;
        }
        if !tables.is_empty() {
            families.insert(family, builder.build());
        }
    }
    Ok(families)
}

fn read_rules(
    socket: &mut Socket,
    family: Family,
    table: Table,
    sets: &mut KernelSets,
    builder: &mut SavedTablesBuilder<'_>,
) -> Result<(), netlink::Error> {
    let mut question = NetlinkRequest::new(GET_RULE, MessageFlags::NONE, &header(family));
    question.str(RULE_TABLE, table.name());
    let mut read = Ok(());
    socket.dump_each(&question, &mut |reply| {
        if read.is_ok() {
            read = read_rule(family, table, reply, sets, builder);
        }
    })?;
    Ok(read?)
}

fn read_rule(
    family: Family,
    table: Table,
    reply: &ReceivedMessage<'_>,
    sets: &mut KernelSets,
    builder: &mut SavedTablesBuilder<'_>,
) -> Result<(), Malformed> {
    let ([number, ..], attributes) = reply.header::<4>()?;
    // A kernel before Linux 4.12 gives all rules, whatever it was asked for.
    if table_of(family, *number, attributes.find(RULE_TABLE)) != Some(table) {
        return Ok(());
    }
    let chain = attributes.find(RULE_CHAIN).map(name_in).unwrap_or_default();
    let handle = attributes.find(RULE_HANDLE).map(|handle| handle.array().map(u64::from_be_bytes));
    let handle = handle.transpose()?;
    // A node may have tens of thousands of rules of others: of these it is only read where they lead to.
    builder.rule(
        table,
        chain,
        |is_owned| decode::leads_to(&attributes).is_some_and(is_owned),
        || saved(family, chain, decode::rule(family, &attributes, sets), handle),
    );
    Ok(())
}

/// A table of iptables of this family; none for other families, and other programs' tables.
fn table_of(family: Family, number: u8, name: Option<Attribute<'_>>) -> Option<Table> {
    let ([of_family, ..], name) = (header(family), name.map(name_in)?);
    Table::ALL.into_iter().find(|table| number == of_family && table.name() == name)
}

/// The kernel takes any bytes as a name. One that is no text is not ours, and counts as empty, which no chain can be.
fn name_in(attribute: Attribute<'_>) -> &str {
    attribute.str().unwrap_or_default()
}

/// A rule as a save would have it. One that the model cannot say gets the names of its expressions instead of its
/// conditions, and where it leads to.
fn saved(family: Family, chain: &str, decoded: DecodedRule, handle: Option<u64>) -> SavedRule {
    let DecodedRule { rule, leads_to, names } = decoded;
    let text = rule.as_ref().map_or_else(
        || {
            let names = names.join(", ");
            let leads_to = leads_to.map(|chain| {
                let quoted = chain.replace('\\', "\\\\").replace('"', "\\\"");
                format!(" -j \"{quoted}\"")
            });
            format!("(foreign: {names}){}", leads_to.unwrap_or_default())
        },
        |rule| match &rule.target {
            // What the tools add to what they are told.
            Target::Tproxy { .. } => rule
                .to_string()
                .replace("--tproxy-mark", &format!("--on-ip {} --tproxy-mark", family.unspecified())),
            _ => rule.to_string(),
        },
    );
    SavedRule { chain: chain.to_owned(), text, rule, handle }
}
