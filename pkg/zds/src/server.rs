//! The socket that ztunnels dial.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, accept_with};
use socketfile::SocketFile;
use tracing::{info, warn};

use crate::conversation::converse;
use crate::error::ConversationEnd;
use crate::{Error, Hub};

/// Whoever reaches it is handed the network namespaces of pods.
const MODE: u32 = 0o600;
/// ztunnels at a time; more are refused. There are two while a new one takes over.
pub const MAX_CONNECTIONS: usize = 8;
/// When descriptors have run out, most likely.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves ztunnels. The socket's file goes with it.
#[derive(Debug)]
pub struct ZdsServer {
    listener: OwnedFd,
    _file: SocketFile,
}

impl ZdsServer {
    /// Listens at the path, as root only. The directory is made when it is missing; a socket that nobody listens on is
    /// replaced, with no moment in between.
    ///
    /// # Errors
    /// Another agent serves it, something else is there, or the system refuses.
    pub fn bind(path: &Path) -> Result<ZdsServer, Error> {
        let (listener, file) = socketfile::bind_type(path, MODE, SocketType::SEQPACKET)?;
        Ok(ZdsServer { listener, _file: file })
    }

    /// Serves for as long as the process lives: a thread that accepts, and one for each ztunnel.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn serve(self, hub: Hub) -> io::Result<()> {
        thread::Builder::new().name("zds".to_owned()).spawn(move || self.accept(&hub)).map(drop)
    }

    fn accept(&self, hub: &Hub) {
        let connected = Arc::new(AtomicUsize::new(0));
        loop {
            match self.next() {
                Ok(socket) => start(socket, hub, &connected),
                // It has gone already, or nobody came.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    warn!(target: "zds", %error, "cannot accept a connection of ztunnel");
                    thread::sleep(PAUSE); // the next one may find what this one lacked
                }
            }
        }
    }

    fn next(&self) -> Result<OwnedFd, Errno> {
        // Without a time limit: a new connection is all that there is to wait for.
        poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], None::<&Timespec>)?;
        accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }
}

/// Counts a connection for as long as it lives.
struct CountedConnection(Arc<AtomicUsize>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn start(socket: OwnedFd, hub: &Hub, connected: &Arc<AtomicUsize>) {
    let before = connected.fetch_add(1, Ordering::Relaxed);
    let counted = CountedConnection(Arc::clone(connected));
    if before >= MAX_CONNECTIONS {
        warn!(target: "zds", connected = before, "connection of a ztunnel refused: too many are connected");
        return;
    }
    let hub = hub.clone();
    let body = move || {
        let _counted = counted;
        match converse(&socket, &hub) {
            Err(ConversationEnd::Closed) => info!(target: "zds", "ztunnel closed its connection"),
            Err(error) => warn!(target: "zds", %error, "closing the connection of a ztunnel"),
            Ok(never) => match never {},
        }
    };
    if let Err(error) = thread::Builder::new().name("ztunnel".to_owned()).stack_size(256 * 1024).spawn(body) {
        warn!(target: "zds", %error, "cannot start a thread for a ztunnel");
    }
}
