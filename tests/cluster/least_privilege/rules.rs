//! Each verb of each manifest, removed.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use super::grants::{Verb, verbs};
use super::life::live;
use crate::install_manifests::documents::{AMBIENT, IN_POD, SIDECAR, documents_of};

/// Concurrent lives: they mostly wait.
const AT_A_TIME: usize = 6;

/// Needed by agents with API servers before 1.34 only, unlike this one: those do not stream lists.
const FOR_OLDER_SERVERS: [(&str, &str); 2] = [("list", "namespaces"), ("list", "pods")];

/// A feature that fails without a verb of a resource; others may fail, too.
fn missed(verb: &Verb, ambient: bool) -> &'static str {
    match (verb.verb.as_str(), verb.resource.as_str()) {
        ("get", "pods") => "a pod's start",
        ("get", "namespaces") if ambient => "an early pod's start",
        ("watch", "pods" | "namespaces") if ambient => "ready",
        ("get", "nodes" | "daemonsets") => "its cleanup",
        ("patch", "pods/status") => "its mark",
        ("create", "events") => "an Event",
        ("patch", "events") => "an Event that is counted",
        ("list" | "watch", "configmaps") => "its ConfigMap",
        ("list" | "watch", "daemonsets") => "its DaemonSet",
        _ => panic!("nothing needs {verb:?}"),
    }
}

fn leak(name: String) -> &'static str {
    name.leak()
}

/// Runs one life for each verb, and one with all. Returns the faults.
fn lives(file: &str, short: &str) -> Vec<String> {
    let all = verbs(&documents_of(file));
    let needed = all.into_iter().filter(|one| !FOR_OLDER_SERVERS.contains(&(&one.verb, &one.resource)));
    let jobs: Vec<Option<Verb>> = [None].into_iter().chain(needed.map(Some)).collect();
    let (jobs, wrong) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some((number, missing)) = take(&jobs) else { return };
            let name = leak(format!("least-{short}-{number}"));
            match std::panic::catch_unwind(|| live(file, name, missing.as_ref())) {
                Ok(None) => return, // no API server: this test is skipped
                Ok(Some(life)) => wrong.lock().unwrap().extend(judge(file, missing.as_ref(), &life)),
                Err(_) => wrong.lock().unwrap().push(format!("{name}: a panic without {missing:?}")),
            }
        }
    };
    thread::scope(|scope| (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work))));
    wrong.into_inner().unwrap()
}

fn take(jobs: &Mutex<Vec<Option<Verb>>>) -> Option<(usize, Option<Verb>)> {
    let mut jobs = jobs.lock().unwrap();
    Some((jobs.len(), jobs.pop()?))
}

fn judge(file: &str, missing: Option<&Verb>, life: &super::life::Life) -> Option<String> {
    let Some(missing) = missing else {
        let refused = life.log.contains("(403)") || life.log.to_lowercase().contains("forbidden");
        let is_well = life.failed.is_empty() && !refused;
        return (!is_well).then(|| format!("{file}: all rules, and {:?}: {}", life.failed, life.log));
    };
    let expected = missed(missing, file != SIDECAR);
    (!life.failed.contains(expected)).then(|| {
        format!(
            "{file}: without {missing:?} {expected:?} works, only {:?} does not: {}",
            life.failed, life.log
        )
    })
}

#[test]
fn the_manifest_without_ambient_mode_grants_the_least() {
    assert_eq!(lives(SIDECAR, "sidecar"), [""; 0]);
}

#[test]
fn the_manifest_with_capture_in_pods_grants_the_least() {
    assert_eq!(lives(IN_POD, "in-pod"), [""; 0]);
}

/// The rules equal those of the other manifest with ambient mode, from which each one is removed.
#[test]
fn the_manifest_with_capture_on_the_node_grants_enough_and_no_more_than_the_other() {
    assert_eq!(verbs(&documents_of(AMBIENT)), verbs(&documents_of(IN_POD)));
    if let Some(life) = live(AMBIENT, "least-node", None) {
        assert_eq!(judge(AMBIENT, None, &life), None);
    }
}

#[test]
fn without_ambient_mode_nothing_is_listed_or_watched_but_two_objects() {
    let broad: BTreeSet<Verb> = verbs(&documents_of(SIDECAR))
        .into_iter()
        .filter(|one| {
            one.verb != "get" && !["configmaps", "daemonsets", "events"].contains(&one.resource.as_str())
        })
        .collect();
    assert_eq!(broad, BTreeSet::new());
}
