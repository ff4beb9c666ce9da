//! Existing connections, kept while redirection starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
};

use crate::sockets::{TcpSocket, TcpSockets, TcpState};
use netlink::{Errno, NetlinkProtocol, Socket};

use crate::{ConntrackHandle, Error, LocalPorts, OUTSIDE, TcpTuple, TrackedConnection};

/// Both ends of a connection, the local one first.
type Ends = (SocketAddr, SocketAddr);

/// Connections that bypass the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptConnections {
    /// Number of kept connections that redirection concerns.
    pub kept: usize,
    /// Number of connections that could not be kept, and the kernel's error for the last of them.
    pub refused: Option<(usize, String)>,
    /// Whether there were more than are read (16 MiB of sockets of a family).
    pub is_truncated: bool,
}

/// Existing connections of a namespace, until its traffic is redirected.
///
/// First [`HeldConnections::track_existing`], while nothing is tracked. Then tracking starts: rules that need it exist,
/// but no packet reaches them yet. Then [`HeldConnections::track_new`], for connections that were opened meanwhile.
/// Then redirection starts. Then [`HeldConnections::finish_redirection`].
pub struct HeldConnections<'a> {
    handle: ConntrackHandle,
    /// Returns whether redirection concerns the connection of a socket, so that it counts as bypassing.
    concerns: &'a dyn Fn(&TcpSocket) -> bool,
    /// Connections that were observed so far.
    observed: BTreeSet<Ends>,
    refused: Option<(usize, String)>,
    is_truncated: bool,
}

impl<'a> HeldConnections<'a> {
    /// Inserts all existing connections into connection tracking; `None`: there are none.
    ///
    /// # Errors
    /// The kernel cannot be queried, or does not track connections.
    pub fn track_existing(
        concerns: &'a dyn Fn(&TcpSocket) -> bool,
    ) -> Result<Option<HeldConnections<'a>>, Error> {
        let sockets = list_sockets()?;
        if sockets.connected.is_empty() {
            return Ok(None);
        }
        let handle = ConntrackHandle::open()?;
        let (observed, refused) = (BTreeSet::new(), None);
        let mut held = HeldConnections { handle, concerns, observed, refused, is_truncated: false };
        held.track_sockets(&sockets)?;
        Ok(Some(held))
    }

    /// Inserts connections that were opened since, before they were tracked.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub fn track_new(&mut self) -> Result<(), Error> {
        self.track_sockets(&list_sockets()?)
    }

    /// Deletes the entries of connections that were closed meanwhile: a later connection with the same ends must be
    /// redirected.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub fn finish_redirection(mut self) -> Result<KeptConnections, Error> {
        let sockets = list_sockets()?;
        let live = sockets.by_addresses();
        // Opened since the last observation, tracked from their first packet on, and not redirected.
        let new = live
            .values()
            .filter(|socket| !self.observed.contains(&socket_ends(socket)) && (self.concerns)(socket));
        let mut tuples = Vec::new();
        for socket in new.filter(|socket| socket.state != TcpState::SynSent) {
            let found = self.handle.find_socket(socket)?;
            tuples.extend(found.filter(|found| !found.is_translated()).map(|found| found.original));
        }
        self.handle.set_mark(&tuples, OUTSIDE)?;
        let (mut kept, mut over) = (0, Vec::new());
        for connection in outside_connections()? {
            match is_live(&connection, &live) {
                true => kept += 1,
                false => over.push(connection.original),
            }
        }
        self.handle.delete(&over)?;
        Ok(KeptConnections { kept, refused: self.refused, is_truncated: self.is_truncated })
    }

    fn track_sockets(&mut self, sockets: &TcpSockets) -> Result<(), Error> {
        self.is_truncated |= sockets.is_truncated;
        let ports = LocalPorts::from_sockets(sockets);
        let new: Vec<&TcpSocket> =
            sockets.connected.iter().filter(|socket| self.observed.insert(socket_ends(socket))).collect();
        let known = self.insert_sockets(&new, &ports)?;
        if known.is_empty() {
            return Ok(());
        }
        let live = sockets.by_addresses();
        let (mut outside, mut dead) = (Vec::new(), Vec::new());
        for socket in known {
            let found = self.handle.find_socket(socket)?;
            match found {
                Some(found) if is_dead(&found, &live) => dead.push((socket, found.original)),
                Some(found) if !found.is_translated() && (self.concerns)(socket) => {
                    outside.push(found.original);
                }
                _ => {}
            }
        }
        self.handle.set_mark(&outside, OUTSIDE)?;
        let (again, dead): (Vec<&TcpSocket>, Vec<TcpTuple>) = dead.into_iter().unzip();
        self.handle.delete(&dead)?;
        self.insert_sockets(&again, &ports).map(drop)
    }

    /// Inserts connections that are not tracked, and returns the others.
    fn insert_sockets<'s>(
        &mut self,
        sockets: &[&'s TcpSocket],
        ports: &LocalPorts,
    ) -> Result<Vec<&'s TcpSocket>, Error> {
        let entries = sockets.iter().map(|socket| {
            let mark = if (self.concerns)(socket) { OUTSIDE.value } else { 0 };
            (original_tuple(socket, ports), socket.state, mark)
        });
        let outcomes = self.handle.insert(entries)?;
        let mut known = Vec::new();
        for (socket, outcome) in sockets.iter().zip(outcomes) {
            match outcome {
                Ok(()) => {}
                Err(error) if error.errno() == Some(Errno::EXIST) => known.push(*socket),
                Err(error) => {
                    let before = self.refused.as_ref().map_or(0, |(count, _)| *count);
                    self.refused = Some((before + 1, error.to_string()));
                }
            }
        }
        Ok(known)
    }
}

/// Returns connections that bypass the proxy: those that were kept when redirection started, and have not been closed.
///
/// # Errors
/// The kernel cannot be queried, or does not track connections.
pub fn outside_connections() -> Result<Vec<TrackedConnection>, Error> {
    let (mut found, _) = ConntrackHandle::list(Some(OUTSIDE))?;
    found.retain(|connection| !connection.is_closed);
    Ok(found)
}

/// Closes all connections that redirection concerns, and returns how many there were.
///
/// # Errors
/// The kernel refuses, for example if it cannot close foreign sockets (`CONFIG_INET_DIAG_DESTROY`).
pub fn reset_connections(concerns: &dyn Fn(&TcpSocket) -> bool) -> Result<usize, Error> {
    let refused = |source| Error::Tracking { step: "close a connection", source };
    let mut handle = Socket::open(NetlinkProtocol::Sockets).map_err(Error::Sockets)?;
    let mut count = 0;
    for socket in list_sockets()?.connected.iter().filter(|socket| concerns(socket)) {
        count += usize::from(crate::sockets::destroy_socket(&mut handle, socket).map_err(refused)?);
    }
    Ok(count)
}

/// Returns the number of connections that redirection concerns.
pub(crate) fn count_connections(concerns: &dyn Fn(&TcpSocket) -> bool) -> Result<usize, Error> {
    Ok(list_sockets()?.connected.iter().filter(|socket| concerns(socket)).count())
}

pub(crate) fn list_sockets() -> Result<TcpSockets, Error> {
    TcpSockets::observe_netns().map_err(Error::Sockets)
}

fn socket_ends(socket: &TcpSocket) -> Ends {
    (socket.local, socket.remote)
}

fn original_tuple(socket: &TcpSocket, ports: &LocalPorts) -> TcpTuple {
    let ours = TcpTuple { source: socket.local, dest: socket.remote };
    if ports.was_accepted(socket) { ours.reversed() } else { ours }
}

fn is_live(connection: &TrackedConnection, live: &BTreeMap<Ends, &TcpSocket>) -> bool {
    let TcpTuple { source, dest } = connection.original;
    live.contains_key(&(source, dest)) || live.contains_key(&(dest, source))
}

impl fmt::Display for KeptConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} existing connections continue to bypass the proxy", self.kept)?;
        if let Some((count, why)) = &self.refused {
            write!(f, ", {count} break at their next packet: {why}")?;
        }
        if self.is_truncated {
            f.write_str("; there are more than are read")?;
        }
        Ok(())
    }
}

/// Returns whether an entry belongs to an earlier connection with the same addresses: one that was closed, or was
/// redirected to a socket of this namespace, a proxy's, that no longer exists.
fn is_dead(found: &TrackedConnection, live: &BTreeMap<Ends, &TcpSocket>) -> bool {
    let TcpTuple { source, dest } = found.reply;
    // The first socket from this address on: a pod can have a hundred thousand.
    let first = SocketAddr::new(source.ip(), 0);
    let next = || live.range((first, SocketAddr::from(([0; 4], 0)))..).next();
    let is_here =
        || source.ip().is_loopback() || next().is_some_and(|((local, _), _)| local.ip() == source.ip());
    found.is_closed || (found.is_translated() && !live.contains_key(&(source, dest)) && is_here())
}
