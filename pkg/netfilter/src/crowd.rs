//! How much is read of a namespace whose rules are not ours: a pod with CAP_NET_ADMIN may have made hundreds of thousands.

use std::time::Duration;

use netlink::{ListBounds, MessageFlags, NetlinkProtocol, NetlinkRequest, Socket};
use nftables::uapi::{CHAIN_USE, GET_CHAIN, NFPROTO};

use crate::{Error, presence::has_no_nf_tables};

/// Limits on what reading and changing rules may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleLimits {
    /// With more rules than these, in all chains of the families that iptables uses, no tool is asked to print them.
    pub rules: u64,
    /// How much a tool may print, in bytes.
    pub output: u64,
    /// How much memory it may map, in bytes.
    pub memory: u64,
    /// How long a look may take.
    pub look: Duration,
    /// And a change, in which the tool may have to wait for a lock.
    pub change: Duration,
}

impl RuleLimits {
    /// For a pod's namespace. The busiest pods have some thousand rules, of which a tool prints some 100 bytes each, 10,000
    /// in a tenth of a second.
    pub const POD: RuleLimits = RuleLimits {
        rules: 10_000,
        output: 16 << 20,
        memory: 512 << 20,
        look: Duration::from_secs(5),
        change: Duration::from_secs(10),
    };

    /// Whether nf_tables holds more than is to be read here.
    pub(crate) fn are_exceeded(&self) -> Result<bool, Error> {
        match rules() {
            Ok(number) => Ok(number > self.rules),
            Err(netlink::Error::Bounds(_)) => Ok(true),
            // Whoever changes rules all the time does not keep us from asking chain by chain.
            Err(netlink::Error::Interrupted(_)) => Ok(true),
            Err(error) if has_no_nf_tables(&error) => Ok(false),
            Err(source) => Err(Error::Presence(source)),
        }
    }
}

fn rules() -> Result<u64, netlink::Error> {
    let mut number = 0;
    for (_, family) in NFPROTO {
        // struct nfgenmsg: family, version 0, resource 0
        let question = NetlinkRequest::new(GET_CHAIN, MessageFlags::NONE, &[family, 0, 0, 0]);
        let chains = Socket::open(NetlinkProtocol::Netfilter)?.bounded(ListBounds::POD).dump(&question)?;
        for chain in chains.iter() {
            let (_, attributes) = chain.header::<4>()?;
            let users = attributes.find(CHAIN_USE).map(|found| found.be32()).transpose()?;
            number += 1 + u64::from(users.unwrap_or_default());
        }
    }
    Ok(number)
}
