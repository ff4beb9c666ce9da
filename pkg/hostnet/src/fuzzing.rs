//! What fuzz targets feed; nobody else calls it.

use netlink::{Flags, Malformed, Message, Received};

use crate::{Address, Link, PolicyRule, Route, address, link, route, rule};

/// What a message of the kernel's is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A link.
    Link(Link),
    /// An address.
    Address(Address),
    /// A route.
    Route(Route),
    /// A policy rule.
    Rule(PolicyRule),
}

/// Reads a message as each kind of object.
///
/// # Errors
/// It is of a kind that we read, and malformed.
pub fn parse(message: &Received<'_>) -> Result<Option<Object>, Malformed> {
    Ok(match link::parse(message)?.map(Object::Link) {
        Some(link) => Some(link),
        None => match address::parse(message)?.map(Object::Address) {
            Some(address) => Some(address),
            None => match route::message::parse(message)?.map(Object::Route) {
                Some(route) => Some(route),
                None => rule::message::parse(message)?.map(Object::Rule),
            },
        },
    })
}

/// The request that makes a route or a policy rule.
#[must_use]
pub fn request(object: &Object) -> Option<Message> {
    match object {
        Object::Route(route) => Some(route::message::add(route, Flags::NONE)),
        Object::Rule(rule) => Some(rule::message::add(rule, Flags::NONE)),
        Object::Link(_) | Object::Address(_) => None,
    }
}
