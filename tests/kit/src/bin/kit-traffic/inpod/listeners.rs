//! The sockets of a proxy in its pod's network namespace; callers have entered it.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use socket2::{Domain, SockRef, Socket, Type};

use crate::relays::{canonical, set_tos};

/// Mark of ztunnel's sockets.
pub(crate) const MARK: u32 = 0x539;
pub(crate) const OUTBOUND: &str = "outbound";
pub(crate) const INBOUND: &str = "inbound";
pub(crate) const HBONE: &str = "hbone";
pub(crate) const DNS: &str = "dns";
const CAPTURE: [(&str, u16); 3] = [(OUTBOUND, 15001), (INBOUND, 15006), (HBONE, 15008)];
pub(crate) const DNS_PORT: u16 = 15053;
const BACKLOG: i32 = 128;
/// `::1` of `lo` in `/proc/net/if_inet6`.
const LOOPBACK: &str = "00000000000000000000000000000001 ";

pub(crate) enum Listener {
    Tcp(&'static str, TcpListener),
    /// DNS.
    Udp(UdpSocket),
}

/// Opens all listeners of a pod; the error names those that failed.
pub(crate) fn open(v6: bool, dns: bool) -> Result<Vec<Listener>, String> {
    // The file is missing where the kernel has no IPv6.
    let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6").ok().filter(|_| v6);
    let any = match addresses {
        Some(_) => Ipv6Addr::UNSPECIFIED.into(),
        None => Ipv4Addr::UNSPECIFIED.into(),
    };
    let mut listeners = Vec::new();
    for (via, port) in CAPTURE {
        listeners.push(listen(via, SocketAddr::new(any, port))?);
    }
    if dns {
        let lo_has_v6 = addresses.is_some_and(|text| text.contains(LOOPBACK));
        let loopback = [Some(Ipv4Addr::LOCALHOST.into()), lo_has_v6.then(|| Ipv6Addr::LOCALHOST.into())];
        for ip in loopback.into_iter().flatten() {
            let address = SocketAddr::new(ip, DNS_PORT);
            listeners.push(listen(DNS, address)?);
            let socket = bound(Type::DGRAM, address).map_err(|error| failed(address, &error))?;
            listeners.push(Listener::Udp(socket.into()));
        }
    }
    Ok(listeners)
}

fn listen(via: &'static str, address: SocketAddr) -> Result<Listener, String> {
    let listening = bound(Type::STREAM, address).and_then(|socket| {
        socket.listen(BACKLOG)?;
        Ok(socket)
    });
    listening.map(|socket| Listener::Tcp(via, socket.into())).map_err(|error| failed(address, &error))
}

/// Formats an error as ztunnel does.
fn failed(address: SocketAddr, error: &io::Error) -> String {
    format!("Bind({address}, {error:?})")
}

fn bound(kind: Type, address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    socket.set_nonblocking(true)?;
    socket.set_mark(MARK)?;
    socket.set_reuse_port(true)?;
    socket.set_ip_transparent_v4(true)?;
    if address.is_ipv6() {
        socket.set_ip_transparent_v6(true)?;
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    set_tos(&socket, address.is_ipv6())?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Original destination of a connection, if it differs from the address of the listener that accepted it.
pub(crate) fn original_dst(near: &TcpStream, local: SocketAddr) -> Option<SocketAddr> {
    let socket = SockRef::from(near);
    let original = if local.is_ipv6() { socket.original_dst_v6() } else { socket.original_dst_v4() };
    let original = original.ok()?.as_socket().map(canonical)?;
    (original != local).then_some(original)
}
