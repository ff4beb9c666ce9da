//! Lifetime of a watch, and the end of the namespace after it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use netlink::{MessageFlags, NetlinkRequest};
use netns::Netns;
use netns_changes::{Change, ChangeKinds, ChangeReporter, ChangeWatcher};
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketType, socket};

use crate::bind::{bind_new_netns, unbind_netns};
use crate::{LIMIT, PodWatcher, first_of, fresh_netns, pending, run_in, wait_until_quiet, watched_netns};

/// A pod as a veth pair with one end in the namespace `node`: that end is removed with the pod's namespace.
fn pod_of(node: &Netns, name: &str) -> Netns {
    let pod = bind_new_netns(&Path::new("/run/netns").join(name));
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
    let watch = watcher.watch("ends", &pod).unwrap();
    run_in(&pod, "ip link set eth0 up", "");
    wait_until_quiet(&watcher);
    assert_eq!(watcher.len(), 2);

    unbind_netns(Path::new("/run/netns/pod-ends"));
    drop(pod);
    assert_eq!(pending(&watcher), [], "the sockets keep it alive");
    assert!(has_link(&node, "pod-ends"));

    drop(watch);
    assert_eq!(watcher.len(), 1);
    let deadline = Instant::now() + Duration::from_secs(20);
    while has_link(&node, "pod-ends") {
        assert!(Instant::now() < deadline, "the namespace outlives its watch");
        let _ = watcher.wait_for_changes(Some(Duration::from_millis(50))).unwrap();
    }
}

/// As when a pod's namespace is replaced: each change identifies its watch.
#[test]
fn watches_with_the_same_key_are_told_apart_and_end_each_for_itself() {
    let Some((first, first_netns)) = watched_netns() else { return };
    let Some(second_netns) = fresh_netns() else { return };
    let second = first.watcher.watch("pod", &second_netns).unwrap();
    wait_until_quiet(&first);
    let change_in = |netns: &Netns| {
        run_in(netns, "ip rule add fwmark 7 lookup 133", "");
        first_of(&first, ChangeKinds::POLICY_RULES).watch
    };
    assert_eq!(change_in(&first_netns), first.watch.id());
    assert_eq!(change_in(&second_netns), second.id());
    let PodWatcher { watcher, watch } = first;
    drop(watch);
    assert_eq!(watcher.len(), 1);
    run_in(&first_netns, "ip rule del fwmark 7 lookup 133", "");
    assert_eq!(pending(&watcher), []);
}

#[test]
fn another_thread_watches_and_closes_while_one_waits() {
    let Some(netns) = fresh_netns() else { return };
    let watcher = ChangeWatcher::new().unwrap();
    assert!(watcher.is_empty());
    let waiting = thread::spawn({
        let watcher = watcher.clone();
        move || {
            let mut rules = 0;
            while let Some(changes) = watcher.wait_for_changes(None).unwrap() {
                let concerns = |kinds: ChangeKinds| kinds.contains(ChangeKinds::POLICY_RULES);
                rules += changes.iter().filter(|change| concerns(change.kinds)).count();
                if rules == 1 {
                    watcher.close();
                }
            }
            rules
        }
    });
    let _watch = watcher.watch("pod", &netns).unwrap();
    run_in(&netns, "ip rule add fwmark 7 lookup 133", "");
    assert_eq!(waiting.join().unwrap(), 1);
    assert_eq!(watcher.wait_for_changes(None).unwrap(), None, "closed for good");
}

fn start_reporter(
    report: impl Fn(Change<&'static str>) + Send + Sync + 'static,
) -> ChangeReporter<&'static str> {
    let mut reporter = ChangeReporter::new("test", report).unwrap();
    assert!(reporter.ensure_running().is_none() && reporter.is_running());
    reporter
}

#[test]
fn a_thread_reports_changes_until_its_owner_drops_it() {
    let Some(netns) = fresh_netns() else { return };
    let (sender, changes) = mpsc::channel();
    let reporter = start_reporter(move |change| sender.send(change).unwrap());
    let watch = reporter.watcher().watch("pod", &netns).unwrap();
    run_in(&netns, "ip rule add fwmark 7 lookup 133", "");
    let change = changes.recv_timeout(LIMIT).unwrap();
    assert_eq!((change.key, change.watch), ("pod", watch.id()));
    drop(reporter);
    let end = loop {
        match changes.recv_timeout(LIMIT) {
            Ok(change) => assert_eq!(change.watch, watch.id()),
            Err(end) => break end,
        }
    };
    assert_eq!(end, mpsc::RecvTimeoutError::Disconnected, "the thread has ended");
}

/// The first change is read and not reported.
#[test]
fn a_thread_that_has_ended_is_started_again_and_reports_what_the_last_one_may_have_read() {
    let Some(netns) = fresh_netns() else { return };
    let (sender, changes) = mpsc::channel();
    let is_first = AtomicBool::new(true);
    let mut reporter = start_reporter(move |change| {
        assert!(!is_first.swap(false, Ordering::Relaxed), "the first one, as it should");
        sender.send(change).unwrap();
    });
    let watch = reporter.watcher().watch("pod", &netns).unwrap();
    run_in(&netns, "ip rule add fwmark 7 lookup 133", "");
    let began = Instant::now();
    while reporter.is_running() {
        assert!(began.elapsed() < LIMIT, "the thread has not ended");
        thread::yield_now();
    }
    assert!(reporter.ensure_running().is_some() && reporter.is_running());
    let change = changes.recv_timeout(LIMIT).unwrap();
    assert_eq!((change.watch, change.kinds), (watch.id(), ChangeKinds::LOST));
    assert!(reporter.ensure_running().is_none() && reporter.is_running());
    run_in(&netns, "ip rule add fwmark 8 lookup 133", "");
    while !changes.recv_timeout(LIMIT).unwrap().kinds.contains(ChangeKinds::POLICY_RULES) {}
}

/// A process that makes transactions without a pause. Changes of another namespace are reported before its next ones, which would
/// precede them if the rests of one namespace delayed others.
#[test]
fn a_thread_reads_a_namespace_that_changes_all_the_time_ever_more_rarely() {
    let (Some(busy), Some(other)) = (fresh_netns(), fresh_netns()) else { return };
    let (sender, changes) = mpsc::channel();
    let reporter = start_reporter(move |change| sender.send(change).unwrap());
    let _watches = [("busy", &busy), ("other", &other)]
        .map(|(key, netns)| reporter.watcher().watch(key, netns).unwrap());
    let (began, ends) = (Instant::now(), AtomicBool::new(false));
    let (mut of_busy, mut is_other_first) = (Vec::new(), false);
    thread::scope(|scope| {
        let (ends, busy) = (&ends, &busy);
        scope.spawn(move || {
            for sequence in 0.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                make_table(busy, &format!("t{sequence}"), sequence);
                thread::sleep(Duration::from_micros(500)); // far shorter than a rest
            }
        });
        // The number of the report after which the other namespace was changed, until that is reported.
        let mut changed_after = None;
        // A change may be made too late before a report, on a busy machine.
        while (of_busy.len() < 10 || !is_other_first) && began.elapsed() < 10 * LIMIT {
            let Ok(change) = changes.recv_timeout(LIMIT) else { continue };
            if change.key == "other" {
                is_other_first |= changed_after.take() == Some(of_busy.len());
                continue;
            }
            of_busy.push(change);
            if of_busy.len() >= 7 && changed_after.is_none() {
                let mark = of_busy.len() + 100;
                run_in(&other, &format!("ip rule add fwmark {mark} lookup 133"), "");
                changed_after = Some(of_busy.len());
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(is_other_first && of_busy.len() >= 10, "{is_other_first} {of_busy:?}");
    // Ten reports with nine rests between them, or with pauses of the process that are long enough to begin anew: either takes
    // longer than a second. Without rests they take 0.2 s.
    assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
    // The first one may be the kernel's own, of the links.
    assert!(of_busy.iter().skip(1).all(|change| change.writer.is_some()), "{of_busy:?}");
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
        let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        rustix::net::sendto(&socket, &forged, SendFlags::empty(), &groups)
    });
    assert_eq!(sent.unwrap(), Ok(forged.len()));
    let began = Instant::now();
    assert_eq!(watcher.wait_for_changes(Some(LIMIT)).unwrap().unwrap(), []);
    assert!(began.elapsed() < LIMIT, "it came, and was dropped");
}

/// One transaction that makes a table, with messages of this sequence number.
fn make_table(netns: &Netns, table: &str, sequence: u32) {
    let in_batch = |kind| NetlinkRequest::new(kind, MessageFlags::NONE, &[0, 0, 0, 10]);
    let mut new_table = NetlinkRequest::new(0x0a00, MessageFlags::CREATE, &[1, 0, 0, 0]);
    new_table.put_str(1, table);
    let [begin, end] = [0x10, 0x11].map(in_batch); // NFNL_MSG_BATCH_BEGIN and _END
    let mut bytes = Vec::new();
    for mut message in [begin, new_table, end] {
        bytes.extend_from_slice(message.finish(sequence, MessageFlags::REQUEST).unwrap());
    }
    let send = || {
        let socket = socket(AddressFamily::NETLINK, SocketType::RAW, Some(NETFILTER)).unwrap();
        rustix::net::send(socket, &bytes, SendFlags::empty()).unwrap();
    };
    netns.run_in(send).unwrap();
}

/// The author of a transaction chooses its number, so no number may hide it.
#[test]
fn a_transaction_is_reported_whatever_its_sequence_number() {
    let Some((watcher, netns)) = watched_netns() else { return };
    let mut before = None;
    for (table, sequence) in [("a", 0), ("b", 1), ("c", 0x6d72_6765), ("d", u32::MAX)] {
        make_table(&netns, table, sequence);
        let change = first_of(&watcher, ChangeKinds::FIREWALL);
        assert_eq!(change.kinds, ChangeKinds::FIREWALL, "{sequence}");
        assert!(before.is_none_or(|before| change.generation == Some(before + 1)), "{sequence}");
        before = change.generation;
    }
    assert_eq!(pending(&watcher), []);
}
