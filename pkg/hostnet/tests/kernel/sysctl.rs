//! Kernel parameters of the caller's network namespace.

use hostnet::{ChangeOutcome, Error, sysctl};
use netns::Netns;

use crate::{in_fresh_netns, ip};

#[test]
fn a_parameter_is_read_and_written_once() {
    in_fresh_netns(|_| {
        let name = "net/ipv4/conf/va/rp_filter";
        let before = sysctl::read(name).unwrap().unwrap();
        let other = if before == "2" { "1" } else { "2" };
        assert_eq!(sysctl::write(name, other).unwrap(), ChangeOutcome::Yes);
        assert_eq!(sysctl::read(name).unwrap().as_deref(), Some(other));
        assert_eq!(sysctl::write(name, other).unwrap(), ChangeOutcome::No);
        assert_eq!(sysctl::write(name, &format!("{other}\n")).unwrap(), ChangeOutcome::No);
        let elsewhere = Netns::create().unwrap();
        assert_eq!(elsewhere.run_in(|| sysctl::read(name).unwrap()).unwrap(), None, "no such link there");
    });
}

#[test]
fn each_netns_has_its_own() {
    in_fresh_netns(|_| {
        let name = "net/ipv4/conf/all/route_localnet";
        let inside = || (sysctl::write(name, "1").unwrap(), sysctl::read(name).unwrap());
        let (changed, value) = Netns::create().unwrap().run_in(inside).unwrap();
        assert_eq!((changed, value.as_deref()), (ChangeOutcome::Yes, Some("1")));
        assert_eq!(sysctl::read(name).unwrap().as_deref(), Some("0"));
    });
}

#[test]
fn a_link_may_have_a_dot_in_its_name() {
    in_fresh_netns(|_| {
        ip("link add veth.5 type veth peer name vc");
        assert_eq!(sysctl::write("net/ipv6/conf/veth.5/accept_ra", "0").unwrap(), ChangeOutcome::Yes);
        assert_eq!(sysctl::read("net/ipv6/conf/veth.5/accept_ra").unwrap().as_deref(), Some("0"));
    });
}

#[test]
fn several_numbers_are_compared_without_their_blanks() {
    in_fresh_netns(|_| {
        let name = "net/ipv4/ip_local_port_range";
        assert_eq!(sysctl::write(name, "20000 30000").unwrap(), ChangeOutcome::Yes);
        assert_eq!(sysctl::read(name).unwrap().as_deref(), Some("20000\t30000"));
        assert_eq!(sysctl::write(name, "20000  30000").unwrap(), ChangeOutcome::No);
    });
}

#[test]
fn what_is_not_there_is_none_and_cannot_be_written() {
    in_fresh_netns(|_| {
        let name = "net/ipv4/conf/nosuch/rp_filter";
        assert_eq!(sysctl::read(name).unwrap(), None);
        assert_eq!(
            sysctl::write(name, "1").unwrap_err().to_string(),
            "cannot set sysctl net/ipv4/conf/nosuch/rp_filter to \"1\": No such file or directory (os error 2)"
        );
        let bad = sysctl::write("net/ipv4/conf/va/rp_filter", "many").unwrap_err();
        assert!(matches!(bad, Error::Sysctl { .. }), "{bad}");
        assert!(matches!(sysctl::read("net/ipv4"), Err(Error::Sysctl { .. })));
        let outside = sysctl::write("kernel/hostname", "x").unwrap_err().to_string();
        assert!(
            outside.starts_with("\"kernel/hostname\" is not the name of a sysctl of the network"),
            "{outside}"
        );
    });
}
