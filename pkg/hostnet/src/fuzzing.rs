//! Entry points for fuzz targets only.

use netlink::{Malformed, MessageFlags, NetlinkRequest, ReceivedMessage};

use crate::{Link, LinkAddress, PolicyRule, Route, address, link, route, rule};

/// Object that a kernel message describes.
#[derive(Clone, Debug, PartialEq)]
pub enum KernelObject {
    /// A link.
    Link(Link),
    /// An address.
    Address(LinkAddress),
    /// A route.
    Route(Route),
    /// A policy rule.
    Rule(PolicyRule),
}

/// Reads a message as each kind of object.
///
/// # Errors
/// The message is of one of these kinds, and malformed.
pub fn parse(message: &ReceivedMessage<'_>) -> Result<Option<KernelObject>, Malformed> {
    let link = link::parse(message)?.map(KernelObject::Link);
    let address = address::parse(message)?.map(KernelObject::Address);
    let route = route::message::parse(message)?.map(KernelObject::Route);
    let rule = rule::message::parse(message)?.map(KernelObject::Rule);
    Ok(link.or(address).or(route).or(rule))
}

/// Returns the request that creates a route or a policy rule.
pub fn creation_request(object: &KernelObject) -> Option<NetlinkRequest> {
    match object {
        KernelObject::Route(route) => Some(route::message::add_request(route, MessageFlags::NONE)),
        KernelObject::Rule(rule) => Some(rule::message::add_request(rule, MessageFlags::NONE)),
        KernelObject::Link(_) | KernelObject::Address(_) => None,
    }
}
