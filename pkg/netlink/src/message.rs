//! Building of requests.

use std::ops::BitOr;

use crate::{ATTRIBUTE_HEADER, Error, MESSAGE_HEADER, align_length};

/// `NLA_F_NESTED`: the payload consists of attributes.
const NESTED: u16 = 0x8000;

/// Flags of a message header (`NLM_F_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageFlags(pub u16);

impl MessageFlags {
    /// No flag, as [`Socket`](crate::Socket) needs for messages to which it adds flags itself.
    pub const NONE: Self = Self(0);
    /// A request to the kernel.
    pub const REQUEST: Self = Self(0x1);
    /// Acknowledge success, too.
    pub const ACK: Self = Self(0x4);
    /// The objects changed during the dump to which this message belongs.
    pub const DUMP_INTERRUPTED: Self = Self(0x10);
    /// List all objects (`NLM_F_ROOT | NLM_F_MATCH`).
    pub const DUMP: Self = Self(0x300);
    /// Replace an existing object.
    pub const REPLACE: Self = Self(0x100);
    /// Refuse if the object exists.
    pub const EXCLUSIVE: Self = Self(0x200);
    /// Create the object if it does not exist.
    pub const CREATE: Self = Self(0x400);
    /// Append to the list.
    pub const APPEND: Self = Self(0x800);
    /// In an acknowledgement: the request is not echoed after its header (`NLM_F_CAPPED`).
    pub const CAPPED: Self = Self(0x100);
    /// In an acknowledgement: attributes with the reason follow (`NLM_F_ACK_TLVS`).
    pub const ACK_ATTRIBUTES: Self = Self(0x200);

    /// Returns whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for MessageFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A request under construction: message header, family header, attributes.
///
/// Numbers are in host byte order unless the method says otherwise (`be`), as the kernel expects them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkRequest {
    bytes: Vec<u8>,
    too_long: bool,
}

impl NetlinkRequest {
    /// Creates a message of type `kind` (`RTM_*`, `NFNL_*`) with the fixed header of its family (`struct rtmsg`, …).
    pub fn new(kind: u16, flags: MessageFlags, family_header: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&[0; 4]); // length, written by `finish`
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.0.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]); // sequence, written by `finish`; port 0: assigned by the kernel
        bytes.extend_from_slice(family_header);
        let mut message = Self { bytes, too_long: false };
        message.pad_to_alignment();
        message
    }

    /// Adds an attribute with these bytes.
    pub fn put_bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.put_attribute(kind, |bytes| bytes.extend_from_slice(value))
    }

    /// Adds a text attribute, with the trailing NUL that the kernel requires.
    pub fn put_str(&mut self, kind: u16, value: &str) -> &mut Self {
        self.put_attribute(kind, |bytes| {
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(0);
        })
    }

    /// Adds an 8-bit attribute.
    pub fn put_u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.put_bytes(kind, &[value])
    }

    /// Adds a 32-bit attribute in host byte order.
    pub fn put_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put_bytes(kind, &value.to_ne_bytes())
    }

    /// Adds a 16-bit attribute in network byte order.
    pub fn put_be16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.put_bytes(kind, &value.to_be_bytes())
    }

    /// Adds a 32-bit attribute in network byte order.
    pub fn put_be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put_bytes(kind, &value.to_be_bytes())
    }

    /// Adds an attribute that contains the attributes which `fill` adds.
    pub fn put_nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.open_attribute(kind | NESTED);
        fill(self);
        self.close_attribute(start);
        self
    }

    /// Adds a fixed header where an attribute contains a complete message of its family, as `VETH_INFO_PEER` does:
    /// before the attributes inside [`NetlinkRequest::put_nested`].
    pub fn family_header(&mut self, header: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(header);
        self.pad_to_alignment();
        self
    }

    /// Returns the bytes to send, with flags added and the sequence number and length written.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] if an attribute is longer than its length field allows.
    pub fn finish(&mut self, sequence: u32, added: MessageFlags) -> Result<&[u8], Error> {
        let length = u32::try_from(self.bytes.len()).map_err(|_| Error::TooLong)?;
        if self.too_long {
            return Err(Error::TooLong);
        }
        let flags = self.flags() | added;
        self.overwrite_at(0, &length.to_ne_bytes());
        self.overwrite_at(6, &flags.0.to_ne_bytes());
        self.overwrite_at(8, &sequence.to_ne_bytes());
        Ok(&self.bytes)
    }

    fn flags(&self) -> MessageFlags {
        match self.bytes.get(6..8) {
            Some(&[low, high]) => MessageFlags(u16::from_ne_bytes([low, high])),
            _ => MessageFlags::NONE,
        }
    }

    fn put_attribute(&mut self, kind: u16, write: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        let start = self.open_attribute(kind);
        write(&mut self.bytes);
        self.close_attribute(start);
        self
    }

    fn open_attribute(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    /// Writes the length of the attribute that begins at `start`, excluding padding, as the format requires.
    fn close_attribute(&mut self, start: usize) {
        debug_assert!(self.bytes.len() >= start + ATTRIBUTE_HEADER);
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => self.overwrite_at(start, &length.to_ne_bytes()),
            Err(_) => self.too_long = true,
        }
        self.pad_to_alignment();
    }

    fn overwrite_at(&mut self, at: usize, value: &[u8]) {
        if let Some(slot) = self.bytes.get_mut(at..at + value.len()) {
            slot.copy_from_slice(value);
        }
    }

    fn pad_to_alignment(&mut self) {
        debug_assert!(self.bytes.len() >= MESSAGE_HEADER);
        self.bytes.resize(align_length(self.bytes.len()), 0);
    }
}
