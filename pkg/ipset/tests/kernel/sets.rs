//! Whole sets.

use ipset::{Error, Family, SetSpec};

use crate::{
    add_ips, addresses, in_fresh_netns, is_busy, is_full, is_missing_set, made, name, run, saved, shown,
};

/// The `create` line of `ipset save`, without the options of the set's revision.
fn create_line(set: &str) -> String {
    let save = shown(&format!("ipset save {set}"));
    let line = save.lines().next().unwrap();
    line.split(" bucketsize").next().unwrap().trim().to_owned()
}

#[test]
fn a_set_is_made_once_and_is_what_the_tool_would_have_made() {
    in_fresh_netns(|handle| {
        let long = "n".repeat(31);
        for _ in 0..2 {
            let _ = made(handle, "p4", Family::V4);
            let _ = made(handle, &long, Family::V6);
            assert_eq!(
                create_line("p4"),
                "create p4 hash:ip family inet hashsize 1024 maxelem 65536 comment"
            );
            let six = format!("create {long} hash:ip family inet6 hashsize 1024 maxelem 65536 comment");
            assert_eq!(create_line(&long), six);
        }
    });
}

#[test]
fn a_set_that_the_tool_made_serves() {
    in_fresh_netns(|handle| {
        shown("ipset create p4 hash:ip comment counters maxelem 8");
        shown("ipset create p6 hash:ip family inet6 comment");
        let before = create_line("p4");
        let _ = made(handle, "p4", Family::V4);
        let _ = made(handle, "p6", Family::V6);
        assert_eq!(create_line("p4"), before);
    });
}

#[test]
fn another_set_of_the_name_is_named_and_left_alone() {
    in_fresh_netns(|handle| {
        for (options, found) in [
            ("hash:net", "hash:net IPv4 without comments"),
            ("bitmap:port range 1-9", "bitmap:port without comments"),
            ("hash:ip family inet6 comment", "hash:ip IPv6 with comments"),
            ("hash:ip", "hash:ip IPv4 without comments"),
        ] {
            shown(&format!("ipset create x {options}"));
            let before = create_line("x");
            let error = handle.create_set(&SetSpec { name: name("x"), family: Family::V4 }).unwrap_err();
            assert_eq!(error.to_string(), format!("set x is {found}, not hash:ip IPv4 with comments"));
            assert_eq!(create_line("x"), before);
            shown("ipset destroy x");
        }
    });
}

#[test]
fn sets_of_other_types_are_not_listed_as_addresses() {
    in_fresh_netns(|handle| {
        for options in ["n hash:net", "l list:set"] {
            shown(&format!("ipset create {options}"));
        }
        shown("ipset add n 10.0.0.0/8");
        shown("ipset add l n");
        for set in ["n", "l"] {
            let error = handle.member_owners(&name(set)).unwrap_err();
            assert!(matches!(error, Error::Different { .. }), "{error}");
        }
    });
}

#[test]
fn a_missing_set_is_told_in_each_operation() {
    in_fresh_netns(|handle| {
        let _ = made(handle, "a", Family::V4);
        let gone = name("gone");
        let ip = addresses(Family::V4, 1).remove(0);
        assert_eq!(handle.member_owners(&gone).unwrap(), None);
        assert!(!handle.destroy_set(&gone).unwrap());
        let removal = handle.remove_member(&gone, ip).unwrap_err();
        let words = format!("cannot remove {ip} from set gone: kernel: no such set (ENOENT)");
        assert_eq!(removal.to_string(), words);
        for error in [add_ips(handle, &gone, &[ip]).unwrap_err(), removal] {
            assert!(is_missing_set(&error) && !is_busy(&error) && !is_full(&error), "{error}");
        }
        assert_eq!(shown("ipset list -n"), "a\n");
    });
}

#[test]
fn destroying_touches_the_one_set_only() {
    in_fresh_netns(|handle| {
        let sets = ["a", "b", "c"].map(|text| made(handle, text, Family::V4));
        for set in &sets {
            add_ips(handle, set, &addresses(Family::V4, 1)).unwrap();
        }
        let [a, b, c] = sets;
        assert!(handle.destroy_set(&b).unwrap());
        assert_eq!([&a, &c].map(|set| saved(set).len()), [1, 1]);
        assert_eq!(shown("ipset list -n"), "a\nc\n");
    });
}

#[test]
fn the_handle_stays_with_its_netns() {
    in_fresh_netns(|handle| {
        let outer = made(handle, "outer", Family::V4);
        in_fresh_netns(|inner| {
            assert_eq!(inner.member_owners(&outer).unwrap(), None);
            assert!(handle.member_owners(&outer).unwrap().is_some());
            assert!(!run("ipset", &["list", "outer"]).status.success());
        });
    });
}

#[test]
fn a_set_is_known_by_its_number() {
    in_fresh_netns(|_| {
        shown("ipset create one hash:ip");
        shown("ipset create two hash:ip");
        let [one, two] = ["one", "two"].map(|set| ipset::set_number(set).unwrap().unwrap());
        assert_ne!(one, two);
        assert_eq!([one, two].map(|number| ipset::set_name(number).unwrap().unwrap()), ["one", "two"]);
        shown("ipset destroy two");
        assert_eq!([ipset::set_name(two).unwrap(), ipset::set_name(u16::MAX).unwrap()], [None, None]);
        assert_eq!(["two", "three"].map(|set| ipset::set_number(set).unwrap()), [None, None]);
    });
}
