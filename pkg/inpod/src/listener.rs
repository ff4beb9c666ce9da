//! Whether ztunnel listens in a pod's network namespace, by the kernel's socket tables.

use std::{fs, io};

use model::Port;
use netns::Netns;

use crate::Error;

/// TCP sockets of the calling thread's network namespace.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// `TCP_LISTEN` of `include/net/tcp_states.h`.
const LISTEN: &str = "0A";

/// Returns whether any socket listens on a TCP port in a network namespace.
///
/// # Errors
/// The namespace cannot be entered, or its sockets cannot be listed.
pub fn has_listener(netns: &Netns, port: Port) -> Result<bool, Error> {
    let tables = netns.run_in(|| TABLES.into_iter().map(read_table).collect::<Result<Vec<_>, _>>())??;
    Ok(tables.iter().any(|table| lists_listener(table, port)))
}

fn read_table(path: &str) -> Result<String, Error> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()), // a kernel without IPv6
        read => read.map_err(|source| Error::Sockets { path: path.into(), source }),
    }
}

/// Returns whether a table lists a listener. Each line after the first has a number, the local address and port, the
/// remote ones, and the state.
fn lists_listener(table: &str, port: Port) -> bool {
    let suffix = format!(":{:04X}", port.0);
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        local.is_some_and(|local| local.ends_with(&suffix)) && state == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:3A99 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0000000000000000 100 0 0 10 0
   1: 0100007F:3A9E 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0000000000000000 20 4 30 10 -1
";

    #[test]
    fn only_what_listens_counts() {
        assert!(lists_listener(TABLE, Port(15001)));
        assert!(!lists_listener(TABLE, Port(15006)), "a connection");
        assert!(!lists_listener(TABLE, Port(15008)));
        assert!(!lists_listener("", Port(15001)));
    }
}
