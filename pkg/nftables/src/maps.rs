//! Jumps in maps of verdicts, which the kernel counts as uses of a chain, like the chain's rules and the jumps of rules.
//!
//! A chain with more uses than its rules and all jumps to it has rules that the kernel does not list: it ends a list
//! without an error before a rule that needs more than the 32 KiB of a message there (`nf_tables_dump_rules`,
//! `netlink_dump`).

use std::time::Instant;

use netlink::{
    Attribute, Errno, Error, ListBounds, Malformed, NetlinkRequest, ReceivedMessage, ReplyMessages, Socket,
    allow_missing,
};

use crate::uapi::{
    DATA_VERDICT, ELEMENT_DATA, ELEMENTS_LIST, ELEMENTS_SET, ELEMENTS_TABLE, GET_ELEMENTS, GET_SET,
    SET_DATA_TYPE, SET_NAME, SET_TABLE, VERDICT_CHAIN, VERDICT_DATA, query_message,
};

/// Returns the target chain of each jump in the maps of a table, whose family is a number of the kernel.
///
/// # Errors
/// As [`Socket::dump`]; [`Error::Bounds`] if there are more maps than are read in the time for a pod.
pub fn read_map_jumps(socket: &mut Socket, family: u8, table: &str) -> Result<Vec<String>, Error> {
    let deadline = Instant::now() + ListBounds::POD.time;
    let question = query_message(GET_SET, family, &[(SET_TABLE, table)]);
    let mut jumps = Vec::new();
    for reply in dump_existing(socket, &question)?.iter() {
        let (_, attributes) = reply.split_header::<4>()?;
        let is_of_verdicts = attributes.find_be32(SET_DATA_TYPE)? == Some(VERDICT_DATA);
        let Some(name) = attributes.find(SET_NAME).filter(|_| is_of_verdicts) else { continue };
        let mut question = query_message(GET_ELEMENTS, family, &[(ELEMENTS_TABLE, table)]);
        question.put_bytes(ELEMENTS_SET, name.payload); // it may be any bytes
        for reply in dump_existing(socket, &question)?.iter() {
            add_target_chains(&reply, &mut jumps)?;
        }
        if Instant::now() >= deadline {
            return Err(Error::Bounds(ListBounds::POD));
        }
    }
    Ok(jumps)
}

/// Requests the objects in a table or a map, which may no longer exist.
fn dump_existing(socket: &mut Socket, question: &NetlinkRequest) -> Result<ReplyMessages, Error> {
    allow_missing(socket.dump(question), Errno::NOENT).map(Option::unwrap_or_default)
}

/// Adds the target chains of the elements in a message.
pub(crate) fn add_target_chains(
    message: &ReceivedMessage<'_>,
    jumps: &mut Vec<String>,
) -> Result<(), Malformed> {
    let (_, attributes) = message.split_header::<4>()?;
    for element in attributes.find_nested(ELEMENTS_LIST) {
        jumps.extend(target_chain(&element?).map(str::to_owned));
    }
    Ok(())
}

fn target_chain<'a>(element: &Attribute<'a>) -> Option<&'a str> {
    let verdict = element.nested_attributes().find_nested(ELEMENT_DATA).find_nested(DATA_VERDICT);
    Some(verdict.find(VERDICT_CHAIN)?.read_name())
}
