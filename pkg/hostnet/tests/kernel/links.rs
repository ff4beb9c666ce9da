//! Links and addresses.

use std::thread::sleep;
use std::time::Duration;

use hostnet::{AddressFlags, ChangeOutcome, Error, LinkFlags, LinkIndex, RouteScope, RtnetlinkHandle};
use netlink::Errno;

use crate::{at_one_moment, errno, in_fresh_netns, index, ip, prefix, shown};

/// Not the first of its network on the link (`IFA_F_SECONDARY`).
fn is_secondary(flags: AddressFlags) -> bool {
    flags.0 & 0x01 != 0
}

/// Still being checked for duplicates (`IFA_F_TENTATIVE`).
fn is_tentative(flags: AddressFlags) -> bool {
    flags.0 & 0x40 != 0
}

/// Able to carry packets (`IFF_LOWER_UP`).
fn has_carrier(flags: LinkFlags) -> bool {
    flags.0 & 0x1_0000 != 0
}

#[test]
fn links_are_those_that_ip_shows() {
    in_fresh_netns(|handle| {
        ip("link set va mtu 1400");
        ip("link set vb down");
        let (links, expected) =
            at_one_moment(|| handle.list_links().unwrap(), || shown("link show"), |links| links.len() == 3);
        assert_eq!(links.len(), expected.len());
        for (link, expected) in links.iter().zip(&expected) {
            assert_eq!(u64::from(link.index.0), expected["ifindex"].as_u64().unwrap());
            assert_eq!(link.name, expected["ifname"].as_str().unwrap());
            assert_eq!(link.kind.as_deref(), expected["linkinfo"]["info_kind"].as_str());
            let flags = expected["flags"].as_array().unwrap();
            assert_eq!(link.flags.is_up(), flags.iter().any(|flag| flag == "UP"));
            assert_eq!(has_carrier(link.flags), flags.iter().any(|flag| flag == "LOWER_UP"));
            // Flags and state may have moved on.
            assert_eq!(handle.link_by_name(&link.name).unwrap().map(|found| found.index), Some(link.index));
            assert_eq!(
                handle.link_by_index(link.index).unwrap().map(|found| found.name),
                Some(link.name.clone())
            );
        }
    });
}

#[test]
fn a_missing_link_is_no_error() {
    in_fresh_netns(|handle| {
        assert_eq!(handle.link_by_name("nosuch").unwrap(), None);
        assert_eq!(handle.link_by_index(LinkIndex(4711)).unwrap(), None);
        assert!(matches!(handle.link_by_name("a_name_longer_than_fifteen"), Err(Error::Kernel { .. })));
    });
}

/// Link, address and prefix length, IPv4 first.
fn shown_addresses() -> Vec<(u32, String, u64)> {
    let mut all = Vec::new();
    for family in ["-4", "-6"] {
        for link in shown(&format!("{family} addr show")) {
            let number = u32::try_from(link["ifindex"].as_u64().unwrap()).unwrap();
            for address in link["addr_info"].as_array().unwrap() {
                let local = address["local"].as_str().unwrap().to_owned();
                all.push((number, local, address["prefixlen"].as_u64().unwrap()));
            }
        }
    }
    all
}

#[test]
fn addresses_come_in_the_order_of_ip() {
    in_fresh_netns(|handle| {
        for address in ["10.1.0.3/24", "10.1.0.2/24", "192.168.7.1/32", "2001:db8::7/64", "2001:db8::3/128"] {
            ip(&format!("addr add {address} dev va"));
        }
        ip("addr add 10.9.0.1 peer 10.9.0.2/32 dev vb");
        let ours = || {
            handle
                .list_addresses()
                .unwrap()
                .iter()
                .map(|a| (a.index.0, a.ip.to_string(), u64::from(a.prefix_len)))
                .collect()
        };
        let (found, expected) = at_one_moment(ours, shown_addresses, |found: &Vec<_>| found.len() >= 10);
        assert_eq!(found, expected);
    });
}

#[test]
fn an_address_is_added_once_and_deleted_once() {
    in_fresh_netns(|handle| {
        let (a, lo) = (index(handle, "va"), index(handle, "lo"));
        for (link, text) in
            [(a, "10.2.0.1/16"), (a, "2001:db8:2::1/64"), (lo, "127.0.0.6/32"), (lo, "::6/128")]
        {
            let address = prefix(text);
            assert_eq!(handle.add_address(link, address).unwrap(), ChangeOutcome::Yes, "{text}");
            assert_eq!(handle.add_address(link, address).unwrap(), ChangeOutcome::No, "{text}");
            let count = |handle: &mut RtnetlinkHandle| {
                handle.list_addresses().unwrap().iter().filter(|found| found.ip == address.addr()).count()
            };
            assert_eq!(count(handle), 1);
            assert!(ip("addr show").contains(text));
            assert_eq!(handle.delete_address(link, address).unwrap(), ChangeOutcome::Yes, "{text}");
            assert_eq!(handle.delete_address(link, address).unwrap(), ChangeOutcome::No, "{text}");
            assert_eq!(count(handle), 0);
        }
    });
}

#[test]
fn flags_and_scope_tell_the_state_of_an_address() {
    in_fresh_netns(|handle| {
        let a = index(handle, "va");
        for text in ["10.3.0.1/24", "10.3.0.2/24"] {
            let _ = handle.add_address(a, prefix(text)).unwrap();
        }
        ip("addr add 2001:db8:3::1/64 dev va");
        let find = |handle: &mut RtnetlinkHandle, text: &str| {
            let wanted = prefix(text).addr();
            handle.list_addresses().unwrap().into_iter().find(|address| address.ip == wanted).unwrap()
        };
        assert!(!is_secondary(find(handle, "10.3.0.1/24").flags));
        assert!(is_secondary(find(handle, "10.3.0.2/24").flags));
        assert_eq!(find(handle, "127.0.0.1/8").scope, RouteScope::Host);
        assert_eq!(find(handle, "10.3.0.1/24").scope, RouteScope::Universe);
        assert!(is_tentative(find(handle, "2001:db8:3::1/64").flags));
        let ready = (0..100).any(|_| {
            sleep(Duration::from_millis(50));
            !is_tentative(find(handle, "2001:db8:3::1/64").flags)
        });
        assert!(ready, "duplicate address detection ends");
    });
}

#[test]
fn an_address_is_usable_at_once() {
    in_fresh_netns(|handle| {
        let a = index(handle, "va");
        for text in ["2001:db8:4::1/128", "10.4.0.1/32"] {
            let address = prefix(text);
            assert_eq!(handle.add_address(a, address).unwrap(), ChangeOutcome::Yes, "{text}");
            assert_eq!(handle.add_address(a, address).unwrap(), ChangeOutcome::No, "{text}");
            let found = handle.list_addresses().unwrap().into_iter().find(|found| found.ip == address.addr());
            let flags = found.unwrap().flags;
            assert!(!is_tentative(flags), "{text}");
            assert_eq!(flags.0 & 0x02 != 0, address.addr().is_ipv6(), "{text}: of IPv4 it would say nothing");
            drop(std::net::UdpSocket::bind((address.addr(), 0)).unwrap());
        }
        assert_eq!(shown("addr show dev va nodad").len(), 1);
        ip("addr add 2001:db8:4::2/128 dev va");
        assert!(std::net::UdpSocket::bind((prefix("2001:db8:4::2/128").addr(), 0)).is_err(), "tentative");
    });
}

#[test]
fn a_refused_address_says_what_and_why() {
    in_fresh_netns(|handle| {
        let error = handle.add_address(LinkIndex(4711), prefix("10.0.0.1/24")).unwrap_err();
        assert_eq!(errno(&error), Some(Errno::NODEV));
        let text = error.to_string();
        assert!(text.starts_with("cannot add address 10.0.0.1/24 dev #4711: kernel says: "), "{text}");
    });
}
