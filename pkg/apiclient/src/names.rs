//! Name resolution without the C library: `/etc/hosts`, then DNS over UDP.
//!
//! A statically linked glibc has no name service switch; using it would load shared objects that may be missing.

mod files;
mod message;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::retry::random_bits;
use crate::transport::Deadline;
pub(crate) use files::{ResolvConf, in_hosts};
pub(crate) use message::{DnsAnswer, RecordType, encode_query, parse_answer};

/// Files that configure name resolution, and the port of name servers.
#[derive(Clone, Debug)]
pub struct Resolver {
    /// Path of `/etc/hosts`.
    pub hosts: PathBuf,
    /// Path of `/etc/resolv.conf`.
    pub resolv_conf: PathBuf,
    /// Port 53.
    pub port: u16,
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver { hosts: "/etc/hosts".into(), resolv_conf: "/etc/resolv.conf".into(), port: 53 }
    }
}

impl Resolver {
    /// Returns the addresses of a name, IPv4 first, within the deadline. Missing or unreadable files count as empty.
    pub(crate) fn resolve(&self, name: &str, deadline: Deadline) -> io::Result<Vec<IpAddr>> {
        let known = in_hosts(&read_text(&self.hosts), name);
        if !known.is_empty() {
            return Ok(known);
        }
        if name == "localhost" {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let conf = ResolvConf::parse(&read_text(&self.resolv_conf));
        let mut failure = io::Error::new(ErrorKind::NotFound, format!("no name server knows {name}"));
        for candidate in conf.candidate_names(name) {
            match self.ask_all(&conf, &candidate, deadline) {
                Ok(addresses) if !addresses.is_empty() => return Ok(addresses),
                Ok(_) => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Queries the servers in turn, twice, until one responds; its response may be that the name does not exist.
    fn ask_all(&self, conf: &ResolvConf, name: &str, deadline: Deadline) -> io::Result<Vec<IpAddr>> {
        let mut failure = io::Error::new(ErrorKind::NotFound, "there is no name server");
        for wait in [Duration::from_secs(1), Duration::from_secs(3)] {
            for server in &conf.servers {
                let server = SocketAddr::new(*server, self.port);
                let wait = wait.min(deadline.time_left()?);
                match query_server(server, name, Deadline::after(wait)) {
                    Ok(addresses) => return Ok(addresses),
                    Err(error) => {
                        failure = io::Error::new(error.kind(), format!("the name server {server}: {error}"));
                    }
                }
            }
        }
        Err(failure)
    }
}

/// Sends queries for both families to one server at the same time and waits for both responses. A response of one family is
/// sufficient if the other one times out.
fn query_server(server: SocketAddr, name: &str, deadline: Deadline) -> io::Result<Vec<IpAddr>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Accepts only datagrams of that server.
    socket.connect(server)?;
    let bits = random_bits().to_be_bytes();
    let ids = [u16::from_be_bytes([bits[0], bits[1]]), u16::from_be_bytes([bits[2], bits[3]])];
    let mut open = vec![(RecordType::A, ids[0]), (RecordType::Aaaa, ids[1])];
    for (kind, id) in &open {
        let query = encode_query(*id, name, *kind)
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the name is too long"))?;
        socket.send(&query)?;
    }
    let (mut found, mut failure) = (Vec::new(), None);
    let mut buffer = [0; 4096];
    while !open.is_empty() {
        let received = deadline.time_left().and_then(|left| {
            socket.set_read_timeout(Some(left))?;
            socket.recv(&mut buffer)
        });
        let datagram = match received {
            Ok(length) => buffer.get(..length).unwrap_or_default(),
            Err(_) if !found.is_empty() => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(io::Error::new(ErrorKind::TimedOut, "no answer"));
            }
            Err(error) => return Err(error),
        };
        let answered = |(kind, id): &(RecordType, u16)| parse_answer(datagram, *id, name, *kind);
        let Some((at, answer)) = open.iter().enumerate().find_map(|(at, asked)| Some((at, answered(asked)?)))
        else {
            continue;
        };
        open.remove(at);
        match answer {
            DnsAnswer::Addresses(addresses) => found.extend(addresses),
            DnsAnswer::Truncated => failure = Some(io::Error::other("its answer is too long for UDP")),
            DnsAnswer::Failed(code) => {
                failure = Some(io::Error::other(format!("it failed with code {code}")));
            }
        }
    }
    found.sort_by_key(IpAddr::is_ipv6);
    match failure {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Reads at most 1 MiB of a file, replacing invalid UTF-8.
fn read_text(path: &Path) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // A partial read is used.
        let _ = file.take(1 << 20).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
