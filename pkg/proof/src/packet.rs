//! The packets: a SYN, or a datagram without content, whose checksum is wrong.

use std::net::{IpAddr, SocketAddr};

use rules::TransportProtocol;

const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
/// Length of a header without options, in 32-bit words, in the upper four bits.
const TCP_WORDS: u8 = 5 << 4;
const SYN: u8 = 0x02;
const WINDOW: u16 = 64240;
/// Where the checksum is.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;

/// Returns the transport header of a packet, to which the kernel adds that of IP.
pub(crate) fn header(protocol: TransportProtocol, source: SocketAddr, dest: SocketAddr) -> Vec<u8> {
    let ports = [source.port(), dest.port()].into_iter().flat_map(u16::to_be_bytes);
    let mut bytes: Vec<u8> = ports.collect();
    let (number, checksum) = match protocol {
        TransportProtocol::Tcp => {
            bytes.extend([0; 8]); // sequence and acknowledgement number
            bytes.extend([TCP_WORDS, SYN]);
            bytes.extend(WINDOW.to_be_bytes());
            (IPPROTO_TCP, TCP_CHECKSUM)
        }
        TransportProtocol::Udp => {
            bytes.extend(8_u16.to_be_bytes());
            (IPPROTO_UDP, UDP_CHECKSUM)
        }
    };
    bytes.resize(if number == IPPROTO_TCP { 20 } else { 8 }, 0);
    let wrong = wrong(checksum_of(number, source.ip(), dest.ip(), &bytes));
    bytes.iter_mut().skip(checksum).zip(wrong.to_be_bytes()).for_each(|(to, from)| *to = from);
    bytes
}

/// Returns another checksum than the right one. 0 means none in UDP over IPv4, and 0 and 0xffff are the same number.
fn wrong(right: u16) -> u16 {
    match !right {
        0 | u16::MAX => 0x1234,
        other => other,
    }
}

/// RFC 1071, over the pseudo header and the bytes, in which the checksum is 0.
fn checksum_of(protocol: u8, source: IpAddr, dest: IpAddr, bytes: &[u8]) -> u16 {
    let mut all: Vec<u8> = [source, dest].into_iter().flat_map(octets).collect();
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    all.extend([0, protocol]);
    all.extend(length.to_be_bytes());
    all.extend(bytes);
    let words = all.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        rest => rest.first().map_or(0, |high| u32::from(*high) << 8),
    });
    let sum = words.sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(u16::MAX)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_receiver_accepts_the_checksum() {
        for (source, dest) in [("10.0.0.2:40000", "192.0.2.1:80"), ("[fd00::2]:40000", "[2001:db8::1]:53")] {
            for (protocol, number, at, length) in
                [(TransportProtocol::Tcp, IPPROTO_TCP, 16, 20), (TransportProtocol::Udp, IPPROTO_UDP, 6, 8)]
            {
                let (source, dest): (SocketAddr, SocketAddr) =
                    (source.parse().unwrap(), dest.parse().unwrap());
                let mut bytes = header(protocol, source, dest);
                assert_eq!(bytes.len(), length);
                let sum = checksum_of(number, source.ip(), dest.ip(), &bytes);
                assert!(sum != 0 && sum != u16::MAX, "a receiver verifies that the sum is 0");
                assert_ne!(&bytes[at..at + 2], [0, 0], "none");
                // With the right one the sum is 0, so this test would notice a wrong sum.
                bytes[at..at + 2].copy_from_slice(&[0, 0]);
                let right = checksum_of(number, source.ip(), dest.ip(), &bytes);
                bytes[at..at + 2].copy_from_slice(&right.to_be_bytes());
                assert_eq!(checksum_of(number, source.ip(), dest.ip(), &bytes), 0);
            }
        }
    }

    #[test]
    fn every_right_checksum_has_a_wrong_one() {
        for right in 0..=u16::MAX {
            let wrong = wrong(right);
            let is_same = wrong == right || [0, u16::MAX].contains(&wrong);
            assert!(!is_same, "{right:#x}");
        }
    }
}
