//! Comparing rules, and parsing arbitrary bytes as one.

use netlink::MessageIter;
use proptest::prelude::*;

use super::*;

fn marked() -> PolicyRule {
    let fwmark = Some(Mark { value: 0x100, mask: 0x100 });
    PolicyRule { fwmark, ..PolicyRule::new(Family::V4, Some(101), RuleAction::Lookup(TableId(101))) }
}

#[test]
fn a_rule_prints_as_ip_prints_it() {
    assert_eq!(marked().to_string(), "101: from all fwmark 0x100/0x100 lookup 101");
    let whole = PolicyRule { fwmark: Some(Mark { value: 5, mask: u32::MAX }), priority: None, ..marked() };
    assert_eq!(whole.to_string(), "from all fwmark 0x5 lookup 101");
    let tcp = PolicyRule {
        ip_proto: Some(IpProtocol::TCP),
        iif: Some("lo".to_owned()),
        ..PolicyRule::new(Family::V6, Some(9), RuleAction::Goto(32766))
    };
    assert_eq!(tcp.to_string(), "9: from all iif lo ipproto tcp goto 32766");
}

#[test]
fn a_rule_with_more_conditions_is_never_ours() {
    assert!(marked().is_match_for(&marked()));
    assert!(!PolicyRule { unmodelled: true, ..marked() }.is_match_for(&marked()));
    assert!(
        !PolicyRule { fwmark: Some(Mark { value: 0x100, mask: u32::MAX }), ..marked() }
            .is_match_for(&marked())
    );
    assert!(marked().is_match_for(&PolicyRule { priority: None, ..marked() }));
    assert!(!marked().is_match_for(&PolicyRule { priority: Some(102), ..marked() }));
}

#[test]
fn a_rule_is_read_as_it_was_written() {
    for rule in [
        marked(),
        PolicyRule { action: RuleAction::Lookup(TableId(70_000)), iif: Some("eth0".to_owned()), ..marked() },
        PolicyRule { action: RuleAction::Goto(32766), ip_proto: Some(IpProtocol::UDP), ..marked() },
        PolicyRule { fwmark: Some(Mark { value: 0, mask: 0x3000 }), family: Family::V6, ..marked() },
    ] {
        let mut message = message::add_request(&rule, MessageFlags::NONE);
        let bytes = message.finish(1, MessageFlags::NONE).unwrap();
        let received = MessageIter::new(bytes).next().unwrap().unwrap();
        assert_eq!(message::parse(&received), Ok(Some(rule)));
    }
}

/// No kernel without IPv6 is available here, but the error of a missing family is: DECnet does not exist since 6.1, and is a module
/// in older ones.
#[test]
fn what_a_kernel_says_without_a_family_is_as_we_take_it() {
    const DECNET: u8 = 12;
    let mut header = [0; 12];
    header[0] = DECNET;
    let mut socket = netlink::Socket::open(netlink::NetlinkProtocol::Route).unwrap();
    let rules = socket.dump(&netlink::NetlinkRequest::new(34, MessageFlags::NONE, &header));
    assert_eq!(rules.unwrap_err().errno(), Some(Errno::AFNOSUPPORT));
    let deleted = socket.request(netlink::NetlinkRequest::new(25, MessageFlags::NONE, &header));
    assert_eq!(deleted.unwrap_err().errno(), Some(Errno::OPNOTSUPP));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(kind in 16..40_u16, payload in prop::collection::vec(any::<u8>(), 0..120)) {
        let received = netlink::ReceivedMessage { kind, flags: MessageFlags::NONE, sequence: 0, payload: &payload };
        let _ = message::parse(&received);
    }
}
