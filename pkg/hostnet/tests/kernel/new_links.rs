//! Links created by us, their state, and the namespaces of their peers.

use std::os::fd::AsFd;

use hostnet::{ChangeOutcome, Error, Link, LinkIndex, NewVeth, RtnetlinkHandle};
use netlink::Errno;
use netns::Netns;

use crate::{at_one_moment, errno, in_fresh_netns, index, ip, shown};

fn link(handle: &mut RtnetlinkHandle, name: &str) -> Link {
    handle.link_by_name(name).unwrap().unwrap()
}

fn veth<'a>(name: &'a str, peer_name: &'a str) -> NewVeth<'a> {
    NewVeth { name, peer_name, peer_netns: None }
}

#[test]
fn a_veth_knows_its_peer_and_plain_links_have_none() {
    in_fresh_netns(|handle| {
        let (a, b, lo) = (link(handle, "va"), link(handle, "vb"), link(handle, "lo"));
        assert_eq!((a.peer, a.peer_netns), (Some(b.index), None));
        assert_eq!((b.peer, b.peer_netns), (Some(a.index), None));
        assert_eq!((lo.peer, lo.peer_netns), (None, None));
        let _ = ip("link add vx type vxlan id 1000 remote 10.9.0.2 dstport 4790");
        let tunnel = link(handle, "vx");
        assert_eq!((tunnel.peer, tunnel.peer_netns), (None, None));
        let (listed, _) = at_one_moment(|| handle.list_links().unwrap(), || (), |links| links.len() == 4);
        let peers: Vec<_> = listed.iter().map(|link| (link.name.as_str(), link.peer)).collect();
        assert!(peers.contains(&("va", Some(b.index))) && peers.contains(&("lo", None)), "{peers:?}");
    });
}

#[test]
fn a_peer_is_made_in_another_netns_and_found_by_its_number() {
    in_fresh_netns(|handle| {
        let (pod, other) = (Netns::create().unwrap(), Netns::create().unwrap());
        assert_eq!(handle.netns_number(pod.as_fd()).unwrap(), None);
        let new = NewVeth { name: "pod0", peer_name: "eth0", peer_netns: Some(pod.as_fd()) };
        handle.create_veth(&new).unwrap();
        assert!(handle.link_by_name("eth0").unwrap().is_none(), "it never was here");
        let ours = link(handle, "pod0");
        let number = handle.netns_number(pod.as_fd()).unwrap();
        assert!(number.is_some());
        assert_eq!(ours.peer_netns, number);
        assert_eq!(handle.netns_number(other.as_fd()).unwrap(), None);
        let theirs = pod.run_in(|| link(&mut RtnetlinkHandle::open().unwrap(), "eth0")).unwrap();
        assert_eq!(ours.peer, Some(theirs.index));
        assert_eq!(theirs.peer, Some(ours.index));
        assert!(theirs.peer_netns.is_some());
        assert_eq!(handle.delete_link(ours.index).unwrap(), ChangeOutcome::Yes);
        assert!(
            pod.run_in(|| RtnetlinkHandle::open().unwrap().link_by_name("eth0").unwrap()).unwrap().is_none()
        );
    });
}

#[test]
fn a_file_that_is_no_netns_has_no_number() {
    in_fresh_netns(|handle| {
        let file = std::fs::File::open("/dev/null").unwrap();
        let text = handle.netns_number(file.as_fd()).unwrap_err().to_string();
        assert!(text.starts_with("cannot query the number of a network namespace: kernel: "), "{text}");
    });
}

#[test]
fn a_link_is_made_once_and_deleted_once() {
    in_fresh_netns(|handle| {
        let new = veth("one", "two");
        handle.create_veth(&new).unwrap();
        assert_eq!(errno(&handle.create_veth(&new).unwrap_err()), Some(Errno::EXIST));
        let made = link(handle, "one");
        assert_eq!((made.kind.as_deref(), made.is_up), (Some("veth"), false));
        assert_eq!(handle.delete_link(made.index).unwrap(), ChangeOutcome::Yes);
        assert_eq!(handle.delete_link(made.index).unwrap(), ChangeOutcome::No);
        assert_eq!(shown("link show").len(), 3);
    });
}

#[test]
fn what_is_in_the_way_is_not_taken_for_the_link() {
    in_fresh_netns(|handle| {
        for (new, what) in [
            (veth("new", "vb"), "the peer's name is taken"),
            (veth("lo", "new"), "a link of another sort has the name"),
        ] {
            let refused = handle.create_veth(&new).unwrap_err();
            assert_eq!(errno(&refused), Some(Errno::EXIST), "{what}");
            assert!(refused.to_string().starts_with(&format!("cannot create link {new}: kernel: ")));
        }
        assert_eq!(shown("link show").len(), 3);
    });
}

#[test]
fn a_link_is_switched_on_once() {
    in_fresh_netns(|handle| {
        handle.create_veth(&veth("one", "two")).unwrap();
        let one = index(handle, "one");
        for _ in 0..2 {
            assert_eq!(handle.set_link_up(one).unwrap(), ChangeOutcome::Yes);
            assert_eq!(handle.set_link_up(one).unwrap(), ChangeOutcome::No);
            assert!(ip("link show one").contains(",UP"));
            ip("link set one down");
        }
        let text = handle.set_link_up(LinkIndex(4711)).unwrap_err().to_string();
        assert!(text.starts_with("cannot set link #4711 up: kernel: "), "{text}");
    });
}

#[test]
fn links_that_cannot_be_asked_for_are_refused() {
    in_fresh_netns(|handle| {
        let long = handle.create_veth(&veth("a_name_longer_than_fifteen", "two")).unwrap_err();
        assert!(matches!(long, Error::Kernel { .. }), "{long}");
        let lo = index(handle, "lo");
        let text = handle.delete_link(lo).unwrap_err().to_string();
        assert!(text.starts_with("cannot delete link lo: kernel: "), "{text}");
        assert_eq!(shown("link show").len(), 3);
    });
}
