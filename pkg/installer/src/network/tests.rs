use std::os::unix::{ffi::OsStringExt as _, fs::symlink};

use super::*;

mod agreement;

const LIST: &str = r#"{"name":"kit","cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}"#;
const SINGLE: &str = r#"{"name":"kit","type":"bridge"}"#;
/// Accepted by libcni 1.3 only.
const EMPTY_LIST: &str = r#"{"name":"drop-in","cniVersion":"1.0.0"}"#;

/// A directory with these files; content that begins with `->` makes a link.
fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match content.strip_prefix("->") {
            Some(target) => symlink(target, path).unwrap(),
            None => fs::write(path, content).unwrap(),
        }
    }
    directory
}

/// The selected file, or the reason why there is none.
fn chosen(search: Result<NetworkSearch, Error>) -> Result<String, String> {
    search.map_err(|error| error.to_string())?.map(|network| network.name)
}

#[test]
fn the_first_file_that_runtimes_load_is_the_network() {
    let broken = r#"{"name":"kit","plugins":[]}"#;
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("10-a.conflist", LIST), ("20-b.conflist", LIST)], "10-a.conflist"),
        (&[("05-a.json", SINGLE), ("10-b.conflist", LIST)], "05-a.json"),
        (&[("05-a.conf", SINGLE), ("10-b.conflist", LIST)], "05-a.conf"),
        (&[("05-a.conflist", broken), ("10-b.conflist", LIST)], "10-b.conflist"),
        (&[("05-a.conflist", EMPTY_LIST), ("10-b.conflist", LIST)], "10-b.conflist"),
        (&[("05-a.conf", LIST), ("10-b.conflist", LIST)], "10-b.conflist"),
        (&[("05-a.conflist.bak", LIST), ("05-a.jsonl", SINGLE), ("10-b.conflist", LIST)], "10-b.conflist"),
        (&[("05-a.conflist", "->missing"), ("10-b.conflist", LIST)], "10-b.conflist"),
        (&[("05-a.conflist", "->05-a.conflist"), ("10-b.conflist", LIST)], "10-b.conflist"),
        (&[("05-a.conflist", "->/dev/null"), ("10-b.conflist", LIST)], "10-b.conflist"),
        (&[("05-a.conflist", "->sub"), ("sub/x", ""), ("10-b.conflist", LIST)], "10-b.conflist"),
        (&[("05-a.conflist", "->sub/x"), ("sub/x", LIST), ("10-b.conflist", LIST)], "05-a.conflist"),
        (&[("10-a.conflist", LIST), ("15-b.conflist", "->../out"), ("20-c.json", "{")], "10-a.conflist"),
        (&[("10-a.conflist", LIST), ("kit/a.json", SINGLE), ("kit/b.conflist", "{")], "10-a.conflist"),
        (&[("10-a.conflist", LIST), ("other/a.conf", SINGLE)], "10-a.conflist"),
        (&[("10-a.conflist", LIST), ("99-loopback.conf", r#"{"type":"loopback"}"#)], "10-a.conflist"),
        (&[("10-a.conf", r#"{"name":"x","type":"istio-cni"}"#), ("20-b.conflist", LIST)], "20-b.conflist"),
        // Not accepted by libcni 1.1, which does not accept any other.
        (
            &[("10-a.conflist", r#"{"name":"a","disableCheck":"true","plugins":[{"type":"a"}]}"#)],
            "10-a.conflist",
        ),
        // Not accepted by libcni 1.3: the directory with its name is a file.
        (&[("10-a.conflist", r#"{"name":"10-a.conflist","plugins":[{"type":"a"}]}"#)], "10-a.conflist"),
    ];
    for (files, expected) in cases {
        let directory = directory(files);
        assert_eq!(chosen(find_default(directory.path(), "")).as_deref(), Ok(*expected), "{files:?}");
    }
}

#[test]
fn where_the_runtimes_network_cannot_be_chained_into_the_reason_names_the_file() {
    let inline_only = r#"{"name":"kit","loadOnlyInlinedPlugins":true,"plugins":[{"type":"bridge"}]}"#;
    let deep =
        format!(r#"{{"name":"kit","plugins":[{{"type":"a","x":{}1{}}}]}}"#, "[".repeat(200), "]".repeat(200));
    let huge = format!(r#"{{"name":"kit","plugins":[{{"type":"{}"}}]}}"#, "x".repeat(MAX_NETWORK));
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (&[], &["no network configuration in ", " yet"]),
        (&[("10-a.conflist", "{")], &["yet; not usable: 10-a.conflist: it is not JSON"]),
        (
            &[("10-a.conflist", "->missing")],
            &["not usable: ", "10-a.conflist: it is a link to a missing file"],
        ),
        // All plugins in the directory, and several of them.
        (
            &[("10-a.conflist", EMPTY_LIST), ("drop-in/x.conf", SINGLE)],
            &["/10-a.conflist takes plugins from a directory, too ("],
        ),
        (
            &[("10-a.conflist", LIST), ("kit/x.conf", SINGLE)],
            &["/10-a.conflist takes plugins from a directory, too ("],
        ),
        (
            &[("10-a.conflist", EMPTY_LIST), ("drop-in/x.conf", SINGLE), ("20-b.conflist", LIST)],
            &[
                "depends on its version: ",
                "/10-a.conflist with libcni 1.3",
                "/20-b.conflist with libcni 1.2",
                "10-a.conflist: `plugins` is missing",
            ],
        ),
        (
            &[("10-a.conflist", LIST), ("kit/x.conf", "{"), ("20-b.conflist", inline_only)],
            &["depends on its version: ", "/10-a.conflist with libcni 1.2", "/20-b.conflist with libcni 1.3"],
        ),
        // All files of the directory itself.
        (
            &[("10-a.conflist", r#"{"name":"","plugins":[{"type":"a"}]}"#), ("20-b.conf", SINGLE)],
            &["/10-a.conflist takes plugins from a directory, too ("],
        ),
        (
            &[("99-loopback.conf", r#"{"type":"loopback"}"#)],
            &["/99-loopback.conf gives pods no network", "loopback"],
        ),
        (
            &[
                (
                    "10-a.conflist",
                    r#"{"name":"a","plugins":[{"type":"loopback"},{"type":"tuning"},{"type":"istio-cni"}]}"#,
                ),
                ("20-b.conflist", LIST),
            ],
            &["/10-a.conflist gives pods no network: its only plugins are loopback, tuning"],
        ),
        (
            &[
                ("10-a.conflist", r#"{"name":"a","cniVersion":"1.2.0","plugins":[{"type":"a"}]}"#),
                ("20-b.conflist", LIST),
            ],
            &["/10-a.conflist: CNI version \"1.2.0\" is not one of the supported 0.1.0"],
        ),
        // Files that runtimes may be able to read.
        (
            &[("05-a.conflist", "->../out"), ("10-b.conflist", LIST)],
            &["/05-a.conflist: it is a link that leaves"],
        ),
        (&[("05-a.conflist", &huge), ("10-b.conflist", LIST)], &["/05-a.conflist: it is larger than"]),
        (&[("05-a.conflist", &deep), ("10-b.conflist", LIST)], &["/05-a.conflist: ", "nested deeper than"]),
    ];
    for (files, says) in cases {
        let directory = directory(files);
        let why = chosen(find_default(directory.path(), "")).unwrap_err();
        assert!(says.iter().all(|part| why.contains(part)), "{why}: {says:?}");
    }
    let directory = directory(&[("10-kit.conflist", LIST)]);
    let name = OsString::from_vec(b"05-\xff.conflist".to_vec());
    let path = directory.path().join(name);
    fs::write(&path, LIST).unwrap();
    let found = find_default(directory.path(), "");
    assert!(matches!(&found, Err(Error::Name(named)) if *named == path), "{found:?}");
}

#[test]
fn a_named_network_is_taken_by_either_name_and_a_missing_one_names_what_is_there() {
    let json = directory(&[("10-a.json", SINGLE), ("05-b.conflist", LIST)]);
    let [missing, taken] = ["10-c.conflist", "05-b.conflist"].map(|name| json.path().join(name));
    let (missing, taken) = (missing.display(), taken.display());
    let other = format!("{missing} is not there yet; the runtime takes {taken}: is CNI_CONF_NAME right?");
    for (name, expected) in [
        ("10-a.json", Ok("10-a.json")),
        ("10-a.conflist", Ok("10-a.json")),
        ("05-b.json", Ok("05-b.conflist")),
        ("05-b.conf", Ok("05-b.conflist")),
        ("10-c.conflist", Err(other)),
    ] {
        assert_eq!(chosen(find_named(json.path(), name, "")), expected.map(str::to_owned), "{name}");
    }
    let why = chosen(find_named(directory(&[]).path(), "10-c.conflist", "")).unwrap_err();
    assert!(why.ends_with("10-c.conflist is not there yet"), "{why}");
    let unread = directory(&[("10-a", LIST)]);
    assert!(matches!(find_named(unread.path(), "10-a", ""), Err(Error::Extension(..))));
    let blocked = directory(&[("10-a.conflist", LIST), ("kit/x.conf", SINGLE)]);
    assert!(chosen(find_named(blocked.path(), "10-a.conflist", "")).is_err());
}

#[test]
fn a_twin_that_runtimes_take_before_the_named_list_is_the_network() {
    let alone = r#"{"name":"x","type":"istio-cni"}"#;
    for (twin, content, expected) in [
        ("10-a.conf", SINGLE, "10-a.conf"),
        ("10-a.json", SINGLE, "10-a.conflist"), // it sorts after the list
        ("10-a.conf", "{", "10-a.conflist"),
        ("10-a.conf", "->missing", "10-a.conflist"),
        ("10-a.conf", alone, "10-a.conflist"),
    ] {
        let directory = directory(&[("10-a.conflist", LIST), (twin, content)]);
        let found = chosen(find_named(directory.path(), "10-a.conflist", ""));
        assert_eq!(found.as_deref(), Ok(expected), "{twin}: {content}");
    }
}

#[test]
fn a_named_network_that_is_not_the_default_is_described() {
    let directory = directory(&[("05-a.conflist", LIST), ("10-b.conflist", LIST)]);
    let describe =
        |name: &str, copy: &str| describe_other_default(directory.path(), &directory.path().join(name), copy);
    assert_eq!(describe("05-a.conflist", ""), None);
    assert_eq!(describe("02-copy.conflist", "02-copy.conflist"), None, "it precedes all others");
    assert!(describe("07-copy.conflist", "07-copy.conflist").is_some(), "of the network 10-b.conflist");
    let other = directory.path().join("05-a.conflist");
    let conflict = describe("10-b.conflist", "").unwrap();
    assert!(conflict.starts_with(&format!("the default network is {}", other.display())), "{conflict}");
}
