//! Errors of reading and changing the network of a node or pod.

use std::{fmt::Display, io};

/// A failed operation, its object (printed as by `ip`), and the kernel's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a step, or could not be queried.
    #[error("cannot {step}: {source}")]
    Kernel {
        /// The step, with its object.
        step: String,
        /// Cause.
        source: netlink::Error,
    },
    /// A kernel parameter could not be read (a missing one is no error) or written.
    #[error("cannot {step}: {source}")]
    Sysctl {
        /// The step, with the name of the parameter.
        step: String,
        /// Cause.
        source: io::Error,
    },
    /// One of several route changes was refused; all others were attempted.
    #[error("cannot {change} (number {number} of {count}, {failed} of them refused): {source}", number = .index.saturating_add(1))]
    ApplyRoutes {
        /// The first change that was refused.
        change: String,
        /// Position of that change among all changes, from 0.
        index: usize,
        /// Number of changes.
        count: usize,
        /// Number of changes that had an effect.
        applied: usize,
        /// Number of changes that were refused.
        failed: usize,
        /// Cause of the first refusal.
        source: netlink::Error,
    },
    /// A rule that cannot be requested; nothing was changed.
    #[error("cannot handle rule {rule}: {reason}")]
    UnsuitableRule {
        /// The rule.
        rule: String,
        /// Reason why the rule cannot be handled.
        reason: &'static str,
    },
    /// The kernel would delete a foreign rule instead of this one; nothing was deleted.
    #[error("cannot delete rule {rule}: the kernel would delete {other} instead, which is not ours")]
    ConflictingRule {
        /// The rule.
        rule: String,
        /// The rule that the kernel finds first.
        other: String,
    },
    /// Invalid name of a network parameter; nothing was changed.
    #[error("{name:?} is not the name of a sysctl of the network, such as net/ipv4/ip_forward")]
    UnsuitableSysctl {
        /// The name.
        name: String,
    },
    /// A policy rule still existed after many deletions: another component adds it again.
    #[error("cannot delete rule {rule}: it reappeared {attempts} times")]
    RuleReappears {
        /// The rule.
        rule: String,
        /// Number of deletions.
        attempts: u32,
    },
}

impl Error {
    /// Returns whether a list exceeds the limits, or changed during every attempt to read it.
    pub fn is_excess(&self) -> bool {
        use netlink::Error::{Bounds, Interrupted};
        matches!(self, Error::Kernel { source: Bounds(_) | Interrupted(_), .. })
    }
}

pub(crate) fn kernel_error(step: impl Display, source: impl Into<netlink::Error>) -> Error {
    Error::Kernel { step: step.to_string(), source: source.into() }
}
