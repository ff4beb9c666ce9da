//! Indexes of sets: firewall rules in the kernel refer to a set by its index, and people by its name.

use netlink::{Attributes, NetlinkProtocol, NetlinkRequest, Socket};

use crate::message::{RequestBuilder, attr};

/// The protocol version that has these requests.
const REQUESTS: RequestBuilder = RequestBuilder { protocol: 7 };

/// Returns the index of a set of the calling thread's netns; `None`: the set does not exist, or the kernel does not
/// report it (before Linux 4.20, or without ipset).
///
/// # Errors
/// The kernel could not be queried.
pub fn set_number(set: &str) -> Result<Option<u16>, netlink::Error> {
    ask_kernel(REQUESTS.set_index(set), |attributes| attributes.find(attr::NUMBER)?.read_be16().ok())
}

/// Returns the name of the set with this index in the calling thread's netns; `None` as for [`set_number`].
///
/// # Errors
/// The kernel could not be queried.
pub fn set_name(number: u16) -> Result<Option<String>, netlink::Error> {
    let read =
        |attributes: &Attributes<'_>| Some(attributes.find(attr::SETNAME)?.read_str().ok()?.to_owned());
    ask_kernel(REQUESTS.set_by_index(number), read)
}

fn ask_kernel<T>(
    question: NetlinkRequest,
    read: impl Fn(&Attributes<'_>) -> Option<T>,
) -> Result<Option<T>, netlink::Error> {
    let replies = match Socket::open(NetlinkProtocol::Netfilter)?.get(question) {
        Err(refused) if refused.errno().is_some() => return Ok(None),
        replies => replies?,
    };
    Ok(replies.iter().find_map(|reply| {
        let (_, attributes) = reply.split_header::<4>().ok()?; // struct nfgenmsg
        read(&attributes)
    }))
}
