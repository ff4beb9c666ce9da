//! Sets that firewall rules refer to.

use ipset::{Family, IpsetHandle, SetName};

use crate::{add_ips, in_fresh_netns, is_busy, is_full, is_missing_set, made, run, shown};

fn rule(verb: &str) {
    shown(&format!("iptables -w {verb} OUTPUT -p udp -m set --match-set active dst -j DROP"));
}

/// Whether the rule counts a packet to this address.
fn is_matched(ip: &str) -> bool {
    let counted = || -> u32 {
        let listing = shown("iptables -w -nvxL OUTPUT");
        listing.lines().nth(2).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    let before = counted();
    let _ = std::net::UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", (ip, 9));
    counted() > before
}

fn two_sets(handle: &mut IpsetHandle) -> [SetName; 2] {
    shown("ip link set lo up");
    let [active, next] = ["active", "next"].map(|text| made(handle, text, Family::V4));
    add_ips(handle, &active, &[[127, 0, 0, 1].into()]).unwrap();
    add_ips(handle, &next, &[[127, 0, 0, 2].into()]).unwrap();
    rule("-A");
    [active, next]
}

#[test]
fn a_rule_matches_the_members_of_its_set() {
    in_fresh_netns(|handle| {
        let [_active, next] = two_sets(handle);
        assert!(is_matched("127.0.0.1") && !is_matched("127.0.0.2"));
        assert!(handle.destroy_set(&next).unwrap());
        rule("-D");
    });
}

#[test]
fn a_set_in_use_is_busy_and_stays() {
    in_fresh_netns(|handle| {
        let [active, next] = two_sets(handle);
        let error = handle.destroy_set(&active).unwrap_err();
        assert!(is_busy(&error) && !is_missing_set(&error) && !is_full(&error), "{error}");
        assert_eq!(
            error.to_string(),
            "cannot destroy set active: kernel: in use by a firewall rule, another set or a listing \
             (IPSET_ERR_BUSY)"
        );
        assert_eq!(shown("ipset list -n"), "active\nnext\n");
        rule("-D");
        assert!(handle.destroy_set(&active).unwrap());
        assert!(handle.destroy_set(&next).unwrap());
        assert!(!run("ipset", &["list", "active"]).status.success());
    });
}
