//! The numbers of sets (ipset): the kernel's rules name a set by its number, and people by its name.

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

/// The sets of the calling thread's network namespace, each asked for once: rules name one or two.
#[derive(Debug, Default)]
pub(crate) struct KernelSets(Vec<(String, u16)>);

impl SetNumbers for KernelSets {
    fn number(&mut self, name: &str) -> Option<u16> {
        if let Some((_, number)) = self.0.iter().find(|(known, _)| known == name) {
            return Some(*number);
        }
        let mut question = question(GET_BY_NAME);
        question.str(NAME, name);
        let number = answer(question, |attributes| attributes.find(NUMBER)?.be16().ok())?;
        self.0.push((name.to_owned(), number));
        Some(number)
    }

    fn name(&mut self, number: u16) -> Option<String> {
        if let Some((name, _)) = self.0.iter().find(|(_, known)| *known == number) {
            return Some(name.clone());
        }
        let mut question = question(GET_BY_NUMBER);
        question.be16(NUMBER, number);
        let name = answer(question, |attributes| Some(attributes.find(NAME)?.str().ok()?.to_owned()))?;
        self.0.push((name.clone(), number));
        Some(name)
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
