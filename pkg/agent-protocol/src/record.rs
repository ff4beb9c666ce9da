//! Record of an ADD, a file for each container, written by the plugin, so that a later look at the node shows the decision and its
//! reason, without agent and API server; and so that an agent that started after the ADD knows what its predecessor was told.

use std::{collections::BTreeMap, net::IpAddr};

use model::{ContainerId, Pod, PodUid};
use serde::{Deserialize, Serialize};

/// Name of the file beside the sockets in which the plugin records since when the API server has refused its credential: one line
/// with the seconds since the node booted, the boot ID, and the fingerprints of the kubeconfig and of the log socket of the last
/// agent. Removed by an agent at its start.
pub const REFUSED_CREDENTIAL: &str = "credential-refused";
/// Directory of records, in the directory shared by plugin and agent.
pub const RECORDS: &str = "pods";
/// Prefix of file names with which the previous version recorded failed ADDs. These are not read, only removed.
pub const FORMER_FAILED: &str = "failed_";
/// Prefix of files being written, which are no records yet.
pub const STAGED: &str = ".staged-";
/// Prefix of the slots for failed ADDs. No container ID begins like this.
const FAILED: &str = "_failed-";
/// Number of slots for failed ADDs, however many pods fail.
pub const FAILURE_PLACES: u64 = 64;
/// Maximum size of the record of a failed ADD, in bytes.
pub const MAX_FAILURE: usize = 8 << 10;
/// Maximum size of the record of a successful ADD, in bytes: a page, which the smallest file of a tmpfs occupies.
pub const MAX_SUCCESS: usize = 4 << 10;
/// Maximum size of a record that is read, in bytes: the previous version did not bound them.
pub const MAX_RECORD: usize = 1 << 20;
/// Maximum size of a record's error and of its message, in bytes of JSON.
const MAX_ERROR: usize = 4 << 10;
const MAX_MESSAGE: usize = 512;
/// Maximum size of a pod's annotations in a record that would otherwise be too long, in bytes. Longer ones are lists, which add
/// nothing to the rules derived from them.
pub const MAX_ANNOTATION: usize = 128;

/// Returns the name of the file for the last failed ADD of a pod: one of [`FAILURE_PLACES`], by a hash of namespace and name
/// (FNV-1a). The next failure with that hash replaces it, so failures of any number of pods take a bounded space.
pub fn failure_place(namespace: &str, name: &str) -> String {
    let bytes = namespace.bytes().chain([b'/']).chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{FAILED}{:02}", (hash ^ (hash >> 32)) % FAILURE_PLACES)
}

/// Whether this is the name of a slot for failed ADDs.
pub fn is_failure_place(file: &str) -> bool {
    file.starts_with(FAILED)
}

/// Identity of a network namespace among all existing ones: its file in nsfs. The kernel may reuse the number of a removed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsFile {
    /// Device number of the file system.
    pub dev: u64,
    /// Inode number, as in `net:[4026531840]`.
    pub ino: u64,
}

/// A record of an ADD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod, if passed by the runtime. For a static pod it is the kubelet's own, not that of any API object.
    #[serde(default)]
    pub uid: PodUid,
    /// `metadata.uid` of the pod that was decided on, from the agent or the API server; empty: neither was queried.
    #[serde(default, skip_serializing_if = "PodUid::is_empty")]
    pub pod_uid: PodUid,
    /// Network that the runtime attached it to; empty: written by the previous version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// `CNI_CONTAINERID`.
    pub container: ContainerId,
    /// `CNI_NETNS`, as passed by the runtime.
    #[serde(default)]
    pub netns: String,
    /// Network namespace that existed at the ADD; `None` if it could not be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_file: Option<NetnsFile>,
    /// Addresses of the pod's interface.
    #[serde(default)]
    pub ips: Vec<IpAddr>,
    /// End of the ADD, RFC 3339.
    pub at: String,
    /// Short, stable code of the decision; empty: no decision was made.
    #[serde(default)]
    pub decision: String,
    /// Decision as a message; its name in the file is that of earlier versions.
    #[serde(default, rename = "words")]
    pub message: String,
    /// Error of the ADD; `None`: it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Rules that redirect the pod to its sidecar, by table and chain (`rules::RecordedRules`); empty: none were made, or made by
    /// the previous version.
    #[serde(default, rename = "redirectRules", skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, String>,
    /// Traffic that these rules redirect, by family and direction (`firewall::CapturedTraffic`); empty: no rules were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captured: Vec<String>,
    /// Fields of the pod that its redirection to a sidecar depends on; `None` if it has no sidecar, or they are too long for a
    /// record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Box<Pod>>,
}

/// Reason why a record cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Names and addresses alone are too long.
    #[error("its names and addresses take more than {0} bytes")]
    TooLong(usize),
    /// The record cannot be represented in JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

impl PodRecord {
    /// Returns the record's text, of at most [`MAX_FAILURE`] bytes if the ADD failed, else of at most [`MAX_SUCCESS`]. Error and
    /// message are truncated. If necessary, annotations of more than 128 bytes are omitted, then the rules, then the pod.
    ///
    /// # Errors
    /// The rest is still too long, which is impossible with names that Kubernetes permits.
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

    /// Parses a record of this version, or of the previous one, which has the pod's UID within the pod alone.
    ///
    /// # Errors
    /// The record is incomplete or invalid.
    pub fn decode(text: &[u8]) -> Result<PodRecord, serde_json::Error> {
        let mut record: PodRecord = serde_json::from_slice(text)?;
        if let (true, Some(pod)) = (record.pod_uid.is_empty(), &record.pod) {
            record.pod_uid.clone_from(&pod.metadata.uid);
        }
        Ok(record)
    }
}

/// Truncates a text to at most `limit` bytes of a JSON string, including an ellipsis.
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

/// Returns the length of a character within a JSON string, as `serde_json` writes it.
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

    /// Any text that a pod's author can put into an error: control characters, which JSON encodes in six times as many bytes.
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
