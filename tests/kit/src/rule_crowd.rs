//! Very many foreign firewall rules, as `iptables-nft` creates them, at the cost of the kernel's part alone.
//!
//! For 300,000 rules, `iptables-nft-restore` takes more than half a minute of CPU time. Here it creates a few, which are read back
//! as the kernel stores them, and added repeatedly in one transaction, as a restore does.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket, sockopt};

use crate::netns::Netns;

/// Kinds of messages: those of nf_tables (subsystem 10), and of netlink.
const NEW_CHAIN: u16 = 0xa03;
const NEW_RULE: u16 = 0xa06;
const GET_RULE: u16 = 0xa07;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Flags of messages.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
/// Attributes of a rule; and the name of a chain.
const TABLE: u16 = 1;
const CHAIN: u16 = 2;
const EXPRESSIONS: u16 = 4;
const NAME: u16 = 3;
/// The attribute with the protocol of a rule's matches, which the kernel does not return: TCP, no flags.
const FOR_TCP: [u8; 20] = [20, 0, 5, 0x80, 8, 0, 1, 0, 0, 0, 0, 6, 8, 0, 2, 0, 0, 0, 0, 0];
const TEMPLATE: &str = "TEMPLATE";

/// Rules as kube-proxy creates them for services, ten in each chain, in table `nat` of IPv4. Nothing jumps there: the load is on
/// readers of the table, not on traffic.
pub fn fill_with_services(netns: &Netns, count: usize) {
    const EACH: usize = 10;
    let rule = |rule: usize| {
        let port = 8000 + rule;
        format!("-d 10.97.1.2/32 -p tcp -m comment --comment shop/web:{rule} -m tcp --dport {port} -j RETURN")
    };
    let rules: Vec<String> = (0..EACH).map(rule).collect();
    fill_table(netns, "nat", &rules, (0..count / EACH).map(|chain| (format!("KUBE-SVC-{chain:X}"), 1)));
}

/// `count` copies of one rule in a new chain `FOREIGN` of an IPv4 table. Nothing jumps there.
pub fn fill_with_rules(netns: &Netns, table: &str, count: usize) {
    let rule = "-s 10.97.1.2/32 -p tcp -j ACCEPT".to_owned();
    fill_table(netns, table, &[rule], std::iter::once(("FOREIGN".to_owned(), count)));
}

/// Creates chains in an IPv4 table, each with these rules (as `iptables -A CHAIN` accepts them), as many times as the number beside
/// its name.
///
/// # Panics
/// If the kernel does not accept them.
fn fill_table(netns: &Netns, table: &str, rules: &[String], chains: impl Iterator<Item = (String, usize)>) {
    let mut text = format!("*{table}\n:{TEMPLATE} - [0:0]\n");
    rules.iter().for_each(|rule| writeln!(text, "-A {TEMPLATE} {rule}").unwrap());
    let _ = netns.pipe("iptables-nft-restore --noflush", &format!("{text}COMMIT\n"));
    let opened = || socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::NETFILTER)).unwrap();
    let socket = netns.run(opened);
    let templates = read_expressions(&socket, table);
    assert_eq!(templates.len(), rules.len());

    let mut batch = message(BATCH_BEGIN, 0, &[]);
    for (chain, times) in chains {
        batch.extend(message(NEW_CHAIN, CREATE, &[named(TABLE, table), named(NAME, &chain)].concat()));
        let place = [named(TABLE, table), named(CHAIN, &chain)].concat();
        for expressions in (0..times).flat_map(|_| &templates) {
            batch.extend(message(NEW_RULE, CREATE | APPEND, &[&place, expressions, &FOR_TCP[..]].concat()));
        }
    }
    batch.extend(message(BATCH_END, ACK, &[]));
    sockopt::set_socket_send_buffer_size_force(&socket, batch.len()).expect("root may have any buffer");
    assert_eq!(send(&socket, &batch, SendFlags::empty()), Ok(batch.len()));
    let answer = receive(&socket);
    assert_eq!((u16_at(&answer, 4), &answer[16..20]), (ERROR, &[0; 4][..]), "not an acknowledgement");
    let _ = netns
        .pipe("iptables-nft-restore --noflush", &format!("*{table}\n-F {TEMPLATE}\n-X {TEMPLATE}\nCOMMIT\n"));
}

/// Expressions of each rule of the template, as the attribute that the kernel returns.
fn read_expressions(socket: &OwnedFd, table: &str) -> Vec<Vec<u8>> {
    let place = [named(TABLE, table), named(CHAIN, TEMPLATE)].concat();
    send(socket, &message(GET_RULE, DUMP, &place), SendFlags::empty()).unwrap();
    let mut found = Vec::new();
    loop {
        let answer = receive(socket);
        for message in split(&answer, |head| u32::from_ne_bytes(head[..4].try_into().unwrap()) as usize) {
            match u16_at(message, 4) {
                DONE => return found,
                NEW_RULE => {
                    let mut attributes = split(&message[20..], |head| usize::from(u16_at(head, 0)));
                    let expressions =
                        attributes.find(|attribute| u16_at(attribute, 2) & 0x3fff == EXPRESSIONS);
                    found.push(expressions.unwrap().to_vec());
                }
                other => panic!("{other}: {message:?}"),
            }
        }
    }
}

fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 16];
    let (_, length) = recv(socket, &mut buffer[..], RecvFlags::empty()).unwrap();
    buffer.truncate(length);
    buffer
}

fn message(kind: u16, flags: u16, attributes: &[u8]) -> Vec<u8> {
    const IPV4: u8 = 2;
    let subsystem = if matches!(kind, BATCH_BEGIN | BATCH_END) { 10 } else { 0 };
    let mut message = Vec::with_capacity(20 + attributes.len());
    message.extend(u32::try_from(20 + attributes.len()).unwrap().to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]); // sequence and port
    message.extend([IPV4, 0, 0, subsystem]);
    message.extend(attributes);
    message
}

/// An attribute with a string that ends with a zero byte.
fn named(kind: u16, name: &str) -> Vec<u8> {
    let length = u16::try_from(name.len() + 5).unwrap();
    let mut attribute = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    attribute.extend(name.as_bytes());
    attribute.resize(usize::from(length).next_multiple_of(4), 0);
    attribute
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

/// Splits at parts that begin with their length and are padded to a multiple of four bytes, padding included.
fn split(mut bytes: &[u8], length: impl Fn(&[u8]) -> usize) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let next =
            bytes.len().min(if bytes.is_empty() { return None } else { length(bytes).next_multiple_of(4) });
        let (part, rest) = bytes.split_at(next);
        bytes = rest;
        Some(part)
    })
}
