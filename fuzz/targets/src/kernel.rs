//! The kernel's replies about links, addresses, routes, policy rules and firewall rules. Other components choose their number and
//! names.

use firewall::fuzzing::{nft_chain, nft_rule};
use hostnet::fuzzing::{KernelObject, creation_request, parse};
use iptables_legacy::fuzzing::legacy_table;
use model::Family;
use netlink::{MessageFlags, MessageIter};

/// Sequence number of the requests in the seeds.
const SEQUENCE: u32 = 7;
/// `RTM_NEWLINK`, `RTM_NEWADDR`, `RTM_NEWROUTE`, `RTM_NEWRULE`.
const KINDS: [u16; 4] = [16, 20, 24, 32];

/// Any datagram answers a query, or acknowledges changes, or is an error with a message; each message in it is an object or
/// malformed, whatever its type; and a request for a parsed route or rule would result in the same reply.
///
/// # Panics
/// If one of these does not hold.
pub fn route_replies(data: &[u8]) {
    match netlink::fuzzing::exchange(data, SEQUENCE) {
        Ok((replies, _)) => assert!(replies <= data.len() / 16),
        Err(error) => assert!(!error.is_empty()),
    }
    for count in [0, 1, 3] {
        let outcomes = netlink::fuzzing::batch(data, SEQUENCE, count);
        assert!(outcomes.iter().flat_map(|outcome| outcome.as_ref().err()).all(|error| !error.is_empty()));
    }
    for message in MessageIter::new(data).map_while(Result::ok) {
        for kind in KINDS.into_iter().chain([message.kind]) {
            if let Ok(Some(object)) = parse(&netlink::ReceivedMessage { kind, ..message }) {
                asked_as_told(&object);
            }
        }
    }
}

/// Once more, because a request has fewer attributes than a reply.
fn asked_as_told(object: &KernelObject) {
    let Some(once) = told_again(object) else { return };
    assert_eq!(told_again(&once).as_ref(), Some(&once), "of {object:?}");
}

fn told_again(object: &KernelObject) -> Option<KernelObject> {
    let mut request = creation_request(object)?;
    let bytes = request.finish(SEQUENCE, MessageFlags::NONE).ok()?;
    let message = MessageIter::new(bytes).next()?.ok()?;
    parse(&message).ok()?
}

/// Any message is a rule and a chain of nf_tables, or malformed; the same each time. A rule that the engine parses is encoded so
/// that it parses back to itself. In a native table, any message is a rule that equals itself.
///
/// # Panics
/// If one of these does not hold.
pub fn nft_replies(data: &[u8]) {
    for message in MessageIter::new(data).map_while(Result::ok) {
        let rule = nft_rule(&message);
        assert_eq!(rule, nft_rule(&message));
        let attributes = message.payload.get(4..).unwrap_or_default(); // after struct nfgenmsg
        assert!(nftables::fuzzing::same_native_rule(attributes, attributes));
        for family in Family::BOTH {
            let Some(rule) = nftables::fuzzing::decode_rule(family, attributes) else { continue };
            let written = nftables::fuzzing::encode_rule(family, &rule);
            let again = written.and_then(|written| nftables::fuzzing::decode_rule(family, &written));
            assert_eq!(again, Some(rule));
        }
        if let Ok((chain, jumps_to)) = &rule {
            let names = chain.len() + jumps_to.as_ref().map_or(0, String::len);
            assert!(names <= message.payload.len());
        }
        assert_eq!(nft_chain(&message), nft_chain(&message));
        let _ = nftables::fuzzing::map_jumps(&message);
    }
}

/// Any bytes, of which the first 84 are the kernel's information about a table and the others its entries, are rules or an error
/// with a message; no more rules than fit.
///
/// # Panics
/// If one of these does not hold.
pub fn legacy_tables(data: &[u8]) {
    let (info, entries) = data.split_at_checked(84).unwrap_or((data, &[]));
    for (family, least) in [(Family::V4, 112), (Family::V6, 168)] {
        match legacy_table(family, info, &mut entries.to_vec()) {
            Ok(rules) => assert!(rules.len() <= entries.len() / least),
            Err(error) => assert!(!error.is_empty()),
        }
    }
}
