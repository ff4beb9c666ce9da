//! What can go wrong with the network of a node or pod.

/// Which operation failed, on which object (printed as `ip` does), and what the kernel says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
        /// Its name.
        name: String,
        /// Why.
        source: netlink::Error,
    },
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
    /// A route was not replaced.
    #[error("cannot replace route {route}: {source}")]
    ReplaceRoute {
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
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The kernel would delete somebody else's rule instead of this one, so nothing was deleted.
    #[error("cannot delete rule {rule}: the kernel would delete {other} instead, which is not ours")]
    RuleInTheWay {
        /// The rule.
        rule: String,
        /// The one that the kernel finds first.
        other: String,
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

impl Error {
    /// The kernel's error number, if it was the kernel that refused.
    #[must_use]
    pub fn errno(&self) -> Option<netlink::Errno> {
        match self {
            Self::Open(source)
            | Self::List { source, .. }
            | Self::FindLink { source, .. }
            | Self::AddAddress { source, .. }
            | Self::DeleteAddress { source, .. }
            | Self::AddRoute { source, .. }
            | Self::ReplaceRoute { source, .. }
            | Self::DeleteRoute { source, .. }
            | Self::AddRule { source, .. }
            | Self::DeleteRule { source, .. } => source.errno(),
            Self::UnsuitableRule { .. } | Self::RuleInTheWay { .. } | Self::RuleComesBack { .. } => None,
        }
    }
}
