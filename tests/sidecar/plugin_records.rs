//! Records that the plugin writes of an ADD.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kit::{FakeReply, istio};
use serde_json::{Value, json};

use crate::fixtures::plugin::{self, Call, PluginFixture, V4, bare_pod};
use crate::fixtures::random::random;

fn socket(fixture: &PluginFixture) -> PathBuf {
    fixture.node.run_dir().join("log.sock")
}

fn call<'s>(fixture: &'s PluginFixture, verb: &'static str, pod: &kit::Netns) -> Call<'s> {
    fixture.call(verb, pod).with("log_uds_address", json!(socket(fixture)))
}

/// All records by file name.
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
    assert_eq!(name, agent_protocol::failure_place("shop", "web"));
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

/// A separate file system for the directory that the plugin shares with the agent, mounted until drop.
struct SmallRunDir(PathBuf);

impl SmallRunDir {
    fn mount(directory: PathBuf, options: &str) -> SmallRunDir {
        let mut mount = Command::new("mount");
        assert!(
            mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&directory).status().unwrap().success()
        );
        SmallRunDir(directory)
    }

    fn make_read_only(&self) {
        let mut mount = Command::new("mount");
        assert!(mount.args(["-o", "remount,ro"]).arg(&self.0).status().unwrap().success());
    }

    fn fill(&self) {
        let full = fs::write(self.0.join("ballast"), vec![0; 2 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }
}

impl Drop for SmallRunDir {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

/// Neither an ADD nor a DEL fails because of it, the plugin logs it, an earlier record stays complete, and no partial file is left.
#[test]
fn a_full_or_read_only_directory_keeps_no_pod_from_starting_and_leaves_no_part_of_a_record() {
    for (options, is_full) in [("size=256k", true), ("nr_inodes=3", false), ("size=256k", false)] {
        let fixture = PluginFixture::new();
        let run_dir = SmallRunDir::mount(fixture.node.run_dir(), options);
        let pod = bare_pod(V4);
        let first = call(&fixture, "ADD", &pod).env("CNI_CONTAINERID", "first");
        let directory = socket(&fixture).with_file_name("pods");
        let why = match options {
            "size=256k" if !is_full => "Read-only file system (os error 30)",
            _ => "No space left on device (os error 28)",
        };
        let message = format!("cannot record this ADD in {}: {why}", directory.display());
        let told = |outcome: &plugin::Outcome| outcome.has_logged(&message);
        assert!(!told(&first.run()), "{options}");
        let before = records(&fixture);
        assert_eq!(before.len(), 1);
        match (is_full, options) {
            (true, _) => run_dir.fill(),
            (false, "nr_inodes=3") => {} // the root, `pods` and the first record
            _ => run_dir.make_read_only(),
        }
        let second = call(&fixture, "ADD", &pod).run();
        second.ok();
        assert!(told(&second), "{options}: {second}");
        assert_eq!(records(&fixture), before, "{options}");
        first.run().ok();
        assert_eq!(records(&fixture).len(), 1, "{options}: whole");
        let refused = call(&fixture, "ADD", &pod).kubernetes("kubeconfig", json!("/nowhere")).run();
        assert!(told(&refused), "{options}: {refused}");
        let _ = refused.refused();
        call(&fixture, "DEL", &pod).run().ok();
        assert_eq!(records(&fixture).len(), 1, "{options}");
    }
}

/// 54 kB of control characters, which JSON encodes in six times as many bytes.
#[test]
fn failed_adds_of_any_number_of_pods_take_a_bounded_space() {
    let fixture = PluginFixture::answering(|request| {
        let pod = plugin::injected(request);
        let ports = "traffic.sidecar.istio.io/includeInboundPorts";
        FakeReply::Json(200, istio::annotated(pod, ports, &"\u{1}".repeat(54_000)))
    });
    let pod = bare_pod(V4);
    for number in 0..100 {
        let name = format!("hostile-{number}");
        let add = call(&fixture, "ADD", &pod).pod("evil", &name).env("CNI_CONTAINERID", &name);
        let _ = add.run().refused();
    }
    let records = records(&fixture);
    assert!(records.len() <= 64, "{} files", records.len());
    let directory = socket(&fixture).with_file_name("pods");
    for (name, record) in &records {
        let bytes = fs::metadata(directory.join(name)).unwrap().len();
        assert!(bytes <= 8 << 10, "{name}: {bytes} bytes");
        assert!(record["error"].as_str().unwrap().contains("includeInboundPorts"), "{record}");
        assert_eq!(record.get("pod"), None);
    }
    assert!(records.iter().any(|(_, record)| record["name"] == "hostile-99"), "the last one is told");
}

/// Killed at any moment, a plugin leaves a complete record, or none.
#[test]
fn a_killed_add_leaves_a_whole_record_or_none() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    // The first one is slower than the others: it loads kernel modules.
    let typical = [(); 4].map(|()| call(&fixture, "ADD", &pod).run().wall()).into_iter().min().unwrap();
    let mut dice = 0x7265_636f_7264_u64;
    let mut killed = 0;
    for round in 0..60 {
        call(&fixture, "DEL", &pod).run().ok();
        let add = call(&fixture, "ADD", &pod);
        // During the second half, at the end of which the record is written.
        let micros = u64::try_from(typical.as_micros()).unwrap();
        let after = Duration::from_micros(micros / 2 + random(&mut dice, micros / 2));
        let runtime = fixture.node.runtime().with_limit(after);
        let output = runtime.exec(&kit::binary("istio-cni"), &add.environment(), &add.input());
        killed += usize::from(output.killed);
        let directory = socket(&fixture).with_file_name("pods");
        for entry in fs::read_dir(directory).into_iter().flatten().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let text = fs::read(entry.path()).unwrap();
            if !name.starts_with(agent_protocol::STAGED) {
                let record = agent_protocol::PodRecord::decode(&text)
                    .unwrap_or_else(|error| panic!("round {round}, {name}: {error}"));
                assert_eq!(record.name, "web", "round {round}, {name}");
            }
        }
    }
    assert!(killed > 10, "only {killed} of 60 were killed in time");
}

/// GC removes records that a lost DEL left, of its own network.
#[test]
fn gc_removes_the_records_of_containers_that_are_gone() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    for container in ["alive", "gone", "other-network"] {
        let network = if container == "other-network" { "second" } else { "net" };
        let add = call(&fixture, "ADD", &pod).env("CNI_CONTAINERID", container).with("name", json!(network));
        add.run().ok();
    }
    let failed =
        call(&fixture, "ADD", &pod).pod("shop", "failed").kubernetes("kubeconfig", json!("/nowhere"));
    let _ = failed.run().refused();
    let gc = |valid: Value| {
        let gc =
            call(&fixture, "GC", &pod).with("cniVersion", json!("1.1.0")).with("prevResult", Value::Null);
        gc.with("cni.dev/valid-attachments", valid).run().ok();
        records(&fixture).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let failure = agent_protocol::failure_place("shop", "failed");
    let left = gc(json!([{"containerID": "alive", "ifname": "eth0"}]));
    assert_eq!(left, [failure.as_str(), "alive", "other-network"]);
    assert_eq!(gc(json!([])), [failure.as_str(), "other-network"]);
}
