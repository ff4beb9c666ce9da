use agent_protocol::NetnsFile;
use model::{ObjectMeta, Pod};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A directory of records; drop removes it.
struct Fixture(PathBuf);

impl Fixture {
    fn new(name: &str) -> Fixture {
        let directory = std::env::temp_dir().join(format!("records-{name}-{}", std::process::id()));
        fs::create_dir_all(directory.join("netns")).unwrap();
        fs::create_dir(directory.join("pods")).unwrap();
        Fixture(directory)
    }

    fn index(&self) -> RecordIndex {
        RecordIndex::new(self.0.join("pods"))
    }

    fn put(&self, name: &str, text: &[u8], modified: SystemTime) {
        let path = self.0.join("pods").join(name);
        fs::write(&path, text).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    }

    fn put_record(&self, name: &str, record: &PodRecord, modified: SystemTime) {
        let record = PodRecord { name: name.to_owned(), ..record.clone() };
        self.put(name, &serde_json::to_vec(&record).unwrap(), modified);
    }

    /// A record of a pod whose network namespace has this file, if it exists.
    fn of_netns(&self, netns: &str) -> PodRecord {
        let found = fs::metadata(self.0.join("netns").join(netns));
        let netns_file = found
            .map_or(NetnsFile { dev: 0, ino: 1 }, |found| NetnsFile { dev: found.dev(), ino: found.ino() });
        PodRecord {
            netns: format!("/var/run/netns/{netns}"),
            netns_file: Some(netns_file),
            ..PodRecord::default()
        }
    }

    fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.0.join("pods")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn prune(&self) {
        self.index().prune(&self.0.join("netns"));
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn names(index: &RecordIndex) -> Vec<String> {
    index.read_records().iter().map(|record| record.name.clone()).collect()
}

#[test]
fn old_failures_are_forgotten_and_those_of_the_future_are_not() {
    let fixture = Fixture::new("failures");
    let now = SystemTime::now();
    for (name, time) in [
        ("_failed-01", now - 2 * DAY),
        ("_failed-02", now - DAY / 2),
        ("_failed-03", now + 400 * DAY),
        ("done", now - 400 * DAY),
    ] {
        fixture.put_record(name, &PodRecord::default(), time);
    }
    assert_eq!(names(&fixture.index()), ["_failed-02", "_failed-03", "done"]);
    assert_eq!(fixture.files().len(), 4, "reading deletes nothing");
    fixture.prune();
    assert_eq!(fixture.files(), ["_failed-02", "_failed-03", "done"].map(String::from).into());
}

#[test]
fn what_is_staged_or_of_the_version_before_is_no_record_and_is_removed() {
    let fixture = Fixture::new("others");
    let now = SystemTime::now();
    for (name, time) in [
        (".staged-0123", now),
        (".staged-4567", now - Duration::from_secs(90)),
        ("failed_shop_web", now),
        ("done", now),
    ] {
        fixture.put_record(name, &PodRecord::default(), time);
    }
    fixture.put("v9", b"\x01not JSON", now);
    fixture.put("empty", b"", now);
    assert_eq!(names(&fixture.index()), ["done"]);
    fixture.prune();
    assert_eq!(fixture.files(), [".staged-0123", "done", "empty", "v9"].map(String::from).into());
}

#[test]
fn a_file_is_read_again_only_after_a_change() {
    let fixture = Fixture::new("changes");
    let then = SystemTime::now() - DAY;
    let (index, record) = (fixture.index(), PodRecord::default());
    fixture.put_record("one", &record, then);
    fixture.put_record("two", &record, then);
    let first = index.read_records();
    // By then, the file system's clock cannot hide a change.
    while index.update_index().values().any(|file| !file.is_conclusive) {
        std::thread::yield_now();
    }
    let held = || index.update_index().into_values().filter_map(|file| file.record).collect::<Vec<_>>();
    let (settled, again) = (held(), held());
    assert_eq!((settled.len(), again.len()), (2, 2));
    assert!(settled.iter().zip(&again).all(|(one, other)| Arc::ptr_eq(one, other)), "nothing was read");
    assert_eq!(first, index.read_records());
    let changed = PodRecord { message: "changed".to_owned(), ..record };
    fixture.put_record("two", &changed, then);
    fixture.put_record("three", &changed, then);
    fs::remove_file(fixture.0.join("pods/one")).unwrap();
    let last = index.read_records();
    assert_eq!(last.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(), ["three", "two"]);
    assert!(last.iter().all(|record| record.message == "changed"));
}

#[test]
fn records_of_namespaces_that_are_gone_are_removed_if_others_of_their_directory_are_seen() {
    let fixture = Fixture::new("netns");
    let now = SystemTime::now();
    let put = |name: &str, record: &PodRecord| fixture.put_record(name, record, now);
    let gone = fixture.of_netns("gone");
    put("gone", &gone);
    fixture.prune();
    assert_eq!(fixture.files().len(), 1, "the namespaces may be in another directory");
    for netns in ["alive", "another"] {
        fs::write(fixture.0.join("netns").join(netns), "").unwrap();
    }
    let alive = fixture.of_netns("alive");
    put("alive", &alive);
    let then = alive.netns_file.unwrap();
    put("reused", &PodRecord { netns: "/var/run/netns/another".to_owned(), ..alive.clone() });
    let plain = NetnsFile { dev: then.dev + 1, ..then };
    put("not-mounted-here", &PodRecord { netns_file: Some(plain), ..fixture.of_netns("another") });
    put("elsewhere", &PodRecord { netns: "/proc/1/ns/net".to_owned(), ..gone });
    put("unknown", &PodRecord { netns_file: None, ..alive });
    fixture.prune();
    let kept = ["alive", "elsewhere", "not-mounted-here", "unknown"];
    assert_eq!(fixture.files(), kept.map(String::from).into());
}

/// Records of containers that the runtime lost are newer than the only one whose namespace exists.
#[test]
fn lost_records_are_removed_however_many_and_new_they_are() {
    let fixture = Fixture::new("lost");
    fs::write(fixture.0.join("netns/alive"), "").unwrap();
    let now = SystemTime::now();
    fixture.put_record("living", &fixture.of_netns("alive"), now - DAY);
    for number in 0..MOST {
        let name = format!("lost-{number}");
        fixture.put_record(&name, &fixture.of_netns(&name), now);
    }
    fixture.prune();
    assert_eq!(fixture.files(), ["living".to_owned()].into());
}

/// Excess files of any kind are removed, before any record is cut; old records of living pods stay.
#[test]
fn of_too_many_files_the_newest_and_those_of_living_pods_stay() {
    let fixture = Fixture::new("many");
    fs::write(fixture.0.join("netns/alive"), "").unwrap();
    let now = SystemTime::now();
    fixture.put_record("living", &fixture.of_netns("alive"), now - 9 * DAY);
    for number in 0..2 * MOST + 500 {
        fixture.put(&format!("junk-{number}"), b"{", now - 3 * DAY);
    }
    for number in 0..20 {
        fixture.put_record(&format!("new-{number:02}"), &PodRecord::default(), now - DAY);
    }
    assert_eq!(names(&fixture.index()).len(), 20, "the newest are read");
    fixture.prune();
    assert_eq!(fixture.files().len(), MOST + 1);
    assert!(fixture.files().iter().any(|file| file == "living"));
    assert_eq!(names(&fixture.index()).len(), 20);
}

#[test]
fn a_record_of_the_version_before_is_cut_to_what_this_one_would_keep() {
    let fixture = Fixture::new("former");
    let now = SystemTime::now();
    let annotations = [("a".to_owned(), "\u{1}".repeat(40_000))].into();
    let metadata = ObjectMeta { annotations, uid: "0123".into(), ..ObjectMeta::default() };
    let pod = Some(Box::new(Pod { metadata, ..Pod::default() }));
    for decision in [SidecarRedirect::CODE, "namespace-label"] {
        let record = PodRecord { decision: decision.to_owned(), pod: pod.clone(), ..PodRecord::default() };
        fixture.put_record(decision, &record, now);
    }
    let all = fixture.index().read_records();
    assert!(all.iter().all(|record| record.pod_uid.as_str() == "0123"));
    let [ambient, sidecar] = all.as_slice() else { panic!("{} records", all.len()) };
    assert_eq!(ambient.pod, None);
    assert!(
        sidecar.pod.as_ref().is_some_and(|pod| pod.metadata.annotations.is_empty()),
        "nothing depends on it"
    );
}
