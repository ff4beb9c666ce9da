//! Whole files with our entry compared with those that Istio's agent writes, and properties of every file.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use std::collections::BTreeMap;

use cni_types::{
    ConflistEntry, EntryStatus, FileForm, Json, Libcni, entry_status, is_converted_from, is_standalone,
    merge_entry, plugin_types, read_network, without_entry,
};
use proptest::prelude::*;
use proptest::{collection::btree_map, collection::vec, option, sample};
use serde_json::value::RawValue;

const TEMPLATE: &str = include_str!("data/conflist/entry.json");

fn entry() -> ConflistEntry {
    ConflistEntry::parse(TEMPLATE).unwrap()
}

fn parse(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Merging gives the golden text, also when repeated; removing our entry and adding it again gives it too.
fn golden(existing: &str, expected: &str, converted: bool) {
    let now = merge_entry(existing.as_bytes(), &entry()).unwrap();
    assert_eq!(now, expected);
    assert_eq!(is_converted_from(expected.as_bytes(), existing.as_bytes()), converted);
    assert_eq!(merge_entry(expected.as_bytes(), &entry()).unwrap(), expected);
    assert_eq!(entry_status(expected.as_bytes(), &entry()), Ok(EntryStatus::Current));
    let without = without_entry(expected.as_bytes()).unwrap().unwrap();
    assert_eq!(merge_entry(without.as_bytes(), &entry()).unwrap(), expected);
    assert_eq!(without_entry(without.as_bytes()), Ok(None));
}

#[test]
fn a_single_configuration_becomes_the_list_of_istio() {
    let (conf, list) =
        (include_str!("data/conflist/bridge.conf"), include_str!("data/conflist/bridge.golden"));
    golden(conf, list, true);
    golden(&conf.replace("0.4.0", "0.3.1"), list, true);
    assert!(is_converted_from(list.as_bytes(), conf.as_bytes()));
    assert_eq!(plugin_types(list.as_bytes()), ["bridge", "istio-cni"]);
}

#[test]
fn a_list_keeps_what_is_not_ours() {
    let (list, expected) =
        (include_str!("data/conflist/calico.conflist"), include_str!("data/conflist/calico.golden"));
    golden(list, expected, false);
    let without = without_entry(expected.as_bytes()).unwrap().unwrap();
    assert_eq!(parse(&without), parse(list));
}

#[test]
fn our_entry_comes_last_and_once() {
    let expected = include_str!("data/conflist/flannel.golden");
    for (list, before) in [
        (include_str!("data/conflist/flannel-ours-first.conflist"), EntryStatus::NotLast),
        (include_str!("data/conflist/flannel-ours-middle.conflist"), EntryStatus::NotLast),
        (include_str!("data/conflist/flannel-ours-twice.conflist"), EntryStatus::Repeated),
    ] {
        assert_eq!(entry_status(list.as_bytes(), &entry()), Ok(before));
        golden(list, expected, false);
    }
}

#[test]
fn ten_megabytes_are_no_more_than_that() {
    let row = r#"{"a":[1,"<>",{"b":null}],"c":"0123456789012345678901234567890123456789"},"#;
    let rows = row.repeat(10 * 1024 * 1024 / row.len());
    let list = format!(r#"{{"name":"n","plugins":[{{"type":"a","rows":[{rows}0]}}]}}"#);
    let text = merge_entry(list.as_bytes(), &entry()).unwrap();
    assert_eq!(entry_status(text.as_bytes(), &entry()), Ok(EntryStatus::Current));
}

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{0,4}",
        "[\\x00-\\x20<>&\"\\\\/\\x7f\u{2027}-\u{202a}]{0,6}",
        any::<String>(),
        sample::select(vec!["type", "plugins", "name", "cniVersion", "istio-cni"]).prop_map(str::to_owned),
    ]
}

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,4})?".prop_map(Json::Number),
        string().prop_map(Json::String),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::List),
            btree_map(string(), inner, 0..4).prop_map(Json::Object),
        ]
    })
}

fn plugin() -> impl Strategy<Value = Json> {
    let kind = option::of(sample::select(vec!["a", "b", "istio-cni", "Istio-CNI"]));
    let members = (btree_map(string(), json(), 0..4), kind);
    members.prop_map(|(mut members, kind)| {
        members.retain(|key, _| !key.eq_ignore_ascii_case("type"));
        members.extend(kind.map(|kind| ("type".to_owned(), Json::String(kind.to_owned()))));
        Json::Object(members)
    })
}

/// A list in which at least one plugin is not ours, in Go's format, and the same without our entry.
fn list() -> impl Strategy<Value = (Json, Json)> {
    let parts = (btree_map(string(), json(), 0..5), vec(plugin(), 0..6), 0..6_usize);
    parts.prop_map(|(mut other, mut plugins, at)| {
        other.retain(|key, _| !key.eq_ignore_ascii_case("type"));
        plugins.insert(at.min(plugins.len()), parse(r#"{"type":"flannel"}"#));
        let whole = |plugins: Vec<Json>| {
            let members = other.clone().into_iter().chain([("plugins".to_owned(), Json::List(plugins))]);
            Json::Object(members.collect::<BTreeMap<_, _>>())
        };
        let foreign = |plugin: &Json| plugin.get("type").and_then(Json::as_str) != Some("istio-cni");
        let without = plugins.iter().filter(|plugin| foreign(plugin)).cloned().collect();
        (whole(plugins), whole(without))
    })
}

/// A text with one byte added, removed or changed.
fn damaged(text: &str, at: usize, byte: u8, how: u8) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let at = at % bytes.len();
    match how % 3 {
        0 => bytes.insert(at, byte),
        1 => drop(bytes.remove(at)),
        _ => bytes[at] = byte,
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_reads_back_as_itself(value in json()) {
        let text = value.to_go_text();
        prop_assert_eq!(Json::parse(text.as_bytes()), Ok(value));
        let raw: Result<&RawValue, _> = serde_json::from_str(&text);
        prop_assert!(raw.is_ok(), "{}", text);
    }

    #[test]
    fn the_syntax_is_that_of_serde_json(
        value in json(),
        at in any::<usize>(),
        byte in prop_oneof![sample::select(b"{}[]\",:\\u0-+.eE \n\x1f\x7f\xff".to_vec()), any::<u8>()],
        how in 0..3_u8,
    ) {
        let bytes = damaged(&value.to_go_text(), at, byte, how);
        let theirs: Result<&RawValue, _> = serde_json::from_slice(&bytes);
        let ours = Json::parse(&bytes);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?}: {:?}", String::from_utf8_lossy(&bytes), ours);
    }

    #[test]
    fn merging_adds_our_entry_and_nothing_else((before, foreign) in list()) {
        let text = before.to_go_text();
        let once = merge_entry(text.as_bytes(), &entry()).unwrap();
        let ours = entry();
        let plugins = parse(&once).get("plugins").and_then(Json::as_list).unwrap().to_vec();
        prop_assert_eq!(plugins.last(), Some(ours.as_json()));

        let again = merge_entry(once.as_bytes(), &entry()).unwrap();
        prop_assert_eq!(&again, &once);
        prop_assert_eq!(entry_status(once.as_bytes(), &entry()), Ok(EntryStatus::Current));
        let without = without_entry(once.as_bytes()).unwrap();
        prop_assert_eq!(without, Some(foreign.to_go_text()));

        let had = text != foreign.to_go_text();
        prop_assert_eq!(without_entry(text.as_bytes()), Ok(had.then(|| foreign.to_go_text())));
        prop_assert_eq!(entry_status(text.as_bytes(), &ours) == Ok(EntryStatus::Absent), !had);
    }

    #[test]
    fn a_runtime_takes_after_merging_what_it_took_before(
        mut members in btree_map(string(), json(), 0..5),
        (list, _) in list(),
        kind in "[a-z]{0,3}",
        libcni in sample::select(&Libcni::ALL[..]),
    ) {
        members.insert("type".to_owned(), Json::String(kind));
        let Json::Object(mut list) = list else { return Ok(()) };
        list.insert("name".to_owned(), Json::String("n".to_owned()));
        for (form, before) in [(FileForm::Conflist, list), (FileForm::Conf, members)] {
            let before = Json::Object(before);
            let text = before.to_go_text();
            if read_network(form, text.as_bytes(), libcni).is_ok()
                && let Ok(after) = merge_entry(text.as_bytes(), &entry())
            {
                let read = read_network(FileForm::Conflist, after.as_bytes(), libcni);
                prop_assert!(read.is_ok(), "{:?}", read);
                let is_converted = is_converted_from(after.as_bytes(), text.as_bytes());
                prop_assert_eq!(is_converted, form == FileForm::Conf);
            }
        }
    }

    #[test]
    fn any_bytes_have_an_answer(bytes in vec(any::<u8>(), 0..64), value in json()) {
        for bytes in [bytes, value.to_go_text().into_bytes()] {
            for libcni in Libcni::ALL {
                let _ = read_network(FileForm::Conf, &bytes, libcni);
                let _ = read_network(FileForm::Conflist, &bytes, libcni);
            }
            let _ = (entry_status(&bytes, &entry()), merge_entry(&bytes, &entry()), without_entry(&bytes));
            let _ = (plugin_types(&bytes), is_converted_from(&bytes, &bytes), is_standalone(&bytes));
            let _ = ConflistEntry::parse(&String::from_utf8_lossy(&bytes));
        }
    }
}
