//! Outbound traffic of the pod.

use rules::sidecar::{OwnerGroups, PortSelection, SidecarConfig};

use super::fixture::{
    APP, FAMILIES, PROXY,
    To::{App, Inbound, Outbound, Outside},
    fixtures, network_ip,
};
use crate::sidecar_kernel::cases::{injected, networks, ports};

#[test]
fn everybodys_traffic_but_the_proxys_own_goes_to_the_outbound_listener() {
    fixtures(&injected(), |fixture| {
        fixture.outside(&[80, 15020]);
        fixture.outside_udp(80, &[1]);
        fixture.outside_udp(53, &[1]);
        for v6 in FAMILIES {
            let outside = fixture.outside_ip(v6);
            fixture.pod_calls(APP, (outside, 80).into(), Outbound);
            fixture.pod_calls((0, 0), (outside, 80).into(), Outbound);
            fixture.pod_calls(APP, (network_ip(v6, 3), 9).into(), Outbound); // even if the port is closed
            fixture.pod_calls(APP, (outside, 15020).into(), Outside);
            for own in [PROXY, (1337, 1000), (1000, 1337)] {
                let seen = fixture.pod_calls(own, (outside, 80).into(), Outside);
                assert_eq!(seen.peer.ip(), fixture.pod_ip(v6), "{own:?}");
            }
            for port in [80, 53] {
                fixture.pod_asks(APP, (outside, port).into(), Outside);
            }
        }
    });
}

#[test]
fn excluded_ports_stay_out() {
    fixtures(&SidecarConfig { exclude_outbound: ports(&[25, 3306]), ..injected() }, |fixture| {
        fixture.outside(&[80, 25, 3306]);
        for v6 in FAMILIES {
            let outside = fixture.outside_ip(v6);
            fixture.pod_calls(APP, (outside, 25).into(), Outside);
            fixture.pod_calls(APP, (outside, 3306).into(), Outside);
            fixture.pod_calls(APP, (outside, 80).into(), Outbound);
        }
    });
}

#[test]
fn excluding_every_port_captures_nothing() {
    fixtures(&SidecarConfig { exclude_outbound: PortSelection::All, ..injected() }, |fixture| {
        fixture.outside(&[80]);
        for v6 in FAMILIES {
            fixture.pod_calls(APP, (fixture.outside_ip(v6), 80).into(), Outside);
        }
    });
}

#[test]
fn included_networks_only_in_both_families() {
    let include = networks(&["10.2.7.7/16", "fd00:2::/32", "10.77.0.0/16"]);
    fixtures(&SidecarConfig { include_networks: include, ..injected() }, |fixture| {
        fixture.outside(&[80]);
        for v6 in FAMILIES {
            fixture.pod_calls(APP, (network_ip(v6, 2), 80).into(), Outbound);
            fixture.pod_calls(APP, (network_ip(v6, 3), 80).into(), Outside);
            fixture.pod_calls(PROXY, (network_ip(v6, 2), 80).into(), Outside);
        }
    });
}

#[test]
fn excluded_networks_stay_out_in_both_families() {
    let exclude_networks = vec!["10.2.0.9/24".parse().unwrap(), "fd00:2::/64".parse().unwrap()];
    fixtures(&SidecarConfig { exclude_networks, ..injected() }, |fixture| {
        fixture.outside(&[80]);
        for v6 in FAMILIES {
            fixture.pod_calls(APP, (network_ip(v6, 2), 80).into(), Outside);
            fixture.pod_calls(APP, (network_ip(v6, 3), 80).into(), Outbound);
        }
    });
}

#[test]
fn included_ports_go_whatever_the_network() {
    let config =
        SidecarConfig { include_networks: networks(&[]), include_outbound: ports(&[80, 443]), ..injected() };
    fixtures(&config, |fixture| {
        fixture.outside(&[80, 8080]);
        for v6 in FAMILIES {
            fixture.pod_calls(APP, (network_ip(v6, 2), 80).into(), Outbound);
            fixture.pod_calls(APP, (network_ip(v6, 2), 443).into(), Outbound);
            fixture.pod_calls(APP, (network_ip(v6, 2), 8080).into(), Outside);
        }
    });
    // An excluded network takes precedence over an included port.
    let exclude_networks = vec!["10.3.0.0/24".parse().unwrap(), "fd00:3::/64".parse().unwrap()];
    fixtures(&SidecarConfig { exclude_networks, ..config }, |fixture| {
        fixture.outside(&[80]);
        for v6 in FAMILIES {
            fixture.pod_calls(APP, (network_ip(v6, 2), 80).into(), Outbound);
            fixture.pod_calls(APP, (network_ip(v6, 3), 80).into(), Outside);
        }
    });
}

#[test]
fn all_ports_without_a_network_is_everything_and_neither_is_nothing() {
    for (include_outbound, to) in [(PortSelection::All, Outbound), (PortSelection::NONE, Outside)] {
        let config = SidecarConfig { include_networks: networks(&[]), include_outbound, ..injected() };
        fixtures(&config, |fixture| {
            fixture.outside(&[80]);
            fixture.app(&[8080]);
            for v6 in FAMILIES {
                fixture.pod_calls(APP, (fixture.outside_ip(v6), 80).into(), to);
                fixture.outside_calls((fixture.pod_ip(v6), 8080).into(), Inbound);
            }
        });
    }
}

/// With more than one owner, only calls of a proxy are captured within the pod: each owner's rules return all other traffic on `lo`
/// (as upstream: the second owner's call to its own pod is never redirected inbound).
#[test]
fn every_owner_of_the_proxy_is_let_out() {
    let config = SidecarConfig { proxy_uids: vec![1337, 2000], proxy_gids: vec![1337, 3000], ..injected() };
    fixtures(&config, |fixture| {
        fixture.outside(&[80]);
        fixture.app(&[8080]);
        for v6 in FAMILIES {
            let outside = (fixture.outside_ip(v6), 80).into();
            for own in [PROXY, (2000, 1000), (1000, 3000)] {
                fixture.pod_calls(own, outside, Outside);
            }
            fixture.pod_calls(APP, outside, Outbound);
            fixture.pod_calls((3000, 2000), outside, Outbound);
            let own_pod = (fixture.pod_ip(v6), 8080).into();
            fixture.pod_calls(PROXY, own_pod, Inbound);
            fixture.pod_calls((2000, 2000), own_pod, App);
        }
    });
}

#[test]
fn groups_decide_whose_traffic_is_captured() {
    let cases = [
        (OwnerGroups::Except(vec![888, 999]), [Outside, Outside, Outbound]),
        (OwnerGroups::Only(vec![888, 999]), [Outbound, Outbound, Outside]),
        (OwnerGroups::Only(vec![]), [Outside, Outside, Outside]),
    ];
    for (owner_groups, expected) in cases {
        fixtures(&SidecarConfig { owner_groups: owner_groups.clone(), ..injected() }, |fixture| {
            fixture.outside(&[80]);
            for v6 in FAMILIES {
                let outside = (fixture.outside_ip(v6), 80).into();
                for (gid, to) in [888, 999, 1000].into_iter().zip(expected) {
                    fixture.pod_calls((1000, gid), outside, to);
                }
                fixture.pod_calls(PROXY, outside, Outside);
                fixture.outside_calls((fixture.pod_ip(v6), 8080).into(), Inbound);
            }
        });
    }
}
