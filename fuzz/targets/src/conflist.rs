//! Network configuration files on a node, which foreign installers and people write.

use cni_types::{
    ConflistEntry, EntryStatus, FileForm, Json, Libcni, entry_status, is_converted_from, merge_entry,
    plugin_types, read_network, without_entry,
};

const TEMPLATE: &str = r#"{"cniVersion":"0.3.1","type":"istio-cni","kubernetes":{"kubeconfig":"/k"}}"#;

/// Any file is left unchanged with an error of one readable sentence, or gets our entry: once, at the end, after all other plugins,
/// unchanged. Repeating it changes nothing, and a runtime accepts the file if it did before. A parsed and printed file parses back
/// to itself. The same bytes as our template are an entry that is valid in a file, or an error.
///
/// # Panics
/// If one of these does not hold.
pub fn conflist(data: &[u8]) {
    if let Ok(document) = Json::parse(data) {
        assert_eq!(Json::parse(document.to_go_text().as_bytes()), Ok(document));
    }
    if let Ok(entry) = ConflistEntry::parse(TEMPLATE) {
        edited(data, &entry);
    }
    let list = br#"{"name":"n","plugins":[{"type":"bridge"}]}"#;
    match ConflistEntry::parse(&String::from_utf8_lossy(data)) {
        Ok(entry) => edited(list, &entry.without_kubeconfig()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn edited(existing: &[u8], entry: &ConflistEntry) {
    let text = match merge_entry(existing, entry) {
        Ok(text) => text,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let bytes = text.as_bytes();
    assert_eq!(merge_entry(bytes, entry).as_ref(), Ok(&text));
    assert_eq!(entry_status(bytes, entry), Ok(EntryStatus::Current));
    let without = without_entry(bytes);
    assert!(
        matches!(&without, Ok(Some(without)) if others(without.as_bytes()) == others(existing)),
        "{text}"
    );
    assert_eq!(plugin_types(bytes).last().map(String::as_str), Some(ConflistEntry::TYPE));
    let form = if is_converted_from(bytes, existing) { FileForm::Conf } else { FileForm::Conflist };
    for libcni in Libcni::ALL {
        if read_network(form, existing, libcni).is_ok() {
            let after = read_network(FileForm::Conflist, bytes, libcni);
            assert!(after.is_ok(), "{libcni}: {after:?}: {text}");
        }
    }
}

/// The types of the plugins that are not ours.
fn others(content: &[u8]) -> Vec<String> {
    plugin_types(content).into_iter().filter(|kind| kind != ConflistEntry::TYPE).collect()
}
