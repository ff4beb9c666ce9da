//! The socket to which ztunnels connect.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, accept_with};
use socketfile::{SocketError, SocketFile};
use tracing::{info, warn};

use crate::Hub;
use crate::conversation::serve_ztunnel;
use crate::error::ConversationEnd;
use crate::notices::{self, Notice};
use crate::place_guard::HeldPlace;

/// Root only: a peer receives the network namespaces of pods.
const MODE: u32 = 0o600;
/// Pause after a failed `accept`, most likely for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Server for ztunnels. The socket's file is removed with it.
#[derive(Debug)]
pub struct ZdsServer {
    listener: OwnedFd,
    _file: SocketFile,
}

impl ZdsServer {
    /// Listens at the path, as root only. A missing directory is created; a socket without a listener is replaced
    /// atomically.
    ///
    /// # Errors
    /// Another agent serves it, another kind of file is there, or the system refuses.
    pub fn bind(path: &Path) -> Result<ZdsServer, SocketError> {
        let (listener, file) = socketfile::bind_type(path, MODE, SocketType::SEQPACKET)?;
        Ok(ZdsServer { listener, _file: file })
    }

    /// Serves until the process ends: one thread accepts, and one serves each ztunnel.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn serve(self, hub: Hub) -> io::Result<()> {
        thread::Builder::new().name("zds".to_owned()).spawn(move || self.accept_connections(&hub)).map(drop)
    }

    fn accept_connections(&self, hub: &Hub) {
        let mut summarized = Instant::now();
        let mut logged: Option<Instant> = None;
        loop {
            if summarized.elapsed() >= notices::PERIOD {
                summarized = Instant::now();
                hub.log_suppressed();
            }
            match self.next_connection() {
                Ok(socket) => {
                    // A panic, which the process logs, costs this connection: the hub remains consistent.
                    let _ = panic::catch_unwind(AssertUnwindSafe(|| start_connection(socket, hub)));
                }
                // The connection was already closed, or none arrived.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    // Ten messages a second would hide all others.
                    if logged.is_none_or(|logged| logged.elapsed() >= notices::PERIOD) {
                        warn!(target: "zds", %error, "cannot accept a connection of ztunnel");
                        logged = Some(Instant::now());
                    }
                    thread::sleep(PAUSE); // the next attempt may succeed
                }
            }
        }
    }

    fn next_connection(&self) -> Result<OwnedFd, Errno> {
        // Waits for a new connection, or for the time to report suppressed messages.
        let period = Timespec::try_from(notices::PERIOD).ok();
        poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], period.as_ref())?;
        accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }
}

fn start_connection(socket: OwnedFd, hub: &Hub) {
    let socket = Arc::new(socket);
    let Some(place) = hub.claim_place(&socket) else { return };
    let hub = hub.clone();
    let thread = thread::Builder::new().name("ztunnel".to_owned()).stack_size(256 * 1024);
    let started = thread.spawn(move || {
        let Err(end) = serve_ztunnel(&socket, &hub, &place);
        log_end(&hub, &place, &end);
    });
    if let Err(error) = started {
        warn!(target: "zds", %error, "cannot start a thread for a ztunnel");
    }
}

fn log_end(hub: &Hub, place: &HeldPlace, end: &ConversationEnd) {
    if !hub.may_log(Notice::Ended, place.has_unknown_peer()) {
        return;
    }
    match end {
        _ if place.is_evicted() => {
            warn!(target: "zds", "connection closed to make room for a ztunnel of this node");
        }
        ConversationEnd::Closed => info!(target: "zds", "ztunnel closed its connection"),
        error => warn!(target: "zds", %error, "closing the connection of a ztunnel"),
    }
}
