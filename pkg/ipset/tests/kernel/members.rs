//! One member at a time.

use ipset::{Comment, Error, Family, IpsetHandle, RemoveOutcome, SetEntry, SetSpec};
use netlink::{MessageFlags, NetlinkProtocol, NetlinkRequest, StandingQuestions};

use crate::{
    AddOne as _, AddOutcome, addresses, in_fresh_netns, is_busy, is_full, is_missing_set, made, name, noted,
    saved, shown,
};

#[test]
fn a_member_is_added_once_and_removed_once() {
    in_fresh_netns(|handle| {
        for (family, text) in [(Family::V4, "10.1.2.3"), (Family::V6, "2001:db8::3")] {
            let spec = made(handle, SetSpec::new(name(&format!("s{family}")), family));
            let entry = SetEntry::new(text.parse().unwrap());
            assert_eq!(handle.add(&spec, &entry).unwrap(), AddOutcome::Yes);
            assert_eq!(handle.add(&spec, &entry).unwrap(), AddOutcome::Existed);
            assert_eq!(saved(&spec.name), std::slice::from_ref(&entry));
            assert_eq!(handle.list_members(&spec.name).unwrap(), Some(vec![entry.clone()]));
            assert_eq!(handle.remove_member(&spec, entry.ip).unwrap(), RemoveOutcome::Yes);
            assert_eq!(handle.remove_member(&spec, entry.ip).unwrap(), RemoveOutcome::Missing);
            assert_eq!(saved(&spec.name), []);
            assert_eq!(handle.list_members(&spec.name).unwrap(), Some(vec![]));
        }
    });
}

#[test]
fn changes_of_others_are_told_from_our_own() {
    // No other test has sets of these names: the numbers are the process's. Many sets are not listed for a few of them.
    for (others, names) in [(0, ["of-others", "of-none"]), (20, ["of-others-20", "of-none-20"])] {
        in_fresh_netns(|handle| {
            (0..others).for_each(|number| drop(shown(&format!("ipset create other-{number} list:set"))));
            let [spec, none] = names.map(|set| SetSpec::new(name(set), Family::V4));
            let sets = [none.name, spec.name.clone()];
            let counted = |handle: &mut IpsetHandle| {
                let counts = handle.members_of_others(&sets).unwrap();
                assert_eq!((counts.len(), counts[0]), (2, 0), "there is no other set");
                counts[1]
            };
            assert_eq!(counted(handle), 0, "there is no set");
            let spec = made(handle, spec);
            let entries: Vec<_> = addresses(Family::V4, 30).into_iter().map(SetEntry::new).collect();
            let mut own_change = |change: &mut dyn FnMut(&mut IpsetHandle)| {
                let before = counted(handle);
                change(handle);
                assert_eq!(counted(handle), before);
            };
            let add = |handle: &mut IpsetHandle, at: usize| handle.add(&spec, &entries[at]).unwrap();
            let remove =
                |handle: &mut IpsetHandle, at: usize| handle.remove_member(&spec, entries[at].ip).unwrap();
            own_change(&mut |handle| assert_eq!(add(handle, 0), AddOutcome::Yes));
            own_change(&mut |handle| assert_eq!(add(handle, 0), AddOutcome::Existed));
            own_change(&mut |handle| assert_eq!(handle.add_all(&spec, &entries).unwrap().added, 29));
            own_change(&mut |handle| assert_eq!(remove(handle, 3), RemoveOutcome::Yes));
            own_change(&mut |handle| assert_eq!(remove(handle, 3), RemoveOutcome::Missing));
            for (command, others) in [
                (format!("ipset del {} {}", spec.name, entries[7].ip), -1),
                (format!("ipset add {} 10.200.0.1", spec.name), 0),
                (format!("ipset flush {}", spec.name), -29),
            ] {
                let _ = shown(&command);
                assert_eq!(counted(handle), others, "{command}");
            }
            assert_eq!(handle.add_all(&spec, &entries).unwrap().added, 30);
            assert_eq!(counted(handle), -29);
            assert_eq!(handle.destroy_set(&spec.name).unwrap(), RemoveOutcome::Yes);
            assert_eq!(counted(handle), 0);
        });
    }
}

#[test]
fn standing_questions_show_that_others_changed_the_number_of_members_and_a_hash_that_they_replaced_one() {
    in_fresh_netns(|handle| {
        let generation = NetlinkRequest::new(0x0a10, MessageFlags::NONE, &[0; 4]); // NFT_MSG_GETGEN
        let list = handle.headers_request();
        let mut questions = StandingQuestions::open(NetlinkProtocol::Netfilter, generation, list).unwrap();
        let spec = made(handle, SetSpec::new(name("watched"), Family::V6).with_comments());
        let empty = handle.hash_of_others(&spec.name).unwrap();
        assert_eq!(handle.hash_of_others(&name("none")).unwrap(), empty);
        let mut changed = || !questions.have_same_answers().unwrap();
        assert!(changed() && !changed() && !changed());
        let _ = shown("ipset add watched fd00::1 comment x");
        assert!(changed() && !changed());
        let one = handle.hash_of_others(&spec.name).unwrap();
        let _ = shown("ipset del watched fd00::1");
        let _ = shown("ipset add watched fd00::2 comment y");
        assert!(!changed(), "as many members as before");
        assert_ne!(handle.hash_of_others(&spec.name).unwrap(), one);
        for command in [
            "ipset add watched fd00::3",
            "ipset create t hash:net",
            "ipset destroy watched",
            "nft add table ip t",
        ] {
            let _ = shown(command);
            assert!(changed() && !changed(), "{command}");
        }
    });
}

#[test]
fn what_the_tool_added_is_read_in_its_order() {
    in_fresh_netns(|handle| {
        shown("ipset create s hash:ip counters timeout 300");
        for ip in addresses(Family::V4, 30) {
            shown(&format!("ipset add s {ip}"));
        }
        let shown = shown("ipset save s");
        let ips =
            shown.lines().filter_map(|line| line.strip_prefix("add s ")?.split(' ').next()?.parse().ok());
        let expected: Vec<_> = ips.map(SetEntry::new).collect();
        assert_eq!(expected.len(), 30);
        assert_eq!(handle.list_members(&name("s")).unwrap(), Some(expected));
    });
}

#[test]
fn comments_are_kept_as_they_are() {
    in_fresh_netns(|handle| {
        let spec = made(handle, SetSpec::new(name("s"), Family::V4).with_comments());
        let texts =
            ["two words", "  blanks  ", "a", &"x".repeat(255), &"ä ".repeat(85), "名前", "\u{1F600} comment"];
        let entries: Vec<_> = addresses(Family::V4, 7)
            .into_iter()
            .zip(texts)
            .map(|(ip, text)| SetEntry::with_comment(ip, Comment::new(text).unwrap()))
            .collect();
        for entry in &entries {
            assert_eq!(handle.add(&spec, entry).unwrap(), AddOutcome::Yes);
        }
        assert_eq!(crate::sorted(saved(&spec.name)), entries);
        assert_eq!(handle.list_members(&spec.name).unwrap(), Some(saved(&spec.name)));
        let syntax = noted("10.9.9.9", "quote \" and\nline add s 1.2.3.4");
        let _ = handle.add(&spec, &syntax).unwrap();
        assert!(handle.list_members(&spec.name).unwrap().unwrap().contains(&syntax));
    });
}

#[test]
fn a_comment_is_replaced_by_another_and_stays_without_one() {
    in_fresh_netns(|handle| {
        let spec = made(handle, SetSpec::new(name("s"), Family::V6).with_comments());
        let (old, new) = (noted("2001:db8::1", "old uid"), noted("2001:db8::1", "new"));
        assert_eq!(handle.add(&spec, &old).unwrap(), AddOutcome::Yes);
        assert_eq!(handle.add(&spec, &new).unwrap(), AddOutcome::Existed);
        assert_eq!(saved(&spec.name), std::slice::from_ref(&new));
        assert_eq!(handle.add(&spec, &SetEntry::new(new.ip)).unwrap(), AddOutcome::Existed);
        assert_eq!(saved(&spec.name), [new]);
    });
}

#[test]
fn a_set_without_comments_refuses_them_and_can_be_filled_without() {
    in_fresh_netns(|handle| {
        let spec = made(handle, SetSpec::new(name("s"), Family::V4));
        let entry = noted("10.0.0.1", "a b");
        let bulk = handle.add_all(&spec, std::slice::from_ref(&entry)).unwrap();
        for error in [handle.add(&spec, &entry).unwrap_err(), bulk.failed.into_iter().next().unwrap().error] {
            assert!(matches!(error, Error::NoComments { .. }), "{error}");
            assert_eq!(error.to_string(), "no comments can be kept in set s");
        }
        assert_eq!(saved(&spec.name), []);
        assert_eq!(handle.add(&spec, &SetEntry::new(entry.ip)).unwrap(), AddOutcome::Yes);
    });
}

#[test]
fn an_address_of_the_other_family_is_refused_without_the_kernel() {
    in_fresh_netns(|handle| {
        // The sets do not exist, which the kernel would say.
        let (four, six) = (SetSpec::new(name("s"), Family::V4), SetSpec::new(name("s"), Family::V6));
        for (spec, ip) in [(&four, "::1"), (&six, "127.0.0.1"), (&four, "::ffff:10.0.0.1")] {
            let ip = ip.parse().unwrap();
            let failed = handle.add_all(spec, &[SetEntry::new(ip)]).unwrap().failed.remove(0);
            for error in [
                handle.add(spec, &ip.into()).unwrap_err(),
                handle.remove_member(spec, ip).unwrap_err(),
                failed.error,
            ] {
                assert!(matches!(error, Error::WrongFamily { .. }), "{error}");
            }
        }
        let error = handle.add(&four, &SetEntry::new("::1".parse().unwrap())).unwrap_err();
        assert_eq!(error.to_string(), "::1 cannot be a member of set s, which holds IPv4 addresses");
    });
}

#[test]
fn a_full_set_says_so_and_has_room_again() {
    in_fresh_netns(|handle| {
        let spec = made(handle, SetSpec { max_elements: Some(3), ..SetSpec::new(name("s"), Family::V4) });
        let ips = addresses(Family::V4, 5);
        let entries: Vec<_> = ips.iter().copied().map(SetEntry::new).collect();
        let bulk = handle.add_all(&spec, &entries).unwrap();
        assert_eq!((bulk.added, bulk.existed), (3, 0));
        assert_eq!(bulk.failed.iter().map(|failed| failed.index).collect::<Vec<_>>(), [3, 4]);
        assert!(bulk.failed.iter().all(|failed| is_full(&failed.error)));
        let error = handle.add(&spec, &entries[4]).unwrap_err();
        assert!(is_full(&error) && !is_busy(&error) && !is_missing_set(&error));
        assert_eq!(handle.add(&spec, &entries[2]).unwrap(), AddOutcome::Existed);
        let _ = handle.remove_member(&spec, ips[0]).unwrap();
        assert_eq!(handle.add(&spec, &entries[4]).unwrap(), AddOutcome::Yes);
    });
}
