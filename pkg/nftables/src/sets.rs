//! The numbers of sets (ipset): the kernel's rules name a set by its number, and people by its name.

use std::collections::BTreeMap;

use netlink::{MessageFlags, NetlinkProtocol, NetlinkRequest, Socket};

/// `NFNL_SUBSYS_IPSET`; `IPSET_CMD_GET_BYNAME` and `IPSET_CMD_GET_BYINDEX`, since Linux 4.20, of protocol 7
/// (kernel: `include/uapi/linux/netfilter/ipset/ip_set.h`).
const SUBSYSTEM: u16 = 6 << 8;
const GET_BY_NAME: u16 = SUBSYSTEM | 14;
const GET_BY_NUMBER: u16 = SUBSYSTEM | 15;
const PROTOCOL_7: u8 = 7;
/// `IPSET_ATTR_*`.
const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const NUMBER: u16 = 11;

/// What rules need to know of sets.
pub(crate) trait SetNumbers {
    /// The number of a set; none if there is no such set, or the kernel does not say.
    fn number(&mut self, name: &str) -> Option<u16>;

    /// The name of a set.
    fn name(&mut self, number: u16) -> Option<String>;
}

/// The sets of the calling thread's network namespace, each asked for once.
#[derive(Debug, Default)]
pub(crate) struct KernelSets {
    numbers: BTreeMap<String, Option<u16>>,
    names: BTreeMap<u16, Option<String>>,
}

impl SetNumbers for KernelSets {
    fn number(&mut self, name: &str) -> Option<u16> {
        let ask = || {
            let mut question = question(GET_BY_NAME);
            question.str(NAME, name);
            answer(question, |attributes| attributes.find(NUMBER)?.be16().ok())
        };
        *self.numbers.entry(name.to_owned()).or_insert_with(ask)
    }

    fn name(&mut self, number: u16) -> Option<String> {
        let ask = || {
            let mut question = question(GET_BY_NUMBER);
            question.be16(NUMBER, number);
            answer(question, |attributes| Some(attributes.find(NAME)?.str().ok()?.to_owned()))
        };
        self.names.entry(number).or_insert_with(ask).clone()
    }
}

fn question(kind: u16) -> NetlinkRequest {
    let mut question = NetlinkRequest::new(kind, MessageFlags::NONE, &[0; 4]); // struct nfgenmsg of no family
    question.u8(PROTOCOL, PROTOCOL_7);
    question
}

fn answer<T>(question: NetlinkRequest, read: impl Fn(&netlink::Attributes<'_>) -> Option<T>) -> Option<T> {
    let replies = Socket::open(NetlinkProtocol::Netfilter).ok()?.get(question).ok()?;
    replies.iter().find_map(|reply| {
        let (_, attributes) = reply.header::<4>().ok()?;
        read(&attributes)
    })
}
