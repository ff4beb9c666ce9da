//! What the plugin leaves behind of an ADD, a file for each container, so that whoever looks at the node later can tell
//! what was decided and why, with no agent and no API server; and so that an agent that was not there at the ADD knows what
//! the one before it was told.

use std::{collections::BTreeMap, net::IpAddr};

use model::{ContainerId, Pod, PodUid};
use serde::{Deserialize, Serialize};

/// Name of the file beside the sockets in which the plugin notes since when the API server has refused its credential: one
/// line of seconds since the node booted, the boot's id, and the fingerprints of the kubeconfig and of the log socket that
/// the last agent left. An agent that starts removes it.
pub const REFUSED_CREDENTIAL: &str = "credential-refused";
/// The directory of records, in the directory that plugin and agent share.
pub const RECORDS: &str = "pods";
/// Prefix of the names under which the version before this one recorded ADDs that failed. These are not read, only removed.
pub const FORMER_FAILED: &str = "failed_";
/// Prefix of files that are being written: no record yet.
pub const STAGED: &str = ".staged-";
/// Prefix of the places for ADDs that failed. No container ID begins like this.
const FAILED: &str = "_failed-";
/// Number of places for ADDs that failed, however many pods fail.
pub const FAILURE_PLACES: u64 = 64;
/// The longest record of an ADD that failed, in bytes.
pub const MAX_FAILURE: usize = 8 << 10;
/// The longest record of an ADD that succeeded, in bytes: a page, which is what the smallest file of a tmpfs occupies.
pub const MAX_SUCCESS: usize = 4 << 10;
/// The longest record that is read, in bytes: the version before this one did not bound them.
pub const MAX_RECORD: usize = 1 << 20;
/// Bytes of a record's error and of its message, as JSON has them.
const MAX_ERROR: usize = 4 << 10;
const MAX_MESSAGE: usize = 512;
/// Bytes of an annotation of a pod that is too long otherwise. Longer ones are lists, which say nothing beyond the rules that
/// they led to.
const MAX_ANNOTATION: usize = 128;

/// Returns the name of the file for the last failed ADD of a pod: one of [`FAILURE_PLACES`], by a hash of namespace and
/// name (FNV-1a). The next failure with that hash replaces it, so failures of any number of pods take a bounded space.
pub fn failure_place(namespace: &str, name: &str) -> String {
    let bytes = namespace.bytes().chain([b'/']).chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{FAILED}{:02}", (hash ^ (hash >> 32)) % FAILURE_PLACES)
}

/// Whether this is the name of a place for ADDs that failed.
pub fn is_failure_place(file: &str) -> bool {
    file.starts_with(FAILED)
}

/// Identity of a network namespace among all that exist at the time: its file in nsfs. The kernel may give the number of one
/// that ended to a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsFile {
    /// Device of the file system that holds it.
    pub dev: u64,
    /// Inode number, the one in `net:[4026531840]`.
    pub ino: u64,
}

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// UID of the pod, where the runtime says it. Of a static pod it is the kubelet's own, not that of any object of the API.
    #[serde(default)]
    pub uid: PodUid,
    /// `metadata.uid` of the pod that the agent or the API server decided on; empty: neither was asked.
    #[serde(default, skip_serializing_if = "PodUid::is_empty")]
    pub pod_uid: PodUid,
    /// The network that the runtime attached it to; empty: written by the version before this one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_NETNS`, as the runtime says it.
    #[serde(default)]
    pub netns: String,
    /// Network namespace that was there at the ADD; `None` if it could not be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_file: Option<NetnsFile>,
    /// The addresses of the pod's interface.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    /// When the ADD ended, RFC 3339.
    pub at: String,
    /// A short, stable name of the decision; empty: it did not come that far.
    #[serde(default)]
    pub decision: String,
    /// The decision as a message; its name in the file stays what earlier versions write.
    #[serde(default, rename = "words")]
    pub message: String,
    /// Why the ADD failed; `None`: it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The rules that redirect it to its sidecar, by table and chain (`rules::RecordedRules`); empty: none were made, or the
    /// version before this one made them.
    #[serde(default, rename = "redirectRules", skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, String>,
    /// The traffic that these rules redirect, by family and direction (`firewall::CapturedTraffic`); empty: no rules were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captured: Vec<String>,
    /// Pod as far as the redirection to its sidecar rests on it; `None` if it has no sidecar, or it is too long for a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Box<Pod>>,
}

/// Why a record cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The record's names and addresses alone are too long.
    #[error("its names and addresses take more than {0} bytes")]
    TooLong(usize),
    /// The record cannot be represented in JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

impl PodRecord {
    /// Returns the record's text, of at most [`MAX_FAILURE`] bytes if the ADD failed, else of at most [`MAX_SUCCESS`]. Error
    /// and message are cut. As far as that is necessary, annotations of more than 128 bytes are left out, then the
    /// rules, then the pod.
    ///
    /// # Errors
    /// The rest is still too long, which no names that Kubernetes permits are.
    pub fn encode(mut self) -> Result<Vec<u8>, RecordError> {
        let limit = if self.error.is_some() { MAX_FAILURE } else { MAX_SUCCESS };
        truncate_text(&mut self.message, MAX_MESSAGE);
        if let Some(error) = &mut self.error {
            truncate_text(error, MAX_ERROR);
        }
        let mut text = serde_json::to_vec(&self)?;
        if let (true, Some(pod)) = (text.len() > limit, &mut self.pod) {
            pod.metadata.annotations.retain(|_, value| value.len() <= MAX_ANNOTATION);
            text = serde_json::to_vec(&self)?;
        }
        if text.len() > limit {
            self.rules.clear();
            text = serde_json::to_vec(&self)?;
        }
        if text.len() > limit && self.pod.take().is_some() {
            text = serde_json::to_vec(&self)?;
        }
        if text.len() > limit { Err(RecordError::TooLong(limit)) } else { Ok(text) }
    }

    /// Reads a record of this version, or of the one before, which has the pod's UID within the pod alone.
    ///
    /// # Errors
    /// It is not a whole record.
    pub fn decode(text: &[u8]) -> Result<PodRecord, serde_json::Error> {
        let mut record: PodRecord = serde_json::from_slice(text)?;
        if let (true, Some(pod)) = (record.pod_uid.is_empty(), &record.pod) {
            record.pod_uid.clone_from(&pod.metadata.uid);
        }
        Ok(record)
    }
}

/// Cuts a text to at most so many bytes of a JSON string, an ellipsis included.
fn truncate_text(text: &mut String, limit: usize) {
    const ELLIPSIS: char = '…';
    let (mut used, mut end) = (0, 0);
    for (start, character) in text.char_indices() {
        if used + ELLIPSIS.len_utf8() <= limit {
            end = start;
        }
        used += encoded_len(character);
        if used > limit {
            text.truncate(end);
            text.push(ELLIPSIS);
            return;
        }
    }
}

/// Bytes of a character within a JSON string, as `serde_json` writes it.
fn encoded_len(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::ObjectMeta;
    use proptest::prelude::*;

    use super::*;

    fn record() -> PodRecord {
        let metadata = ObjectMeta { name: "web".to_owned(), uid: "0123-api".into(), ..ObjectMeta::default() };
        PodRecord {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "0123".into(),
            pod_uid: "0123-api".into(),
            network: "cbr0".to_owned(),
            container: "f".repeat(64).as_str().into(),
            netns: "/var/run/netns/cni-01234567-89ab-cdef-0123-456789abcdef".to_owned(),
            netns_file: Some(NetnsFile { dev: 4, ino: 4_026_532_000 }),
            ips: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            at: "2026-01-31T23:59:59Z".to_owned(),
            decision: "sidecar".to_owned(),
            pod: Some(Box::new(Pod { metadata, ..Pod::default() })),
            ..PodRecord::default()
        }
    }

    fn decoded(record: &PodRecord) -> PodRecord {
        let text = record.clone().encode().unwrap();
        let limit = if record.error.is_some() { MAX_FAILURE } else { MAX_SUCCESS };
        assert!(text.len() <= limit, "{} bytes", text.len());
        PodRecord::decode(&text).unwrap()
    }

    #[test]
    fn a_record_of_usual_length_is_kept_whole_and_below_a_kilobyte() {
        let text = record().encode().unwrap();
        assert!(text.len() < 1024, "{} bytes", text.len());
        assert_eq!(PodRecord::decode(&text).unwrap(), record());
    }

    #[test]
    fn what_is_too_long_is_left_out_in_order_and_names_never_are() {
        let rules = |number: usize| {
            let line = |n: usize| (format!("nat ISTIO_{n:03}"), "-p tcp -j RETURN".to_owned());
            (0..number).map(line).collect::<BTreeMap<_, _>>()
        };
        let long =
            |bytes: usize| Some(Box::new(Pod { metadata: annotated("x".repeat(bytes)), ..Pod::default() }));
        let cases = [
            (rules(28), long(1000), (true, true)),
            (rules(28), long(4000), (true, true)),
            (rules(0), long(4000), (false, true)),
            (rules(200), long(10), (false, true)),
        ];
        for (rules, pod, (has_rules, has_pod)) in cases {
            let before = PodRecord { rules, pod, ..record() };
            let after = decoded(&before);
            assert_eq!((!after.rules.is_empty(), after.pod.is_some()), (has_rules, has_pod));
            let bare = |record: PodRecord| PodRecord { rules: BTreeMap::new(), pod: None, ..record };
            assert_eq!(bare(after), bare(before));
        }
        let endless = PodRecord { netns: "n".repeat(MAX_SUCCESS), ..record() };
        assert!(matches!(endless.encode(), Err(RecordError::TooLong(MAX_SUCCESS))));
    }

    fn annotated(value: String) -> ObjectMeta {
        let annotations = [("a".to_owned(), value)].into();
        ObjectMeta { annotations, ..record().pod.unwrap().metadata }
    }

    #[test]
    fn a_record_of_the_version_before_has_its_pods_uid() {
        let mut json = serde_json::to_value(record()).unwrap();
        assert!(json.as_object_mut().unwrap().remove("podUid").is_some());
        assert_eq!(PodRecord::decode(json.to_string().as_bytes()).unwrap(), record());
    }

    #[test]
    fn places_of_failures_are_few_stable_and_no_containers() {
        let places: BTreeSet<String> =
            (0..2000).map(|n| failure_place("shop", &format!("web-{n}"))).collect();
        assert_eq!(places.len(), usize::try_from(FAILURE_PLACES).unwrap(), "all are used");
        assert!(
            places
                .iter()
                .all(|place| is_failure_place(place) && !place.starts_with(|c: char| c.is_alphanumeric()))
        );
        assert_eq!(failure_place("shop", "web"), failure_place("shop", "web"));
        assert_ne!(failure_place("a", "bc"), failure_place("ab", "c"));
    }

    /// Any text that a pod's author can bring into an error: control characters, which JSON makes six times as long.
    fn hostile() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("\u{1}".repeat(5000)),
            Just("\"\\".repeat(3000)),
            Just("\u{10ffff}é".repeat(900)),
            ".{0,300}",
            "[a-z\\x00-\\x1f\u{7f}-\u{2029}]{0,4000}",
        ];
        proptest::collection::vec(part, 0..4).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_text_makes_a_record_longer_than_its_bound(
            error in proptest::option::of(hostile()),
            message in hostile(),
            value in hostile(),
            rules in proptest::collection::btree_map(hostile(), hostile(), 0..3),
        ) {
            let pod = Some(Box::new(Pod { metadata: annotated(value), ..Pod::default() }));
            let before = PodRecord { error, message, rules, pod, ..record() };
            let after = decoded(&before);
            prop_assert_eq!(&after, &decoded(&before));
            let whole = |text: &str, whole: &str| {
                text == whole || text.strip_suffix('…').is_some_and(|start| whole.starts_with(start))
            };
            prop_assert!(whole(&after.message, &before.message));
            prop_assert_eq!(after.error.is_some(), before.error.is_some());
            prop_assert!(whole(&after.error.clone().unwrap_or_default(), &before.error.clone().unwrap_or_default()));
            let is_of = |after: &Pod, before: &Pod| {
                let Pod { metadata, .. } = after;
                metadata.annotations.iter().all(|(key, value)| before.metadata.annotations.get(key) == Some(value))
                    && metadata.uid == before.metadata.uid
            };
            prop_assert!(after.pod.is_none() || is_of(after.pod.as_ref().unwrap(), before.pod.as_ref().unwrap()));
            prop_assert!(after.rules.is_empty() || after.rules == before.rules);
            let names = |record: PodRecord| (record.namespace, record.name, record.uid, record.pod_uid, record.netns_file);
            prop_assert_eq!(names(after), names(before));
        }

        #[test]
        fn a_text_is_cut_to_its_encoded_length_and_no_shorter_than_needed(text in hostile(), limit in 3..600_usize) {
            let mut short = text.clone();
            truncate_text(&mut short, limit);
            let length = serde_json::to_string(&short).unwrap().len() - 2;
            prop_assert!(length <= limit);
            let is_whole = serde_json::to_string(&text).unwrap().len() - 2 <= limit;
            prop_assert_eq!(is_whole, short == text);
            prop_assert!(is_whole || length + 6 > limit - 3);
        }
    }
}
