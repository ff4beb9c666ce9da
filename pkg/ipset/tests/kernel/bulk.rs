//! Many members together, and listings of several parts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ipset::{Error, Family, IpsetHandle, SetName};
use model::PodUid;
use netns::Netns;

use crate::{Owners, add_ips, addresses, in_fresh_netns, is_missing_set, made, name, owned, saved};

/// Ends the other thread even if this one panics: its scope would otherwise wait for it forever.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Members, each with a long owner.
fn members(family: Family, count: u32) -> Vec<(IpAddr, PodUid)> {
    let owner = |ip| PodUid::from(format!("namespace of {ip}/a pod with a name").as_str());
    addresses(family, count).into_iter().map(|ip| (ip, owner(ip))).collect()
}

fn add(handle: &mut IpsetHandle, set: &SetName, members: &[(IpAddr, PodUid)]) -> Result<(), Error> {
    handle.add_owned(set, members.iter().map(|(ip, owner)| (*ip, owner)))
}

#[test]
fn ten_thousand_members_are_added_and_listed() {
    in_fresh_netns(|handle| {
        for family in Family::BOTH {
            let set = made(handle, &format!("s{family}"), family);
            let members = members(family, 10_000);
            let expected: Owners = members.iter().map(|(ip, owner)| (*ip, Some(owner.clone()))).collect();
            for _ in 0..2 {
                add(handle, &set, &members).unwrap();
                let listed = handle.member_owners(&set).unwrap().unwrap();
                assert_eq!((&listed, &expected), (&saved(&set), &listed));
            }
        }
    });
}

#[test]
fn members_are_judged_one_by_one() {
    in_fresh_netns(|handle| {
        let set = made(handle, "s", Family::V4);
        let pairs = |members: &[(&str, &str)]| -> Vec<(IpAddr, PodUid)> {
            members.iter().map(|(ip, owner)| (ip.parse().unwrap(), (*owner).into())).collect()
        };
        add(handle, &set, &pairs(&[("10.0.0.2", "old")])).unwrap();
        let given = pairs(&[
            ("10.0.0.1", "new"),
            ("0.0.0.0", "refused"),
            ("10.0.0.2", "changed"),
            ("2001:db8::1", "other family"),
            ("10.0.0.4", "twice, first"),
            ("10.0.0.4", "twice, last"),
        ]);
        let error = add(handle, &set, &given).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot add 0.0.0.0 to set s: kernel: the unspecified address cannot be a member \
             (IPSET_ERR_HASH_ELEM)"
        );
        let expected =
            [owned("10.0.0.1", "new"), owned("10.0.0.2", "changed"), owned("10.0.0.4", "twice, last")];
        assert_eq!(saved(&set), Owners::from(expected));
        add(handle, &set, &[]).unwrap();
    });
}

#[test]
fn every_one_of_many_can_be_refused() {
    in_fresh_netns(|handle| {
        let error = add(handle, &name("gone"), &members(Family::V6, 1000)).unwrap_err();
        assert!(is_missing_set(&error), "{error}");
        let _ = made(handle, "gone", Family::V6); // the socket is in sync
    });
}

/// The best of several rounds: this machine runs other tests, too.
#[test]
fn a_thousand_members_are_added_within_ten_milliseconds() {
    in_fresh_netns(|handle| {
        let members = members(Family::V4, 1000);
        let mut round = || {
            let set = made(handle, "s", Family::V4);
            let start = Instant::now();
            add(handle, &set, &members).unwrap();
            let taken = start.elapsed();
            assert!(handle.destroy_set(&set).unwrap());
            taken
        };
        let best = (0..11).map(|_| round()).min().unwrap();
        eprintln!("1000 members were added within {best:?}");
        assert!(best < Duration::from_millis(10), "{best:?}");
    });
}

#[test]
fn members_that_stay_are_listed_whatever_comes_and_goes() {
    in_fresh_netns(|handle| {
        let set = made(handle, "s", Family::V4);
        let all = members(Family::V4, 9000);
        let known: Owners = all.iter().map(|(ip, owner)| (*ip, Some(owner.clone()))).collect();
        let (staying, moving) = all.split_at(3000);
        add(handle, &set, staying).unwrap();
        let (here, done) = (Netns::current().unwrap(), AtomicBool::new(false));
        let disturb = || {
            let mut other = IpsetHandle::open().unwrap();
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                add(&mut other, &set, moving).unwrap();
                for (ip, _) in moving {
                    let _ = other.remove_member(&set, *ip).unwrap();
                }
                rounds += 1;
            }
            rounds
        };
        thread::scope(|scope| {
            let ending = Ending(&done);
            let disturber = scope.spawn(|| here.run_in(disturb).unwrap());
            let mut sizes = BTreeSet::new();
            let deadline = Instant::now() + Duration::from_secs(2);
            while Instant::now() < deadline {
                let listed = handle.member_owners(&set).unwrap().unwrap();
                let is_known = |(ip, owner): (&IpAddr, &Option<PodUid>)| {
                    let is_leaving =
                        owner.is_none() && moving.binary_search_by_key(ip, |known| known.0).is_ok();
                    is_leaving || known.get(ip) == Some(owner)
                };
                assert!(listed.iter().all(is_known), "{listed:?}");
                assert!(staying.iter().all(|(ip, _)| listed.contains_key(ip)));
                sizes.insert(listed.len());
            }
            drop(ending);
            assert!(disturber.join().unwrap() > 0);
            assert!(sizes.len() > 1, "the set never changed: {sizes:?}");
        });
    });
}

#[test]
fn a_full_set_says_so_and_has_room_again() {
    in_fresh_netns(|handle| {
        let set = name("s");
        crate::shown("ipset create s hash:ip comment maxelem 3");
        let ips = addresses(Family::V4, 5);
        assert!(crate::is_full(&add_ips(handle, &set, &ips).unwrap_err()));
        assert_eq!(saved(&set).len(), 3);
        add_ips(handle, &set, &ips[2..3]).unwrap();
        let _ = handle.remove_member(&set, ips[0]).unwrap();
        add_ips(handle, &set, &ips[4..]).unwrap();
    });
}
