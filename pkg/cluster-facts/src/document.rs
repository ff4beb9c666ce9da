//! Pods and namespaces of one manifest file.

use std::path::Path;

use apiclient::parse_yaml;
use model::{Namespace, ObjectMeta, Pod, PodUid};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Objects of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestObjects {
    pub(crate) pods: Vec<Pod>,
    pub(crate) namespaces: Vec<Namespace>,
}

/// Whether a file of this name is parsed: JSON or YAML, and not hidden.
pub(crate) fn is_manifest(name: &Path) -> bool {
    let hidden = name.as_os_str().as_encoded_bytes().starts_with(b".");
    !hidden && name.extension().is_some_and(|kind| kind == "json" || kind == "yaml" || kind == "yml")
}

/// Parses a file: any number of documents, of which Pods, Namespaces and Lists of them are used. The error is a message for people.
pub(crate) fn parse_manifest(name: &Path, content: &[u8]) -> Result<ManifestObjects, String> {
    let text = std::str::from_utf8(content).map_err(|cause| cause.to_string())?;
    let documents = if name.extension().is_some_and(|kind| kind == "json") {
        let documents: Result<_, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
        documents.map_err(|cause| cause.to_string())?
    } else {
        parse_yaml(text)?
    };
    let mut objects = ManifestObjects::default();
    for document in documents {
        if !document.is_null() {
            objects.add_document(document, None)?;
        }
    }
    Ok(objects)
}

impl ManifestObjects {
    /// Adds the objects of a document. `kind`: that of elements without one, as in a PodList.
    fn add_document(&mut self, mut document: Value, kind: Option<&str>) -> Result<(), String> {
        let own = document.get("kind").and_then(Value::as_str).map(str::to_owned);
        let kind = own.as_deref().or(kind).ok_or("an object has no kind")?;
        match kind {
            "Pod" => self.pods.push(parse_pod(document)?),
            "Namespace" => self.namespaces.push(parse_namespace(document)?),
            "List" | "PodList" | "NamespaceList" => {
                let of = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
                let items = document.get_mut("items").map(Value::take).unwrap_or_default();
                let Value::Array(items) = items else { return Err(format!("a {kind} has no items")) };
                for item in items {
                    self.add_document(item, of)?;
                }
            }
            _ => {} // other kinds may well be in the directory
        }
        Ok(())
    }
}

fn parse_pod(document: Value) -> Result<Pod, String> {
    let mut pod: Pod = parse_object("Pod", document)?;
    let meta = &mut pod.metadata;
    if meta.namespace.is_empty() {
        "default".clone_into(&mut meta.namespace);
    }
    name_it("Pod", meta)?;
    enrolment::facts::trim_pod(&mut pod);
    Ok(pod)
}

fn parse_namespace(document: Value) -> Result<Namespace, String> {
    let mut namespace: Namespace = parse_object("Namespace", document)?;
    name_it("Namespace", &mut namespace.metadata)?;
    Ok(namespace)
}

fn parse_object<T: DeserializeOwned>(kind: &str, document: Value) -> Result<T, String> {
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    serde_json::from_value(document).map_err(|cause| format!("{kind} {name:?}: {cause}"))
}

fn name_it(kind: &str, meta: &mut ObjectMeta) -> Result<(), String> {
    if meta.name.is_empty() {
        return Err(format!("a {kind} has no metadata.name"));
    }
    if meta.uid.is_empty() {
        meta.uid = derive_uid(&format!("{}/{}", meta.namespace, meta.name));
    }
    Ok(())
}

/// Derives a UID for an object without one: in the API server's format, and always equal for one name (FNV-1a, 128 bits). So a pod
/// that is removed and written again without a UID is the same pod.
fn derive_uid(name: &str) -> PodUid {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = name.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    let bits = |from: u32, count: u32| (hash >> from) & ((1 << count) - 1);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        bits(96, 32),
        bits(80, 16),
        bits(64, 16),
        bits(48, 16),
        bits(0, 48)
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, text: &str) -> Result<Vec<String>, String> {
        let objects = parse_manifest(name.as_ref(), text.as_bytes())?;
        let pods = objects.pods.iter().map(|pod| pod.name().to_string());
        Ok(pods.chain(objects.namespaces.into_iter().map(|namespace| namespace.metadata.name)).collect())
    }

    #[test]
    fn pods_namespaces_and_lists_of_them_count() {
        let pod = "kind: Pod\nmetadata: {name: a, creationTimestamp: null}\n";
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n";
        let other = "kind: Node\nmetadata: {name: n1}\n";
        let list =
            "kind: List\nitems:\n- {kind: Pod, metadata: {name: b, namespace: shop}}\n- {kind: Service}\n";
        let pods = "kind: PodList\nitems: [{metadata: {name: c}}]\n";
        for (text, expected) in [
            (pod.to_owned(), &["default/a"][..]),
            (format!("---\n{pod}---\n{other}---\n---\n{namespace}"), &["default/a", "shop"]),
            (list.to_owned(), &["shop/b"]),
            (pods.to_owned(), &["default/c"]),
            (format!("{namespace}---\n{pods}"), &["default/c", "shop"]),
            ("# nothing\n".to_owned(), &[]),
        ] {
            assert_eq!(names("x.yaml", &text).unwrap(), expected, "{text}");
        }
        let json =
            r#"{"kind":"Pod","metadata":{"name":"a"}} {"kind":"Namespace","metadata":{"name":"shop"}}"#;
        assert_eq!(names("x.json", json).unwrap(), ["default/a", "shop"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_in_words() {
        for (name, text, word) in [
            ("x.yaml", "a: [", "line"),
            ("x.yaml", "a: b", "no kind"),
            ("x.yaml", "just text", "no kind"),
            ("x.yaml", "kind: Pod", "no metadata.name"),
            ("x.yaml", "kind: List", "no items"),
            ("x.yaml", "kind: Pod\nmetadata: {name: a, labels: {v: 1}}", "Pod \"a\": invalid type"),
            ("x.json", "{\"kind\":\"Pod\"", "EOF"),
            ("x.json", "kind: Pod", "expected"),
        ] {
            let error = names(name, text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(parse_manifest("x.yaml".as_ref(), b"\xff").is_err());
    }

    #[test]
    fn a_missing_uid_is_made_from_the_name() {
        let uid_of = |text: &str| {
            parse_manifest("x.yaml".as_ref(), text.as_bytes()).unwrap().pods.remove(0).metadata.uid
        };
        let made = uid_of("kind: Pod\nmetadata: {name: a}");
        assert_eq!(made, uid_of("kind: Pod\nmetadata: {name: a, namespace: default, labels: {x: y}}"));
        assert_ne!(made, uid_of("kind: Pod\nmetadata: {name: a, namespace: other}"));
        assert_eq!(made.as_str().split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{made}");
        assert_eq!(uid_of("kind: Pod\nmetadata: {name: a, uid: given}").as_str(), "given");
        assert_eq!(derive_uid("").as_str(), "6c62272e-07bb-0142-62b8-21756295c58d", "FNV-1a of nothing");
        assert_eq!(
            derive_uid("a").as_str(),
            "d228cb69-6f1a-8caf-7891-2b704e4a8964",
            "FNV-1a, a known answer"
        );
    }

    #[test]
    fn only_manifests_are_read() {
        for (name, read) in [
            ("a.yaml", true),
            ("a.yml", true),
            ("a.json", true),
            (".a.yaml", false),
            ("a.yaml~", false),
            ("a.yaml.tmp.123", false),
            ("README", false),
            ("yaml", false),
        ] {
            assert_eq!(is_manifest(name.as_ref()), read, "{name}");
        }
    }
}
