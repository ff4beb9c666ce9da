//! New network namespaces of the tests.

use netns::Netns;

/// Creates a namespace, or `None`, with the reason on stderr, without permission: then the test is skipped. CI must have it.
pub(crate) fn create_or_skip() -> Option<Netns> {
    match Netns::create() {
        Ok(netns) => Some(netns),
        Err(reason) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => panic!("{reason}"),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}
