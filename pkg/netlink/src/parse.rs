//! Parsing of replies. Every length is checked; nothing here can panic.

use crate::{ATTRIBUTE_HEADER, MESSAGE_HEADER, Malformed, MessageFlags, align_length};

/// `NLA_TYPE_MASK`: an attribute's type without the flags "nested" and "network byte order".
const KIND_MASK: u16 = 0x3fff;

/// The messages of a datagram. Ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct MessageIter<'a> {
    rest: &'a [u8],
}

impl<'a> MessageIter<'a> {
    /// Creates an iterator over a datagram as the kernel sent it.
    pub const fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for MessageIter<'a> {
    type Item = Result<ReceivedMessage<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = ReceivedMessage::parse_first(self.rest);
        self.rest = match &message {
            Ok(found) => {
                self.rest.get(align_length(MESSAGE_HEADER + found.payload.len())..).unwrap_or_default()
            }
            Err(_) => &[],
        };
        Some(message)
    }
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage<'a> {
    /// Type of the message (`RTM_*`, `NLMSG_*`).
    pub kind: u16,
    /// Flags of the header.
    pub flags: MessageFlags,
    /// Sequence number of the request that it replies to.
    pub sequence: u32,
    /// Bytes after the message header: the family's header and the attributes.
    pub payload: &'a [u8],
}

impl<'a> ReceivedMessage<'a> {
    /// Splits the payload into the family's fixed header of `N` bytes and the attributes after it.
    ///
    /// # Errors
    ///
    /// If the payload is shorter than `N`.
    pub fn split_header<const N: usize>(&self) -> Result<(&'a [u8; N], Attributes<'a>), Malformed> {
        let (header, _) =
            self.payload.split_first_chunk::<N>().ok_or(Malformed("message without its family's header"))?;
        let attributes = self.payload.get(align_length(N)..).unwrap_or_default();
        Ok((header, Attributes::new(attributes)))
    }

    /// Like [`Self::split_header`], for messages of one kind; `None`: another kind.
    ///
    /// # Errors
    ///
    /// If the payload of such a message is shorter than `N`.
    pub fn split_kind<const N: usize>(
        &self,
        kind: u16,
    ) -> Result<Option<(&'a [u8; N], Attributes<'a>)>, Malformed> {
        if self.kind == kind { self.split_header().map(Some) } else { Ok(None) }
    }

    fn parse_first(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, _) =
            bytes.split_first_chunk::<MESSAGE_HEADER>().ok_or(Malformed("message header cut short"))?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]);
        let payload = usize::try_from(length)
            .ok()
            .and_then(|length| bytes.get(MESSAGE_HEADER..length))
            .ok_or(Malformed("length of a message beyond its datagram"))?;
        Ok(Self {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: MessageFlags(u16::from_ne_bytes([f0, f1])),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
        })
    }
}

/// The attributes of a message or of a nested attribute. Ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Creates an iterator over bytes as a list of attributes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the first attribute of this type, if there is one before any malformed attribute.
    pub fn find(&self, kind: u16) -> Option<Attribute<'a>> {
        self.clone().map_while(Result::ok).find(|attribute| attribute.kind == kind)
    }

    /// Returns the attributes inside the first attribute of this type; none if there is no such attribute.
    pub fn find_nested(&self, kind: u16) -> Attributes<'a> {
        self.find(kind).map_or(Attributes::new(&[]), |found| found.nested_attributes())
    }

    /// Returns the name in the first attribute of this type (see [`Attribute::read_name`]); empty if there is none.
    pub fn find_name(&self, kind: u16) -> &'a str {
        self.find(kind).map(|found| found.read_name()).unwrap_or_default()
    }

    /// Returns the 32-bit value, in network byte order, of the first attribute of this type, if there is one.
    ///
    /// # Errors
    ///
    /// If the value has another size.
    pub fn find_be32(&self, kind: u16) -> Result<Option<u32>, Malformed> {
        self.find(kind).map(|found| found.read_be32()).transpose()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let attribute = Attribute::parse_first(self.rest);
        self.rest = match &attribute {
            Ok(found) => {
                self.rest.get(align_length(ATTRIBUTE_HEADER + found.payload.len())..).unwrap_or_default()
            }
            Err(_) => &[],
        };
        Some(attribute)
    }
}

/// One attribute: a type and its value as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Type of the attribute, without the flags in the two highest bits.
    pub kind: u16,
    /// Bytes of the value.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Returns an 8-bit value.
    ///
    /// # Errors
    ///
    /// This and the other number getters fail if the value has another size.
    pub fn read_u8(&self) -> Result<u8, Malformed> {
        self.read_array().map(u8::from_ne_bytes)
    }

    /// Returns a 32-bit value in host byte order.
    ///
    /// # Errors
    ///
    /// If the value has another size.
    pub fn read_u32(&self) -> Result<u32, Malformed> {
        self.read_array().map(u32::from_ne_bytes)
    }

    /// Returns a 16-bit value in network byte order.
    ///
    /// # Errors
    ///
    /// If the value has another size.
    pub fn read_be16(&self) -> Result<u16, Malformed> {
        self.read_array().map(u16::from_be_bytes)
    }

    /// Returns a 32-bit value in network byte order.
    ///
    /// # Errors
    ///
    /// If the value has another size.
    pub fn read_be32(&self) -> Result<u32, Malformed> {
        self.read_array().map(u32::from_be_bytes)
    }

    /// Returns a value of exactly `N` bytes.
    ///
    /// # Errors
    ///
    /// If the value has another size.
    pub fn read_array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.payload.try_into().map_err(|_| Malformed("attribute of an unexpected size"))
    }

    /// Returns a text, without its trailing NUL.
    ///
    /// # Errors
    ///
    /// The text is not UTF-8.
    pub fn read_str(&self) -> Result<&'a str, Malformed> {
        let text = self.payload.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text).map_err(|_| Malformed("text that is not UTF-8"))
    }

    /// Returns a name that a process chose. The kernel accepts any bytes; a name that is not UTF-8 counts as empty, as
    /// none of ours is.
    pub fn read_name(&self) -> &'a str {
        self.read_str().unwrap_or_default()
    }

    /// Returns the nested attributes.
    pub const fn nested_attributes(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }

    fn parse_first(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (&[l0, l1, k0, k1], _) =
            bytes.split_first_chunk::<ATTRIBUTE_HEADER>().ok_or(Malformed("attribute header cut short"))?;
        let payload = bytes
            .get(ATTRIBUTE_HEADER..usize::from(u16::from_ne_bytes([l0, l1])))
            .ok_or(Malformed("length of an attribute beyond its message"))?;
        Ok(Self { kind: u16::from_ne_bytes([k0, k1]) & KIND_MASK, payload })
    }
}

#[cfg(test)]
mod tests;
