//! The codec with its own output and with arbitrary bytes.

use proptest::prelude::*;

use super::*;
use crate::NetlinkRequest;

/// Content of a message, to be written and read back.
#[derive(Clone, Debug)]
enum Value {
    U8(u8),
    U32(u32),
    Be16(u16),
    Be32(u32),
    Text(String),
    Bytes(Vec<u8>),
    Nested(Vec<(u16, Value)>),
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<u32>().prop_map(Value::U32),
        any::<u16>().prop_map(Value::Be16),
        any::<u32>().prop_map(Value::Be32),
        "[ -~]{0,20}".prop_map(Value::Text),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop::collection::vec((0..=KIND_MASK, inner), 0..4).prop_map(Value::Nested)
    })
}

fn write(message: &mut NetlinkRequest, kind: u16, value: &Value) {
    match value {
        Value::U8(v) => message.put_u8(kind, *v),
        Value::U32(v) => message.put_u32(kind, *v),
        Value::Be16(v) => message.put_be16(kind, *v),
        Value::Be32(v) => message.put_be32(kind, *v),
        Value::Text(v) => message.put_str(kind, v),
        Value::Bytes(v) => message.put_bytes(kind, v),
        Value::Nested(inner) => message
            .put_nested(kind, |message| inner.iter().for_each(|(kind, value)| write(message, *kind, value))),
    };
}

fn check(attributes: Attributes<'_>, expected: &[(u16, Value)]) {
    let found: Vec<_> = attributes.map(Result::unwrap).collect();
    assert_eq!(found.len(), expected.len());
    for (found, (kind, value)) in found.iter().zip(expected) {
        assert_eq!(found.kind, *kind);
        match value {
            Value::U8(v) => assert_eq!(found.read_u8(), Ok(*v)),
            Value::U32(v) => assert_eq!(found.read_u32(), Ok(*v)),
            Value::Be16(v) => assert_eq!(found.read_be16(), Ok(*v)),
            Value::Be32(v) => assert_eq!(found.read_be32(), Ok(*v)),
            Value::Text(v) => assert_eq!(found.read_str(), Ok(v.as_str())),
            Value::Bytes(v) => assert_eq!(found.payload, v),
            Value::Nested(inner) => check(found.nested_attributes(), inner),
        }
    }
}

/// Reads everything that can be read, at every depth.
fn exhaust(attributes: Attributes<'_>, depth: u8) {
    for attribute in attributes.flatten() {
        let _ = (attribute.read_u8(), attribute.read_u32(), attribute.read_be16(), attribute.read_be32());
        let _ = (attribute.read_str(), attribute.read_array::<16>());
        if depth > 0 {
            exhaust(attribute.nested_attributes(), depth - 1);
        }
    }
}

proptest! {
    #[test]
    fn what_is_built_is_read_back(
        kind: u16, flags: u16, sequence: u32,
        header in prop::collection::vec(any::<u8>(), 12),
        values in prop::collection::vec((0..=KIND_MASK, value()), 0..6),
    ) {
        let mut message = NetlinkRequest::new(kind, MessageFlags(flags), &header);
        for (kind, value) in &values {
            write(&mut message, *kind, value);
        }
        let bytes = message.finish(sequence, MessageFlags::ACK).unwrap().to_vec();

        let mut messages = MessageIter::new(&bytes);
        let received = messages.next().unwrap().unwrap();
        prop_assert!(messages.next().is_none());
        prop_assert_eq!(received.kind, kind);
        prop_assert_eq!(received.flags, MessageFlags(flags) | MessageFlags::ACK);
        prop_assert_eq!(received.sequence, sequence);
        let (found_header, attributes) = received.split_header::<12>().unwrap();
        prop_assert_eq!(found_header.as_slice(), header);
        check(attributes, &values);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_always_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        exhaust(Attributes::new(&bytes), 3);
        prop_assert!(MessageIter::new(&bytes).count() <= bytes.len());
        for message in MessageIter::new(&bytes).flatten() {
            let _ = (message.split_header::<0>(), message.split_header::<3>(), message.split_header::<16>());
            exhaust(Attributes::new(message.payload), 3);
        }
    }

    /// Random bytes rarely pass the header; a valid message with one wrong byte does.
    #[test]
    fn a_flipped_byte_never_panics(
        values in prop::collection::vec((0..=KIND_MASK, value()), 1..6),
        at: prop::sample::Index, with: u8,
    ) {
        let mut message = NetlinkRequest::new(16, MessageFlags::NONE, &[0; 16]);
        for (kind, value) in &values {
            write(&mut message, *kind, value);
        }
        let mut bytes = message.finish(1, MessageFlags::NONE).unwrap().to_vec();
        *at.get_mut(&mut bytes) = with;
        for message in MessageIter::new(&bytes).flatten() {
            if let Ok((_, attributes)) = message.split_header::<16>() {
                exhaust(attributes, 4);
            }
        }
    }
}

#[test]
fn a_length_that_lies_is_malformed_and_ends_the_list() {
    for (bytes, reason) in [
        (&[3, 0, 1, 0, 9, 9, 9, 9][..], "length of an attribute beyond its message"),
        (&[9, 0, 1, 0, 9, 9, 9, 9], "length of an attribute beyond its message"),
        (&[8, 0, 1], "attribute header cut short"),
    ] {
        let found: Vec<_> = Attributes::new(bytes).collect();
        assert_eq!(found, [Err(Malformed(reason))]);
    }
}

#[test]
fn an_attribute_beyond_its_length_field_is_refused_when_sent() {
    let mut message = NetlinkRequest::new(16, MessageFlags::NONE, &[]);
    message.put_nested(1, |message| {
        message.put_bytes(2, &vec![0; 40_000]).put_bytes(3, &vec![0; 40_000]);
    });
    assert!(matches!(message.finish(1, MessageFlags::NONE), Err(crate::Error::TooLong)));
}

#[test]
fn an_attribute_can_hold_a_whole_message() {
    let mut message = NetlinkRequest::new(16, MessageFlags::NONE, &[0; 16]);
    message.put_nested(1, |inner| {
        inner.family_header(&[7; 5]).put_u32(3, 9);
    });
    let bytes = message.finish(1, MessageFlags::NONE).unwrap();
    let received = MessageIter::new(bytes).next().unwrap().unwrap();
    let inner = received.split_header::<16>().unwrap().1.find(1).unwrap();
    let (header, attributes) = inner.payload.split_at(8);
    assert_eq!(header, [7, 7, 7, 7, 7, 0, 0, 0]);
    assert_eq!(Attributes::new(attributes).find(3).unwrap().read_u32(), Ok(9));
}

#[test]
fn the_bytes_are_those_of_the_format() {
    let mut message = NetlinkRequest::new(24, MessageFlags::CREATE, &[2, 0, 0, 0]);
    message.put_be16(1, 0x0102).put_str(2, "lo");
    let bytes = message.finish(7, MessageFlags::REQUEST | MessageFlags::ACK).unwrap();
    let expected: &[u8] = if cfg!(target_endian = "little") {
        &[
            36, 0, 0, 0, 24, 0, 0x05, 0x04, 7, 0, 0, 0, 0, 0, 0, 0, // header
            2, 0, 0, 0, // family header
            6, 0, 1, 0, 1, 2, 0, 0, // be16, padded
            7, 0, 2, 0, b'l', b'o', 0, 0, // text, its NUL, padding
        ]
    } else {
        return;
    };
    assert_eq!(bytes, expected);
}
