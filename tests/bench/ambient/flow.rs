//! One connection with both ends in this thread: the cost of its packets is this thread's CPU time alone, because the kernel
//! processes a packet through namespaces on the CPU, and within the system call, that sends it.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    time::Duration,
};

use kit::{Netns, Node};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};

/// A connection with both ends.
pub(crate) struct Flow {
    client: TcpStream,
    server: TcpStream,
}

/// Kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// One byte there, one byte back.
    RoundTrips,
    /// Writes of 100 bytes, each a packet.
    Small,
    /// Writes of 32 KiB.
    Big,
}

impl Load {
    pub(crate) const ALL: [Load; 3] = [Load::RoundTrips, Load::Small, Load::Big];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Load::RoundTrips => "round trips",
            Load::Small => "writes of 100 bytes",
            Load::Big => "writes of 32 KiB",
        }
    }
}

impl Flow {
    /// Opens a connection from a pod to the external host of its node.
    pub(crate) fn open(pod: &Netns, node: &Node, v6: bool) -> Flow {
        let any: IpAddr = if v6 { [0; 16].into() } else { [0; 4].into() };
        let listener = node.outside().run(|| TcpListener::bind((any, 0)).unwrap());
        let target = SocketAddr::new(node.outside_ip(v6), listener.local_addr().unwrap().port());
        let connect = || TcpStream::connect_timeout(&target, Duration::from_secs(10)).unwrap();
        let client = pod.run(connect);
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        let mut flow = Flow { client, server };
        for load in Load::ALL {
            let _ = flow.carry(load, 300, own_time); // until windows are open and caches are warm
        }
        flow
    }

    /// Sends the load; returns microseconds per unit by the clock `now`.
    pub(crate) fn carry(&mut self, load: Load, units: usize, now: fn() -> Duration) -> f64 {
        let began = now();
        for _ in 0..units {
            match load {
                Load::RoundTrips => {
                    send(&mut self.client, &mut self.server, 1, 1);
                    send(&mut self.server, &mut self.client, 1, 1);
                }
                Load::Small => send(&mut self.client, &mut self.server, 100, 8),
                Load::Big => send(&mut self.client, &mut self.server, 32 << 10, 1),
            }
        }
        (now() - began).as_secs_f64() * 1e6 / units as f64
    }
}

/// CPU time of this thread. Time of other threads does not count; the kernel's processing of our packets in our system calls does.
pub(crate) fn own_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32)
}

/// Monotonic time, for loads that other processes carry, too.
pub(crate) fn wall_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    Duration::new(time.tv_sec() as u64, time.tv_nsec() as u32)
}

/// Writes, then reads what was written.
fn send(from: &mut TcpStream, to: &mut TcpStream, bytes: usize, writes: usize) {
    static WRITTEN: [u8; 32 << 10] = [7; 32 << 10];
    let mut read = [0; 32 << 10];
    for _ in 0..writes {
        from.write_all(&WRITTEN[..bytes]).unwrap();
    }
    to.read_exact(&mut read[..bytes * writes]).unwrap();
}

/// Pins a process, ours by default, to the first CPU: packets that move between CPUs have varying costs.
pub(crate) fn pin(pid: Option<u32>) {
    let pid = pid.unwrap_or_else(std::process::id).to_string();
    let output = Command::new("taskset").args(["-a", "-c", "-p", "0", &pid]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Moves the calling thread alone to the second CPU, away from those that [`pin`] has moved.
pub(crate) fn step_aside() {
    let mut second = CpuSet::new();
    second.set(1).unwrap();
    sched_setaffinity(Pid::from_raw(0), &second).unwrap();
}

/// Allows the calling thread to run on all CPUs again.
pub(crate) fn unpin() {
    let pid = std::process::id().to_string();
    let output = Command::new("taskset").args(["-a", "-p", "ffffffff", &pid]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
