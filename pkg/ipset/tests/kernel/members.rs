//! One member at a time.

use ipset::{Family, IpsetHandle};
use model::PodUid;
use netlink::{MessageFlags, NetlinkProtocol, NetlinkRequest, RepeatedRequests};

use crate::{Owners, add_ips, addresses, in_fresh_netns, made, name, owned, saved, shown};

#[test]
fn a_member_is_added_once_and_removed_once() {
    in_fresh_netns(|handle| {
        for (family, text) in [(Family::V4, "10.1.2.3"), (Family::V6, "2001:db8::3")] {
            let set = made(handle, &format!("s{family}"), family);
            let ip = text.parse().unwrap();
            for _ in 0..2 {
                add_ips(handle, &set, &[ip]).unwrap();
                assert_eq!(saved(&set), Owners::from([(ip, None)]));
                assert_eq!(handle.member_owners(&set).unwrap(), Some(saved(&set)));
            }
            assert!(handle.remove_member(&set, ip).unwrap());
            assert!(!handle.remove_member(&set, ip).unwrap());
            assert_eq!(saved(&set), Owners::new());
            assert_eq!(handle.member_owners(&set).unwrap(), Some(Owners::new()));
        }
    });
}

#[test]
fn changes_of_others_are_told_from_our_own() {
    // No other test has sets with these names.
    for others in [0, 20] {
        in_fresh_netns(|handle| {
            (0..others).for_each(|number| drop(shown(&format!("ipset create other-{number} list:set"))));
            let [spec, none] = ["of-others", "of-none"].map(|of| name(&format!("{of}-{others}")));
            let sets = [none, spec.clone()];
            let counted = |handle: &mut IpsetHandle| {
                let counts = handle.foreign_member_counts(&sets).unwrap();
                assert_eq!((counts.len(), counts[0]), (2, 0), "there is no other set");
                counts[1]
            };
            assert_eq!(counted(handle), 0, "there is no set");
            let set = made(handle, spec.as_str(), Family::V4);
            let ips = addresses(Family::V4, 30);
            let mut own_change = |change: &mut dyn FnMut(&mut IpsetHandle)| {
                let before = counted(handle);
                change(handle);
                assert_eq!(counted(handle), before);
            };
            let remove = |handle: &mut IpsetHandle, at: usize| handle.remove_member(&set, ips[at]).unwrap();
            own_change(&mut |handle| add_ips(handle, &set, &ips[..1]).unwrap());
            own_change(&mut |handle| add_ips(handle, &set, &ips[..1]).unwrap());
            own_change(&mut |handle| add_ips(handle, &set, &ips).unwrap());
            own_change(&mut |handle| assert!(remove(handle, 3)));
            own_change(&mut |handle| assert!(!remove(handle, 3)));
            for (command, others) in [
                (format!("ipset del {set} {}", ips[7]), -1),
                (format!("ipset add {set} 10.200.0.1"), 0),
                (format!("ipset flush {set}"), -29),
            ] {
                let _ = shown(&command);
                assert_eq!(counted(handle), others, "{command}");
            }
            add_ips(handle, &set, &ips).unwrap();
            assert_eq!(counted(handle), -29);
            assert!(handle.destroy_set(&set).unwrap());
            assert_eq!(counted(handle), 0);
        });
    }
}

#[test]
fn standing_questions_show_that_others_changed_the_number_of_members_and_a_hash_that_they_replaced_one() {
    in_fresh_netns(|handle| {
        let generation = NetlinkRequest::new(0x0a10, MessageFlags::NONE, &[0; 4]); // NFT_MSG_GETGEN
        let lists = ["watched", "missing"].map(|set| handle.header_request(&name(set)));
        let mut requests = RepeatedRequests::open(NetlinkProtocol::Netfilter, generation, lists).unwrap();
        let set = made(handle, "watched", Family::V6);
        let empty = handle.foreign_member_hash(&set).unwrap();
        assert_eq!(handle.foreign_member_hash(&name("none")).unwrap(), empty);
        let mut changed = || {
            let replies = requests.request_changes().unwrap();
            replies.first || replies.list
        };
        assert!(changed() && !changed() && !changed());
        let _ = shown("ipset add watched fd00::1 comment x");
        assert!(changed() && !changed());
        let one = handle.foreign_member_hash(&set).unwrap();
        let _ = shown("ipset del watched fd00::1");
        let _ = shown("ipset add watched fd00::2 comment y");
        assert!(!changed(), "as many members as before");
        assert_ne!(handle.foreign_member_hash(&set).unwrap(), one);
        let _ = shown("ipset create other hash:net");
        assert!(!changed(), "another set");
        for command in [
            "ipset add watched fd00::3",
            "ipset create missing hash:net",
            "ipset destroy watched",
            "nft add table ip t",
        ] {
            let _ = shown(command);
            assert!(changed() && !changed(), "{command}");
        }
    });
}

#[test]
fn what_the_tool_added_is_read() {
    in_fresh_netns(|handle| {
        shown("ipset create s hash:ip counters timeout 300");
        for ip in addresses(Family::V4, 30) {
            shown(&format!("ipset add s {ip}"));
        }
        let expected = addresses(Family::V4, 30).into_iter().map(|ip| (ip, None)).collect();
        assert_eq!(handle.member_owners(&name("s")).unwrap(), Some(expected));
    });
}

#[test]
fn owners_are_kept_as_they_are_and_replaced() {
    in_fresh_netns(|handle| {
        let set = made(handle, "s", Family::V4);
        let texts =
            ["two words", "  blanks  ", "a", &"x".repeat(255), &"ä ".repeat(85), "名前", "\u{1F600} comment"];
        let owners = texts.map(PodUid::from);
        for owners in [owners.clone().to_vec(), owners.into_iter().rev().collect()] {
            let members: Vec<_> = addresses(Family::V4, 7).into_iter().zip(&owners).collect();
            handle.add_owned(&set, members.iter().copied()).unwrap();
            assert_eq!(
                saved(&set),
                members.into_iter().map(|(ip, owner)| (ip, Some(owner.clone()))).collect()
            );
            assert_eq!(handle.member_owners(&set).unwrap(), Some(saved(&set)));
        }
        let (ip, syntax) = owned("10.9.9.9", "quote \" and\nline add s 1.2.3.4");
        handle.add_owned(&set, [(ip, syntax.as_ref().unwrap())]).unwrap();
        assert_eq!(handle.member_owners(&set).unwrap().unwrap()[&ip], syntax);
    });
}

#[test]
fn a_set_without_comments_refuses_owners() {
    in_fresh_netns(|handle| {
        shown("ipset create s hash:ip");
        let error = handle.add_owned(&name("s"), [([10, 0, 0, 1].into(), &"a b".into())]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot add 10.0.0.1 to set s: kernel: the set has no comments (IPSET_ERR_COMMENT)"
        );
        assert_eq!(saved(&name("s")), Owners::new());
    });
}
