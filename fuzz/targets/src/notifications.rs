//! The kernel's notifications about a network namespace.

/// Any bytes are changes, or not; the same each time. The name of a writer is short and printable.
///
/// # Panics
/// If one of these does not hold.
pub fn notifications(data: &[u8]) {
    let change = netns_changes::fuzzing::parse_notification(data);
    assert_eq!(change, netns_changes::fuzzing::parse_notification(data));
    if let Some(writer) = change.and_then(|change| change.writer) {
        assert!(
            writer.name.len() <= 15 && writer.name.bytes().all(|byte| matches!(byte, b' '..=b'~')),
            "{writer:?}"
        );
    }
}
