//! Replies of a real kernel (6.18), and arbitrary bytes.

use netlink::{MessageFlags, MessageIter};
use proptest::prelude::*;

use super::*;
use crate::{SetName, SetSpec, message::RequestBuilder};

const LIST4: &[u8] = include_bytes!("../../../../fuzz/seeds/set_replies/list4.bin");
const LIST6: &[u8] = include_bytes!("../../../../fuzz/seeds/set_replies/list6.bin");
const HEADERS: &[u8] = include_bytes!("../../../../fuzz/seeds/set_replies/headers.bin");
const SET_OF_SETS: &[u8] = include_bytes!("../../../../fuzz/seeds/set_replies/all.bin");

fn headers(datagram: &[u8]) -> Vec<SetInfo> {
    let messages = MessageIter::new(datagram).map(Result::unwrap);
    messages.filter_map(|message| parse_header(&message).unwrap()).collect()
}

fn members(datagram: &[u8]) -> Vec<(IpAddr, Option<PodUid>)> {
    let messages = MessageIter::new(datagram).map(Result::unwrap);
    messages.flat_map(|message| parse_members(&message).unwrap()).collect()
}

#[test]
fn members_are_read_in_the_kernels_order() {
    let owned = ("10.1.2.3".parse().unwrap(), Some("default/a b".into()));
    assert_eq!(members(LIST4), [owned, ([10, 1, 2, 4].into(), None)]);
    assert_eq!(members(LIST6), [("2001:db8::1".parse().unwrap(), None)]);
    assert_eq!(members(HEADERS), []);
}

#[test]
fn the_header_of_a_listing_tells_all_about_the_set() {
    let pods4 =
        SetInfo { kind: "hash:ip".to_owned(), family: Some(Family::V4), comments: true, elements: Some(2) };
    assert_eq!(pods4.to_string(), "hash:ip IPv4 with comments");
    assert_eq!(headers(LIST4), std::slice::from_ref(&pods4));
    assert!(headers(HEADERS).contains(&pods4));
    let kinds: Vec<_> = headers(HEADERS).iter().map(ToString::to_string).collect();
    let expected = [
        "hash:ip IPv4 with comments",
        "hash:ip IPv6 without comments",
        "bitmap:port without comments",
        "hash:net IPv4 without comments",
        "list:set without comments",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn only_what_serves_as_the_set_is_taken_for_it() {
    let spec = SetSpec { name: SetName::new("pods4").unwrap(), family: Family::V4 };
    let found = headers(LIST4).remove(0);
    assert!(spec.is_served_by(&found));
    assert!(!spec.is_served_by(&SetInfo { comments: false, ..found.clone() }));
    assert!(!spec.is_served_by(&SetInfo { family: Some(Family::V6), ..found.clone() }));
    assert!(!spec.is_served_by(&SetInfo { kind: "hash:net".to_owned(), ..found }));
}

#[test]
fn owners_that_others_wrote_are_read_as_far_as_they_can_be() {
    let read = |bytes: &[u8]| parse_owner(bytes).map(|owner| owner.as_str().to_owned());
    assert_eq!(read(b"pod a\0"), Some("pod a".to_owned()));
    assert_eq!(read(b"cut\0off"), Some("cut".to_owned()));
    assert_eq!(read(b"\xff!"), Some("\u{fffd}!".to_owned()));
    assert_eq!((read(b"\0"), read(b"")), (None, None));
}

#[test]
fn a_member_without_an_address_is_malformed() {
    let mut messages = MessageIter::new(SET_OF_SETS);
    assert!(parse_members(&messages.next().unwrap().unwrap()).is_err());
}

#[test]
fn a_listing_cut_anywhere_in_a_message_is_malformed_or_shorter() {
    let whole = MessageIter::new(LIST4).next().unwrap().unwrap();
    for end in 0..whole.payload.len() {
        let cut = ReceivedMessage { payload: &whole.payload[..end], ..whole };
        assert!(parse_members(&cut).map_or(true, |members| members.is_empty()), "{end}");
    }
}

#[test]
fn versions_are_a_range() {
    let answer = |minimum: Option<u8>| {
        let mut message = netlink::NetlinkRequest::new(message::PROTOCOL, MessageFlags::NONE, &[2, 0, 0, 0]);
        message.put_u8(attr::PROTOCOL, 7);
        if let Some(minimum) = minimum {
            message.put_u8(attr::MINIMUM, minimum);
        }
        let bytes = message.finish(1, MessageFlags::NONE).unwrap().to_vec();
        parse_version_range(&MessageIter::new(&bytes).next().unwrap().unwrap()).unwrap()
    };
    assert_eq!(answer(Some(6)), Some((6, 7)));
    assert_eq!(answer(None), Some((7, 7)), "Linux before 4.20 says one version of the protocol");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(kind in 0x600..0x610_u16, payload in prop::collection::vec(any::<u8>(), 0..120)) {
        let received = ReceivedMessage { kind, flags: MessageFlags::NONE, sequence: 0, payload: &payload };
        let _ = (parse_header(&received), parse_members(&received));
        let _ = parse_version_range(&received);
    }

    #[test]
    fn a_member_is_read_as_it_was_written(ip: IpAddr, owner in "[^\\x00]{0,80}") {
        let owner = PodUid::from(owner.as_str());
        let name = SetName::new("s").unwrap();
        let mut request = RequestBuilder { protocol: 7 }.add(MessageFlags::NONE, &name, ip, &owner);
        let bytes = request.finish(1, MessageFlags::NONE).unwrap();
        let (_, attributes) = MessageIter::new(bytes).next().unwrap().unwrap().split_header::<4>().unwrap();
        let known = (1..=255).contains(&owner.as_str().len()).then_some(owner);
        let data = attributes.find(attr::DATA).unwrap();
        prop_assert_eq!(parse_member(data.nested_attributes()), Ok((ip, known)));
    }
}
