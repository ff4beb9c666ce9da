//! Reported kinds of changes, their delay, and the named process.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use netns_changes::ChangeKinds;

use crate::{QUIET, first_of, pending, run_in, watched_netns};

#[test]
fn each_change_is_reported_as_its_kind_and_at_once() {
    let Some((watcher, netns)) = watched_netns() else { return };
    let (routes, rules) = (ChangeKinds::ROUTES, ChangeKinds::POLICY_RULES);
    for (command, kind) in [
        ("ip rule add fwmark 7 lookup 133", rules),
        ("ip rule del fwmark 7 lookup 133", rules),
        ("ip -6 rule add fwmark 7 lookup 133", rules),
        ("ip -6 rule del fwmark 7 lookup 133", rules),
        ("ip route add local 0.0.0.0/0 dev lo table 133", routes),
        ("ip route del local 0.0.0.0/0 dev lo table 133", routes),
        ("ip -6 route add local ::/0 dev lo table 133", routes),
        ("ip -6 route flush table 133", routes),
        ("ip addr add 10.1.2.3/24 dev va", ChangeKinds::ADDRESSES),
        ("ip addr del 10.1.2.3/24 dev va", ChangeKinds::ADDRESSES),
        ("ip addr add 2001:db8::7/128 dev va nodad", ChangeKinds::ADDRESSES),
        ("ip addr del 2001:db8::7/128 dev va", ChangeKinds::ADDRESSES),
        ("ip link add vc type veth peer name vd", ChangeKinds::LINKS),
        ("ip link set va mtu 1400", ChangeKinds::LINKS),
        ("ip link del vc", ChangeKinds::LINKS),
    ] {
        let began = Instant::now();
        let change = thread::scope(|scope| {
            let command = scope.spawn(|| {
                run_in(&netns, command, "");
                began.elapsed()
            });
            let change = first_of(&watcher, kind);
            let reported = began.elapsed();
            let ended = command.join().unwrap();
            eprintln!("{:?}: reported after {reported:?}, the command took {ended:?}", change.kinds);
            change
        });
        assert!(change.kinds.contains(kind), "{command}: {:?}", change.kinds);
        assert_eq!((change.key, change.watch), ("pod", watcher.watch.id()));
        assert_eq!((change.generation, change.writer), (None, None), "{command}");
        let kinds = pending(&watcher).iter().fold(change.kinds, |all, change| all | change.kinds);
        assert!(!kinds.contains(ChangeKinds::LOST), "{command}: {kinds:?}");
        if kind == rules || kind == routes {
            assert_eq!(kinds, kind, "{command}");
        }
    }
}

#[test]
fn changes_of_the_firewall_name_their_writer_and_the_generation() {
    let Some((watcher, netns)) = watched_netns() else { return };
    let mut last = None;
    for (command, input, writer) in [
        ("nft -f -", "add table inet t\nadd chain inet t c\nadd rule inet t c counter\n", "nft"),
        ("nft flush chain inet t c", "", "nft"),
        ("nft delete table inet t", "", "nft"),
        ("iptables-nft-restore", "*nat\n-A OUTPUT -p tcp -j ACCEPT\nCOMMIT\n", "iptables-nft-re"),
        ("ip6tables-nft-restore", "*nat\n-F OUTPUT\nCOMMIT\n", "ip6tables-nft-r"),
    ] {
        let began = Instant::now();
        run_in(&netns, command, input);
        let change = first_of(&watcher, ChangeKinds::FIREWALL);
        let found = change.writer.unwrap();
        eprintln!("{:?} with the command: {} ({})", began.elapsed(), found.name, found.pid);
        assert_eq!(change.kinds, ChangeKinds::FIREWALL, "{command}");
        assert_eq!(found.name, writer);
        assert!(found.pid > 1);
        assert!(change.generation > last, "{:?} follows {last:?}", change.generation);
        last = change.generation;
        assert_eq!(pending(&watcher), []);
    }
}

/// For an observation that something else than its notification triggered.
#[test]
fn the_last_writer_is_known_before_and_after_its_change_was_reported() {
    let Some((watcher, netns)) = watched_netns() else { return };
    let writer = || watcher.watch.last_transaction().and_then(|last| last.writer_name()).unwrap_or_default();
    assert_eq!(writer(), "");
    run_in(&netns, "iptables-nft-restore", "*nat\n-A OUTPUT -p tcp -j ACCEPT\nCOMMIT\n");
    assert!(writer().starts_with("iptables-nft-re (process "), "{}", writer());
    assert_eq!(pending(&watcher), [], "it was read");
    run_in(&netns, "ip rule add fwmark 7 lookup 133", "");
    assert_eq!(first_of(&watcher, ChangeKinds::POLICY_RULES).kinds, ChangeKinds::POLICY_RULES);
    assert!(writer().starts_with("iptables-nft-re (process "), "{}", writer());
    run_in(&netns, "nft delete table ip nat", "");
    let change = first_of(&watcher, ChangeKinds::FIREWALL);
    assert!(writer().starts_with("nft (process "), "{}", writer());
    let last = watcher.watch.last_transaction().unwrap();
    assert!(last.was_observed(change.generation) && last.without_observed(change.generation).is_none());
}

/// Three transactions, with two hundred rules each.
#[test]
fn changes_that_are_pending_are_reported_as_one() {
    let Some((watcher, netns)) = watched_netns() else { return };
    run_in(&netns, "nft -f -", "add table inet t\nadd chain inet t c\n");
    for _ in 0..2 {
        run_in(&netns, "nft -f -", &"add rule inet t c counter\n".repeat(200));
    }
    run_in(&netns, "ip rule add fwmark 7 lookup 133", "");
    run_in(&netns, "ip route add local 0.0.0.0/0 dev lo table 133", "");
    let changes = pending(&watcher);
    let [change] = changes.as_slice() else { panic!("{changes:?}") };
    let expected = ChangeKinds::FIREWALL | ChangeKinds::ROUTES | ChangeKinds::POLICY_RULES;
    assert_eq!(change.kinds, expected);
}

#[test]
fn nothing_is_reported_while_nothing_changes() {
    let Some((watcher, netns)) = watched_netns() else { return };
    run_in(&netns, "nft list ruleset", "");
    run_in(&netns, "iptables-nft-save", "");
    run_in(&netns, "ip route show table all", "");
    let traffic = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpStream::connect(listener.local_addr().unwrap()).unwrap()
    };
    drop(netns.run_in(traffic).unwrap());
    let began = Instant::now();
    assert_eq!(watcher.wait_for_changes(Some(5 * QUIET)).unwrap().unwrap(), []);
    assert!(began.elapsed() >= 5 * QUIET);
}

#[test]
fn changes_of_legacy_tables_are_not_reported() {
    let Some((watcher, netns)) = watched_netns() else { return };
    run_in(&netns, "iptables-legacy-restore", "*nat\n-A OUTPUT -p tcp -j ACCEPT\nCOMMIT\n");
    assert_eq!(pending(&watcher), []);
}
