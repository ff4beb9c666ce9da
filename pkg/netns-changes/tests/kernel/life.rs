//! How long a namespace is watched, and that it ends then.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use netns::Netns;
use netns_changes::{ChangeKinds, ChangeWatcher};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SendFlags, SocketType};

use crate::{LIMIT, first_of, fresh_netns, pending, run_in, wait_until_quiet, watched_netns};

/// A pod as a veth pair whose one end is in the namespace `node`: that end goes with the pod's namespace.
fn pod_of(node: &Netns, name: &str) -> Netns {
    let pod = Netns::create_named(Path::new("/run/netns").join(name)).unwrap();
    run_in(node, &format!("ip link add {name} type veth peer name eth0 netns {name}"), "");
    pod
}

fn has_link(netns: &Netns, name: &str) -> bool {
    let path = format!("/proc/thread-self/net/dev_snmp6/{name}");
    netns.run_in(|| Path::new(&path).exists()).unwrap()
}

#[test]
fn a_namespace_ends_with_its_watch() {
    let Some((watcher, node)) = watched_netns() else { return };
    let pod = pod_of(&node, "pod-ends");
    watcher.watch("ends", &pod).unwrap();
    run_in(&pod, "ip link set eth0 up", "");
    wait_until_quiet(&watcher);
    assert_eq!(watcher.len(), 2);

    Netns::remove("/run/netns/pod-ends").unwrap();
    drop(pod);
    assert_eq!(pending(&watcher), [], "the sockets keep it alive");
    assert!(has_link(&node, "pod-ends"));

    watcher.unwatch(&"ends");
    watcher.unwatch(&"ends");
    assert_eq!(watcher.len(), 1);
    let deadline = Instant::now() + Duration::from_secs(20);
    while has_link(&node, "pod-ends") {
        assert!(Instant::now() < deadline, "the namespace outlives its watch");
        let _ = watcher.wait(Some(Duration::from_millis(50))).unwrap();
    }
}

#[test]
fn a_key_that_is_watched_again_means_the_new_namespace_alone() {
    let Some((watcher, first)) = watched_netns() else { return };
    let Some(second) = fresh_netns() else { return };
    watcher.watch("pod", &second).unwrap();
    assert_eq!(watcher.len(), 1);
    wait_until_quiet(&watcher);
    run_in(&first, "ip rule add fwmark 7 lookup 133", "");
    assert_eq!(pending(&watcher), []);
    run_in(&second, "ip rule add fwmark 7 lookup 133", "");
    assert_eq!(first_of(&watcher, ChangeKinds::POLICY_RULES).kinds, ChangeKinds::POLICY_RULES);
}

#[test]
fn another_thread_watches_and_closes_while_one_waits() {
    let Some(netns) = fresh_netns() else { return };
    let watcher = Arc::new(ChangeWatcher::new().unwrap());
    assert!(watcher.is_empty());
    let waiting = thread::spawn({
        let watcher = Arc::clone(&watcher);
        move || {
            let mut rules = 0;
            while let Some(changes) = watcher.wait(None).unwrap() {
                let concerns = |kinds: ChangeKinds| kinds.contains(ChangeKinds::POLICY_RULES);
                rules += changes.iter().filter(|change| concerns(change.kinds)).count();
                if rules == 1 {
                    watcher.close();
                }
            }
            rules
        }
    });
    watcher.watch("pod", &netns).unwrap();
    run_in(&netns, "ip rule add fwmark 7 lookup 133", "");
    assert_eq!(waiting.join().unwrap(), 1);
    assert_eq!(watcher.wait(None).unwrap(), None, "closed for good");
}

/// As a process with CAP_NET_ADMIN in the pod can do.
#[test]
fn messages_of_processes_are_no_changes() {
    let Some((watcher, netns)) = watched_netns() else { return };
    let mut forged = [0; 28];
    forged[0] = 28;
    forged[4] = 32; // RTM_NEWRULE
    let groups = SocketAddrNetlink::new(0, 1 << 7);
    let sent = netns.run_in(|| {
        let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        rustix::net::sendto(&socket, &forged, SendFlags::empty(), &groups)
    });
    assert_eq!(sent.unwrap(), Ok(forged.len()));
    let began = Instant::now();
    assert_eq!(watcher.wait(Some(LIMIT)).unwrap().unwrap(), []);
    assert!(began.elapsed() < LIMIT, "it came, and was dropped");
}
