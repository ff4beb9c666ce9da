//! Lock that admits one ADD at a time in a pod's namespace, even after a plugin was killed.
//!
//! A runtime kills a plugin that takes too long, the kernel one that uses too much memory. The iptables tools that it had started
//! survive and commit a little later. An ADD that observed the tables before that and wrote after it would insert every jump into
//! the built-in chains twice. So each ADD first takes a lock: a unique name among the abstract Unix sockets of the pod's namespace,
//! which the tools inherit. The lock is released when the last of them has ended.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::io::{FdFlags, fcntl_setfd};

const NAME: &str = "millrace.io/istio-cni";
/// Maximum wait. Tools take milliseconds; one that hangs is killed by its plugin after 30 s, or is an orphan.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// Lock, held until it is dropped and no process that we started is left.
#[derive(Debug)]
pub struct NetnsLock {
    _name: UnixDatagram,
}

/// The lock cannot be taken, or is not released in time.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock the netns, in which an earlier CNI call or its iptables child may still run: {0}")]
pub struct NetnsBusy(io::Error);

/// Waits for the lock in the calling thread's network namespace.
///
/// # Errors
/// [`NetnsBusy`] if another call, or its orphaned processes, do not end in time, or the kernel refuses.
pub fn acquire() -> Result<NetnsLock, NetnsBusy> {
    acquire_within(PATIENCE).map_err(NetnsBusy)
}

fn acquire_within(patience: Duration) -> io::Result<NetnsLock> {
    let address = SocketAddr::from_abstract_name(NAME)?;
    let deadline = Instant::now() + patience;
    loop {
        match UnixDatagram::bind_addr(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(PAUSE);
            }
            bound => {
                let name = bound?;
                fcntl_setfd(&name, FdFlags::empty())?; // inherited by child processes
                return Ok(NetnsLock { _name: name });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A single test: the lock's name is common to the whole namespace.
    #[test]
    fn a_turn_ends_when_it_is_dropped_and_the_last_child_has_ended() {
        let first = acquire().unwrap();
        let started = Instant::now();
        let waited = thread::scope(|scope| {
            let second = scope.spawn(|| acquire().map(|_turn| started.elapsed()));
            thread::sleep(Duration::from_millis(100)); // the time for which the second has to wait
            drop(first);
            second.join().unwrap().unwrap()
        });
        assert!(waited >= Duration::from_millis(100), "{waited:?}");

        let third = acquire().unwrap();
        let busy = acquire_within(Duration::from_millis(20)).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::AddrInUse);
        let mut child = Command::new("sleep").arg("0.3").spawn().unwrap();
        let started = Instant::now();
        drop(third);
        drop(acquire().unwrap());
        assert!(started.elapsed() >= Duration::from_millis(200), "{:?}", started.elapsed());
        child.wait().unwrap();
    }
}
