//! What the plugin leaves behind of an ADD.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, PluginFixture, V4, bare_pod};

fn socket(fixture: &PluginFixture) -> PathBuf {
    fixture.node.run_dir().join("log.sock")
}

fn call<'s>(fixture: &'s PluginFixture, verb: &'static str, pod: &kit::Netns) -> Call<'s> {
    fixture.call(verb, pod).with("log_uds_address", json!(socket(fixture)))
}

/// All records by the names of their files.
fn records(fixture: &PluginFixture) -> Vec<(String, Value)> {
    let Ok(entries) = fs::read_dir(socket(fixture).with_file_name("pods")) else { return Vec::new() };
    let read = |entry: fs::DirEntry| {
        let record = serde_json::from_slice(&fs::read(entry.path()).unwrap()).unwrap();
        (entry.file_name().into_string().unwrap(), record)
    };
    let mut all: Vec<_> = entries.map(|entry| read(entry.unwrap())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn an_add_leaves_a_record_with_the_pod_until_its_del() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    call(&fixture, "ADD", &pod).run().ok();
    let [(name, record)] = records(&fixture).try_into().unwrap();
    assert_eq!(name, "0123456789abcdef");
    let text = |key: &str| record[key].as_str().unwrap_or_else(|| panic!("no {key}: {record}"));
    assert_eq!((text("namespace"), text("name"), text("decision")), ("shop", "web", "sidecar"));
    assert!(text("netns").ends_with(pod.name()), "{record}");
    assert_eq!(record["pod"]["metadata"]["name"], "web");
    assert_eq!(record.get("error"), None);
    let mode = |path: PathBuf| {
        fs::metadata(path).map(|found| std::os::unix::fs::PermissionsExt::mode(&found.permissions()))
    };
    let directory = socket(&fixture).with_file_name("pods");
    assert_eq!(mode(directory.clone()).unwrap() & 0o777, 0o700);
    assert_eq!(mode(directory.join(name)).unwrap() & 0o777, 0o600);
    call(&fixture, "DEL", &pod).run().ok();
    assert_eq!(records(&fixture), Vec::new());
}

#[test]
fn a_failed_add_is_told_until_another_one_works() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let failed = call(&fixture, "ADD", &pod).kubernetes("kubeconfig", json!("/nowhere")).run().refused();
    let [(name, record)] = records(&fixture).try_into().unwrap();
    assert_eq!(name, "failed_shop_web");
    assert_eq!(record["error"], failed.msg);
    call(&fixture, "DEL", &pod).run().ok();
    assert_eq!(records(&fixture).len(), 1, "the runtime takes a failed sandbox away at once");
    call(&fixture, "ADD", &pod).run().ok();
    let names: Vec<String> = records(&fixture).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0123456789abcdef"]);
}

#[test]
fn a_directory_that_cannot_be_written_keeps_no_pod_from_starting() {
    let fixture = PluginFixture::new();
    fs::write(socket(&fixture).with_file_name("pods"), "a file").unwrap();
    let pod = bare_pod(V4);
    call(&fixture, "ADD", &pod).run().ok();
    call(&fixture, "DEL", &pod).run().ok();
}
