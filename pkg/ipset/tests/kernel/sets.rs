//! Whole sets.

use ipset::{CreateOutcome, Error, Family, RemoveOutcome, SetEntry, SetInfo, SetSpec};

use crate::{
    AddOne as _, addresses, in_fresh_netns, is_busy, is_full, is_missing_set, made, name, run, saved, shown,
};

/// The `create` line of `ipset save`, without the revision's own options.
fn create_line(set: &str) -> String {
    let save = shown(&format!("ipset save {set}"));
    let line = save.lines().next().unwrap();
    line.split(" bucketsize").next().unwrap().trim().to_owned()
}

#[test]
fn a_set_is_made_once_and_is_what_the_tool_would_have_made() {
    in_fresh_netns(|handle| {
        let plain = SetSpec::new(name("p4"), Family::V4);
        let sized = SetSpec {
            hash_size: Some(64),
            max_elements: Some(7),
            ..SetSpec::new(name(&"n".repeat(31)), Family::V6).with_comments()
        };
        for spec in [&plain, &sized] {
            assert_eq!(handle.create_set(spec).unwrap(), CreateOutcome::Yes);
            assert_eq!(handle.create_set(spec).unwrap(), CreateOutcome::Existed);
        }
        assert_eq!(create_line("p4"), "create p4 hash:ip family inet hashsize 1024 maxelem 65536");
        let long = sized.name.as_str();
        let expected = format!("create {long} hash:ip family inet6 hashsize 64 maxelem 7 comment");
        assert_eq!(create_line(long), expected);
        let larger = SetSpec { max_elements: Some(8), ..sized.clone() };
        assert_eq!(handle.create_set(&larger).unwrap(), CreateOutcome::Existed, "sizes are left as they are");
        assert_eq!(create_line(long), expected);
    });
}

#[test]
fn a_set_that_the_tool_made_serves() {
    in_fresh_netns(|handle| {
        shown("ipset create p4 hash:ip comment counters");
        shown("ipset create p6 hash:ip family inet6");
        assert_eq!(
            handle.create_set(&SetSpec::new(name("p4"), Family::V4).with_comments()).unwrap(),
            CreateOutcome::Existed
        );
        assert_eq!(handle.create_set(&SetSpec::new(name("p6"), Family::V6)).unwrap(), CreateOutcome::Existed);
    });
}

#[test]
fn another_set_of_the_name_is_named_and_left_alone() {
    in_fresh_netns(|handle| {
        for (options, wanted, found) in [
            ("hash:net", "hash:ip IPv4 without comments", "hash:net IPv4 without comments"),
            ("bitmap:port range 1-9", "hash:ip IPv4 without comments", "bitmap:port without comments"),
            ("hash:ip family inet6", "hash:ip IPv4 without comments", "hash:ip IPv6 without comments"),
            ("hash:ip comment", "hash:ip IPv4 without comments", "hash:ip IPv4 with comments"),
        ] {
            shown(&format!("ipset create x {options}"));
            let before = create_line("x");
            let error = handle.create_set(&SetSpec::new(name("x"), Family::V4)).unwrap_err();
            assert!(matches!(error, Error::Different { .. }));
            assert_eq!(error.to_string(), format!("set x is {found}, not {wanted}"));
            assert_eq!(create_line("x"), before);
            shown("ipset destroy x");
        }
        shown("ipset create x hash:ip");
        let error = handle.create_set(&SetSpec::new(name("x"), Family::V4).with_comments()).unwrap_err();
        assert!(matches!(error, Error::Different { .. }), "{error}");
    });
}

#[test]
fn all_sets_are_listed_as_the_tool_lists_them() {
    in_fresh_netns(|handle| {
        assert_eq!(handle.list_sets().unwrap(), []);
        let spec = made(handle, SetSpec::new(name("p4"), Family::V4).with_comments());
        for ip in addresses(Family::V4, 3) {
            let _ = handle.add(&spec, &SetEntry::new(ip)).unwrap();
        }
        for options in ["b bitmap:port range 1-9", "n6 hash:net family inet6", "l list:set"] {
            shown(&format!("ipset create {options}"));
        }
        shown("ipset add l p4");
        let sets = handle.list_sets().unwrap();
        let names: Vec<_> = sets.iter().map(|set| set.name.as_str()).collect();
        assert_eq!(names, shown("ipset list -n").lines().collect::<Vec<_>>());
        let expected = SetInfo {
            name: "p4".to_owned(),
            kind: "hash:ip".to_owned(),
            family: Some(Family::V4),
            revision: 4,
            comments: true,
            hash_size: Some(1024),
            max_elements: Some(65536),
            elements: Some(3),
            references: 1,
        };
        assert!(sets.contains(&expected), "{sets:#?}");
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
            let error = handle.list_members(&name(set)).unwrap_err();
            assert!(matches!(error, Error::Different { .. }), "{error}");
        }
    });
}

#[test]
fn a_missing_set_is_told_in_each_operation() {
    in_fresh_netns(|handle| {
        made(handle, SetSpec::new(name("a"), Family::V4));
        let gone = SetSpec::new(name("gone"), Family::V4);
        let ip = addresses(Family::V4, 1).remove(0);
        assert_eq!(handle.list_members(&gone.name).unwrap(), None);
        assert_eq!(handle.destroy_set(&gone.name).unwrap(), RemoveOutcome::Missing);
        let errors = [
            handle.add(&gone, &ip.into()).unwrap_err(),
            handle.add_all(&gone, &[ip.into()]).unwrap().failed.remove(0).error,
            handle.remove_member(&gone, ip).unwrap_err(),
        ];
        for error in errors {
            assert!(is_missing_set(&error) && !is_busy(&error) && !is_full(&error), "{error}");
        }
        let error = handle.remove_member(&gone, ip).unwrap_err();
        let words = format!("cannot remove {ip} from set gone: kernel says: no such set (ENOENT)");
        assert_eq!(error.to_string(), words);
        assert_eq!(handle.list_sets().unwrap().len(), 1);
    });
}

#[test]
fn destroying_touches_the_one_set_only() {
    in_fresh_netns(|handle| {
        let sets = ["a", "b", "c"].map(|text| made(handle, SetSpec::new(name(text), Family::V4)));
        for set in &sets {
            let _ = handle.add(set, &addresses(Family::V4, 1)[0].into()).unwrap();
        }
        let [a, b, c] = sets;
        assert_eq!(handle.destroy_set(&b.name).unwrap(), RemoveOutcome::Yes);
        assert_eq!([&a, &c].map(|set| saved(&set.name).len()), [1, 1]);
        assert_eq!(shown("ipset list -n"), "a\nc\n");
    });
}

#[test]
fn a_refusal_of_the_kernel_is_in_words() {
    in_fresh_netns(|handle| {
        let spec = made(handle, SetSpec::new(name("a"), Family::V4));
        let error = handle.add(&spec, &SetEntry::new(Family::V4.unspecified_address())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot add 0.0.0.0 to set a: kernel says: the unspecified address cannot be a member \
             (IPSET_ERR_HASH_ELEM)"
        );
    });
}

#[test]
fn the_handle_stays_with_its_netns() {
    in_fresh_netns(|handle| {
        let _ = handle.create_set(&SetSpec::new(name("outer"), Family::V4)).unwrap();
        in_fresh_netns(|inner| {
            assert_eq!(inner.list_sets().unwrap(), []);
            assert_eq!(handle.list_sets().unwrap().len(), 1);
            assert!(!run("ipset", &["list", "outer"]).status.success());
        });
    });
}

#[test]
fn a_set_is_known_by_its_number() {
    in_fresh_netns(|_| {
        shown("ipset create one hash:ip");
        shown("ipset create two hash:ip");
        let [one, two] = ["one", "two"].map(|set| ipset::number_of(set).unwrap());
        assert_ne!(one, two);
        assert_eq!([one, two].map(|number| ipset::name_of(number).unwrap()), ["one", "two"]);
        shown("ipset destroy two");
        assert_eq!((ipset::number_of("two"), ipset::name_of(two)), (None, None));
        assert_eq!((ipset::number_of("three"), ipset::name_of(u16::MAX)), (None, None));
    });
}
