//! Links and addresses.

use hostnet::{ChangeOutcome, Error, LinkIndex, RtnetlinkHandle};
use netlink::Errno;

use crate::{at_one_moment, errno, in_fresh_netns, index, ip, prefix, shown};

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
            assert_eq!(link.is_up, flags.iter().any(|flag| flag == "UP"));
            // Flags and state may have changed since.
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
fn an_address_is_usable_at_once() {
    in_fresh_netns(|handle| {
        let a = index(handle, "va");
        for text in ["2001:db8:4::1/128", "10.4.0.1/32"] {
            let address = prefix(text);
            assert_eq!(handle.add_address(a, address).unwrap(), ChangeOutcome::Yes, "{text}");
            assert_eq!(handle.add_address(a, address).unwrap(), ChangeOutcome::No, "{text}");
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
        assert!(text.starts_with("cannot add address 10.0.0.1/24 dev #4711: kernel: "), "{text}");
    });
}
