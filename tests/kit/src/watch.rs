//! Counts the packets on a link, with nftables in a namespace where nothing else uses them.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::ops::{Add, Sub};

use serde_json::Value;

use crate::netns::Netns;
use crate::node::Node;

/// TCP packets on a link with a given address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// From the address, sent by a [`Ztunnel`](crate::Ztunnel) (which marks its packets with DSCP CS1).
    pub relayed: u64,
    /// From the address, not sent by a ztunnel; without resets.
    pub direct: u64,
    /// Resets from the address, not sent by a socket of a ztunnel: a kernel without a matching connection sends them from any
    /// address.
    pub resets: u64,
    /// To the address.
    pub received: u64,
}

/// Counters on a link. Drop removes them.
#[derive(Debug)]
pub struct UplinkWatch<'a> {
    netns: &'a Netns,
    addresses: Vec<IpAddr>,
}

const KINDS: usize = 4;

impl<'a> UplinkWatch<'a> {
    /// Counts on a node's uplink for these addresses, at its far end.
    #[must_use]
    pub fn start(node: &'a Node, addresses: &[IpAddr]) -> Self {
        Self::on(node.outside(), "eth0", addresses)
    }

    /// Counts on a link of a namespace, such as a pod's own `eth0`, at this end. A namespace has at most one watch.
    #[must_use]
    pub fn on(netns: &'a Netns, link: &str, addresses: &[IpAddr]) -> Self {
        netns.pipe("nft -f -", &table(link, addresses));
        Self { netns, addresses: addresses.to_vec() }
    }

    /// Counts of one of the addresses.
    ///
    /// # Panics
    /// If it is not counted.
    #[must_use]
    pub fn counts(&self, address: IpAddr) -> Counts {
        let index = self.addresses.iter().position(|one| *one == address);
        self.read(&[index.unwrap_or_else(|| panic!("{address} is not watched"))])
    }

    /// Sum of the counts of all addresses.
    #[must_use]
    pub fn total(&self) -> Counts {
        self.read(&(0..self.addresses.len()).collect::<Vec<_>>())
    }

    fn read(&self, indices: &[usize]) -> Counts {
        let text = self.netns.sh("nft --json list counters table inet kit_watch");
        let listing: Value = serde_json::from_str(&text).expect("nft writes JSON");
        let objects = listing["nftables"].as_array().into_iter().flatten();
        let mut packets = vec![[0; KINDS]; self.addresses.len()];
        for counter in objects.map(|object| &object["counter"]).filter(|counter| !counter.is_null()) {
            let name = counter["name"].as_str().expect("a counter has a name");
            let (index, kind) = name[1..].split_once('_').expect("a name of ours");
            let (index, kind): (usize, usize) = (index.parse().unwrap(), kind.parse().unwrap());
            packets[index][kind] = counter["packets"].as_u64().expect("a number");
        }
        let counts =
            |[relayed, direct, resets, received]: [u64; KINDS]| Counts { relayed, direct, resets, received };
        indices.iter().map(|index| counts(packets[*index])).fold(Counts::default(), Add::add)
    }
}

impl Drop for UplinkWatch<'_> {
    fn drop(&mut self) {
        let _ = self.netns.output(std::process::Command::new("nft").args([
            "delete",
            "table",
            "inet",
            "kit_watch",
        ]));
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            relayed: self.relayed + other.relayed,
            direct: self.direct + other.direct,
            resets: self.resets + other.resets,
            received: self.received + other.received,
        }
    }
}

/// Counts since `earlier`.
impl Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            relayed: self.relayed - earlier.relayed,
            direct: self.direct - earlier.direct,
            resets: self.resets - earlier.resets,
            received: self.received - earlier.received,
        }
    }
}

/// Counters `a<index>_<kind>`, kinds in the order of [`Counts`], and the rules that fill them.
fn table(link: &str, addresses: &[IpAddr]) -> String {
    let (mut counters, mut rules) = (String::new(), String::new());
    for (index, address) in addresses.iter().enumerate() {
        let ip = if address.is_ipv6() { "ip6" } else { "ip" };
        let from = format!("{ip} saddr {address}");
        let matches = [
            format!("{from} {ip} dscp cs1"),
            format!("{from} {ip} dscp != cs1 tcp flags & rst == 0"),
            format!("{from} {ip} dscp != cs1 tcp flags & rst == rst"),
            format!("{ip} daddr {address}"),
        ];
        for (kind, matched) in matches.iter().enumerate() {
            writeln!(counters, "counter a{index}_{kind} {{ }}").unwrap();
            writeln!(rules, "{matched} counter name a{index}_{kind}").unwrap();
        }
    }
    format!(
        "table inet kit_watch {{\n{counters}\
         chain count {{\n{rules}}}\n\
         chain enters {{ type filter hook prerouting priority -500; meta l4proto tcp iifname {link} jump count; }}\n\
         chain leaves {{ type filter hook postrouting priority 500; meta l4proto tcp oifname {link} jump count; }}\n\
         }}\n"
    )
}
