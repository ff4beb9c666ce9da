//! DNS, captured or not. The clients' sockets are connected: an answer that does not seem to come from where the
//! question went is not received.

use kit::{Proto, TrafficClient};
use model::IfName;
use rules::sidecar::{DnsCapture, OwnerGroups, SidecarConfig};

use super::scene::{
    APP, FAMILIES, Owner, PROXY, Scene,
    To::{self, App, Outbound, Outside, ProxyDns},
    ip, network_ip, scenes,
};
use crate::sidecar_kernel::cases::injected;

/// A question from a port of our choice, so that two processes can use the same one after the other.
fn asks_from(scene: &Scene, owner: Owner, v6: bool, server: u8, to: To) {
    let client =
        TrafficClient::new(Proto::Udp).owned_by(owner.0, owner.1).from((scene.pod_ip(v6), 5353).into());
    scene.expect(&scene.pod, &client, (network_ip(v6, server), 53).into(), to);
}

#[test]
fn every_question_of_the_application_goes_to_the_proxy() {
    scenes(&SidecarConfig { dns: DnsCapture::All, ..injected() }, |scene| {
        scene.proxy_dns();
        scene.outside_udp(53, &[2]);
        scene.outside_udp(5000, &[1]);
        scene.outside(&[53]);
        scene.app(&[53]);
        for v6 in FAMILIES {
            for server in
                [scene.outside_ip(v6), network_ip(v6, 2), network_ip(v6, 3), ip(v6, "127.0.0.1", "::1")]
            {
                scene.pod_asks(APP, (server, 53).into(), ProxyDns);
                let seen = scene.pod_calls(APP, (server, 53).into(), ProxyDns);
                assert_eq!(seen.original_dst, Some((server, 53).into()));
            }
            scene.pod_asks(APP, (scene.outside_ip(v6), 5000).into(), Outside);
            scene.pod_calls(APP, (scene.outside_ip(v6), 80).into(), Outbound);
            for own in [PROXY, (1337, 1000), (1000, 1337)] {
                scene.pod_asks(own, (network_ip(v6, 2), 53).into(), Outside);
                scene.pod_calls(own, (network_ip(v6, 2), 53).into(), Outside);
            }
            // A DNS server in the pod itself: the proxy's call to it does not come back to the proxy.
            scene.pod_calls(PROXY, (scene.pod_ip(v6), 53).into(), App);
        }
    });
}

/// Without zones of their own, the second question would take the first one's way.
#[test]
fn two_questions_with_the_same_ports_do_not_share_a_connection() {
    for dns in [
        DnsCapture::All,
        DnsCapture::Servers(vec!["10.2.0.1".parse().unwrap(), "fd00:2::1".parse().unwrap()]),
    ] {
        scenes(&SidecarConfig { dns: dns.clone(), ..injected() }, |scene| {
            scene.proxy_dns();
            scene.outside_udp(53, &[2]);
            for v6 in FAMILIES {
                for own in [PROXY, (1337, 1000), (1000, 1337)] {
                    asks_from(scene, APP, v6, 2, ProxyDns);
                    asks_from(scene, own, v6, 2, Outside);
                    asks_from(scene, APP, v6, 2, ProxyDns);
                }
            }
        });
    }
}

/// The connections of the two stand in different zones, by the kernel's own list.
#[test]
fn questions_of_the_application_and_of_the_proxy_stand_in_two_zones() {
    scenes(&SidecarConfig { dns: DnsCapture::All, ..injected() }, |scene| {
        scene.proxy_dns();
        scene.outside_udp(53, &[2]);
        for (v6, family) in [(false, "ipv4"), (true, "ipv6")] {
            asks_from(scene, APP, v6, 2, ProxyDns);
            asks_from(scene, PROXY, v6, 2, Outside);
            let list = scene.pod.sh(&format!("conntrack -L -f {family} -p udp --orig-port-dst 53"));
            for (zone, answered_from) in [("zone=2", "sport=15053"), ("zone=1", "sport=53 ")] {
                let mut lines = list.lines().filter(|line| line.contains(zone));
                let line = lines.next().unwrap_or_else(|| panic!("no connection in {zone}:\n{list}"));
                assert!(line.contains(answered_from) && !line.contains("UNREPLIED"), "{line}");
                assert_eq!(lines.next(), None, "{list}");
            }
        }
    });
}

#[test]
fn only_listed_servers_are_captured() {
    let servers = vec!["10.2.0.1".parse().unwrap(), "fd00:2::1".parse().unwrap()];
    scenes(&SidecarConfig { dns: DnsCapture::Servers(servers), ..injected() }, |scene| {
        scene.proxy_dns();
        scene.outside_udp(53, &[2, 3]);
        scene.outside(&[53]);
        for v6 in FAMILIES {
            scene.pod_asks(APP, (network_ip(v6, 2), 53).into(), ProxyDns);
            scene.pod_calls(APP, (network_ip(v6, 2), 53).into(), ProxyDns);
            scene.pod_asks(PROXY, (network_ip(v6, 2), 53).into(), Outside);
            scene.pod_asks(APP, (network_ip(v6, 3), 53).into(), Outside);
            scene.pod_calls(APP, (network_ip(v6, 3), 53).into(), Outbound);
        }
    });
}

#[test]
fn without_capture_questions_go_their_own_way() {
    scenes(&injected(), |scene| {
        scene.outside_udp(53, &[2]);
        for v6 in FAMILIES {
            scene.pod_asks(APP, (network_ip(v6, 2), 53).into(), Outside);
            scene.pod_calls(APP, (network_ip(v6, 2), 53).into(), Outbound);
        }
    });
}

#[test]
fn groups_decide_whose_questions_are_captured() {
    for (owner_groups, expected) in [
        (OwnerGroups::Only(vec![888]), [ProxyDns, Outside]),
        (OwnerGroups::Except(vec![888]), [Outside, ProxyDns]),
    ] {
        scenes(
            &SidecarConfig { dns: DnsCapture::All, owner_groups: owner_groups.clone(), ..injected() },
            |scene| {
                scene.proxy_dns();
                scene.outside_udp(53, &[2]);
                scene.outside(&[53]);
                for v6 in FAMILIES {
                    for (gid, to) in [888, 1000].into_iter().zip(expected) {
                        scene.pod_asks((1000, gid), (network_ip(v6, 2), 53).into(), to);
                        scene.pod_calls((1000, gid), (network_ip(v6, 2), 53).into(), to);
                    }
                    scene.pod_asks(PROXY, (network_ip(v6, 2), 53).into(), Outside);
                }
            },
        );
    }
}

#[test]
fn questions_over_an_excluded_interface_are_left_alone() {
    let net1 = vec![IfName::new("net1").unwrap()];
    scenes(&SidecarConfig { dns: DnsCapture::All, exclude_interfaces: net1, ..injected() }, |scene| {
        scene.proxy_dns();
        scene.outside_udp(53, &[9]);
        scene.outside(&[53]);
        for v6 in FAMILIES {
            scene.pod_asks(APP, (network_ip(v6, 9), 53).into(), Outside);
            scene.pod_calls(APP, (network_ip(v6, 9), 53).into(), Outside);
            scene.pod_asks(APP, (network_ip(v6, 1), 53).into(), ProxyDns);
        }
    });
}
