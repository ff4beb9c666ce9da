use netlink::{MessageFlags, NetlinkRequest};
use proptest::{collection::vec, prelude::*};

use super::*;

const OURS: [Mark; 2] = [Mark { value: 0x539, mask: 0xfff }, Mark { value: 0x111, mask: 0xfff }];

#[test]
fn only_what_can_become_one_of_our_marks_counts() {
    let cases = [
        ((0, 0x539), Some(RuleEffect::Marks(0x539))),
        ((0, 0x111), Some(RuleEffect::Marks(0x111))),
        ((0, 0xabc0_0539), Some(RuleEffect::Marks(0x539))),
        ((0xffff_f000, 0x539), Some(RuleEffect::Marks(0x539))),
        // Part of it; another rule may set the rest.
        ((!0x500, 0x500), Some(RuleEffect::Marks(0x539))),
        ((!0x010, 0x010), Some(RuleEffect::Marks(0x539))),
        // Foreign marks: constants, high bits, single cleared bits, none.
        ((0, 1), None),
        ((0, 0xca6c), None),
        ((!0xff_0000, 0x4_0000), None),
        ((!0x4000, 0x4000), None),
        ((!0x2, 0), None),
        ((u32::MAX, 0), None),
        // Inverted bits may have any value.
        ((u32::MAX, 0x539), Some(RuleEffect::AnyMark)),
    ];
    for ((mask, xor), expected) in cases {
        assert_eq!(
            MarkRegister::UNTOUCHED.apply_bitwise(mask, xor).mark_effect(&OURS),
            expected,
            "{mask:#x} {xor:#x}"
        );
    }
    let twice = MarkRegister::UNTOUCHED.apply_bitwise(!0x500, 0x500).apply_bitwise(!0xff, 0x39);
    assert_eq!(twice.mark_effect(&OURS), Some(RuleEffect::Marks(0x539)));
    assert_eq!(MarkRegister::Unknown.mark_effect(&OURS), Some(RuleEffect::AnyMark));
    assert_eq!(MarkRegister::Unknown.apply_bitwise(0, 7).mark_effect(&OURS), None);
}

/// Each of the kernel's registers of 16 bytes is four of its registers of 4 bytes.
#[test]
fn what_a_longer_value_overwrites_is_not_known() {
    let rule = |length: usize| {
        let value = |bytes: &[u8], register: u32| {
            let mut request = NetlinkRequest::new(0, MessageFlags::NONE, &[]);
            request.put_nested(1, |element| {
                element.put_str(EXPRESSION_NAME, "immediate").put_nested(EXPRESSION_DATA, |data| {
                    data.put_be32(IMMEDIATE_REGISTER, register).put_nested(IMMEDIATE_DATA, |content| {
                        content.put_bytes(DATA_VALUE, bytes);
                    });
                });
            });
            request
        };
        let mut mark = NetlinkRequest::new(0, MessageFlags::NONE, &[]);
        mark.put_nested(1, |element| {
            element.put_str(EXPRESSION_NAME, "meta").put_nested(EXPRESSION_DATA, |data| {
                data.put_be32(META_KEY, META_MARK).put_be32(META_SOURCE, 9);
            });
        });
        let mut expressions = [value(&7_u32.to_ne_bytes(), 9), value(&vec![1; length], 1), mark];
        let bytes: Vec<u8> = expressions
            .iter_mut()
            .flat_map(|one| one.finish(0, MessageFlags::NONE).unwrap()[16..].to_vec())
            .collect();
        rule_effects(Attributes::new(&bytes), &OURS).unwrap().0
    };
    assert_eq!(rule(4), [], "a constant of others");
    assert_eq!(rule(16), [RuleEffect::AnyMark]);
}

/// The kernel accepts several verdicts in a rule, and evaluates none after the first.
#[test]
fn a_rule_leads_to_its_first_verdict() {
    let immediate = |chain: &str| {
        let mut request = NetlinkRequest::new(0, MessageFlags::NONE, &[]);
        put_expression(&mut request, "immediate", &|data| {
            data.put_be32(IMMEDIATE_REGISTER, 0).put_nested(IMMEDIATE_DATA, |content| {
                content.put_nested(DATA_VERDICT, |verdict| {
                    verdict.put_str(VERDICT_CHAIN, chain);
                });
            });
        });
        request
    };
    let (first, second) = (immediate("first"), immediate("second"));
    let mut map = NetlinkRequest::new(0, MessageFlags::NONE, &[]);
    put_expression(&mut map, "lookup", &|data| {
        data.put_be32(LOOKUP_REGISTER, 0);
    });
    for (mut rule, expected, uses) in [
        ([first.clone(), second.clone()], JumpTarget::To("first".to_owned()), ["first", "second"].as_slice()),
        ([map.clone(), second], JumpTarget::Anywhere, &["second"]),
        ([first, map], JumpTarget::To("first".to_owned()), &["first"]),
    ] {
        let bytes = rule.iter_mut().flat_map(|one| one.finish(0, MessageFlags::NONE).unwrap()[16..].to_vec());
        let bytes: Vec<u8> = bytes.collect();
        let (_, jumps, used) = rule_effects(Attributes::new(&bytes), &OURS).unwrap();
        assert_eq!((jumps, used), (expected, uses.iter().map(|name| (*name).to_owned()).collect()));
    }
}

fn put_expression(list: &mut NetlinkRequest, name: &str, data: &dyn Fn(&mut NetlinkRequest)) {
    list.put_nested(1, |element| {
        element.put_str(EXPRESSION_NAME, name).put_nested(EXPRESSION_DATA, data);
    });
}

#[test]
fn targets_of_iptables_are_known_by_name_and_data() {
    let words = |numbers: &[u32]| numbers.iter().flat_map(|one| one.to_ne_bytes()).collect::<Vec<u8>>();
    let cases = [
        ("MARK", words(&[0x539, u32::MAX]), Some(RuleEffect::Marks(0x539))),
        ("MARK", words(&[0x4_0000, 0xff_0000]), None),
        ("MARK", words(&[0x539]), Some(RuleEffect::AnyMark)),
        ("CONNMARK", words(&[0x111, 0xfff, 0, 0]), Some(RuleEffect::Marks(0x111))),
        ("CONNMARK", words(&[0, u32::MAX, u32::MAX, 2]), None),
        // The second revision: a direction, a number of bits, a mode.
        ("CONNMARK", [words(&[0x111, 0xfff, 0]), vec![0, 0, 0, 0]].concat(), Some(RuleEffect::Marks(0x111))),
        ("CONNMARK", [words(&[0xa72, u32::MAX, 0]), vec![1, 1, 0, 0]].concat(), Some(RuleEffect::AnyMark)),
        ("CONNMARK", [words(&[0, u32::MAX, u32::MAX]), vec![0, 0, 2, 0]].concat(), None),
        ("CONNMARK", words(&[0x111]), Some(RuleEffect::AnyMark)),
        // Sets to add to, to delete from, and to map marks from; flags, and a timeout.
        ("SET", words(&[0x0101_0000, 0x0000_ffff, 0x0000_ffff, 0, 0]), None),
        ("SET", words(&[0x0000_ffff, 0x0000_ffff, 0x0101_0000, 0x100, 0, 0]), Some(RuleEffect::AnyMark)),
        ("SET", words(&[0x0101_0000, 0x0000_ffff]), None),
        ("CT", vec![1, 0, 0, 0], Some(RuleEffect::Untracked)),
        ("CT", vec![0, 0, 1, 0], None),
        ("LOG", Vec::new(), None),
        ("", vec![0; 8], None),
        ("TPROXY", vec![0; 8], Some(RuleEffect::Diverts("TPROXY".to_owned()))),
    ];
    for (name, info, expected) in cases {
        assert_eq!(from_target(name, &info, &OURS), expected, "{name} {info:?}");
    }
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = rule_effects(Attributes::new(&bytes), &OURS);
        let _ = from_target("CONNMARK", &bytes, &OURS);
    }
}
