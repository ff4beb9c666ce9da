//! DNS messages (RFC 1035, section 4): a query with one question, and the addresses in the response.

use std::net::IpAddr;

/// Type of the queried records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordType {
    /// IPv4 addresses (RFC 1035, section 3.4.1).
    A = 1,
    /// IPv6 addresses (RFC 3596, section 2.1).
    Aaaa = 28,
}

const CNAME: u16 = 5;
const CLASS_IN: u16 = 1;
/// NXDOMAIN: the name does not exist.
const NO_SUCH_NAME: u8 = 3;
/// Maximum length of a chain of aliases; a longer one is a loop.
const MAX_ALIASES: usize = 8;

/// Response of a DNS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DnsAnswer {
    /// Addresses; empty if the name or its addresses of this type do not exist.
    Addresses(Vec<IpAddr>),
    /// An RCODE other than 0 and 3.
    Failed(u8),
    /// The response does not fit into a datagram. No retry over TCP is made.
    Truncated,
}

/// Returns a recursive query; `None` for a name that does not fit.
pub(crate) fn encode_query(id: u16, name: &str, kind: RecordType) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(name.len() + 18);
    message.extend(id.to_be_bytes());
    // Flags: recursion desired. One question.
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    if name.len() > 253 {
        return None;
    }
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        message.push(length);
        message.extend(label.bytes());
    }
    message.push(0);
    message.extend((kind as u16).to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    Some(message)
}

/// Parses a response to that query; `None` if it is not one, or is malformed. Of a truncated response its content is used.
pub(crate) fn parse_answer(message: &[u8], id: u16, name: &str, kind: RecordType) -> Option<DnsAnswer> {
    let mut reader = DnsReader { message, at: 0 };
    let (given, flags) = (reader.read_u16()?, reader.read_u16()?);
    let (questions, answers) = (reader.read_u16()?, reader.read_u16()?);
    reader.skip(4)?;
    // The first bit marks a response.
    if given != id || flags & 0x8000 == 0 || questions != 1 {
        return None;
    }
    let asked = (reader.read_name()?, reader.read_u16()?, reader.read_u16()?);
    if !asked.0.eq_ignore_ascii_case(name) || asked.1 != kind as u16 || asked.2 != CLASS_IN {
        return None;
    }
    match flags.to_be_bytes()[1] & 0xf {
        0 => {}
        NO_SUCH_NAME => return Some(DnsAnswer::Addresses(Vec::new())),
        code => return Some(DnsAnswer::Failed(code)),
    }
    let records: Vec<DnsRecord> = (0..answers).map_while(|_| reader.read_record()).collect();
    let addresses = follow_aliases(&records, name);
    // Truncated without usable content (the TC bit): different from having no address.
    let cut = flags & 0x0200 != 0 && addresses.is_empty();
    Some(if cut { DnsAnswer::Truncated } else { DnsAnswer::Addresses(addresses) })
}

/// Returns the addresses of the name or of the target of its aliases.
fn follow_aliases(records: &[DnsRecord], name: &str) -> Vec<IpAddr> {
    let mut owner = name;
    for _ in 0..MAX_ALIASES {
        let own = || records.iter().filter(|record| record.owner.eq_ignore_ascii_case(owner));
        let addresses: Vec<IpAddr> = own().filter_map(|record| record.address).collect();
        if !addresses.is_empty() {
            return addresses;
        }
        let Some(alias) = own().find_map(|record| record.alias.as_deref()) else { break };
        owner = alias;
    }
    Vec::new()
}

/// A record: an address or an alias, or neither if it is of another type.
struct DnsRecord {
    owner: String,
    address: Option<IpAddr>,
    alias: Option<String>,
}

/// Position in a message.
#[derive(Clone, Copy)]
struct DnsReader<'m> {
    message: &'m [u8],
    at: usize,
}

impl<'m> DnsReader<'m> {
    fn take_bytes(&mut self, length: usize) -> Option<&'m [u8]> {
        let bytes = self.message.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes)
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.take_bytes(length).map(|_| ())
    }

    fn read_byte(&mut self) -> Option<u8> {
        self.take_bytes(1)?.first().copied()
    }

    fn read_u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take_bytes(2)?.try_into().ok()?))
    }

    /// Reads a name as text. A pointer refers to an earlier position only (RFC 1035, section 4.1.4), so there is no loop.
    fn read_name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut place = *self;
        let mut jumped = false;
        loop {
            let start = place.at;
            let length = place.read_byte()?;
            match length {
                0 => break,
                1..=63 => {
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.extend(place.take_bytes(usize::from(length))?.iter().map(|byte| char::from(*byte)));
                }
                0xc0.. => {
                    let target = usize::from(u16::from_be_bytes([length & 0x3f, place.read_byte()?]));
                    if !jumped {
                        self.at = place.at;
                        jumped = true;
                    }
                    if target >= start {
                        return None;
                    }
                    place.at = target;
                }
                _ => return None,
            }
            if name.len() > 510 {
                return None;
            }
        }
        if !jumped {
            self.at = place.at;
        }
        Some(name)
    }

    fn read_record(&mut self) -> Option<DnsRecord> {
        let owner = self.read_name()?;
        let (kind, class) = (self.read_u16()?, self.read_u16()?);
        // Time to live: a process queries only once.
        self.skip(4)?;
        let length = usize::from(self.read_u16()?);
        let mut inside = *self;
        let bytes = self.take_bytes(length)?;
        let mut record = DnsRecord { owner, address: None, alias: None };
        match (class, kind) {
            (CLASS_IN, CNAME) => record.alias = Some(inside.read_name()?),
            (CLASS_IN, 1) => record.address = Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
            (CLASS_IN, 28) => record.address = Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
            _ => {}
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An answer to `query(7, "api.x", A)`: an alias to `b.x`, and its address; names compressed.
    fn answer() -> Vec<u8> {
        let mut message = encode_query(7, "api.x", RecordType::A).unwrap();
        message[2] = 0x81;
        message[3] = 0x80;
        message[7] = 2;
        // `x` is at offset 16, the name of the query at 12.
        message.extend(b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01b\xc0\x10");
        // `b.x` is at offset 35.
        message.extend(b"\xc0\x23\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\x00\x00\x07");
        message
    }

    #[test]
    fn an_alias_is_followed() {
        let found = parse_answer(&answer(), 7, "API.x", RecordType::A);
        assert_eq!(found, Some(DnsAnswer::Addresses(vec!["10.0.0.7".parse().unwrap()])));
    }

    #[test]
    fn answers_to_other_questions_do_not_count() {
        for (id, name, kind) in
            [(8, "api.x", RecordType::A), (7, "api.y", RecordType::A), (7, "api.x", RecordType::Aaaa)]
        {
            assert_eq!(parse_answer(&answer(), id, name, kind), None);
        }
        assert_eq!(
            parse_answer(&encode_query(7, "api.x", RecordType::A).unwrap(), 7, "api.x", RecordType::A),
            None
        );
    }

    #[test]
    fn codes_are_told_apart() {
        let mut message = answer();
        message[3] = 0x83;
        assert_eq!(parse_answer(&message, 7, "api.x", RecordType::A), Some(DnsAnswer::Addresses(Vec::new())));
        message[3] = 0x82;
        assert_eq!(parse_answer(&message, 7, "api.x", RecordType::A), Some(DnsAnswer::Failed(2)));
    }

    #[test]
    fn a_cut_answer_counts_only_with_an_address_in_it() {
        let mut message = answer();
        message[2] |= 0x02;
        assert!(matches!(parse_answer(&message, 7, "api.x", RecordType::A), Some(DnsAnswer::Addresses(_))));
        assert_eq!(parse_answer(&message[..40], 7, "api.x", RecordType::A), Some(DnsAnswer::Truncated));
    }

    #[test]
    fn a_pointer_to_itself_ends() {
        let mut message = answer();
        message[23] = 0xc0;
        message[24] = 23;
        assert_eq!(parse_answer(&message, 7, "api.x", RecordType::A), Some(DnsAnswer::Addresses(Vec::new())));
    }

    #[test]
    fn names_that_do_not_fit_are_not_asked_for() {
        for name in ["", "a..b", &"a".repeat(64), &"a.".repeat(127)] {
            assert_eq!(encode_query(1, name, RecordType::A), None);
        }
    }

    proptest! {
        #[test]
        fn bytes_never_panic(bytes: Vec<u8>) {
            let _ = parse_answer(&bytes, 0, "a", RecordType::A);
        }

        #[test]
        fn changed_answers_never_panic(changes in proptest::collection::vec((0usize..55, any::<u8>()), 1..6), length in 0usize..=55) {
            let mut message = answer();
            for (at, byte) in changes {
                message[at] = byte;
            }
            let _ = parse_answer(&message[..length.min(message.len())], 7, "api.x", RecordType::A);
        }
    }
}
