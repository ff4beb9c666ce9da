//! Packets: a SYN, or an empty datagram. The checksum of sent packets is wrong, that of arriving ones is correct.

use std::net::{IpAddr, SocketAddr};

use model::Family;
use rules::TransportProtocol;

const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
/// Length of a header without options, in 32-bit words, in the upper four bits.
const TCP_WORDS: u8 = 5 << 4;
const SYN: u8 = 0x02;
const WINDOW: u16 = 64240;
/// Offsets of checksums.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
const V4_CHECKSUM: usize = 10;
/// Version and length of a header of IPv4 without options, in 32-bit words, and in bytes.
const V4_WORDS: u8 = 0x45;
const V4_LENGTH: u16 = 20;
const DONT_FRAGMENT: u8 = 0x40;
const V6_VERSION: u8 = 6 << 4;
/// TTL with which no router forwards the packet.
const HOPS: u8 = 1;

/// Returns the transport header of a packet that the pod sends, to which the kernel adds the IP header.
pub(crate) fn sent_header(protocol: TransportProtocol, source: SocketAddr, dest: SocketAddr) -> Vec<u8> {
    transport_header(protocol, source, dest, wrong_checksum)
}

/// Returns the IP packet that opens a TCP connection to the pod.
pub(crate) fn arriving_packet(source: SocketAddr, dest: SocketAddr) -> Vec<u8> {
    let tcp = transport_header(TransportProtocol::Tcp, source, dest, |right| right);
    let length = u16::try_from(tcp.len()).unwrap_or(u16::MAX);
    let addresses = [source.ip(), dest.ip()].into_iter().flat_map(address_octets);
    let mut bytes = Vec::new();
    if dest.is_ipv4() {
        bytes.extend([V4_WORDS, 0]);
        bytes.extend(length.saturating_add(V4_LENGTH).to_be_bytes());
        bytes.extend([0, 0, DONT_FRAGMENT, 0, HOPS, IPPROTO_TCP, 0, 0]);
        bytes.extend(addresses);
        let right = sum_bytes(&bytes);
        write_word(&mut bytes, V4_CHECKSUM, right);
    } else {
        bytes.extend([V6_VERSION, 0, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([IPPROTO_TCP, HOPS]);
        bytes.extend(addresses);
    }
    bytes.extend(tcp);
    bytes
}

/// Returns the source port of a TCP packet as a raw socket receives it: over IPv4 after the IP header.
pub(crate) fn received_source_port(packet: &[u8], family: Family) -> Option<u16> {
    let header = match family {
        Family::V4 => usize::from(packet.first()? & 0xf).checked_mul(4)?,
        Family::V6 => 0,
    };
    let (port, _) = packet.get(header..)?.split_first_chunk()?;
    Some(u16::from_be_bytes(*port))
}

fn transport_header(
    protocol: TransportProtocol,
    source: SocketAddr,
    dest: SocketAddr,
    written: fn(u16) -> u16,
) -> Vec<u8> {
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
    let right = transport_checksum(number, source.ip(), dest.ip(), &bytes);
    write_word(&mut bytes, checksum, written(right));
    bytes
}

fn write_word(bytes: &mut [u8], at: usize, value: u16) {
    bytes.iter_mut().skip(at).zip(value.to_be_bytes()).for_each(|(to, from)| *to = from);
}

/// Returns a wrong checksum. 0 means none in UDP over IPv4, and 0 and 0xffff are the same number.
fn wrong_checksum(right: u16) -> u16 {
    match !right {
        0 | u16::MAX => 0x1234,
        other => other,
    }
}

/// Computes the checksum over the pseudo header and the bytes, in which the checksum is 0.
fn transport_checksum(protocol: u8, source: IpAddr, dest: IpAddr, bytes: &[u8]) -> u16 {
    let mut all: Vec<u8> = [source, dest].into_iter().flat_map(address_octets).collect();
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    all.extend([0, protocol]);
    all.extend(length.to_be_bytes());
    all.extend(bytes);
    sum_bytes(&all)
}

/// RFC 1071.
fn sum_bytes(bytes: &[u8]) -> u16 {
    let halfwords = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        rest => rest.first().map_or(0, |high| u32::from(*high) << 8),
    });
    let sum = halfwords.sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(u16::MAX)
}

fn address_octets(ip: IpAddr) -> Vec<u8> {
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
                let mut bytes = sent_header(protocol, source, dest);
                assert_eq!(bytes.len(), length);
                let sum = transport_checksum(number, source.ip(), dest.ip(), &bytes);
                assert!(sum != 0 && sum != u16::MAX, "a receiver verifies that the sum is 0");
                assert_ne!(&bytes[at..at + 2], [0, 0], "none");
                // With the correct checksum the sum is 0, so this test detects a wrong one.
                bytes[at..at + 2].copy_from_slice(&[0, 0]);
                let right = transport_checksum(number, source.ip(), dest.ip(), &bytes);
                bytes[at..at + 2].copy_from_slice(&right.to_be_bytes());
                assert_eq!(transport_checksum(number, source.ip(), dest.ip(), &bytes), 0);
            }
        }
    }

    #[test]
    fn what_arrives_is_right_for_every_receiver() {
        for (source, dest, header) in
            [("192.0.2.1:40000", "10.0.0.2:80", 20), ("[2001:db8::1]:40000", "[fd00::2]:80", 40)]
        {
            let (source, dest): (SocketAddr, SocketAddr) = (source.parse().unwrap(), dest.parse().unwrap());
            let bytes = arriving_packet(source, dest);
            assert_eq!(bytes.len(), header + 20);
            let (ip, tcp) = bytes.split_at(header);
            assert_eq!(transport_checksum(IPPROTO_TCP, source.ip(), dest.ip(), tcp), 0);
            let family = Family::from_ip(dest.ip());
            let (length, checked) = match family {
                Family::V4 => (&ip[2..4], sum_bytes(ip)),
                Family::V6 => (&ip[4..6], 0),
            };
            let counted = if family == Family::V4 { bytes.len() } else { tcp.len() };
            assert_eq!((length, checked), (&u16::try_from(counted).unwrap().to_be_bytes()[..], 0));
            let received = if family == Family::V4 { &bytes[..] } else { tcp };
            assert_eq!(received_source_port(received, family), Some(40000));
        }
        assert_eq!(received_source_port(&[], Family::V4), None);
        assert_eq!(received_source_port(&[0x4f, 0, 0], Family::V4), None);
    }

    #[test]
    fn every_right_checksum_has_a_wrong_one() {
        for right in 0..=u16::MAX {
            let wrong = wrong_checksum(right);
            let is_same = wrong == right || [0, u16::MAX].contains(&wrong);
            assert!(!is_same, "{right:#x}");
        }
    }
}
