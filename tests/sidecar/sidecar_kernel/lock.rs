//! The lock of the legacy tables: a pod's redirection never waits for it, the host's own names the process that holds it.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::Command,
    time::{Duration, Instant},
};

use firewall::{Backend, FirewallOptions, XtablesLock};
use kit::{LockHolder, Netns};
use redirect::{FamilyChoice, RedirectReport};

use super::{
    cases,
    state::{forced, pod_netns},
};

const LOCK: &str = "/run/xtables.lock";

fn apply(netns: &Netns, options: &FirewallOptions) -> Result<RedirectReport, redirect::Error> {
    netns.run(|| redirect::apply(&cases::injected(), FamilyChoice::Dual, options))
}

#[test]
fn a_held_lock_stops_the_host_with_a_name_and_a_pod_not_at_all() {
    let netns = pod_netns("lock");
    let holder = LockHolder::start(&netns, Command::new("flock"), LOCK);
    let host = FirewallOptions {
        lock: XtablesLock::Host,
        lock_wait: Duration::from_secs(1),
        ..forced(Backend::Legacy)
    };
    let started = Instant::now();
    let error = apply(&netns, &host).unwrap_err().to_string();
    assert!(started.elapsed() >= Duration::from_millis(900), "it waited {:?}", started.elapsed());
    let pid = holder.pid();
    // Other versions of the tools are in other directories.
    let expected = format!(
        "/iptables-legacy-restore could not get the lock {LOCK} within 1 s; held by process {pid} (cat)"
    );
    assert!(error.ends_with(&expected), "{error}");
    let nft = apply(&netns, &FirewallOptions { lock: XtablesLock::Host, ..forced(Backend::Nft) });
    assert!(!nft.unwrap().is_unchanged(), "nft needs no lock");

    // The pod's tools would wait for ten seconds.
    let started = Instant::now();
    let pod = apply(&netns, &forced(Backend::Legacy)).unwrap();
    assert!(!pod.is_unchanged() && started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    drop(holder);
    assert!(apply(&netns, &host).unwrap().is_unchanged());
    assert!(fs::metadata(LOCK).is_ok());
}

/// iptables before 1.8.6 has no other lock than the host's file. In a pod that path is the pod's own file, not one shared by all
/// pods of the node, nor one that a process of the pod can open.
#[test]
fn an_old_tool_in_a_pod_finds_the_pods_own_file_in_the_place_of_the_hosts() {
    let pods = [pod_netns("one"), pod_netns("two")];
    // The file of the host, which exists once any process has used the legacy tables.
    pods[0].sh("iptables-legacy --wait=30 -t filter -S");
    let directory = kit::TempDir::new().unwrap();
    let locks = directory.path().join("locks");
    let identity = |path: &std::path::Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).unwrap();
    let seen = pods.each_ref().map(|pod| {
        let netns = netns::Netns::open(pod.path()).unwrap();
        let options = FirewallOptions { lock_directory: Some(locks.clone()), ..forced(Backend::Legacy) };
        let look = |_: &FirewallOptions| Ok::<_, redirect::Error>(identity(LOCK.as_ref()));
        firewall::run_inside(&netns, &options, look).unwrap()
    });
    for (pod, (file, warning)) in pods.iter().zip(seen) {
        let number = fs::metadata(pod.path()).unwrap().ino() % 256;
        assert_eq!((file, warning), (identity(&locks.join(number.to_string())), None));
    }
    assert_eq!(fs::metadata(&locks).unwrap().mode() & 0o777, 0o700);
}
