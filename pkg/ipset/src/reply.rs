//! Replies on the wire. Nothing here can panic, whatever the bytes.

use std::net::IpAddr;

use netlink::{Attribute, Attributes, Malformed, ReceivedMessage};

use crate::message::{self, IPV4, IPV6, WITH_COMMENT, attr, data};
use crate::{Comment, Family, SetEntry, SetInfo};

/// The set that a part of a listing begins with; none in the parts that go on with its members, and in replies to
/// other questions.
///
/// # Errors
///
/// If the reply does not follow ipset's format.
pub fn parse_header(reply: &ReceivedMessage<'_>) -> Result<Option<SetInfo>, Malformed> {
    let Some(attributes) = listed_attributes(reply)? else { return Ok(None) };
    let mut set = SetInfo::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            attr::SETNAME => attribute.read_str()?.clone_into(&mut set.name),
            attr::TYPENAME => attribute.read_str()?.clone_into(&mut set.kind),
            attr::REVISION => set.revision = attribute.read_u8()?,
            attr::FAMILY => set.family = family_from(attribute.read_u8()?),
            attr::DATA => read_details(attribute.nested_attributes(), &mut set)?,
            _ => {}
        }
    }
    Ok((!set.kind.is_empty()).then_some(set))
}

fn read_details(details: Attributes<'_>, set: &mut SetInfo) -> Result<(), Malformed> {
    for attribute in details {
        let attribute = attribute?;
        match attribute.kind {
            data::FLAGS => set.comments = attribute.read_be32()? & WITH_COMMENT != 0,
            data::HASH_SIZE => set.hash_size = Some(attribute.read_be32()?),
            data::MAX_ELEMENTS => set.max_elements = Some(attribute.read_be32()?),
            data::ELEMENTS => set.elements = Some(attribute.read_be32()?),
            data::REFERENCES => set.references = attribute.read_be32()?,
            _ => {}
        }
    }
    Ok(())
}

/// The members in a part of the listing of a `hash:ip` set.
///
/// # Errors
///
/// If the reply does not follow ipset's format, or a member is not an address.
pub fn parse_members(reply: &ReceivedMessage<'_>) -> Result<Vec<SetEntry>, Malformed> {
    let mut members = Vec::new();
    each_member(reply, |member| {
        members.push(parse_entry(member)?);
        Ok(())
    })?;
    Ok(members)
}

/// Like [`parse_members`], but hands over the addresses as they come.
pub(crate) fn parse_addresses(
    reply: &ReceivedMessage<'_>,
    mut each: impl FnMut(IpAddr),
) -> Result<(), Malformed> {
    each_member(reply, |member| {
        let address = member.find(data::IP).ok_or(WITHOUT_ADDRESS)?;
        each(parse_ip(&address)?);
        Ok(())
    })
}

fn each_member<'a>(
    reply: &ReceivedMessage<'a>,
    mut each: impl FnMut(Attributes<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    for attribute in listed_attributes(reply)?.unwrap_or(Attributes::new(&[])) {
        let attribute = attribute?;
        if attribute.kind == attr::ADT {
            attribute.nested_attributes().try_for_each(|member| each(member?.nested_attributes()))?;
        }
    }
    Ok(())
}

const WITHOUT_ADDRESS: Malformed = Malformed("member of a set without its address");

fn parse_entry(attributes: Attributes<'_>) -> Result<SetEntry, Malformed> {
    let (mut address, mut comment) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            data::IP => address = Some(parse_ip(&attribute)?),
            data::COMMENT => comment = Comment::from_kernel(attribute.payload),
            _ => {}
        }
    }
    Ok(SetEntry { ip: address.ok_or(WITHOUT_ADDRESS)?, comment })
}

fn parse_ip(attribute: &Attribute<'_>) -> Result<IpAddr, Malformed> {
    let address =
        attribute.nested_attributes().next().ok_or(Malformed("address attribute without an address"))??;
    match address.kind {
        IPV4 => address.read_array::<4>().map(IpAddr::from),
        IPV6 => address.read_array::<16>().map(IpAddr::from),
        _ => Err(Malformed("address that is neither IPv4 nor IPv6")),
    }
}

/// Oldest and newest of what the kernel has, of the protocol or of a type's revisions.
pub(crate) fn parse_version_range(
    reply: &ReceivedMessage<'_>,
    kind: u16,
    newest: u16,
) -> Result<Option<(u8, u8)>, Malformed> {
    if reply.kind != kind {
        return Ok(None);
    }
    let (_, attributes) = reply.split_header::<4>()?;
    let newest = attributes.find(newest).ok_or(Malformed("answer without a version"))?.read_u8()?;
    let oldest = attributes.find(attr::MINIMUM).map_or(Ok(newest), |oldest| oldest.read_u8())?;
    Ok(Some((oldest, newest)))
}

fn listed_attributes<'a>(reply: &ReceivedMessage<'a>) -> Result<Option<Attributes<'a>>, Malformed> {
    if reply.kind != message::LIST {
        return Ok(None);
    }
    let (_, attributes) = reply.split_header::<4>()?;
    Ok(Some(attributes))
}

const fn family_from(number: u8) -> Option<Family> {
    match number {
        2 => Some(Family::V4),
        10 => Some(Family::V6),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
