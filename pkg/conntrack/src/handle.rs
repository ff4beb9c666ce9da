//! Connection tracking of one namespace.

use crate::sockets::{TcpSocket, TcpState};
use model::Mark;
use netlink::{Errno, ListBounds, NetlinkProtocol, NetlinkRequest, Socket, allow_missing};
use rules::TransportProtocol;

use crate::{Error, FlowKey, TcpTuple, TrackedConnection, message};

/// Maximum number of bytes of entries that are read; one has about 250 bytes.
const MAX_BYTES: usize = 16 << 20;

/// Parameter with the number of entries in the namespace; it does not exist without connection tracking.
const COUNT: &str = "net/netfilter/nf_conntrack_count";

/// A handle on connection tracking of the calling thread's namespace.
#[derive(Debug)]
pub struct ConntrackHandle(Socket);

impl ConntrackHandle {
    /// Opens a handle.
    ///
    /// # Errors
    /// The kernel does not open a socket.
    pub fn open() -> Result<ConntrackHandle, Error> {
        let socket =
            Socket::open(NetlinkProtocol::Netfilter).map_err(tracking_error("open a netfilter socket"))?;
        Ok(ConntrackHandle(socket.with_bounds(ListBounds::POD)))
    }

    /// Inserts entries, and returns the outcome of each; `EEXIST`: it, or a conflicting one, existed before.
    pub(crate) fn insert(
        &mut self,
        connections: impl IntoIterator<Item = (TcpTuple, TcpState, u32)>,
    ) -> Result<Vec<Result<(), netlink::Error>>, Error> {
        let messages =
            connections.into_iter().map(|(tuple, state, mark)| message::insert_request(tuple, state, mark));
        self.send_batch(messages, "add connections to connection tracking")
    }

    /// Returns the connection to which a packet of this direction would belong.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub fn find(&mut self, key: impl Into<FlowKey>) -> Result<Option<TrackedConnection>, Error> {
        let key = key.into();
        let replies = allow_missing(self.0.get(message::connection_request(message::GET, key)), Errno::NOENT);
        let replies = replies.map_err(tracking_error("query a tracked connection"))?.unwrap_or_default();
        Ok(replies.iter().find_map(|reply| message::parse_connection(&reply, key.protocol)))
    }

    /// Returns the connection of a socket. One with translated addresses is found by the direction without translation.
    pub(crate) fn find_socket(&mut self, socket: &TcpSocket) -> Result<Option<TrackedConnection>, Error> {
        let sent = TcpTuple { source: socket.local, dest: socket.remote };
        match self.find(sent)? {
            Some(found) => Ok(Some(found)),
            None => self.find(sent.reversed()),
        }
    }

    /// Lists TCP connections; with a mark, only those that have it. At most the first 16 MiB are read. Returns also whether these are
    /// all.
    ///
    /// The kernel walks the table of all namespaces for this, which takes some milliseconds: if nothing is tracked, it
    /// is not queried.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub fn list(mark: Option<Mark>) -> Result<(Vec<TrackedConnection>, bool), Error> {
        if hostnet::sysctl::read(COUNT).is_ok_and(|count| count.is_none_or(|count| count == "0")) {
            return Ok((Vec::new(), true));
        }
        let ConntrackHandle(socket) = ConntrackHandle::open()?;
        let listed = socket.dump_head(&message::list_request(mark), MAX_BYTES);
        let (replies, complete) = listed.map_err(tracking_error("list tracked connections"))?;
        let connections =
            replies.iter().filter_map(|reply| message::parse_connection(&reply, TransportProtocol::Tcp));
        let connections = connections.filter(|one| mark.is_none_or(|mark| one.has_mark(mark)));
        Ok((connections.collect(), complete.is_some()))
    }

    /// Marks connections; those that no longer exist are skipped.
    pub(crate) fn set_mark(&mut self, tuples: &[TcpTuple], mark: Mark) -> Result<(), Error> {
        let messages = tuples.iter().map(|tuple| message::set_mark(*tuple, mark));
        self.send_batch(messages, "mark tracked connections").map(drop)
    }

    /// Deletes connections; returns how many there were.
    ///
    /// # Errors
    /// The kernel cannot be queried.
    pub fn delete<K: Copy + Into<FlowKey>>(&mut self, flows: &[K]) -> Result<usize, Error> {
        let messages = flows.iter().map(|flow| message::connection_request(message::DELETE, (*flow).into()));
        let done = self.send_batch(messages, "delete tracked connections")?;
        Ok(done.iter().filter(|one| one.is_ok()).count())
    }

    fn send_batch(
        &mut self,
        messages: impl IntoIterator<Item = NetlinkRequest>,
        step: &'static str,
    ) -> Result<Vec<Result<(), netlink::Error>>, Error> {
        self.0.send_batch(messages).map_err(tracking_error(step))
    }
}

fn tracking_error(step: &'static str) -> impl FnOnce(netlink::Error) -> Error {
    move |source| Error::Tracking { step, source }
}
