//! Indexes of sets: firewall rules in the kernel refer to a set by its index, and people by its name. Queried by a socket
//! option, as by the firewall tools: netlink has requests for them only since Linux 4.20.

use netlink::{Errno, Error, OptionSocket};

use crate::SetName;

/// `SO_IP_SET`, and its operations `IP_SET_OP_GET_BYNAME` and `IP_SET_OP_GET_BYINDEX`.
const OPTION: i32 = 83;
const INDEX_OF_NAME: u32 = 6;
const NAME_OF_INDEX: u32 = 7;
/// Version of the protocol that every kernel accepts here.
const VERSION: u32 = 6;
/// `IPSET_INVALID_ID`.
const NO_INDEX: u16 = u16::MAX;
/// Length of a name with its trailing NUL (`IPSET_MAXNAMELEN`).
const NAME: usize = SetName::MAX_LEN + 1;
/// `ENOPROTOOPT`: the kernel has no sets, or the module is not loaded.
const NO_OPTION: i32 = 92;

/// Returns the index of a set of the calling thread's netns; `None`: the set does not exist.
///
/// # Errors
/// The kernel could not be queried.
pub fn set_number(set: &str) -> Result<Option<u16>, Error> {
    if set.len() >= NAME {
        return Ok(None);
    }
    let index =
        query_set(INDEX_OF_NAME, set.as_bytes())?.map(|[low, high, ..]| u16::from_ne_bytes([low, high]));
    Ok(index.filter(|index| *index != NO_INDEX))
}

/// Returns the name of the set with this index in the calling thread's netns; `None`: the set does not exist.
///
/// # Errors
/// The kernel could not be queried.
pub fn set_name(number: u16) -> Result<Option<String>, Error> {
    let Some(reply) = query_set(NAME_OF_INDEX, &number.to_ne_bytes())? else { return Ok(None) };
    let name = reply.split(|byte| *byte == 0).next().filter(|name| !name.is_empty());
    Ok(name.and_then(|name| std::str::from_utf8(name).ok()).map(str::to_owned))
}

/// Returns the index or the name for the other one (`struct ip_set_req_get_set`); `None`: there can be no such set.
fn query_set(operation: u32, set: &[u8]) -> Result<Option<[u8; NAME]>, Error> {
    let mut value = [operation, VERSION].map(u32::to_ne_bytes).concat();
    let header = value.len();
    value.extend_from_slice(set);
    value.resize(header + NAME, 0);
    match OptionSocket::open(false).and_then(|socket| socket.read_option(OPTION, &mut value)) {
        Ok(()) => Ok(value.get(header..).and_then(<[u8]>::first_chunk).copied()),
        Err(error) if [i32::from(Errno::INVAL.0), NO_OPTION].map(Some).contains(&error.raw_os_error()) => {
            Ok(None)
        }
        Err(source) => Err(Error::Io { step: "query a set by its name or index", source }),
    }
}
