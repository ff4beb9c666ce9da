//! Requests for links, attribute by attribute (with the numbers in `strace ip link add` of iproute2 6.1, which adds zeros for unset
//! ones), and links parsed from bytes.

use std::os::fd::{AsFd, AsRawFd};

use netlink::MessageIter;
use proptest::prelude::*;

use super::new::{NewVeth, VETH};
use super::*;

/// Attributes of a request inside `IFLA_INFO_DATA`, after checking those around them.
fn data(link: &NewVeth<'_>, check: impl FnOnce(Attributes<'_>)) {
    let mut message = link.creation_request();
    let bytes = message.finish(1, MessageFlags::REQUEST).unwrap();
    let received = MessageIter::new(bytes).next().unwrap().unwrap();
    assert_eq!((received.kind, received.flags.0), (16, 0x1 | 0x200 | 0x400));
    let (header, attributes) = received.split_header::<16>().unwrap();
    assert_eq!(*header, [0; 16]);
    assert_eq!(attributes.find(IFLA_IFNAME).unwrap().read_str(), Ok(link.name));
    let information = attributes.find(IFLA_LINKINFO).unwrap().nested_attributes();
    assert_eq!(link_kind(&information), Ok(Some(VETH.to_owned())));
    check(information.find(2).unwrap().nested_attributes());
}

fn list(attributes: Attributes<'_>) -> Vec<(u16, Vec<u8>)> {
    attributes.map(Result::unwrap).map(|found| (found.kind, found.payload.to_vec())).collect()
}

#[test]
fn the_peer_of_a_veth_is_a_request_inside_the_request() {
    let file = std::fs::File::open("/proc/self/ns/net").unwrap();
    let veth = NewVeth { name: "out", peer_name: "in", peer_netns: Some(file.as_fd()) };
    data(&veth, |data| {
        let peer = data.find(1).unwrap().payload;
        let (header, attributes) = peer.split_at(16);
        assert_eq!(header, [0; 16]);
        let fd = file.as_raw_fd().to_ne_bytes().to_vec();
        assert_eq!(list(Attributes::new(attributes)), [(3, b"in\0".to_vec()), (28, fd)]);
    });
}

#[test]
fn links_print_as_ip_is_told() {
    let veth = NewVeth { name: "a", peer_name: "b", peer_netns: None };
    assert_eq!(veth.to_string(), "a type veth peer b");
}

fn read(attributes: impl FnOnce(&mut NetlinkRequest)) -> Link {
    let mut message = NetlinkRequest::new(RTM_NEWLINK, MessageFlags::NONE, &link_header(LinkIndex(5), 0));
    attributes(&mut message);
    let bytes = message.finish(1, MessageFlags::NONE).unwrap();
    let received = MessageIter::new(bytes).next().unwrap().unwrap();
    parse(&received).unwrap().unwrap()
}

#[test]
fn a_peer_is_read_and_number_0_is_none() {
    let plain = read(|_| {});
    assert_eq!((plain.peer, plain.peer_netns), (None, None));
    let unbound = read(|message| {
        message.put_u32(IFLA_LINK, 0);
    });
    assert_eq!((unbound.peer, unbound.peer_netns), (None, None));
    let veth = read(|message| {
        message.put_u32(IFLA_LINK, 2).put_u32(IFLA_LINK_NETNSID, 0);
    });
    assert_eq!((veth.peer, veth.peer_netns), (Some(LinkIndex(2)), Some(0)));
    let ending = read(|message| {
        message.put_u32(IFLA_LINK, 2).put_u32(IFLA_LINK_NETNSID, u32::MAX);
    });
    assert_eq!(ending.peer_netns, Some(-1));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(payload in prop::collection::vec(any::<u8>(), 0..120)) {
        let received = ReceivedMessage { kind: RTM_NEWLINK, flags: MessageFlags::NONE, sequence: 0, payload: &payload };
        let _ = parse(&received);
    }
}
