//! Identifiers from the runtime, each validated once, here.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use model::{ContainerId, PodUid};

/// Reason why a text is no valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty text.
    #[error("is empty")]
    Empty,
    /// Text longer than allowed.
    #[error("is longer than {max} bytes")]
    TooLong {
        /// Maximum length in bytes.
        max: usize,
    },
    /// Text of another form.
    #[error("{text:?} is not {form}")]
    Form {
        /// Text, truncated to 80 characters.
        text: String,
        /// Required form.
        form: &'static str,
    },
}

/// Checks length and form, in this order.
fn check(text: &str, max: usize, form: &'static str, valid: impl Fn(&str) -> bool) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > max {
        return Err(NameError::TooLong { max });
    }
    if valid(text) { Ok(()) } else { Err(NameError::Form { text: excerpt(text), form }) }
}

/// Returns the beginning of a foreign text, for messages.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Whether the text is an alphanumeric character, then any of those, `_`, `.` and `-` (CNI spec 1.1.0, section 2,
/// `CNI_CONTAINERID`; section 1, `name`).
pub(crate) fn is_cni_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Whether the text has the form of an RFC 1123 label as defined by Kubernetes: lower-case alphanumerics and `-`, alphanumeric at
/// both ends. The caller limits its length.
fn is_dns_label(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(edge) && text.ends_with(edge) && text.chars().all(|c| edge(c) || c == '-')
}

/// Whether the text consists of labels joined by dots. Kubernetes limits the whole (253), not each label.
fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

/// Whether the text is a valid device name by the rules of the kernel (`dev_valid_name`, net/core/dev.c) and of the reference
/// library: printable, no blank, no `/`, no `:`.
fn is_ifname(text: &str) -> bool {
    text != "."
        && text != ".."
        && !text.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':'))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $max:expr, $form:expr, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Maximum length in bytes.
            pub const MAX: usize = $max;

            /// Validates the text.
            ///
            /// # Errors
            /// The text is empty, too long or not of the required form.
            pub fn new(text: &str) -> Result<Self, NameError> {
                check(text, Self::MAX, $form, $valid)?;
                Ok(Self(text.to_owned()))
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// `CNI_IFNAME`: at most 15 bytes (`IFNAMSIZ` less the NUL).
    CniIfName, 15, "an interface name (no '/', ':' or blank, not '.' or '..')", is_ifname
);
name!(
    /// `K8S_POD_NAME`: a DNS-1123 subdomain, safe as one segment of an URL path.
    K8sPodName, 253, "a DNS-1123 subdomain", is_dns_subdomain
);
name!(
    /// `K8S_POD_NAMESPACE` and other namespaces: a DNS-1123 label.
    K8sNamespace, 63, "a DNS-1123 label", is_dns_label
);

/// Validates `CNI_CONTAINERID`. The specification sets no maximum length; ours is 1 KiB.
pub(crate) fn container_id(text: &str) -> Result<ContainerId, NameError> {
    const FORM: &str = "a container id (an alphanumeric, then alphanumerics, '_', '.', '-')";
    check(text, 1024, FORM, is_cni_name)?;
    Ok(text.into())
}

/// Validates `K8S_POD_UID`: opaque to Kubernetes' users; a UUID, or a hash for static pods. Alphanumerics, `-`, `.`, `_`.
pub(crate) fn pod_uid(text: &str) -> Result<PodUid, NameError> {
    check(text, 128, "a pod UID (alphanumerics, '-', '.', '_')", is_cni_name)?;
    Ok(text.into())
}

/// `CNI_NETNS`: an absolute path of at most 4095 bytes without NUL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsPath(PathBuf);

impl NetnsPath {
    /// `PATH_MAX` less the NUL (linux/limits.h).
    pub const MAX: usize = 4095;

    /// Validates the path.
    ///
    /// # Errors
    /// The path is empty, too long, relative or contains NUL.
    pub fn new(path: &OsStr) -> Result<Self, NameError> {
        let bytes = path.as_encoded_bytes();
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > Self::MAX {
            return Err(NameError::TooLong { max: Self::MAX });
        }
        if !bytes.starts_with(b"/") || bytes.contains(&0) {
            return Err(NameError::Form { text: excerpt(&path.to_string_lossy()), form: "an absolute path" });
        }
        Ok(Self(PathBuf::from(path)))
    }

    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for NetnsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn names_are_checked_for_form_and_length() {
        let long = "a".repeat(2000);
        for ok in ["a", "0", "84017895.x_y-z", "A1"] {
            assert!(container_id(ok).is_ok(), "{ok}");
        }
        for bad in ["", "-a", ".", "_x", "a/b", "a b", "a\n", "é", "a\0", &long] {
            assert!(container_id(bad).is_err(), "{bad}");
        }
        for ok in ["eth0", "net1.100", "a-b", "0123456789abcde"] {
            assert!(CniIfName::new(ok).is_ok(), "{ok}");
        }
        for bad in ["", ".", "..", "eth 0", "eth\t", "a/b", "a:1", "0123456789abcdef"] {
            assert!(CniIfName::new(bad).is_err(), "{bad}");
        }
        for ok in ["web-0", "a", "coredns-5d78c9869d-x.y.z", &"a".repeat(253)] {
            assert!(K8sPodName::new(ok).is_ok(), "{ok}");
        }
        for bad in
            ["", "Web", "-a", "a-", "a..b", ".a", "a.", "../x", "a/b", "a?b", "a%2fb", &"a".repeat(254)]
        {
            assert!(K8sPodName::new(bad).is_err(), "{bad}");
        }
        assert!(K8sNamespace::new("kube-system").is_ok());
        for bad in ["", "a.b", "A", &"a".repeat(64)] {
            assert!(K8sNamespace::new(bad).is_err(), "{bad}");
        }
        assert!(pod_uid("bd297e08-a2ff-4901-a03f-b480179928cd").is_ok());
    }

    #[test]
    fn a_netns_path_is_absolute_and_bounded() {
        assert!(NetnsPath::new("/var/run/netns/cni-1".as_ref()).is_ok());
        assert!(NetnsPath::new(OsStr::from_bytes(b"/proc/\xff")).is_ok());
        for bad in ["", "netns", "./x", "/a\0b", &format!("/{}", "a".repeat(4095))] {
            assert!(NetnsPath::new(bad.as_ref()).is_err());
        }
    }
}
