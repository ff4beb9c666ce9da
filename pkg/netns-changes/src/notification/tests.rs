use proptest::prelude::*;

use super::*;

fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + payload.len()).unwrap().to_ne_bytes();
    let mut bytes = [&length[..], &kind.to_ne_bytes(), &[0; 10], payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap().to_ne_bytes();
    let mut bytes = [&length[..], &kind.to_ne_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn new_generation(attributes: &[Vec<u8>]) -> Vec<u8> {
    message(NEW_GENERATION, &[vec![0; 4], attributes.concat()].concat())
}

fn observed(datagram: &[u8]) -> Observed {
    let mut observed = Observed::default();
    observed.add_messages(MessageIter::new(datagram));
    observed
}

#[test]
fn a_transaction_of_nf_tables_has_its_generation_and_writer() {
    let datagram = new_generation(&[
        attribute(GENERATION, &7_u32.to_be_bytes()),
        attribute(PROCESS_ID, &4711_u32.to_be_bytes()),
        attribute(PROCESS_NAME, b"nft\0"),
    ]);
    let writer = Some(Writer { pid: 4711, name: "nft".to_owned() });
    let expected = Observed { kinds: ChangeKinds::FIREWALL, generation: Some(7), writer };
    assert_eq!(observed(&datagram), expected);
}

#[test]
fn a_thread_of_ours_does_not_replace_another_writer() {
    let written_by = |pid: u32, name: &[u8]| {
        new_generation(&[attribute(PROCESS_ID, &pid.to_be_bytes()), attribute(PROCESS_NAME, name)])
    };
    let (ours, other) = (written_by(1, b"netns\0"), written_by(2, b"nft\0"));
    for (datagram, expected) in
        [([other.clone(), ours.clone()].concat(), 2), ([ours.clone(), other].concat(), 2), (ours, 1)]
    {
        assert_eq!(observed(&datagram).writer.map(|writer| writer.pid), Some(expected));
    }
}

#[test]
fn the_last_of_several_transactions_counts() {
    let of = |generation: u32| {
        new_generation(&[
            attribute(GENERATION, &generation.to_be_bytes()),
            attribute(PROCESS_ID, &generation.to_be_bytes()),
        ])
    };
    let both = observed(&[of(1), of(2)].concat());
    assert_eq!((both.generation, both.writer.unwrap().pid), (Some(2), 2));
}

#[test]
fn a_name_is_made_printable_and_bounded() {
    for (name, expected) in [
        (&b"a\x1b[31m\n\xff"[..], "a?[31m??"),
        (b"0123456789abcdef", "0123456789abcde"),
        (b"a\0b", "a"),
        (b"", ""),
    ] {
        let pid = attribute(PROCESS_ID, &1_u32.to_be_bytes());
        let datagram = new_generation(&[pid, attribute(PROCESS_NAME, name)]);
        assert_eq!(observed(&datagram).writer.unwrap().name, expected);
    }
}

#[test]
fn a_transaction_without_usable_attributes_is_still_a_change() {
    let expected = Observed { kinds: ChangeKinds::FIREWALL, ..Observed::default() };
    assert_eq!(observed(&new_generation(&[])), expected);
    let odd = new_generation(&[attribute(GENERATION, &[1]), attribute(PROCESS_ID, &[1, 2])]);
    assert_eq!(observed(&odd), expected);
}

#[test]
fn each_type_of_message_is_a_kind_of_objects() {
    for (types, kinds) in [
        ([16, 17], ChangeKinds::LINKS),
        ([20, 21], ChangeKinds::ADDRESSES),
        ([24, 25], ChangeKinds::ROUTES),
        ([32, 33], ChangeKinds::POLICY_RULES),
        ([28, 3], ChangeKinds::default()), // a neighbour, the end of a list
    ] {
        for kind in types {
            assert_eq!(observed(&message(kind, &[0; 12])).kinds, kinds, "{kind}");
        }
    }
}

#[test]
fn a_cache_entry_is_no_route() {
    let route = [&[0; 8][..], &CLONED.to_ne_bytes()].concat();
    assert_eq!(observed(&message(24, &route)).into_change((), WatchId(0)), None);
}

#[test]
fn malformed_messages_may_hide_any_change() {
    let cut = message(20, &[0; 8]);
    for datagram in [&cut[..20], &message(24, &[0; 4]), &message(NEW_GENERATION, &[])] {
        assert_eq!(observed(datagram).kinds, ChangeKinds::LOST);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes: Vec<u8>, payload: Vec<u8>, kind in prop::sample::select(vec![16_u16, 24, NEW_GENERATION])) {
        let _ = observed(&bytes);
        let of_kind = observed(&message(kind, &payload));
        prop_assert!(of_kind.writer.is_none_or(|writer| writer.name.len() <= MAX_PROCESS_NAME));
    }
}
