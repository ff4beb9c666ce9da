//! With the kernel, each test in its own network namespaces; `ip`, `nft` and iptables make the changes.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[path = "../../netns/tests/named/bind.rs"]
mod bind;
#[path = "../../netns/tests/fresh/create.rs"]
mod create;
#[path = "kernel/kinds.rs"]
mod kinds;
#[path = "kernel/life.rs"]
mod life;
#[path = "kernel/overflow.rs"]
mod overflow;

use std::io::Write as _;
use std::ops::Deref;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netns::Netns;
use netns_changes::{Change, ChangeKinds, ChangeWatcher, NetnsWatch};

/// A change is reported within milliseconds; a test waits this long on a machine that is stopped meanwhile.
const LIMIT: Duration = Duration::from_secs(20);
/// Time without a report that proves that none arrives.
const QUIET: Duration = Duration::from_millis(100);

/// Creates a namespace with lo and a veth pair `va`–`vb`, all up. Without permission to create one the test is skipped, with the
/// reason on stderr; CI must have it.
fn fresh_netns() -> Option<Netns> {
    let netns = create::create_or_skip()?;
    run_in(&netns, "ip link set lo up", "");
    run_in(&netns, "ip link add va type veth peer name vb", "");
    for link in ["va", "vb"] {
        // Without the kernel's own addresses, whose detection of duplicates ends seconds later.
        run_in(&netns, &format!("ip link set {link} addrgenmode none"), "");
    }
    run_in(&netns, "ip link set va up", "");
    run_in(&netns, "ip link set vb up", "");
    // A worker of the kernel notices their carrier, and changes their state and routes.
    let list = || Command::new("ip").args(["-oneline", "link"]).output().unwrap().stdout;
    let deadline = Instant::now() + LIMIT;
    while count_words(&netns.run_in(list).unwrap(), "UP") < 2 {
        assert!(Instant::now() < deadline, "the links do not run");
    }
    Some(netns)
}

fn count_words(text: &[u8], word: &str) -> usize {
    String::from_utf8_lossy(text).split_whitespace().filter(|one| *one == word).count()
}

/// A watcher of a namespace with the key "pod".
struct PodWatcher {
    watcher: ChangeWatcher<&'static str>,
    watch: NetnsWatch<&'static str>,
}

impl Deref for PodWatcher {
    type Target = ChangeWatcher<&'static str>;

    fn deref(&self) -> &Self::Target {
        &self.watcher
    }
}

/// Creates a watched namespace, and waits until the kernel's own changes end.
fn watched_netns() -> Option<(PodWatcher, Netns)> {
    let netns = fresh_netns()?;
    let watcher = ChangeWatcher::new().unwrap();
    let watch = watcher.watch("pod", &netns).unwrap();
    wait_until_quiet(&watcher);
    Some((PodWatcher { watcher, watch }, netns))
}

/// Runs a command in a namespace, with `input` on its stdin.
fn run_in(netns: &Netns, command: &str, input: &str) {
    let output = netns.run_in(|| {
        let mut words = command.split_whitespace();
        let mut child = Command::new(words.next().unwrap());
        child.args(words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    let output = output.unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns pending changes, one after another, until none arrives for a while.
fn pending(watcher: &ChangeWatcher<&'static str>) -> Vec<Change<&'static str>> {
    let mut all = Vec::new();
    loop {
        let changes = watcher.wait_for_changes(Some(QUIET)).unwrap().unwrap();
        if changes.is_empty() {
            return all;
        }
        all.extend(changes);
    }
}

/// The kernel starts links and adds routes asynchronously.
fn wait_until_quiet(watcher: &ChangeWatcher<&'static str>) {
    let deadline = Instant::now() + LIMIT;
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(600) {
        assert!(Instant::now() < deadline, "the namespace still changes");
        if !watcher.wait_for_changes(Some(QUIET)).unwrap().unwrap().is_empty() {
            since = Instant::now();
        }
    }
}

/// The first change that concerns one of these kinds.
fn first_of(watcher: &ChangeWatcher<&'static str>, kinds: ChangeKinds) -> Change<&'static str> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let changes = watcher.wait_for_changes(Some(deadline - Instant::now())).unwrap().unwrap();
        if let Some(change) = changes
            .into_iter()
            .find(|change| change.kinds.contains(kinds) || change.kinds.contains(ChangeKinds::LOST))
        {
            return change;
        }
        assert!(Instant::now() < deadline, "no change of {kinds:?} is reported");
    }
}
