//! Matches and targets of x_tables, in the layout of the kernel's structures (`include/uapi/linux/netfilter/xt_*.h`).
//!
//! Numbers are in host byte order unless a comment says otherwise. A structure is padded with zeros to a multiple of
//! eight bytes (`XT_ALIGN`); the kernel may omit pointers of its own at the end.

mod layout;
mod matches;
mod targets;

use std::io;

use model::Family;
use rules::{Match, Target, TransportProtocol};

use crate::sets::KernelSets;

pub(crate) use matches::{decode_match, encode_match, state_mask};
pub(crate) use targets::{decode_target, encode_target};

/// Decoder of matches and targets of legacy tables, in the calling thread's network namespace.
#[derive(Debug, Default)]
pub struct XtablesDecoder(KernelSets);

impl XtablesDecoder {
    /// Checks that the kernel could be queried for all sets to which the matches so far refer.
    ///
    /// # Errors
    /// The first failure since the last call.
    pub fn check_queries(&mut self) -> io::Result<()> {
        self.0.check_queries().map_err(io::Error::other)
    }

    /// Returns a match in terms of the model; `None` if the model cannot express it. `proto`: the protocol in its
    /// rule's conditions.
    pub fn decode_match(
        &mut self,
        name: &str,
        revision: u8,
        info: &[u8],
        proto: Option<TransportProtocol>,
    ) -> Option<Match> {
        decode_match(name, revision.into(), info, proto, &mut self.0)
    }

    /// Returns a target, other than a verdict or a jump; `None` if the model cannot express it.
    pub fn decode_target(&self, name: &str, revision: u8, info: &[u8], family: Family) -> Option<Target> {
        decode_target(name, revision.into(), info, family)
    }
}

/// A match or target: its name, its revision, and its structure.
pub(crate) type XtInfo = (&'static str, u32, Vec<u8>);
