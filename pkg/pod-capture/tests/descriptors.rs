//! A search without file descriptors, in a process of its own, whose limit it changes.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test: a panic is its failure")]

#[path = "../../netns/tests/fresh/create.rs"]
mod create;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::iter;
use std::os::unix::fs::symlink;

use model::{PodName, PodUid};
use pod_capture::{NetnsFinder, NetnsQuery};
use pod_identity::{KnownPods, PodIds};
use rules::inpod::InPodRulesConfig;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use create::create_or_skip;

const UID: &str = "2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f809";

#[test]
fn a_search_without_descriptors_fails_instead_of_finding_fewer_pods() {
    let Some(node) = create_or_skip() else { return };
    let proc = std::env::temp_dir().join(format!("proc-{}", std::process::id()));
    for process in ["10", "11"].map(|pid| proc.join(pid)) {
        fs::create_dir_all(process.join("ns")).unwrap();
        fs::write(process.join("cgroup"), format!("0::/kubepods/pod{UID}/0123\n")).unwrap();
        symlink("/proc/self/ns/net", process.join("ns/net")).unwrap();
    }
    let name = PodName { namespace: "shop".to_owned(), name: "it".to_owned() };
    let pods = KnownPods::new([PodIds { name, uid: UID.into(), manifest_hash: None }]);
    let query = NetnsQuery { ips: Vec::new(), known: None, recorded: None };
    let sought = BTreeMap::from([(PodUid::from(UID), query)]);
    let finder = NetnsFinder::new(&proc, node, InPodRulesConfig::default());
    assert!(finder.find_netns(&pods, &sought).unwrap().is_empty());
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..limits }).unwrap();
    let mut others: Vec<File> = iter::repeat_with(|| File::open("/dev/null")).map_while(Result::ok).collect();
    others.pop(); // leaves a descriptor for the list, and then for the first process
    let found = finder.find_netns(&pods, &sought);
    drop(others);
    setrlimit(Resource::Nofile, limits).unwrap();
    fs::remove_dir_all(&proc).unwrap();
    assert!(found.is_err(), "{found:?}");
}
