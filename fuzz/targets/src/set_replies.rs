//! The kernel's replies about IP sets.

use ipset::{parse_header, parse_members};
use netlink::MessageIter;

/// Any bytes are messages, each of which is a part of a set's listing or malformed; the same each time. A parsed set has a type,
/// and an owner is not empty.
///
/// # Panics
/// If one of these does not hold.
pub fn set_replies(data: &[u8]) {
    for message in MessageIter::new(data).map_while(Result::ok) {
        let (header, members) = (parse_header(&message), parse_members(&message));
        assert_eq!((&header, &members), (&parse_header(&message), &parse_members(&message)));
        if let Ok(Some(set)) = &header {
            assert!(!set.kind.is_empty());
            assert!(set.to_string().starts_with(&set.kind));
        }
        for owner in members.iter().flatten().filter_map(|(_, owner)| owner.as_ref()) {
            assert!(!owner.is_empty());
        }
    }
}
