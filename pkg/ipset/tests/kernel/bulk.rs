//! Many members at once, and listings of several parts.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ipset::{Comment, Family, IpsetHandle, RemoveOutcome, SetEntry, SetSpec};
use netns::Netns;

use crate::{AddOne as _, addresses, in_fresh_netns, is_missing_set, made, name, noted, saved, sorted};

/// Ends the other thread, also when this one panics: its scope would wait for it for ever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// With a comment of some length each, if the set keeps them.
fn entries(spec: &SetSpec, count: u32) -> Vec<SetEntry> {
    let comment = |ip| Comment::new(&format!("namespace of {ip}/a pod with a name")).unwrap();
    let entry = |ip| SetEntry { ip, comment: spec.comments.then(|| comment(ip)) };
    addresses(spec.family, count).into_iter().map(entry).collect()
}

#[test]
fn ten_thousand_members_are_added_and_listed() {
    in_fresh_netns(|handle| {
        for family in Family::BOTH {
            let spec = made(handle, SetSpec::new(name(&format!("s{family}")), family).with_comments());
            let entries = entries(&spec, 10_000);
            let bulk = handle.add_all(&spec, &entries).unwrap();
            assert_eq!((bulk.added, bulk.existed, bulk.failed.len()), (10_000, 0, 0));
            let listed = handle.list_members(&spec.name).unwrap().unwrap();
            assert_eq!(listed, saved(&spec.name));
            assert_eq!(sorted(listed), entries);
            let again = handle.add_all(&spec, &entries).unwrap();
            assert_eq!((again.added, again.existed, again.failed.len()), (0, 10_000, 0));
        }
    });
}

#[test]
fn members_are_judged_one_by_one() {
    in_fresh_netns(|handle| {
        let spec = made(handle, SetSpec::new(name("s"), Family::V4).with_comments());
        let _ = handle.add(&spec, &noted("10.0.0.2", "old")).unwrap();
        let _ = handle.add(&spec, &noted("10.0.0.3", "kept")).unwrap();
        let given = [
            noted("2001:db8::1", "other family"),
            noted("10.0.0.1", "new"),
            noted("10.0.0.2", "changed"),
            SetEntry::new("0.0.0.0".parse().unwrap()),
            SetEntry::new("10.0.0.3".parse().unwrap()),
            SetEntry::new("::".parse().unwrap()),
            noted("10.0.0.4", "twice, first"),
            noted("10.0.0.4", "twice, last"),
        ];
        let bulk = handle.add_all(&spec, &given).unwrap();
        assert_eq!((bulk.added, bulk.existed), (2, 3));
        assert_eq!(bulk.failed.iter().map(|failed| failed.index).collect::<Vec<_>>(), [0, 3, 5]);
        let expected = [
            noted("10.0.0.1", "new"),
            noted("10.0.0.2", "changed"),
            noted("10.0.0.3", "kept"),
            noted("10.0.0.4", "twice, last"),
        ];
        assert_eq!(sorted(saved(&spec.name)), expected);
        let none = handle.add_all(&spec, &[]).unwrap();
        assert_eq!((none.added, none.existed, none.failed.len()), (0, 0, 0));
    });
}

#[test]
fn every_one_of_many_can_be_refused() {
    in_fresh_netns(|handle| {
        let spec = SetSpec::new(name("gone"), Family::V6);
        let bulk = handle.add_all(&spec, &entries(&spec, 1000)).unwrap();
        assert_eq!((bulk.added, bulk.failed.len()), (0, 1000));
        assert!(bulk.failed.iter().zip(0..).all(|(failed, index)| failed.index == index));
        assert!(bulk.failed.iter().all(|failed| is_missing_set(&failed.error)));
        let _ = made(handle, spec); // the socket is in step
    });
}

/// The best of some rounds: this machine has other work too.
#[test]
fn a_thousand_members_are_added_within_ten_milliseconds() {
    in_fresh_netns(|handle| {
        let spec = made(handle, SetSpec::new(name("s"), Family::V4).with_comments());
        let entries = entries(&spec, 1000);
        let mut round = || {
            assert_eq!(handle.destroy_set(&spec.name).unwrap(), RemoveOutcome::Yes);
            let spec = made(handle, spec.clone());
            let start = Instant::now();
            assert_eq!(handle.add_all(&spec, &entries).unwrap().added, 1000);
            start.elapsed()
        };
        let best = (0..11).map(|_| round()).min().unwrap();
        eprintln!("1000 members were added within {best:?}");
        assert!(best < Duration::from_millis(10), "{best:?}");
    });
}

#[test]
fn members_that_stay_are_listed_once_whatever_comes_and_goes() {
    in_fresh_netns(|handle| {
        let small = SetSpec { hash_size: Some(64), ..SetSpec::new(name("s"), Family::V4).with_comments() };
        let spec = made(handle, small);
        let all = entries(&spec, 9000);
        let (staying, moving) = all.split_at(3000);
        let _ = handle.add_all(&spec, staying).unwrap();
        let (here, done) = (Netns::current().unwrap(), AtomicBool::new(false));
        let disturb = || {
            let mut other = IpsetHandle::open().unwrap();
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                let _ = other.add_all(&spec, moving).unwrap();
                for entry in moving {
                    let _ = other.remove_member(&spec, entry.ip).unwrap();
                }
                rounds += 1;
            }
            rounds
        };
        thread::scope(|scope| {
            let ending = Ending(&done);
            let disturber = scope.spawn(|| here.run_in(disturb).unwrap());
            let (known, mut sizes) = (all.iter().collect::<BTreeSet<_>>(), BTreeSet::new());
            let deadline = Instant::now() + Duration::from_secs(2);
            while Instant::now() < deadline {
                let listed = handle.list_members(&spec.name).unwrap().unwrap();
                let leaving = |entry: &&SetEntry| {
                    entry.comment.is_none()
                        && moving.binary_search_by_key(&entry.ip, |known| known.ip).is_ok()
                };
                let strange: Vec<_> =
                    listed.iter().filter(|entry| !known.contains(entry) && !leaving(entry)).collect();
                assert!(strange.is_empty(), "{strange:?}");
                let distinct: BTreeSet<_> = listed.iter().collect();
                assert!(staying.iter().all(|entry| distinct.contains(entry)));
                let stayed = listed.iter().filter(|entry| staying.binary_search(entry).is_ok()).count();
                assert_eq!(stayed, staying.len());
                sizes.insert(listed.len());
            }
            drop(ending);
            assert!(disturber.join().unwrap() > 0);
            assert!(sizes.len() > 1, "the set never changed: {sizes:?}");
        });
    });
}
