//! What can go wrong with the network of a node or pod.

use std::{io, net::IpAddr};

/// Which operation failed, on which object (printed as `ip` does), and what the kernel says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The namespace has no loopback device, which cannot be.
    #[error("the network namespace has no device lo")]
    NoLoopback,
    /// No connection to the kernel.
    #[error("cannot open a handle on the network: {0}")]
    Open(#[source] netlink::Error),
    /// Objects could not be listed.
    #[error("cannot list {what}: {source}")]
    List {
        /// Which objects.
        what: String,
        /// Why.
        source: netlink::Error,
    },
    /// A link could not be looked up (that it does not exist is no error).
    #[error("cannot look up link {name}: {source}")]
    FindLink {
        /// Name of the link.
        name: String,
        /// Why.
        source: netlink::Error,
    },
    /// The kernel could not be asked for the route to an address.
    #[error("cannot look up the route to {ip}: {source}")]
    LookUpRoute {
        /// The address.
        ip: IpAddr,
        /// Why.
        source: netlink::Error,
    },
    /// A link was not made.
    #[error("cannot create link {link}: {source}")]
    CreateLink {
        /// The link that was to be.
        link: String,
        /// Why.
        source: netlink::Error,
    },
    /// A link that cannot be asked for, so nothing was done.
    #[error("cannot create link {link}: {reason}")]
    UnsuitableLink {
        /// The link that was to be.
        link: String,
        /// Reason why the link cannot be requested.
        reason: &'static str,
    },
    /// A link was not deleted.
    #[error("cannot delete link {link}: {source}")]
    DeleteLink {
        /// Name of the link.
        link: String,
        /// Why.
        source: netlink::Error,
    },
    /// A link was not switched on.
    #[error("cannot set link {link} up: {source}")]
    SetLinkUp {
        /// Name of the link.
        link: String,
        /// Why.
        source: netlink::Error,
    },
    /// The number of another netns was not told.
    #[error("cannot ask for the number of a network namespace: {0}")]
    NetnsNumber(#[source] netlink::Error),
    /// An address was not added.
    #[error("cannot add address {address}: {source}")]
    AddAddress {
        /// Address, prefix length and link.
        address: String,
        /// Why.
        source: netlink::Error,
    },
    /// An address was not deleted.
    #[error("cannot delete address {address}: {source}")]
    DeleteAddress {
        /// Address, prefix length and link.
        address: String,
        /// Why.
        source: netlink::Error,
    },
    /// A route was not added.
    #[error("cannot add route {route}: {source}")]
    AddRoute {
        /// The route.
        route: String,
        /// Why.
        source: netlink::Error,
    },
    /// A route was not deleted.
    #[error("cannot delete route {route}: {source}")]
    DeleteRoute {
        /// The route.
        route: String,
        /// Why.
        source: netlink::Error,
    },
    /// One of many changes of routes was refused; all others were tried too.
    #[error("cannot {change} (number {number} of {count}, {failed} of them refused): {source}", number = .index.saturating_add(1))]
    ApplyRoutes {
        /// The first change that was refused.
        change: String,
        /// Position of that change among all changes, from 0.
        index: usize,
        /// How many there were.
        count: usize,
        /// How many of them changed something.
        applied: usize,
        /// How many of them were refused.
        failed: usize,
        /// Why the first one was.
        source: netlink::Error,
    },
    /// The kernel could not be told of many changes of routes; any part of them may have been made.
    #[error("cannot change {count} routes together: {source}")]
    SendRoutes {
        /// How many.
        count: usize,
        /// Why.
        source: netlink::Error,
    },
    /// A policy rule was not added.
    #[error("cannot add rule {rule}: {source}")]
    AddRule {
        /// The rule.
        rule: String,
        /// Why.
        source: netlink::Error,
    },
    /// A policy rule was not deleted.
    #[error("cannot delete rule {rule}: {source}")]
    DeleteRule {
        /// The rule.
        rule: String,
        /// Why.
        source: netlink::Error,
    },
    /// A rule that cannot be asked for, so nothing was done.
    #[error("cannot handle rule {rule}: {reason}")]
    UnsuitableRule {
        /// The rule.
        rule: String,
        /// Reason why the rule cannot be handled.
        reason: &'static str,
    },
    /// The kernel would delete a foreign rule instead of this one, so nothing was deleted.
    #[error("cannot delete rule {rule}: the kernel would delete {other} instead, which is not ours")]
    ConflictingRule {
        /// The rule.
        rule: String,
        /// The one that the kernel finds first.
        other: String,
    },
    /// A kernel parameter was not read (that it does not exist is no error).
    #[error("cannot read sysctl {name}: {source}")]
    ReadSysctl {
        /// Name of the kernel parameter.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A kernel parameter was not written.
    #[error("cannot set sysctl {name} to {value:?}: {source}")]
    WriteSysctl {
        /// Name of the kernel parameter.
        name: String,
        /// Value that was to be written.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// Not the name of a kernel parameter of the network, so nothing was done.
    #[error("{name:?} is not the name of a sysctl of the network, such as net/ipv4/ip_forward")]
    UnsuitableSysctl {
        /// The name.
        name: String,
    },
    /// A policy rule was still there after many deletions: somebody adds it again.
    #[error("cannot delete rule {rule}: it comes back, {attempts} times in a row")]
    RuleComesBack {
        /// The rule.
        rule: String,
        /// How often it was deleted.
        attempts: u32,
    },
}
