//! DNS, with and without capture. The clients' sockets are connected: an answer whose source is not the destination of the query is
//! not received.

use kit::{Proto, TrafficClient};
use model::IfName;
use rules::sidecar::{DnsCapture, OwnerGroups, SidecarConfig};

use super::fixture::{
    APP, FAMILIES, Fixture, Owner, PROXY,
    To::{self, App, Outbound, Outside, ProxyDns},
    fixtures, ip, network_ip,
};
use crate::sidecar_kernel::cases::injected;

/// Sends a query from a given port, so that two processes can use the same one after another.
fn asks_from(fixture: &Fixture, owner: Owner, v6: bool, server: u8, to: To) {
    let client =
        TrafficClient::new(Proto::Udp).owned_by(owner.0, owner.1).from((fixture.pod_ip(v6), 5353).into());
    fixture.expect(&fixture.pod, &client, (network_ip(v6, server), 53).into(), to);
}

#[test]
fn every_question_of_the_application_goes_to_the_proxy() {
    fixtures(&SidecarConfig { dns: DnsCapture::All, ..injected() }, |fixture| {
        fixture.proxy_dns();
        fixture.outside_udp(53, &[2]);
        fixture.outside_udp(5000, &[1]);
        fixture.outside(&[53]);
        fixture.app(&[53]);
        for v6 in FAMILIES {
            for server in
                [fixture.outside_ip(v6), network_ip(v6, 2), network_ip(v6, 3), ip(v6, "127.0.0.1", "::1")]
            {
                fixture.pod_asks(APP, (server, 53).into(), ProxyDns);
                let seen = fixture.pod_calls(APP, (server, 53).into(), ProxyDns);
                assert_eq!(seen.original_dst, Some((server, 53).into()));
            }
            fixture.pod_asks(APP, (fixture.outside_ip(v6), 5000).into(), Outside);
            fixture.pod_calls(APP, (fixture.outside_ip(v6), 80).into(), Outbound);
            for own in [PROXY, (1337, 1000), (1000, 1337)] {
                fixture.pod_asks(own, (network_ip(v6, 2), 53).into(), Outside);
                fixture.pod_calls(own, (network_ip(v6, 2), 53).into(), Outside);
            }
            // A DNS server in the pod itself: the proxy's query to it is not redirected back to the proxy.
            fixture.pod_calls(PROXY, (fixture.pod_ip(v6), 53).into(), App);
        }
    });
}

/// Without separate zones, the second query would follow the first one's entry.
#[test]
fn two_questions_with_the_same_ports_do_not_share_a_connection() {
    for dns in [
        DnsCapture::All,
        DnsCapture::Servers(vec!["10.2.0.1".parse().unwrap(), "fd00:2::1".parse().unwrap()]),
    ] {
        fixtures(&SidecarConfig { dns: dns.clone(), ..injected() }, |fixture| {
            fixture.proxy_dns();
            fixture.outside_udp(53, &[2]);
            for v6 in FAMILIES {
                for own in [PROXY, (1337, 1000), (1000, 1337)] {
                    asks_from(fixture, APP, v6, 2, ProxyDns);
                    asks_from(fixture, own, v6, 2, Outside);
                    asks_from(fixture, APP, v6, 2, ProxyDns);
                }
            }
        });
    }
}

/// Connections of the two are in different zones, by the kernel's own list.
#[test]
fn questions_of_the_application_and_of_the_proxy_stand_in_two_zones() {
    fixtures(&SidecarConfig { dns: DnsCapture::All, ..injected() }, |fixture| {
        fixture.proxy_dns();
        fixture.outside_udp(53, &[2]);
        for (v6, family) in [(false, "ipv4"), (true, "ipv6")] {
            asks_from(fixture, APP, v6, 2, ProxyDns);
            asks_from(fixture, PROXY, v6, 2, Outside);
            let list = fixture.pod.sh(&format!("conntrack -L -f {family} -p udp --orig-port-dst 53"));
            for (zone, answered_from) in [("zone=2", "sport=15053"), ("zone=1", "sport=53")] {
                let lines = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
                let of_zone: Vec<_> = lines.filter(|fields| fields.contains(&zone)).collect();
                let [fields] = &of_zone[..] else { panic!("not one connection in {zone}:\n{list}") };
                let mut sources = fields.iter().filter(|field| field.starts_with("sport="));
                assert_eq!(sources.nth(1), Some(&answered_from), "{fields:?}");
                assert!(!fields.contains(&"[UNREPLIED]"), "{fields:?}");
            }
        }
    });
}

#[test]
fn only_listed_servers_are_captured() {
    let servers = vec!["10.2.0.1".parse().unwrap(), "fd00:2::1".parse().unwrap()];
    fixtures(&SidecarConfig { dns: DnsCapture::Servers(servers), ..injected() }, |fixture| {
        fixture.proxy_dns();
        fixture.outside_udp(53, &[2, 3]);
        fixture.outside(&[53]);
        for v6 in FAMILIES {
            fixture.pod_asks(APP, (network_ip(v6, 2), 53).into(), ProxyDns);
            fixture.pod_calls(APP, (network_ip(v6, 2), 53).into(), ProxyDns);
            fixture.pod_asks(PROXY, (network_ip(v6, 2), 53).into(), Outside);
            fixture.pod_asks(APP, (network_ip(v6, 3), 53).into(), Outside);
            fixture.pod_calls(APP, (network_ip(v6, 3), 53).into(), Outbound);
        }
    });
}

#[test]
fn without_capture_questions_go_their_own_way() {
    fixtures(&injected(), |fixture| {
        fixture.outside_udp(53, &[2]);
        for v6 in FAMILIES {
            fixture.pod_asks(APP, (network_ip(v6, 2), 53).into(), Outside);
            fixture.pod_calls(APP, (network_ip(v6, 2), 53).into(), Outbound);
        }
    });
}

#[test]
fn groups_decide_whose_questions_are_captured() {
    for (owner_groups, expected) in [
        (OwnerGroups::Only(vec![888]), [ProxyDns, Outside]),
        (OwnerGroups::Except(vec![888]), [Outside, ProxyDns]),
    ] {
        fixtures(
            &SidecarConfig { dns: DnsCapture::All, owner_groups: owner_groups.clone(), ..injected() },
            |fixture| {
                fixture.proxy_dns();
                fixture.outside_udp(53, &[2]);
                fixture.outside(&[53]);
                for v6 in FAMILIES {
                    for (gid, to) in [888, 1000].into_iter().zip(expected) {
                        fixture.pod_asks((1000, gid), (network_ip(v6, 2), 53).into(), to);
                        fixture.pod_calls((1000, gid), (network_ip(v6, 2), 53).into(), to);
                    }
                    fixture.pod_asks(PROXY, (network_ip(v6, 2), 53).into(), Outside);
                }
            },
        );
    }
}

#[test]
fn questions_over_an_excluded_interface_are_left_alone() {
    let net1 = vec![IfName::new("net1").unwrap()];
    fixtures(&SidecarConfig { dns: DnsCapture::All, exclude_interfaces: net1, ..injected() }, |fixture| {
        fixture.proxy_dns();
        fixture.outside_udp(53, &[9]);
        fixture.outside(&[53]);
        for v6 in FAMILIES {
            fixture.pod_asks(APP, (network_ip(v6, 9), 53).into(), Outside);
            fixture.pod_calls(APP, (network_ip(v6, 9), 53).into(), Outside);
            fixture.pod_asks(APP, (network_ip(v6, 1), 53).into(), ProxyDns);
        }
    });
}
