//! Routes on the wire: `struct rtmsg` and its attributes.

use std::net::IpAddr;

use netlink::{Attribute, Malformed, MessageFlags, NetlinkRequest, ReceivedMessage};

use super::{Route, RouteKind, RouteProtocol};
use crate::wire;
use crate::{Family, LinkIndex, Mark, RouteScope, TableId};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const RTA_MARK: u16 = 16;
const RTA_VIA: u16 = 18;

/// `RTNH_F_ONLINK`.
const ONLINK: u32 = 0x4;
/// `RTM_F_CLONED`: from the cache, not from a table.
const CLONED: u32 = 0x200;
/// `RTM_F_LOOKUP_TABLE`: the reply names the table in which the route was found.
const LOOKUP_TABLE: u32 = 0x1000;

/// Fixed header of a route message.
#[derive(Default)]
struct RouteHeader {
    family: u8,
    dst_len: u8,
    src_len: u8,
    tos: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
}

impl RouteHeader {
    const fn from_bytes(bytes: [u8; 12]) -> Self {
        let [family, dst_len, src_len, tos, table, protocol, scope, kind, f0, f1, f2, f3] = bytes;
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        Self { family, dst_len, src_len, tos, table, protocol, scope, kind, flags }
    }

    const fn to_bytes(&self) -> [u8; 12] {
        let [f0, f1, f2, f3] = self.flags.to_ne_bytes();
        let Self { family, dst_len, src_len, tos, table, protocol, scope, kind, .. } = *self;
        [family, dst_len, src_len, tos, table, protocol, scope, kind, f0, f1, f2, f3]
    }
}

pub(super) fn list_request(family: Family, table: Option<TableId>) -> NetlinkRequest {
    let header = RouteHeader {
        family: family.address_family(),
        table: table.map_or(0, |table| wire::header_table(table.0)),
        ..RouteHeader::default()
    };
    let mut message = NetlinkRequest::new(RTM_GETROUTE, MessageFlags::NONE, &header.to_bytes());
    if let Some(table) = table {
        message.put_u32(RTA_TABLE, table.0);
    }
    message
}

/// Builds a lookup of the route of a packet to this address; with a mark, from an address of this host, if given.
pub(super) fn look_up(to: IpAddr, marked: Option<(IpAddr, Mark)>) -> NetlinkRequest {
    let length = if to.is_ipv4() { 32 } else { 128 };
    let header = RouteHeader {
        family: Family::from_ip(to).address_family(),
        dst_len: length,
        src_len: if marked.is_some() { length } else { 0 },
        // IPv6 always replies so, and refuses the flag (`inet6_rtm_valid_getroute_req`).
        flags: if marked.is_some() && to.is_ipv4() { LOOKUP_TABLE } else { 0 },
        ..RouteHeader::default()
    };
    let mut message = NetlinkRequest::new(RTM_GETROUTE, MessageFlags::NONE, &header.to_bytes());
    wire::put_ip(&mut message, RTA_DST, to);
    if let Some((from, mark)) = marked {
        wire::put_ip(&mut message, RTA_SRC, from);
        message.put_u32(RTA_MARK, mark.value);
    }
    message
}

/// Reads the reply to [`look_up`]; `None`: another message, or a route by which the address is not on the link.
pub(super) fn parse_direct_link(reply: &ReceivedMessage<'_>) -> Result<Option<LinkIndex>, Malformed> {
    let Some((header, attributes)) = reply.split_kind::<12>(RTM_NEWROUTE)? else { return Ok(None) };
    let header = RouteHeader::from_bytes(*header);
    let is_forwarded = kind_from(header.kind) == RouteKind::Unicast;
    let has_gateway = [RTA_GATEWAY, RTA_VIA].into_iter().any(|kind| attributes.find(kind).is_some());
    let link = attributes.find(RTA_OIF).filter(|_| is_forwarded && !has_gateway);
    link.map(|link| link.read_u32().map(LinkIndex)).transpose()
}

/// Reads the reply to [`look_up`]; `None`: another message, or packets that would not be sent.
pub(super) fn parse_source(reply: &ReceivedMessage<'_>) -> Result<Option<IpAddr>, Malformed> {
    let Some((header, attributes)) = reply.split_kind::<12>(RTM_NEWROUTE)? else { return Ok(None) };
    let header = RouteHeader::from_bytes(*header);
    let is_sent = matches!(kind_from(header.kind), RouteKind::Unicast | RouteKind::Local);
    let source = attributes.find(RTA_PREFSRC).filter(|_| is_sent);
    source.map(|source| wire::read_ip(&source)).transpose()
}

pub(crate) fn add_request(route: &Route, flags: MessageFlags) -> NetlinkRequest {
    change_request(RTM_NEWROUTE, flags, route, route.metric)
}

pub(super) fn delete_request(route: &Route) -> NetlinkRequest {
    // Without a metric, or with 0, IPv6 deletes a route of any metric.
    let metric = route.metric.filter(|metric| *metric != 0).or(route.default_metric());
    change_request(RTM_DELROUTE, MessageFlags::NONE, route, metric)
}

fn change_request(kind: u16, flags: MessageFlags, route: &Route, metric: Option<u32>) -> NetlinkRequest {
    let header = RouteHeader {
        family: route.family.address_family(),
        dst_len: route.dst.map_or(0, |dst| dst.prefix_len()),
        table: wire::header_table(route.table.0),
        protocol: route.protocol.0,
        scope: route.scope.unwrap_or(route.natural_scope()).0,
        kind: kind_number(route.kind),
        flags: if route.onlink { ONLINK } else { 0 },
        ..RouteHeader::default()
    };
    let mut message = NetlinkRequest::new(kind, flags, &header.to_bytes());
    let addresses = [
        (RTA_DST, route.dst.map(|dst| dst.addr())),
        (RTA_GATEWAY, route.gateway),
        (RTA_PREFSRC, route.prefsrc),
    ];
    for (kind, ip) in addresses {
        if let Some(ip) = ip {
            wire::put_ip(&mut message, kind, ip);
        }
    }
    message.put_u32(RTA_TABLE, route.table.0);
    for (kind, number) in [(RTA_OIF, route.oif.map(|oif| oif.0)), (RTA_PRIORITY, metric)] {
        if let Some(number) = number {
            message.put_u32(kind, number);
        }
    }
    message
}

/// Reads a route of a dump; `None` for anything but a route of a table.
pub(crate) fn parse(reply: &ReceivedMessage<'_>) -> Result<Option<Route>, Malformed> {
    parse_unless(CLONED, reply)
}

/// Reads the reply to a [`look_up`] with a mark; its destination is the address.
pub(super) fn parse_answer(reply: &ReceivedMessage<'_>) -> Result<Option<Route>, Malformed> {
    parse_unless(0, reply)
}

fn parse_unless(flags: u32, reply: &ReceivedMessage<'_>) -> Result<Option<Route>, Malformed> {
    let Some((header, attributes)) = reply.split_kind::<12>(RTM_NEWROUTE)? else { return Ok(None) };
    let header = RouteHeader::from_bytes(*header);
    let Some(family) = Family::from_address_family(header.family) else { return Ok(None) };
    if header.flags & flags != 0 {
        return Ok(None);
    }
    let mut route = Route::new(family, kind_from(header.kind), None, TableId(u32::from(header.table)));
    route.protocol = RouteProtocol(header.protocol);
    route.onlink = header.flags & ONLINK != 0;
    for attribute in attributes {
        read_attribute(&attribute?, &header, &mut route)?;
    }
    route.scope = Some(RouteScope(header.scope));
    route.drop_kernel_defaults();
    Ok(Some(route))
}

fn read_attribute(
    attribute: &Attribute<'_>,
    header: &RouteHeader,
    route: &mut Route,
) -> Result<(), Malformed> {
    match attribute.kind {
        RTA_DST => route.dst = Some(wire::read_net(attribute, header.dst_len)?),
        RTA_OIF => route.oif = Some(LinkIndex(attribute.read_u32()?)),
        RTA_GATEWAY => route.gateway = Some(wire::read_ip(attribute)?),
        RTA_PRIORITY => route.metric = Some(attribute.read_u32()?),
        RTA_PREFSRC => route.prefsrc = Some(wire::read_ip(attribute)?),
        RTA_TABLE => route.table = TableId(attribute.read_u32()?),
        _ => {}
    }
    Ok(())
}

const fn kind_from(number: u8) -> RouteKind {
    match number {
        1 => RouteKind::Unicast,
        2 => RouteKind::Local,
        6 => RouteKind::Blackhole,
        7 => RouteKind::Unreachable,
        other => RouteKind::Other(other),
    }
}

const fn kind_number(kind: RouteKind) -> u8 {
    match kind {
        RouteKind::Unicast => 1,
        RouteKind::Local => 2,
        RouteKind::Blackhole => 6,
        RouteKind::Unreachable => 7,
        RouteKind::Other(number) => number,
    }
}
