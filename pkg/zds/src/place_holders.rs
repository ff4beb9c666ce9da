//! Connections that hold places.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Weak;

use rustix::net::{Shutdown, shutdown};

use crate::peer::PeerNetns;
use crate::places::PlaceTable;

/// The places, and the connections that hold them.
#[derive(Debug, Default)]
pub(crate) struct PlaceHolders {
    pub(crate) table: PlaceTable,
    /// Holders by the number of their place.
    pub(crate) holders: BTreeMap<u64, PlaceHolder>,
}

/// A connection that holds a place.
#[derive(Debug)]
pub(crate) struct PlaceHolder {
    pub(crate) netns: PeerNetns,
    pub(crate) socket: Weak<OwnedFd>,
}

impl PlaceHolder {
    /// Closes the connection: its thread notices that, and ends.
    pub(crate) fn close_connection(&self) {
        if let Some(socket) = self.socket.upgrade() {
            let _ = shutdown(&socket, Shutdown::Both); // it may have been closed already
        }
    }
}
