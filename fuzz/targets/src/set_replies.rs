//! What the kernel answers about IP sets.

use ipset::{Comment, parse_header, parse_members};
use netlink::MessageIter;

/// Any bytes are messages, of which each is a part of a set's listing or malformed; the same each time. A set that is
/// understood has a type, and every member's comment could be sent back.
///
/// # Panics
/// When one of these does not hold.
pub fn set_replies(data: &[u8]) {
    for message in MessageIter::new(data).map_while(Result::ok) {
        let (header, members) = (parse_header(&message), parse_members(&message));
        assert_eq!((&header, &members), (&parse_header(&message), &parse_members(&message)));
        if let Ok(Some(set)) = &header {
            assert!(!set.kind.is_empty());
            assert!(set.to_string().starts_with(&set.kind));
        }
        for comment in members.iter().flatten().filter_map(|member| member.comment.as_ref()) {
            assert_eq!(Comment::new(comment.as_str()).as_ref(), Ok(comment));
        }
    }
}
