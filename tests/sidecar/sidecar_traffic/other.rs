//! Invalid packets, virtual machines, and traffic that redirection does not concern.

use std::{net::SocketAddr, time::Duration};

use firewall::Backend;
use kit::{Netns, Proto, TrafficClient};
use model::{Family, IfName};
use redirect::FamilyChoice;
use rules::sidecar::{DnsCapture, SidecarConfig};
use socket2::{Domain, Protocol, Socket, Type};

use super::fixture::{
    APP, FAMILIES, Fixture,
    To::{App, Inbound, Outbound, Outside, ProxyDns},
    fixtures, ip, network_ip,
};
use crate::sidecar_kernel::{
    cases::{TPROXY, injected, networks},
    state::{iptables, tool},
};

/// A TCP segment with both SYN and FIN, which connection tracking classifies as invalid. To the discard port.
const INVALID_SEGMENT: [u8; 20] = {
    let mut segment = [0; 20];
    segment[0] = 0x9c; // source port 40000
    segment[1] = 0x40;
    segment[3] = 9; // destination port
    segment[12] = 5 << 4; // five words
    segment[13] = 0b11; // SYN and FIN
    segment
};

fn send_raw(from: &Netns, target: SocketAddr) {
    from.run(|| {
        let socket = Socket::new(Domain::for_address(target), Type::RAW, Some(Protocol::TCP)).unwrap();
        socket.send_to(&INVALID_SEGMENT, &SocketAddr::new(target.ip(), 0).into()).unwrap();
    });
}

fn family(v6: bool) -> Family {
    if v6 { Family::V6 } else { Family::V4 }
}

/// Packet count of the rule of a chain that contains `text`.
fn packets(fixture: &Fixture, v6: bool, chain: &str, text: &str) -> u64 {
    let list = fixture.pod.sh(&format!("{} -t mangle -c", tool(fixture.backend, family(v6), "-save")));
    let rule = |line: &&str| line.contains(&format!("-A {chain} ")) && line.contains(text);
    let line = list.lines().find(rule).unwrap_or_else(|| panic!("no {text} in {chain}:\n{list}"));
    line.trim_start_matches('[').split(':').next().unwrap().parse().unwrap()
}

/// Counters of foreign rules show whether the packet arrived, and whether it passed PREROUTING.
fn an_invalid_packet_passes(fixture: &Fixture, v6: bool) -> bool {
    for hook in ["PREROUTING", "INPUT"] {
        let place = if hook == "PREROUTING" { "-I" } else { "-A" };
        let rule = format!("-t mangle {place} {hook} -p tcp --dport 9 -m tcp --sport 40000");
        iptables(&fixture.pod, fixture.backend, family(v6), &rule);
    }
    send_raw(&fixture.outside, (fixture.pod_ip(v6), 9).into());
    kit::until("the packet has come", || packets(fixture, v6, "PREROUTING", "--sport 40000") > 0);
    // The kernel processes the packet synchronously: a rule that has not counted it by now never will.
    packets(fixture, v6, "INPUT", "--sport 40000") > 0
}

/// Number of packets of a family that our rule has dropped.
fn dropped(fixture: &Fixture, v6: bool) -> u64 {
    if fixture.backend != Backend::Native {
        return packets(fixture, v6, "ISTIO_PRERT", "-j DROP");
    }
    let list = fixture.pod.sh("nft list chain inet istio-proxy-mangle istio-prerouting");
    let count = list.lines().find_map(|line| line.trim().strip_prefix("ct state invalid counter packets "));
    let both: u64 = count.unwrap().split(' ').next().unwrap().parse().unwrap();
    both - u64::from(v6) // the packet of the other family was sent before
}

#[test]
fn invalid_packets_are_dropped_only_when_asked_for() {
    for inbound_mode in [injected().inbound_mode, TPROXY] {
        for drop_invalid in [true, false] {
            fixtures(&SidecarConfig { drop_invalid, inbound_mode, ..injected() }, |fixture| {
                for v6 in FAMILIES {
                    let what = format!("{} {inbound_mode:?} {drop_invalid}", fixture.backend);
                    assert_ne!(an_invalid_packet_passes(fixture, v6), drop_invalid, "{what}");
                    if drop_invalid {
                        assert_eq!(dropped(fixture, v6), 1, "{what}");
                    }
                    fixture.outside_calls((fixture.pod_ip(v6), 8080).into(), Inbound);
                    fixture.pod_calls(APP, (fixture.outside_ip(v6), 80).into(), Outbound);
                }
            });
        }
    }
}

/// A virtual machine behind `vnet0` of the pod.
fn machine(fixture: &Fixture) -> Netns {
    let machine = Netns::new("machine");
    fixture.pod.pipe(
        "ip -batch -",
        &format!(
            "link add vnet0 type veth peer name eth0 netns {}\n\
             address add 10.8.0.1/24 dev vnet0\n\
             address add fd00:8::1/64 dev vnet0\n\
             link set vnet0 up\n",
            machine.name()
        ),
    );
    machine.pipe(
        "ip -batch -",
        "address add 10.8.0.2/24 dev eth0\n\
         address add fd00:8::2/64 dev eth0\n\
         link set eth0 up\n\
         route add default via 10.8.0.1\n\
         route add default via fd00:8::1 dev eth0\n",
    );
    [&fixture.pod, &machine].into_iter().for_each(Netns::wait_until_addresses_are_usable);
    fixture.pod.sysctl("net/ipv4/ip_forward", "1");
    fixture.pod.sysctl("net/ipv6/conf/all/forwarding", "1");
    fixture.outside.sh("ip route add 10.8.0.0/24 via 10.1.0.2");
    fixture.outside.sh("ip route add fd00:8::/64 via fd00:1::2 dev eth0");
    machine
}

#[test]
fn a_virtual_machines_calls_are_outbound_and_its_pods_are_inbound() {
    let vnet0 = vec![IfName::new("vnet0").unwrap()];
    for inbound_mode in [injected().inbound_mode, TPROXY] {
        let config = SidecarConfig { kubevirt_interfaces: vnet0.clone(), inbound_mode, ..injected() };
        fixtures(&config, |fixture| {
            let machine = machine(fixture);
            fixture.app(&[15021]);
            fixture.outside_udp(53, &[1]);
            let (call, ask) = (TrafficClient::new(Proto::Tcp), TrafficClient::new(Proto::Udp));
            for v6 in FAMILIES {
                let seen = fixture.expect(&machine, &call, (fixture.outside_ip(v6), 80).into(), Outbound);
                assert_eq!(seen.peer.ip(), ip(v6, "10.8.0.2", "fd00:8::2"));
                fixture.expect(&machine, &ask, (fixture.outside_ip(v6), 53).into(), Outside);
                fixture.outside_calls((fixture.pod_ip(v6), 8080).into(), Inbound);
                fixture.outside_calls((fixture.pod_ip(v6), 15021).into(), App);
                fixture.pod_calls(APP, (fixture.outside_ip(v6), 80).into(), Outbound);
            }
        });
    }
}

#[test]
fn a_virtual_machines_calls_to_other_networks_are_forwarded() {
    let config = SidecarConfig {
        kubevirt_interfaces: vec![IfName::new("vnet0").unwrap()],
        include_networks: networks(&["10.2.0.0/16", "fd00:2::/64"]),
        ..injected()
    };
    fixtures(&config, |fixture| {
        let machine = machine(fixture);
        fixture.outside(&[80]);
        let call = TrafficClient::new(Proto::Tcp);
        for v6 in FAMILIES {
            fixture.expect(&machine, &call, (network_ip(v6, 2), 80).into(), Outbound);
            fixture.expect(&machine, &call, (network_ip(v6, 3), 80).into(), Outside);
        }
    });
}

/// KubeVirt has its own rules at the front; ours come before them.
#[test]
fn rules_of_kubevirt_do_not_take_a_virtual_machines_calls_away() {
    let vnet0 = vec![IfName::new("vnet0").unwrap()];
    fixtures(&SidecarConfig { kubevirt_interfaces: vnet0, ..injected() }, |fixture| {
        let machine = machine(fixture);
        fixture.outside(&[80]);
        for v6 in FAMILIES {
            let theirs = "-t nat -I PREROUTING 1 -i vnet0 -p tcp -j ACCEPT";
            iptables(&fixture.pod, fixture.backend, family(v6), theirs);
            let (call, target) = (TrafficClient::new(Proto::Tcp), (fixture.outside_ip(v6), 80).into());
            // Native tables are evaluated whatever the verdict in those of iptables.
            let before = if fixture.backend == Backend::Native { Outbound } else { Outside };
            fixture.expect(&machine, &call, target, before);
            fixture.redirect(FamilyChoice::Dual);
            fixture.expect(&machine, &call, target, Outbound);
        }
    });
}

#[test]
fn only_the_families_of_the_pod_are_redirected() {
    fixtures(&injected(), |fixture| {
        fixture.outside(&[80]);
        fixture.app(&[8080]);
        let (v4, v6) = (fixture.outside_ip(false), fixture.outside_ip(true));
        // With an IPv4 address first and without dual stack, IPv6 is not redirected.
        fixture.redirect(FamilyChoice::First);
        fixture.pod_calls(APP, (v4, 80).into(), Outbound);
        fixture.pod_calls(APP, (v6, 80).into(), Outside);
        fixture.outside_calls((fixture.pod_ip(false), 8080).into(), Inbound);
        fixture.outside_calls((fixture.pod_ip(true), 8080).into(), App);
        // A pod with IPv6 alone is redirected without a setting.
        fixture.pod.sh("ip address del 10.1.0.2/24 dev eth0");
        fixture.pod.sh("ip address del 10.9.0.2/24 dev net1");
        fixture.redirect(FamilyChoice::First);
        fixture.pod_calls(APP, (v6, 80).into(), Outbound);
        fixture.outside_calls((fixture.pod_ip(true), 8080).into(), Inbound);
    });
}

/// Sends an echo request and waits for its reply.
fn ping(from: &Netns, target: std::net::IpAddr) {
    from.sysctl("net/ipv4/ping_group_range", "0 2147483647");
    from.run(|| {
        let target = SocketAddr::new(target, 0);
        let (protocol, request, reply) =
            if target.is_ipv6() { (Protocol::ICMPV6, 128, 129) } else { (Protocol::ICMPV4, 8, 0) };
        let socket = Socket::new(Domain::for_address(target), Type::DGRAM, Some(protocol)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.connect(&target.into()).unwrap();
        let answered = (0..20).any(|number| {
            // The kernel sets identifier and checksum.
            socket.send(&[request, 0, 0, 0, 0, 0, 0, number]).is_ok() && {
                let mut answer = [0; 64];
                let length = std::io::Read::read(&mut &socket, &mut answer).unwrap();
                length >= 8 && answer[0] == reply && answer[7] == number
            }
        });
        assert!(answered, "no reply from {target}");
    });
}

#[test]
fn pings_pass_whatever_is_captured() {
    let everything = SidecarConfig {
        inbound_mode: TPROXY,
        dns: DnsCapture::All,
        drop_invalid: true,
        kubevirt_interfaces: vec![IfName::new("vnet0").unwrap()],
        ..injected()
    };
    for config in [injected(), everything] {
        fixtures(&config, |fixture| {
            fixture.proxy_dns();
            for v6 in FAMILIES {
                ping(&fixture.pod, fixture.outside_ip(v6));
                ping(&fixture.outside, fixture.pod_ip(v6));
                ping(&fixture.pod, ip(v6, "127.0.0.1", "::1"));
            }
            if config.dns == DnsCapture::All {
                for v6 in FAMILIES {
                    fixture.pod_asks(APP, (fixture.outside_ip(v6), 53).into(), ProxyDns);
                }
            }
        });
    }
}
