//! What can go wrong with the network of a node or pod.

use std::{fmt::Display, io};

/// Which operation failed, on which object (printed as `ip` does), and what the kernel says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a step, or could not be asked.
    #[error("cannot {step}: {source}")]
    Kernel {
        /// The step, with its object.
        step: String,
        /// Why.
        source: netlink::Error,
    },
    /// A kernel parameter was not read (that it does not exist is no error), or not written.
    #[error("cannot {step}: {source}")]
    Sysctl {
        /// The step, with the name of the parameter.
        step: String,
        /// Why.
        source: io::Error,
    },
    /// The namespace has no loopback device, which cannot be.
    #[error("the network namespace has no device lo")]
    NoLoopback,
    /// A link that cannot be asked for, so nothing was done.
    #[error("cannot create link {link}: {reason}")]
    UnsuitableLink {
        /// The link that was to be.
        link: String,
        /// Reason why the link cannot be requested.
        reason: &'static str,
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
    /// Not the name of a kernel parameter of the network, so nothing was done.
    #[error("{name:?} is not the name of a sysctl of the network, such as net/ipv4/ip_forward")]
    UnsuitableSysctl {
        /// The name.
        name: String,
    },
    /// A policy rule was still there after many deletions: another component adds it again.
    #[error("cannot delete rule {rule}: it reappeared {attempts} times")]
    RuleReappears {
        /// The rule.
        rule: String,
        /// How often it was deleted.
        attempts: u32,
    },
}

impl Error {
    /// There is more than is read, or it never stays the same while it is.
    pub fn is_excess(&self) -> bool {
        use netlink::Error::{Bounds, Interrupted};
        matches!(self, Error::Kernel { source: Bounds(_) | Interrupted(_), .. })
    }
}

pub(crate) fn kernel_error(step: impl Display, source: impl Into<netlink::Error>) -> Error {
    Error::Kernel { step: step.to_string(), source: source.into() }
}
