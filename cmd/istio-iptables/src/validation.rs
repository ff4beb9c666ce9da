//! `--run-validation`: a connection to a port without a listener must arrive at the proxy's port.
//!
//! The validation listens on the proxy's ports, then connects to `127.0.0.6` (or `::6`) at the probe port. It runs as the proxy's
//! user, whose connections to such an address the rules treat as inbound. The accepting side queries the kernel for the original
//! destination: only a redirected connection can have the probe port as destination.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use model::{Family, Port};
use rules::sidecar::{self, SidecarConfig};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

/// Advice on a failure.
pub const HINT: &str = "The traffic of this pod is not redirected to its sidecar. With the CNI plugin, the pod was started before the
plugin was installed on the node (or its rules were removed since). Delete the pod, so that it is created anew,
or let the node agent repair it (repair.repairPods, repair.deletePods).";

/// Delay between two connection attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Reason why the redirection could not be proved.
#[derive(Debug, thiserror::Error)]
pub enum ValidationError {
    /// No address family to test.
    #[error(transparent)]
    Families(#[from] redirect::Error),
    /// No port can be listened on.
    #[error("cannot listen on {0} nor on {1}: {2}")]
    Listen(SocketAddr, SocketAddr, io::Error),
    /// No connection arrived.
    #[error("no connection to {target} arrived at {ports} within {} ms (last: {last})", within.as_millis())]
    Nothing {
        /// Address connected to.
        target: SocketAddr,
        /// Ports where a connection should have arrived.
        ports: String,
        /// Time limit.
        within: Duration,
        /// Result of the last attempt.
        last: String,
    },
    /// Error of the kernel.
    #[error("cannot wait for connections: {0}")]
    Wait(io::Error),
}

/// Proves the redirection of the first family of this namespace that has an address: IPv6 if it is the only one.
///
/// # Errors
/// [`ValidationError`]
pub fn prove_redirection(
    config: &SidecarConfig,
    port: Port,
    within: Duration,
) -> Result<(), ValidationError> {
    let family = redirect::first_family()?;
    let listeners = open_listeners(config, family)?;
    let source = SocketAddr::new(localhost(family), 0);
    let target = SocketAddr::new(sidecar::passthrough_source(family), port.0);
    let deadline = Instant::now() + within;
    let mut last = "not tried".to_owned();
    while Instant::now() < deadline {
        let until = deadline.min(Instant::now() + PAUSE);
        let call = connect_from(source, target, remaining_time(until));
        if wait_for_arrival(&listeners, port, if call.is_ok() { until } else { Instant::now() })? {
            return Ok(());
        }
        last = call.map_or_else(|error| error.to_string(), |_| "it went elsewhere".to_owned());
        std::thread::sleep(remaining_time(until)); // one attempt per second, within the deadline
    }
    let ports = format!("{} or {}", config.outbound_port, config.inbound_port);
    Err(ValidationError::Nothing { target, ports, within, last })
}

/// Returns the time left until `until`; never zero, which a socket would interpret as "no limit".
fn remaining_time(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn localhost(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Connects from localhost. By default the kernel would connect to `::6` from `::6`, and the rules let traffic from there pass.
fn connect_from(source: SocketAddr, target: SocketAddr, within: Duration) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        address_family(source),
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &source)?;
    match rustix::net::connect(&socket, &target) {
        Err(Errno::INPROGRESS) => {}
        done => return Ok(done.map(|()| socket)?),
    }
    let within = Timespec::try_from(within).map_err(io::Error::other)?;
    if poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&within))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    sockopt::socket_error(&socket)??;
    Ok(socket)
}

fn address_family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Returns listeners at the proxy's two ports; one is enough, since the proxy may already run.
fn open_listeners(config: &SidecarConfig, family: Family) -> Result<Vec<TcpListener>, ValidationError> {
    let at = |port: Port| SocketAddr::new(localhost(family), port.0);
    let (outbound, inbound) = (at(config.outbound_port), at(config.inbound_port));
    let opened = [bind_listener(outbound), bind_listener(inbound)];
    let mut failure = None;
    let listeners: Vec<_> =
        opened.into_iter().filter_map(|open| open.map_err(|error| failure = Some(error)).ok()).collect();
    match failure {
        Some(error) if listeners.is_empty() => Err(ValidationError::Listen(outbound, inbound, error)),
        _ => Ok(listeners),
    }
}

/// Binds a port that is shared with a proxy starting at the same time.
fn bind_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = rustix::net::socket(address_family(address), SocketType::STREAM, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 16)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether a connection whose original destination has `port` arrives before `until`.
fn wait_for_arrival(listeners: &[TcpListener], port: Port, until: Instant) -> Result<bool, ValidationError> {
    loop {
        for listener in listeners {
            if let Ok((call, _)) = listener.accept()
                && original_port(&call) == Some(port.0)
            {
                return Ok(true);
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut polled: Vec<_> =
            listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        let timeout =
            Timespec::try_from(left).map_err(|error| ValidationError::Wait(io::Error::other(error)))?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(ValidationError::Wait(errno.into())),
        }
    }
}

fn original_port(call: &TcpStream) -> Option<u16> {
    let fd = call.as_fd();
    let v4 = || sockopt::ip_original_dst(fd).ok().map(|address| address.port());
    let v6 = || sockopt::ipv6_original_dst(fd).ok().map(|address| address.port());
    if call.local_addr().ok()?.is_ipv4() { v4() } else { v6() }
}
