//! `CNI_ARGS`: the runtime's parameters for the pod.

use model::PodUid;

use crate::environment::invalid_environment;
use crate::names::{self, excerpt};
use crate::{CniError, K8sNamespace, K8sPodName, NameError};

/// Maximum length of `CNI_ARGS` in bytes. Runtimes send about 300.
pub const MAX_ARGS: usize = 16 * 1024;

/// Parsed `CNI_ARGS` (Istio 1.20; CNI spec 1.1.0, section 2: "alphanumeric key-value pairs separated by semicolons"). An empty
/// value counts as absent. Of a duplicate key the last value is used. `IP` and `K8S_POD_INFRA_CONTAINER_ID` are accepted and
/// discarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniArgs {
    /// `IgnoreUnknown`: unknown keys are no error.
    pub ignore_unknown: bool,
    /// `K8S_POD_NAME`.
    pub pod_name: Option<K8sPodName>,
    /// `K8S_POD_NAMESPACE`.
    pub pod_namespace: Option<K8sNamespace>,
    /// `K8S_POD_UID`: at most 128 alphanumerics, `-`, `.` and `_`, the first of them an alphanumeric.
    pub pod_uid: Option<PodUid>,
}

impl CniArgs {
    /// Parses `key=value` pairs separated by `;`, in any order. An empty text has no pairs.
    ///
    /// # Errors
    /// Code 4, naming the key: a pair without exactly one `=`, a value of the wrong form, an unknown key while
    /// `IgnoreUnknown` is not true anywhere in the text; or a text over [`MAX_ARGS`].
    pub fn parse(text: &str) -> Result<Self, CniError> {
        if text.len() > MAX_ARGS {
            return Err(invalid_environment(format!("CNI_ARGS is longer than {MAX_ARGS} bytes")));
        }
        let mut args = CniArgs::default();
        let mut unknown = Vec::new();
        let pairs = text.split(';').filter(|_| !text.is_empty());
        for pair in pairs {
            let (key, value) = split_pair(pair)?;
            if !args.set_field(key, value)? {
                unknown.push(excerpt(key));
            }
        }
        if unknown.is_empty() || args.ignore_unknown {
            return Ok(args);
        }
        Err(invalid_environment(format!(
            "CNI_ARGS has unknown keys and no IgnoreUnknown=true: {}",
            unknown.join(", ")
        )))
    }

    /// Sets one field; false for an unknown key.
    fn set_field(&mut self, key: &str, value: &str) -> Result<bool, CniError> {
        match key {
            "IgnoreUnknown" => self.ignore_unknown = parse_bool(key, value)?,
            "K8S_POD_NAME" => self.pod_name = parse_name(key, value, K8sPodName::new)?,
            "K8S_POD_NAMESPACE" => self.pod_namespace = parse_name(key, value, K8sNamespace::new)?,
            // Addresses requested from other plugins, each of which has its own form; equal to CNI_CONTAINERID.
            "IP" | "K8S_POD_INFRA_CONTAINER_ID" => {}
            "K8S_POD_UID" => self.pod_uid = parse_name(key, value, names::pod_uid)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Splits a pair at its only `=`, as libcni's parser does.
fn split_pair(pair: &str) -> Result<(&str, &str), CniError> {
    match pair.split_once('=') {
        Some((key, value)) if !value.contains('=') => Ok((key, value)),
        _ => {
            Err(invalid_environment(format!("CNI_ARGS has {:?}, which is not one key=value", excerpt(pair))))
        }
    }
}

/// Parses like Go's `strconv.ParseBool`, and `true` and `false` in any case like libcni.
fn parse_bool(key: &str, value: &str) -> Result<bool, CniError> {
    match value {
        "1" | "t" | "T" => Ok(true),
        "0" | "f" | "F" => Ok(false),
        _ if value.eq_ignore_ascii_case("true") => Ok(true),
        _ if value.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(invalid_environment(format!(
            "CNI_ARGS key {key}: {:?} is neither true nor false",
            excerpt(value)
        ))),
    }
}

fn parse_name<T>(
    key: &str,
    value: &str,
    parse: impl Fn(&str) -> Result<T, NameError>,
) -> Result<Option<T>, CniError> {
    if value.is_empty() {
        return Ok(None);
    }
    parse(value).map(Some).map_err(|error| invalid_environment(format!("CNI_ARGS key {key}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;
    use proptest::prelude::*;

    #[test]
    fn all_known_keys_are_typed_in_any_order() {
        let mut pairs = [
            "IgnoreUnknown=1",
            "IP=10.0.0.7/24,fd00::7/64",
            "K8S_POD_NAME=web-0",
            "K8S_POD_NAMESPACE=default",
            "K8S_POD_INFRA_CONTAINER_ID=abc",
            "K8S_POD_UID=bd297e08-a2ff-4901-a03f-b480179928cd",
            "Other=x",
        ];
        for _ in 0..pairs.len() {
            pairs.rotate_left(1);
            let args = CniArgs::parse(&pairs.join(";")).unwrap();
            assert!(args.ignore_unknown);
            assert_eq!(args.pod_name.unwrap().as_str(), "web-0");
            assert_eq!(args.pod_namespace.unwrap().as_str(), "default");
            assert_eq!(args.pod_uid.unwrap().as_str(), "bd297e08-a2ff-4901-a03f-b480179928cd");
        }
    }

    #[test]
    fn empty_values_are_absent() {
        assert_eq!(CniArgs::parse(""), Ok(CniArgs::default()));
        assert_eq!(
            CniArgs::parse("K8S_POD_NAME=;K8S_POD_NAMESPACE=;K8S_POD_UID=;IP="),
            Ok(CniArgs::default())
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("K8S_POD_NAME", "K8S_POD_NAME"),
            ("a=b=c", "a=b=c"),
            ("IgnoreUnknown=1;", "\"\""),
            ("IgnoreUnknown=yes", "IgnoreUnknown"),
            ("IgnoreUnknown=", "IgnoreUnknown"),
            ("X=1;Y=2", "X, Y"),
            ("X=1;IgnoreUnknown=false", "X"),
            ("k8s_pod_name=x", "k8s_pod_name"),
            ("K8S_POD_NAME=../secrets", "K8S_POD_NAME"),
            ("K8S_POD_NAMESPACE=a.b", "K8S_POD_NAMESPACE"),
            ("IgnoreUnknown=1;K8S_POD_NAMESPACE=A", "K8S_POD_NAMESPACE"),
            ("K8S_POD_UID=a/b", "K8S_POD_UID"),
        ] {
            let error = CniArgs::parse(text).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidEnvironment, "{text}");
            assert!(error.msg.contains(part), "{text}: {}", error.msg);
        }
        assert!(CniArgs::parse(&"a".repeat(MAX_ARGS + 1)).is_err());
    }

    #[test]
    fn booleans_are_those_of_go() {
        for yes in ["1", "t", "T", "true", "TRUE", "True"] {
            assert!(CniArgs::parse(&format!("X=1;IgnoreUnknown={yes}")).is_ok(), "{yes}");
        }
        for no in ["0", "f", "F", "false", "FALSE", "False"] {
            assert!(!CniArgs::parse(&format!("IgnoreUnknown={no}")).unwrap().ignore_unknown, "{no}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_no_name_leaves_its_form(text in "(K8S_POD_NAME=|K8S_POD_NAMESPACE=|IP=|;|=|\\PC){0,20}") {
            if let Ok(args) = CniArgs::parse(&text) {
                let name = args.pod_name.map(|name| name.as_str().to_owned()).unwrap_or_default();
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.'));
            }
        }
    }
}
