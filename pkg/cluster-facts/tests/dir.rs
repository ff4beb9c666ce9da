//! A directory of manifests as a source of facts: changes are reported within a second.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use std::{
    fmt,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    sync::{
        Mutex, OnceLock,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use cluster_facts::{ManifestFollower, find_in_dir, follow_dir};
use enrolment::{Fact, FactIndex};
use model::PodName;
use tempfile::TempDir;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Less than the period of a follower that hears of no change, 10 seconds.
const SOON: Duration = Duration::from_secs(8);

struct Fixture {
    directory: TempDir,
    facts: Receiver<Fact>,
    index: FactIndex,
    follower: Option<ManifestFollower>,
}

impl Fixture {
    fn new() -> Self {
        log();
        let directory = tempfile::tempdir().unwrap();
        let (follower, facts) = follow(directory.path());
        Self { directory, facts, index: FactIndex::default(), follower: Some(follower) }
    }

    /// Replaces a file as a careful writer does.
    fn write(&self, name: &str, text: &str) {
        let temporary = self.directory.path().join(".new");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.directory.path().join(name)).unwrap();
    }

    /// Waits until these pods (by name) and namespaces are known.
    fn expect(&mut self, pods: &[&str], namespaces: &[&str]) {
        let deadline = Instant::now() + SOON;
        while self.known(namespaces) != (pods.iter().map(ToString::to_string).collect(), namespaces.len()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.facts.recv_timeout(left) {
                Ok(fact) => drop(self.index.apply(fact)),
                Err(cause) => panic!("{cause}: {:?}", self.index),
            }
        }
    }

    /// Names of the pods, and number of known ones of these namespaces.
    fn known(&self, namespaces: &[&str]) -> (Vec<String>, usize) {
        let pods = self.index.pods().map(|pod| pod.metadata.name.clone()).collect();
        (pods, namespaces.iter().filter(|name| self.index.namespace(name).is_some()).count())
    }

    fn expect_silence(&self) {
        let heard = self.facts.recv_timeout(Duration::from_millis(600));
        assert_eq!(heard, Err(RecvTimeoutError::Timeout));
    }

    fn warnings(&self) -> usize {
        let place = self.directory.path().to_str().unwrap().to_owned();
        log().lock().unwrap().iter().filter(|line| line.contains(&place)).count()
    }
}

fn follow(path: &Path) -> (ManifestFollower, Receiver<Fact>) {
    let (sender, facts) = channel();
    let tell = move |fact| drop(sender.send(fact));
    (follow_dir(path, "n1", tell).unwrap(), facts)
}

fn pod(name: &str) -> String {
    format!("kind: Pod\nmetadata: {{name: {name}, namespace: shop}}\n")
}

const SHOP: &str = "kind: Namespace\nmetadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}\n";

/// A starting pod is found immediately, even while a watch waits for a burst of changes to end.
#[test]
fn a_pod_is_found_in_the_directory_as_it_is_now() {
    let directory = tempfile::tempdir().unwrap();
    let find = |name: &str| {
        let name = PodName { namespace: "shop".to_owned(), name: name.to_owned() };
        find_in_dir(directory.path(), "n1", &name).unwrap()
    };
    let write = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
    assert!(find("a").is_none());
    let of_node = |node: &str, version: &str| {
        format!(
            "kind: Pod\nmetadata: {{name: a, namespace: shop, labels: {{v: \"{version}\"}}}}\nspec: {{nodeName: {node}}}\n"
        )
    };
    write("1.yaml", &of_node("n1", "1"));
    write("2.yaml", "kind: Pod\nmetadata: [");
    write("3.txt", &of_node("n1", "3"));
    let (pod, namespace) = find("a").unwrap();
    assert_eq!((pod.metadata.labels["v"].as_str(), namespace), ("1", None));
    // As with a follower, the last file counts, and only pods of this node.
    write("4.yaml", &of_node("n1", "4"));
    write("5.yaml", &of_node("n2", "5"));
    write("6.yaml", SHOP);
    let (pod, namespace) = find("a").unwrap();
    assert_eq!(pod.metadata.labels["v"], "4");
    assert_eq!(namespace.unwrap().metadata.labels["istio.io/dataplane-mode"], "ambient");
    assert!(find("b").is_none());
    let missing = PodName { namespace: String::new(), name: String::new() };
    assert!(find_in_dir(&directory.path().join("missing"), "n1", &missing).is_err());
}

/// A change of one pod is reported alone; other differences, or a change of its node, are reported as a list of all.
#[test]
fn of_one_pod_that_changes_only_that_pod_is_told() {
    let mut fixture = Fixture::new();
    let labelled = |name: &str, label: &str| {
        format!("kind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{v: \"{label}\"}}}}\n")
    };
    fixture.write("a.yaml", &labelled("a", "1"));
    fixture.write("b.yaml", &labelled("b", "1"));
    fixture.expect(&["a", "b"], &[]);
    while fixture.facts.try_recv().is_ok() {}
    let next = |fixture: &Fixture| fixture.facts.recv_timeout(SOON).unwrap();
    fixture.write("a.yaml", &labelled("a", "2"));
    assert!(matches!(next(&fixture), Fact::Pod(pod) if pod.metadata.labels["v"] == "2"));
    fixture.write("c.yaml", &labelled("c", "1"));
    assert!(matches!(next(&fixture), Fact::Pod(pod) if pod.metadata.name == "c"));
    // Also in another file: the last one counts.
    fixture.write("a.yaml", &labelled("c", "2"));
    assert!(matches!(next(&fixture), Fact::Namespaces(_)));
    assert!(matches!(next(&fixture), Fact::Pods(pods) if pods.len() == 3));
    fixture.write("b.yaml", SHOP);
    assert!(matches!(next(&fixture), Fact::Namespaces(all) if all.len() == 1));
    assert!(matches!(next(&fixture), Fact::Pods(pods) if pods.len() == 2));
    fixture.expect_silence();
}

#[test]
fn files_that_come_change_and_go_are_heard() {
    let mut fixture = Fixture::new();
    fixture.expect(&[], &[]);
    while !fixture.index.is_synced() {
        let fact = fixture.facts.recv_timeout(SOON).unwrap();
        fixture.index.apply(fact);
    }
    fixture.write("a.yaml", &format!("{SHOP}---\n{}", pod("a")));
    fixture.expect(&["a"], &["shop"]);
    fixture.write("b.json", r#"{"kind": "Pod", "metadata": {"name": "b", "namespace": "shop"}}"#);
    fixture.expect(&["a", "b"], &["shop"]);
    fixture.write(
        "b.json",
        r#"{"kind": "PodList", "items": [{"metadata": {"name": "c"}}, {"metadata": {"name": "d"}}]}"#,
    );
    fixture.expect(&["c", "d", "a"], &["shop"]);
    fs::write(fixture.directory.path().join("e.yml"), pod("e")).unwrap();
    fixture.expect(&["c", "d", "a", "e"], &["shop"]);
    fs::remove_file(fixture.directory.path().join("a.yaml")).unwrap();
    fixture.expect(&["c", "d", "e"], &[]);
    assert!(fixture.index.namespace("shop").is_none());
}

#[test]
fn what_changes_nothing_is_not_told() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &pod("a"));
    fixture.expect(&["a"], &[]);
    fixture.expect_silence();
    fixture.write("a.yaml", &format!("# a comment\n{}", pod("a")));
    fixture.write("notes.txt", &pod("b"));
    fixture.write(".c.yaml", &pod("c"));
    fixture.expect_silence();
}

/// Unchanged files are not read again; a modified file may have unchanged size and time.
#[test]
fn a_touch_that_leaves_size_and_time_is_heard() {
    let mut fixture = Fixture::new();
    let path = fixture.directory.path().join("a.yaml");
    fixture.write("a.yaml", &pod("a"));
    fixture.expect(&["a"], &[]);
    fixture.expect_silence(); // longer than the resolution of a file system's clock
    fixture.write("b.yaml", &pod("b"));
    fixture.expect(&["a", "b"], &[]);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, pod("c")).unwrap();
    fs::File::open(&path).unwrap().set_modified(modified).unwrap();
    fixture.expect(&["b", "c"], &[]);
}

/// As a mounted ConfigMap: each file is a link through a link that is replaced.
#[test]
fn a_link_that_leads_elsewhere_is_heard() {
    let mut fixture = Fixture::new();
    let at = |name: &str| fixture.directory.path().join(name);
    let [old, new, data] = ["..old", "..new", "..data"].map(at);
    for (directory, name) in [(&old, "a"), (&new, "b")] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("pods.yaml"), pod(name)).unwrap();
    }
    symlink("..old", &data).unwrap();
    symlink("..data/pods.yaml", at("pods.yaml")).unwrap();
    let next = at("..data_tmp");
    fixture.expect(&["a"], &[]);
    fixture.expect_silence();
    fixture.write("c.yaml", &pod("c"));
    fixture.expect(&["a", "c"], &[]);
    symlink("..new", &next).unwrap();
    fs::rename(next, data).unwrap();
    fixture.expect(&["b", "c"], &[]);
}

#[test]
fn a_broken_file_counts_as_it_was_last_and_is_told_once() {
    let mut fixture = Fixture::new();
    fixture.write("a.yaml", &pod("a"));
    fixture.expect(&["a"], &[]);
    fixture.write("a.yaml", "kind: Pod\nmetadata: [");
    fixture.expect_silence();
    fixture.write("b.yaml", &pod("b"));
    fixture.expect(&["a", "b"], &[]);
    assert_eq!(fixture.warnings(), 1, "{:?}", log().lock().unwrap());
    fixture.write("a.yaml", &pod("a2"));
    fixture.expect(&["a2", "b"], &[]);
    fixture.write("a.yaml", "kind: Pod\nmetadata: [");
    let is_told = (0..20).any(|_| {
        fixture.expect_silence();
        fixture.warnings() == 2
    });
    assert!(is_told, "broken again is news");
    fs::remove_file(fixture.directory.path().join("a.yaml")).unwrap();
    fixture.expect(&["b"], &[]);
}

#[test]
fn what_is_no_file_does_not_stop_the_others() {
    let mut fixture = Fixture::new();
    fs::create_dir(fixture.directory.path().join("d.yaml")).unwrap();
    make_pipe(&fixture.directory.path().join("pipe.yaml"));
    symlink("nowhere", fixture.directory.path().join("link.yaml")).unwrap();
    fixture.write("a.yaml", &pod("a"));
    fixture.expect(&["a"], &[]);
    assert!(fixture.warnings() >= 1, "the pipe is told");
}

fn make_pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn only_pods_of_this_node_count() {
    let mut fixture = Fixture::new();
    let on = |name: &str, node: &str| format!("---\n{}spec: {{nodeName: {node}}}\n", pod(name));
    fixture.write("a.yaml", &format!("{}{}---\n{}", on("a", "n1"), on("b", "n2"), pod("c")));
    fixture.expect(&["a", "c"], &[]);
    fixture.write("a.yaml", &on("a", "n2"));
    fixture.expect(&[], &[]);
}

#[test]
fn a_directory_may_come_later_and_what_it_said_outlives_it() {
    log();
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("later");
    let (follower, facts) = follow(&path);
    assert_eq!(
        facts.recv_timeout(Duration::from_millis(600)),
        Err(RecvTimeoutError::Timeout),
        "nothing is known"
    );
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), pod("a")).unwrap();
    let mut fixture =
        Fixture { directory: parent, facts, index: FactIndex::default(), follower: Some(follower) };
    fixture.expect(&["a"], &[]);
    fs::remove_dir_all(&path).unwrap();
    // Removed file by file: the last observed state may be an empty directory.
    assert!((0..20).any(|_| {
        let fact = fixture.facts.recv_timeout(Duration::from_millis(600));
        if let Ok(fact) = fact {
            let _ = fixture.index.apply(fact);
        }
        fixture.warnings() == 2
    }));
    fs::create_dir(&path).unwrap();
    fs::write(path.join("b.yaml"), pod("b")).unwrap();
    fixture.expect(&["b"], &[]);
    assert_eq!(fixture.warnings(), 2, "missing at first, and again: {:?}", log().lock().unwrap());
}

#[test]
fn it_ends_when_it_is_dropped() {
    let mut fixture = Fixture::new();
    fixture.expect(&[], &[]);
    let started = Instant::now();
    drop(fixture.follower.take());
    assert!(started.elapsed() < SOON);
    fixture.write("a.yaml", &pod("a"));
    while let Ok(fact) = fixture.facts.recv_timeout(SOON) {
        fixture.index.apply(fact);
    }
    assert_eq!(fixture.facts.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    assert_eq!(fixture.index.pods().count(), 0);
}

/// All warnings of target `ambient`.
fn log() -> &'static Mutex<Vec<String>> {
    static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    LINES.get_or_init(|| {
        tracing::subscriber::set_global_default(Lines).unwrap();
        Mutex::default()
    })
}

struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "ambient" && *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        log().lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Formats an event's fields.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}
