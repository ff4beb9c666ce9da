//! Parsing of replies. Nothing here can panic, whatever the bytes.

use std::net::IpAddr;

use model::PodUid;
use netlink::{Attribute, Attributes, Malformed, ReceivedMessage};

use crate::message::{self, IPV4, IPV6, WITH_COMMENT, attr, data};
use crate::{Family, SetInfo};

/// Returns the set with which a part of a listing begins; `None` for parts that continue its members, and for other
/// replies.
///
/// # Errors
///
/// The reply does not follow ipset's format.
pub fn parse_header(reply: &ReceivedMessage<'_>) -> Result<Option<SetInfo>, Malformed> {
    let Some(attributes) = listed_attributes(reply)? else { return Ok(None) };
    let mut set = SetInfo::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            attr::TYPENAME => attribute.read_str()?.clone_into(&mut set.kind),
            attr::FAMILY => set.family = Family::from_address_family(attribute.read_u8()?),
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
            data::ELEMENTS => set.elements = Some(attribute.read_be32()?),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the members in a part of the listing of a `hash:ip` set, with their owners.
///
/// # Errors
///
/// The reply does not follow ipset's format, or a member is not an address.
pub fn parse_members(reply: &ReceivedMessage<'_>) -> Result<Vec<(IpAddr, Option<PodUid>)>, Malformed> {
    let mut members = Vec::new();
    each_member(reply, |member| {
        members.push(parse_member(member)?);
        Ok(())
    })?;
    Ok(members)
}

/// Like [`parse_members`], but passes on the addresses one by one.
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

fn parse_member(attributes: Attributes<'_>) -> Result<(IpAddr, Option<PodUid>), Malformed> {
    let (mut address, mut owner) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            data::IP => address = Some(parse_ip(&attribute)?),
            data::COMMENT => owner = parse_owner(attribute.payload),
            _ => {}
        }
    }
    Ok((address.ok_or(WITHOUT_ADDRESS)?, owner))
}

/// Reads a comment up to its NUL. Another program may have written invalid UTF-8, which becomes `�`.
fn parse_owner(comment: &[u8]) -> Option<PodUid> {
    let text = comment.split(|byte| *byte == 0).next().filter(|text| !text.is_empty())?;
    Some(String::from_utf8_lossy(text).as_ref().into())
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

/// Returns the oldest and newest protocol version that the kernel supports.
pub(crate) fn parse_version_range(reply: &ReceivedMessage<'_>) -> Result<Option<(u8, u8)>, Malformed> {
    let Some((_, attributes)) = reply.split_kind::<4>(message::PROTOCOL)? else { return Ok(None) };
    let newest = attributes.find(attr::PROTOCOL).ok_or(Malformed("answer without a version"))?.read_u8()?;
    let oldest = attributes.find(attr::MINIMUM).map_or(Ok(newest), |oldest| oldest.read_u8())?;
    Ok(Some((oldest, newest)))
}

fn listed_attributes<'a>(reply: &ReceivedMessage<'a>) -> Result<Option<Attributes<'a>>, Malformed> {
    Ok(reply.split_kind::<4>(message::LIST)?.map(|(_, attributes)| attributes))
}

#[cfg(test)]
mod tests;
