//! More changes than the sockets' buffers hold.

use std::fmt::Write as _;

use netns_changes::ChangeKinds;

use crate::{LIMIT, first_of, fresh_netns, pending, run_in, wait_until_quiet, watched_netns};

#[test]
fn an_overflow_is_reported_once_and_later_changes_are_not_lost() {
    let Some((watcher, netns)) = watched_netns() else { return };
    let mut routes = String::new();
    for number in 0..4000 {
        writeln!(routes, "route add 10.{}.{}.0/24 dev va", number / 250, number % 250).unwrap();
    }
    for batch in [routes.clone(), routes.replace("add", "del")] {
        run_in(&netns, "ip -batch -", &batch);
        let changes = pending(&watcher);
        let lost = changes.iter().filter(|change| change.kinds.contains(ChangeKinds::LOST)).count();
        assert_eq!((changes.len(), lost), (1, 1), "{changes:?}");
        // The first change after the report must be reported: the caller has begun to observe.
        run_in(&netns, "ip rule add fwmark 7 lookup 133", "");
        assert_eq!(first_of(&watcher, ChangeKinds::POLICY_RULES).kinds, ChangeKinds::POLICY_RULES);
    }
}

#[test]
fn a_report_of_a_loss_covers_everything_before_it() {
    let Some((watcher, netns)) = watched_netns() else { return };
    let batch = (0..4000).fold(String::new(), |mut batch, number| {
        writeln!(batch, "route add 10.{}.{}.0/24 dev va", number / 250, number % 250).unwrap();
        batch
    });
    run_in(&netns, "ip -batch -", &batch);
    let first = watcher.wait_for_changes(Some(LIMIT)).unwrap().unwrap();
    assert!(first.iter().all(|change| change.kinds.contains(ChangeKinds::LOST)), "{first:?}");
    // Without another read: a change is reported although nothing has been read since.
    run_in(&netns, "ip rule add fwmark 7 lookup 133", "");
    assert_eq!(first_of(&watcher, ChangeKinds::POLICY_RULES).kinds, ChangeKinds::POLICY_RULES);
}

/// The kernel drops the messages about rules before they are queued.
#[test]
fn a_large_transaction_of_the_firewall_is_one_change_without_loss() {
    let Some((watcher, netns)) = watched_netns() else { return };
    run_in(&netns, "nft -f -", "add table inet t\nadd chain inet t c\n");
    run_in(&netns, "nft -f -", &"add rule inet t c counter\n".repeat(5000));
    let changes = pending(&watcher);
    let [change] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(change.kinds, ChangeKinds::FIREWALL);
}

#[test]
fn a_busy_namespace_does_not_keep_others_waiting() {
    let Some((watcher, busy)) = watched_netns() else { return };
    let Some(other) = fresh_netns() else { return };
    let _other = watcher.watch("other", &other).unwrap();
    wait_until_quiet(&watcher);
    run_in(&busy, "ip -batch -", &"rule add fwmark 7 lookup 133\nrule del fwmark 7\n".repeat(20));
    run_in(&other, "ip rule add fwmark 7 lookup 133", "");
    let mut keys = Vec::new();
    for _ in 0..2 {
        let changes = watcher.wait_for_changes(Some(LIMIT)).unwrap().unwrap();
        keys.push(changes.into_iter().map(|change| change.key).collect::<Vec<_>>());
    }
    assert_eq!(keys, [vec!["pod", "other"], vec!["pod"]], "what is left of one follows");
    assert_eq!(pending(&watcher), []);
}
