//! Start of redirecting a namespace's traffic.

use std::fmt;

use crate::sockets::TcpSocket;
use firewall::{FamilyChanges, Firewall, WaitingRestore};
use model::ExistingConnections;

use crate::{Error, HeldConnections, KeptConnections, held::count_connections, reset_connections};

/// Outcome for connections that existed when redirection started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionsReport {
    /// They bypass the proxy until they close.
    Kept(KeptConnections),
    /// Number of connections that were closed.
    Reset(usize),
    /// They could not be kept or closed, with the reason: the kernel redirects their next packet, and the proxy answers
    /// it with a reset.
    Broken(String),
}

impl ConnectionsReport {
    /// Returns whether everything was done as requested.
    pub fn matches_request(&self) -> bool {
        match self {
            ConnectionsReport::Kept(kept) => kept.refused.is_none() && !kept.is_truncated,
            ConnectionsReport::Reset(_) => true,
            ConnectionsReport::Broken(_) => false,
        }
    }

    fn from_error(error: &Error) -> ConnectionsReport {
        ConnectionsReport::Broken(error.to_string())
    }
}

impl fmt::Display for ConnectionsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionsReport::Kept(kept) => kept.fmt(f),
            ConnectionsReport::Reset(count) => write!(f, "{count} existing connections closed"),
            ConnectionsReport::Broken(why) => {
                write!(f, "existing connections break at their next packet: {why}")
            }
        }
    }
}

/// Applies changes of rules. If these send packets into our chains for the first time, existing connections are kept or
/// closed. `concerns`: returns whether the rules would redirect the connection of a socket if it were opened now.
/// `None`: there was no such connection, or nothing is newly redirected.
///
/// # Errors
/// As [`Firewall::apply`]. Errors about connections are reported, and keep no pod from its rules.
pub fn apply_changes(
    firewall: &Firewall,
    changes: &FamilyChanges,
    waiting: Vec<WaitingRestore>,
    existing: ExistingConnections,
    concerns: &dyn Fn(&TcpSocket) -> bool,
) -> Result<Option<ConnectionsReport>, firewall::Error> {
    match (changes.in_two_steps(), existing) {
        (None, _) => firewall.apply(changes, waiting).map(|_| None),
        (Some(_), ExistingConnections::Reset) => {
            // Some end before they are closed: the rules redirect their next packet, and the proxy answers with a
            // reset.
            let before = count_connections(concerns);
            firewall.apply(changes, waiting)?;
            Ok(match reset_connections(concerns).and_then(|closed| Ok(closed.max(before?))) {
                Ok(0) => None,
                Ok(count) => Some(ConnectionsReport::Reset(count)),
                Err(error) => Some(ConnectionsReport::from_error(&error)),
            })
        }
        (Some((fill, redirection)), ExistingConnections::Keep) => {
            match HeldConnections::track_existing(concerns) {
                Ok(Some(mut held)) => {
                    firewall.apply(&fill, waiting)?;
                    let tracked = held.track_new();
                    firewall.apply(&redirection, Vec::new())?;
                    let kept = tracked.and_then(|()| held.finish_redirection());
                    let broken = |error: Error| ConnectionsReport::from_error(&error);
                    Ok(Some(kept.map_or_else(broken, ConnectionsReport::Kept)))
                }
                nothing_to_hold => {
                    firewall.apply(changes, waiting)?;
                    Ok(nothing_to_hold.err().as_ref().map(ConnectionsReport::from_error))
                }
            }
        }
    }
}
