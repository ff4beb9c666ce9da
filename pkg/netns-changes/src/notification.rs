//! Meaning of the kernel's notifications. Only computes, and accepts any bytes.

use netlink::{Attributes, Malformed, MessageIter, ReceivedMessage};
use netns::THREAD_NAME;

use crate::change::{Change, ChangeKinds, Writer};
use crate::watcher::WatchId;

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_NEWGEN`: ends every transaction of nf_tables.
pub(crate) const NEW_GENERATION: u16 = 0x0a0f;
/// Size of `struct nfgenmsg`.
const NETFILTER_HEADER: usize = 4;
/// `NFTA_GEN_ID`, `NFTA_GEN_PROC_PID`, `NFTA_GEN_PROC_NAME`.
const GENERATION: u16 = 1;
const PROCESS_ID: u16 = 2;
const PROCESS_NAME: u16 = 3;
/// `TASK_COMM_LEN` without the trailing NUL.
const MAX_PROCESS_NAME: usize = 15;

/// Size of `struct rtmsg`.
const ROUTE_HEADER: usize = 12;
/// `RTM_F_CLONED`: a cache entry, which the kernel derived from a route.
const CLONED: u32 = 0x200;

/// Summary of the notifications about one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) kinds: ChangeKinds,
    pub(crate) generation: Option<u32>,
    pub(crate) writer: Option<Writer>,
}

impl Observed {
    /// Adds the messages of one datagram, of either socket.
    pub(crate) fn add_messages(&mut self, datagram: MessageIter<'_>) {
        for message in datagram {
            if message.and_then(|message| self.add_message(&message)).is_err() {
                self.add_loss();
            }
        }
    }

    /// Records that notifications are missing.
    pub(crate) fn add_loss(&mut self) {
        self.kinds = self.kinds | ChangeKinds::LOST;
    }

    /// Returns the change that a watch reports with `key`; `None` if nothing changed.
    pub(crate) fn into_change<K>(self, key: K, watch: WatchId) -> Option<Change<K>> {
        let Self { kinds, generation, writer } = self;
        (!kinds.is_empty()).then_some(Change { key, watch, kinds, generation, writer })
    }

    fn add_message(&mut self, message: &ReceivedMessage<'_>) -> Result<(), Malformed> {
        let kind = match message.kind {
            NEW_GENERATION => {
                let (_, attributes) = message.split_header::<NETFILTER_HEADER>()?;
                self.generation =
                    attributes.find(GENERATION).and_then(|attribute| attribute.read_be32().ok());
                self.writer = later_writer(self.writer.take(), read_writer(&attributes));
                ChangeKinds::FIREWALL
            }
            16 | 17 => ChangeKinds::LINKS, // RTM_NEWLINK, RTM_DELLINK
            20 | 21 => ChangeKinds::ADDRESSES,
            24 | 25 if is_cache_entry(message)? => ChangeKinds::default(),
            24 | 25 => ChangeKinds::ROUTES,
            32 | 33 => ChangeKinds::POLICY_RULES,
            _ => ChangeKinds::default(),
        };
        self.kinds = self.kinds | kind;
        Ok(())
    }
}

/// Returns the later one of two writers, except that a thread of ours does not replace another process, which is the cause of what
/// we changed then. A process can have the name of our threads: alone, it is named as any other.
pub(crate) fn later_writer(earlier: Option<Writer>, later: Option<Writer>) -> Option<Writer> {
    match later {
        Some(later) if later.name != THREAD_NAME || earlier.is_none() => Some(later),
        _ => earlier,
    }
}

fn read_writer(attributes: &Attributes<'_>) -> Option<Writer> {
    let pid = attributes.find(PROCESS_ID)?.read_be32().ok()?;
    let name = attributes.find(PROCESS_NAME).map(|name| name.payload).unwrap_or_default();
    let name = name.iter().take_while(|byte| **byte != 0).take(MAX_PROCESS_NAME);
    let printable = name.map(|byte| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    });
    Some(Writer { pid, name: printable.collect() })
}

fn is_cache_entry(message: &ReceivedMessage<'_>) -> Result<bool, Malformed> {
    let (&[.., f0, f1, f2, f3], _) = message.split_header::<ROUTE_HEADER>()?;
    Ok(u32::from_ne_bytes([f0, f1, f2, f3]) & CLONED != 0)
}

#[cfg(test)]
mod tests;
