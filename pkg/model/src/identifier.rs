//! Identifiers of pods and their sandboxes: opaque texts, each with a type of its own, so that they cannot be confused with each
//! other or with other texts.

use std::{borrow::Borrow, collections::BTreeMap, fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether the identifier is unknown.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> $name {
                $name(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> $name {
                $name(text.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(identifier: $name) -> String {
                identifier.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

identifier!(
    /// UID of a pod: assigned by the API server, or used by the container runtime. For a static pod the two differ, and
    /// [`Pod::has_runtime_uid`](crate::Pod::has_runtime_uid) compares them; for any other pod they are equal. Empty: unknown,
    /// because the runtime did not pass it.
    PodUid
);

identifier!(
    /// ID of a pod's sandbox, passed by the container runtime as `CNI_CONTAINERID`: unique for each sandbox of a pod. Empty:
    /// unknown, because the caller did not pass it.
    ContainerId
);

/// Addresses of enrolled pods, and the pods' UIDs.
pub type MemberAddresses = BTreeMap<IpAddr, PodUid>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_identifier_is_written_and_printed_as_its_text() {
        for text in ["", "bd297e08-a2ff-4901-a03f-b480179928cd", "a \"quoted\"\n\\", "é"] {
            let (uid, container) = (PodUid::from(text), ContainerId::from(text));
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(serde_json::to_string(&uid).unwrap(), json);
            assert_eq!(serde_json::to_string(&container).unwrap(), json);
            assert_eq!(serde_json::from_str::<PodUid>(&json).unwrap(), uid);
            assert_eq!(serde_json::from_str::<ContainerId>(&json).unwrap(), container);
            assert_eq!(format!("{uid} {uid:?} {uid:>40}"), format!("{text} {text:?} {text:>40}"));
            assert_eq!(format!("{container} {container:?}"), format!("{text} {text:?}"));
            assert_eq!((uid.is_empty(), container.is_empty()), (text.is_empty(), text.is_empty()));
        }
    }

    #[test]
    fn a_map_of_identifiers_is_an_object_and_is_asked_with_text() {
        let map = BTreeMap::from([(PodUid::from("b"), 2), (PodUid::from("a"), 1)]);
        assert_eq!(serde_json::to_string(&map).unwrap(), r#"{"a":1,"b":2}"#);
        assert_eq!(serde_json::from_str::<BTreeMap<PodUid, i32>>(r#"{"a":1,"b":2}"#).unwrap(), map);
        assert_eq!((map.get("b"), map.get("c")), (Some(&2), None));
    }
}
