//! Byte-identical with the messages of the `ipset` tool (7.17, traced) for the same change, except for the line number that it adds
//! to `DATA` and the acknowledgement that the socket requests.

use super::*;

const V7: RequestBuilder = RequestBuilder { protocol: 7 };

fn name(text: &str) -> SetName {
    SetName::new(text).unwrap()
}

/// Checks header and version; returns the attributes after them.
fn sent(mut message: NetlinkRequest, kind: u8, flags: u16) -> Vec<u8> {
    let bytes = message.finish(0, MessageFlags::NONE).unwrap().to_vec();
    let (header, attributes) = bytes.split_at(28);
    let [length, flags] =
        [u32::try_from(bytes.len()).unwrap().to_ne_bytes().to_vec(), flags.to_ne_bytes().to_vec()];
    let fixed =
        [&length[..], &[kind, 6], &flags, &[0; 8], &[2, 0, 0, 0], b"\x05\x00\x01\x00\x07\x00\x00\x00"];
    assert_eq!(header, fixed.concat());
    attributes.to_vec()
}

const P4: &[u8] = b"\x07\x00\x02\x00p4\0\0";
const HASH: &[u8] = b"\x0c\x00\x03\x00hash:ip\0";

#[test]
fn a_set_is_asked_for_as_the_tool_does() {
    let data = b"\x0c\x00\x07\x80\x08\x00\x08\x40\x00\x00\x00\x10";
    for (family, number) in [(Family::V4, 2), (Family::V6, 10)] {
        let of_family = [5, 0, 5, 0, number, 0, 0, 0];
        let expected = [P4, HASH, b"\x05\x00\x04\x00\x04\0\0\0", &of_family, data].concat();
        assert_eq!(sent(V7.create(&SetSpec { name: name("p4"), family }), 2, 0x600), expected);
    }
}

#[test]
fn members_are_sent_as_the_tool_does() {
    let (set, ip4) = (name("p4"), IpAddr::from([10, 1, 2, 3]));
    let ip = b"\x0c\x00\x01\x80\x08\x00\x01\x40\x0a\x01\x02\x03";
    let bare = [P4, b"\x10\x00\x07\x80", ip].concat();
    let full = [P4, b"\x18\x00\x07\x80", ip, b"\x06\x00\x1a\x00a\0\0\0"].concat();
    assert_eq!(sent(V7.add(MessageFlags::EXCLUSIVE, &set, ip4, &"a".into()), 9, 0x200), full);
    assert_eq!(sent(V7.add(MessageFlags::NONE, &set, ip4, &"a".into()), 9, 0), full);
    for no_comment in ["", "a\0b", &"c".repeat(256), &"ä".repeat(128)] {
        assert_eq!(sent(V7.add(MessageFlags::NONE, &set, ip4, &no_comment.into()), 9, 0), bare);
    }
    assert_eq!(sent(V7.remove(&set, ip4), 10, 0x200), bare);
    let six = b"\x1c\x00\x07\x80\x18\x00\x01\x80\x14\x00\x02\x40\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01";
    let ip6 = "2001:db8::1".parse().unwrap();
    assert_eq!(sent(V7.add(MessageFlags::EXCLUSIVE, &set, ip6, &"".into()), 9, 0x200), [P4, six].concat());
}

#[test]
fn whole_sets_are_named_as_the_tool_does() {
    let p4 = name("p4");
    assert_eq!(sent(V7.destroy(&p4), 3, 0x200), P4);
    assert_eq!(sent(V7.list(&p4), 7, 0), P4);
    let header = b"\x08\x00\x06\x40\x00\x00\x00\x04";
    assert_eq!(sent(V7.header(&p4), 7, 0), [P4, header].concat());
}

#[test]
fn questions_for_versions() {
    assert_eq!(sent(V7.protocol_versions(), 1, 0), []);
}

#[test]
fn the_version_agreed_upon_is_spoken() {
    let mut message = RequestBuilder { protocol: 6 }.destroy(&name("p4"));
    assert_eq!(message.finish(0, MessageFlags::NONE).unwrap()[20..28], *b"\x05\x00\x01\x00\x06\x00\x00\x00");
}
