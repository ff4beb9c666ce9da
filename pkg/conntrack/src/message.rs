//! `ctnetlink`: messages with `struct nfgenmsg` and attributes.

use std::net::{IpAddr, SocketAddr};

use crate::sockets::TcpState;
use model::{Family, Mark};
use netlink::{Attributes, MessageFlags, NetlinkRequest, ReceivedMessage};
use rules::TransportProtocol;

use crate::{FlowKey, TcpTuple, TrackedConnection};

/// `NFNL_SUBSYS_CTNETLINK`, with `IPCTNL_MSG_CT_NEW`, `_GET` and `_DELETE`.
const NEW: u16 = 0x100;
pub(crate) const GET: u16 = 0x101;
pub(crate) const DELETE: u16 = 0x102;
/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;

/// `CTA_*`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_INFO: u16 = 4;
const TIMEOUT: u16 = 7;
const MARK: u16 = 8;
const ZONE: u16 = 18;
const MARK_MASK: u16 = 21;
/// `CTA_TUPLE_*`.
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
/// `CTA_IP_*`: source, then destination.
const V4: [u16; 2] = [1, 2];
const V6: [u16; 2] = [3, 4];
/// `CTA_PROTO_*`.
const PROTOCOL: u16 = 1;
const PORTS: [u16; 2] = [2, 3];
/// `CTA_PROTOINFO_TCP`, and `CTA_PROTOINFO_TCP_*`.
const TCP: u16 = 1;
const TCP_STATE: u16 = 1;
const TCP_FLAGS: [u16; 2] = [4, 5];
/// `IP_CT_TCP_FLAG_BE_LIBERAL`, as value and mask: packets belong to the connection whatever their sequence number,
/// because the window of a connection that was not tracked from its start is unknown.
const LIBERAL: [u8; 2] = [0x08, 0x08];
/// `TCP_CONNTRACK_TIME_WAIT` and `TCP_CONNTRACK_CLOSE`.
const CLOSED: [u8; 2] = [7, 8];
/// `IPS_CONFIRMED`, which every entry in the table has.
const CONFIRMED: u32 = 0x08;
/// `IPS_SEEN_REPLY`: none of its packets is the first one any longer.
const SEEN_REPLY: u32 = 0x02;
/// `IPS_ASSURED`: not dropped early when the table is full.
const ASSURED: u32 = 0x04;

/// Returns how the kernel tracks a connection whose socket is in a state: `enum tcp_conntrack`, the timeout without
/// packets (seconds, the kernel's defaults, which it applies itself from the next packet on), and the status.
fn tracking_state(state: TcpState) -> (u8, u32, u32) {
    let established = CONFIRMED | SEEN_REPLY | ASSURED;
    match state {
        TcpState::SynSent => (1, 120, CONFIRMED),
        TcpState::SynReceived => (2, 60, CONFIRMED | SEEN_REPLY),
        TcpState::FinWait1 | TcpState::FinWait2 => (4, 120, established),
        TcpState::CloseWait => (5, 60, established),
        TcpState::LastAck | TcpState::Closing => (6, 30, established),
        TcpState::Established | TcpState::TimeWait | TcpState::Closed | TcpState::Listen => {
            (3, 432_000, established)
        }
    }
}

/// Builds the insertion of a connection without translation; refused if it, or a conflicting one, already exists.
pub(crate) fn insert_request(original: TcpTuple, state: TcpState, mark: u32) -> NetlinkRequest {
    let (number, timeout, status) = tracking_state(state);
    let mut message = new_request(NEW, original.family(), MessageFlags::CREATE | MessageFlags::EXCLUSIVE);
    put_tuple(&mut message, ORIGINAL, original, TransportProtocol::Tcp);
    put_tuple(&mut message, REPLY, original.reversed(), TransportProtocol::Tcp);
    message.put_be32(STATUS, status).put_be32(TIMEOUT, timeout).put_be32(MARK, mark);
    message.put_nested(PROTOCOL_INFO, |info| {
        info.put_nested(TCP, |tcp| {
            tcp.put_u8(TCP_STATE, number);
            for flags in TCP_FLAGS {
                tcp.put_bytes(flags, &LIBERAL);
            }
        });
    });
    message
}

/// Builds the change of a connection's mark, which keeps foreign bits.
pub(crate) fn set_mark(original: TcpTuple, mark: Mark) -> NetlinkRequest {
    let mut message = new_request(NEW, original.family(), MessageFlags::NONE);
    put_tuple(&mut message, ORIGINAL, original, TransportProtocol::Tcp);
    message.put_be32(MARK, mark.value).put_be32(MARK_MASK, mark.mask);
    message
}

/// Builds a query for all connections of both families, TCP or not, with a mark, if given. Old kernels return others,
/// too.
pub(crate) fn list_request(mark: Option<Mark>) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(GET, MessageFlags::NONE, &[0; 4]); // struct nfgenmsg of no family
    if let Some(mark) = mark {
        message.put_be32(MARK, mark.value).put_be32(MARK_MASK, mark.mask);
    }
    message
}

/// Builds a query for one connection ([`GET`]), by either direction, or its deletion ([`DELETE`]): without a tuple the
/// kernel would list, or delete, all.
pub(crate) fn connection_request(kind: u16, key: FlowKey) -> NetlinkRequest {
    let mut message = new_request(kind, key.tuple.family(), MessageFlags::NONE);
    put_tuple(&mut message, ORIGINAL, key.tuple, key.protocol);
    if key.zone != 0 {
        message.put_be16(ZONE, key.zone);
    }
    message
}

fn new_request(kind: u16, family: Family, flags: MessageFlags) -> NetlinkRequest {
    NetlinkRequest::new(kind, flags, &[family.address_family(), 0, 0, 0])
}

fn put_tuple(message: &mut NetlinkRequest, kind: u16, tuple: TcpTuple, protocol: TransportProtocol) {
    let ends = [tuple.source, tuple.dest];
    message.put_nested(kind, |message| {
        message.put_nested(TUPLE_IP, |message| {
            for ((v4, v6), end) in V4.into_iter().zip(V6).zip(ends) {
                match end.ip() {
                    IpAddr::V4(ip) => message.put_bytes(v4, &ip.octets()),
                    IpAddr::V6(ip) => message.put_bytes(v6, &ip.octets()),
                };
            }
        });
        message.put_nested(TUPLE_PROTOCOL, |message| {
            message.put_u8(PROTOCOL, protocol.number());
            for (kind, end) in PORTS.into_iter().zip(ends) {
                message.put_be16(kind, end.port());
            }
        });
    });
}

/// Parses a connection; `None`: not of this protocol.
pub(crate) fn parse_connection(
    message: &ReceivedMessage<'_>,
    of: TransportProtocol,
) -> Option<TrackedConnection> {
    let (_, attributes) = message.split_header::<HEADER>().ok()?;
    let state = attributes.find_nested(PROTOCOL_INFO).find_nested(TCP).find(TCP_STATE);
    Some(TrackedConnection {
        original: parse_tuple(&attributes.find_nested(ORIGINAL), of)?,
        reply: parse_tuple(&attributes.find_nested(REPLY), of)?,
        is_closed: state.and_then(|state| state.read_u8().ok()).is_some_and(|state| CLOSED.contains(&state)),
        mark: attributes.find_be32(MARK).ok().flatten().unwrap_or_default(),
    })
}

fn parse_tuple(attributes: &Attributes<'_>, of: TransportProtocol) -> Option<TcpTuple> {
    let (ip, protocol) = (attributes.find_nested(TUPLE_IP), attributes.find_nested(TUPLE_PROTOCOL));
    if protocol.find(PROTOCOL)?.read_u8().ok()? != of.number() {
        return None;
    }
    let [source, dest] = [0, 1].map(|side: usize| {
        let v4 = ip.find(*V4.get(side)?).and_then(|ip| ip.read_array::<4>().ok()).map(IpAddr::from);
        let v6 = ip.find(*V6.get(side)?).and_then(|ip| ip.read_array::<16>().ok()).map(IpAddr::from);
        let port = protocol.find(*PORTS.get(side)?)?.read_be16().ok()?;
        Some(SocketAddr::new(v4.or(v6)?, port))
    });
    Some(TcpTuple { source: source?, dest: dest? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, dest: &str) -> TcpTuple {
        TcpTuple { source: source.parse().unwrap(), dest: dest.parse().unwrap() }
    }

    fn sent(mut message: NetlinkRequest) -> (u16, Vec<u8>) {
        let bytes = message.finish(1, MessageFlags::NONE).unwrap();
        (u16::from_ne_bytes([bytes[4], bytes[5]]), bytes[16..].to_vec())
    }

    fn read(payload: &[u8]) -> Option<TrackedConnection> {
        let message = ReceivedMessage { kind: NEW, flags: MessageFlags::NONE, sequence: 0, payload };
        parse_connection(&message, TransportProtocol::Tcp)
    }

    #[test]
    fn what_is_entered_reads_as_a_connection_that_is_not_translated() {
        for (source, dest) in [("10.0.0.2:40000", "10.0.0.1:80"), ("[fd00::2]:40000", "[fd00::1]:80")] {
            for state in [TcpState::Established, TcpState::SynSent, TcpState::LastAck] {
                let original = tuple(source, dest);
                let (kind, payload) = sent(insert_request(original, state, 0x4d52_0000));
                let found = read(&payload).unwrap();
                assert_eq!((kind, found.original, found.mark), (NEW, original, 0x4d52_0000));
                assert!(!found.is_translated() && !found.is_closed && found.has_mark(crate::OUTSIDE));
            }
        }
    }

    /// Without addresses the kernel would delete every connection of the namespace.
    #[test]
    fn only_one_connection_is_asked_for_or_forgotten() {
        let one = tuple("10.0.0.2:40000", "10.0.0.1:80");
        for (message, expected) in [
            (connection_request(DELETE, one.into()), DELETE),
            (connection_request(GET, one.into()), GET),
            (set_mark(one, crate::OUTSIDE), NEW),
        ] {
            let (kind, payload) = sent(message);
            let attributes = Attributes::new(&payload[HEADER..]);
            assert_eq!(kind, expected);
            assert_eq!(
                parse_tuple(&attributes.find(ORIGINAL).unwrap().nested_attributes(), TransportProtocol::Tcp),
                Some(one)
            );
        }
    }

    #[test]
    fn a_flow_of_another_protocol_and_zone_is_named_as_such() {
        let tuple = tuple("10.0.0.2:40000", "10.0.0.1:53");
        let key = FlowKey { tuple, protocol: TransportProtocol::Udp, zone: 2 };
        for expected in [GET, DELETE] {
            let (kind, payload) = sent(connection_request(expected, key));
            let attributes = Attributes::new(&payload[HEADER..]);
            let original = attributes.find(ORIGINAL).unwrap().nested_attributes();
            assert_eq!((kind, parse_tuple(&original, TransportProtocol::Udp)), (expected, Some(tuple)));
            assert_eq!(parse_tuple(&original, TransportProtocol::Tcp), None);
            assert_eq!(attributes.find(ZONE).unwrap().read_be16().unwrap(), 2);
        }
    }

    #[test]
    fn what_is_no_tcp_connection_is_none() {
        let (_, payload) = sent(insert_request(tuple("10.0.0.2:1", "10.0.0.1:2"), TcpState::Established, 0));
        let at = payload.windows(5).position(|bytes| bytes == [5, 0, 1, 0, 6]).unwrap();
        let mut udp = payload.clone();
        udp[at + 4] = 17;
        assert_eq!(read(&udp), None);
        assert_eq!(read(&payload[..20]), None);
    }
}
