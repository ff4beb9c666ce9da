//! Every annotation and every variable of the `istio-proxy` container that affects redirection: its default, its valid values, and
//! the error for others.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "pods/fixture.rs"]
mod fixture;

use enrolment::{EnrolmentPolicy, InvalidAnnotation, PodDecision, SidecarRedirect, decide};
use fixture::{ANNOTATIONS, annotated, env, injected};
use model::{IfName, IpNet, Mark, Pod, Port, SecurityContext, TableId};
use proptest::prelude::*;
use rules::sidecar::{DnsCapture, InboundMode, NetworkSelection, PortSelection, SidecarConfig};

const MODE: &str = ANNOTATIONS[0];
const INCLUDE_NETWORKS: &str = ANNOTATIONS[1];
const EXCLUDE_NETWORKS: &str = ANNOTATIONS[2];
const INCLUDE_INBOUND: &str = ANNOTATIONS[3];
const EXCLUDE_INBOUND: &str = ANNOTATIONS[4];
const INCLUDE_OUTBOUND: &str = ANNOTATIONS[5];
const EXCLUDE_OUTBOUND: &str = ANNOTATIONS[6];
const KUBEVIRT: &str = ANNOTATIONS[7];
const REROUTE: &str = ANNOTATIONS[9];
const EXCLUDE_INTERFACES: &str = ANNOTATIONS[8];
const STATUS_PORT: &str = "status.sidecar.istio.io/port";
const LOOPBACK: &str = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR";

fn redirected(pod: &Pod) -> Result<SidecarRedirect, InvalidAnnotation> {
    match decide(pod, None, &EnrolmentPolicy::default())? {
        PodDecision::Sidecar(redirect) => Ok(*redirect),
        other => panic!("{other}"),
    }
}

fn config(key: &str, value: &str) -> SidecarConfig {
    let redirect = redirected(&annotated(key, value)).unwrap_or_else(|error| panic!("{error}"));
    assert!(redirect.warnings.is_empty() && !redirect.dual_stack);
    redirect.config
}

fn list(ports: &[u16]) -> PortSelection {
    PortSelection::List(ports.iter().copied().map(Port).collect())
}

fn nets(nets: &[&str]) -> Vec<IpNet> {
    nets.iter().map(|net| net.parse().unwrap()).collect()
}

fn names(names: &[&str]) -> Vec<IfName> {
    names.iter().map(|name| IfName::new(name).unwrap()).collect()
}

/// Configuration of an injected pod without annotations.
fn default() -> SidecarConfig {
    SidecarConfig {
        outbound_port: Port(15001),
        inbound_port: Port(15006),
        tunnel_port: Port(15008),
        proxy_uids: vec![1337],
        proxy_gids: vec![1337],
        inbound_mode: InboundMode::Redirect,
        include_inbound: PortSelection::All,
        exclude_inbound: list(&[15020, 15021, 15090]),
        include_networks: NetworkSelection::All,
        exclude_networks: vec![],
        include_outbound: PortSelection::NONE,
        exclude_outbound: list(&[15020]),
        exclude_interfaces: vec![],
        kubevirt_interfaces: vec![],
        dns: DnsCapture::Off,
        drop_invalid: false,
        trace: false,
        ..SidecarConfig::default()
    }
}

#[test]
fn without_annotations_all_is_as_istio_has_it() {
    let redirect = redirected(&injected()).unwrap();
    assert_eq!(redirect, SidecarRedirect { config: default(), dual_stack: false, warnings: vec![] });
}

#[test]
fn interception_mode() {
    assert_eq!(config(MODE, "REDIRECT"), default());
    let tproxy = InboundMode::Tproxy { mark: Mark::with_full_mask(1337), table: TableId(133) };
    assert_eq!(config(MODE, "TPROXY"), SidecarConfig { inbound_mode: tproxy, ..default() });
}

/// Valid forms of a list of ports, equal for all five annotations.
fn port_forms() -> Vec<(&'static str, PortSelection)> {
    vec![
        ("*", PortSelection::All),
        (" * ", PortSelection::All),
        ("", PortSelection::NONE),
        ("  ", PortSelection::NONE),
        ("80", list(&[80])),
        ("0", list(&[0])),
        ("65535", list(&[65535])),
        ("80,443", list(&[80, 443])),
        (" 80 , 443 ", list(&[80, 443])),
        ("443,80,443", list(&[443, 80, 443])),
        ("0080", list(&[80])),
        ("80,", list(&[80])),
        (",80,, 443 ,", list(&[80, 443])),
        (",", PortSelection::NONE),
        ("*,", PortSelection::All),
    ]
}

#[test]
fn lists_of_ports() {
    for (text, ports) in port_forms() {
        let same = |found: SidecarConfig, wanted: SidecarConfig| assert_eq!(found, wanted, "{text:?}");
        same(config(INCLUDE_INBOUND, text), SidecarConfig { include_inbound: ports.clone(), ..default() });
        same(config(INCLUDE_OUTBOUND, text), SidecarConfig { include_outbound: ports.clone(), ..default() });
        same(config(EXCLUDE_OUTBOUND, text), SidecarConfig { exclude_outbound: ports, ..default() });
    }
    // Istio never reads it.
    assert_eq!(config(STATUS_PORT, "http"), default());
}

#[test]
fn the_proxys_own_ports_are_never_captured_inbound() {
    for (text, ports) in [
        ("*", PortSelection::All),
        ("", list(&[15020, 15021, 15090])),
        ("80", list(&[80, 15020, 15021, 15090])),
        ("15021,80,80,15021", list(&[15021, 80, 15020, 15090])),
        ("15090,15021,15020", list(&[15090, 15021, 15020])),
        ("9,8,9,7", list(&[9, 8, 7, 15020, 15021, 15090])),
    ] {
        assert_eq!(
            config(EXCLUDE_INBOUND, text),
            SidecarConfig { exclude_inbound: ports, ..default() },
            "{text:?}"
        );
    }
}

#[test]
fn lists_of_networks() {
    for (text, list) in [
        ("", vec![]),
        (" ,", vec![]),
        ("10.0.0.0/8", nets(&["10.0.0.0/8"])),
        (",10.0.0.0/8,, 10.1.0.0/16,", nets(&["10.0.0.0/8", "10.1.0.0/16"])),
        ("10.1.2.3/8,fd00::1/64", nets(&["10.1.2.3/8", "fd00::1/64"])),
        ("0.0.0.0/0,::/0", nets(&["0.0.0.0/0", "::/0"])),
        ("127.0.0.1/32,127.0.0.1/32", nets(&["127.0.0.1/32", "127.0.0.1/32"])),
    ] {
        let include = SidecarConfig { include_networks: NetworkSelection::List(list.clone()), ..default() };
        assert_eq!(config(INCLUDE_NETWORKS, text), include, "{text:?}");
        let exclude = SidecarConfig { exclude_networks: list, ..default() };
        assert_eq!(config(EXCLUDE_NETWORKS, text), exclude, "{text:?}");
    }
    assert_eq!(config(INCLUDE_NETWORKS, "*"), default());
}

#[test]
fn lists_of_interfaces() {
    for (text, list) in [
        ("", vec![]),
        (" ,", vec![]),
        ("net1", names(&["net1"])),
        (",net1,,net2,", names(&["net1", "net2"])),
        ("net1,net2", names(&["net1", "net2"])),
        ("net1, net2 ", names(&["net1", "net2"])),
        ("vnet+,a.100", names(&["vnet+", "a.100"])),
    ] {
        let virtual_machines = SidecarConfig { kubevirt_interfaces: list.clone(), ..default() };
        assert_eq!(config(KUBEVIRT, text), virtual_machines, "{text:?}");
        assert_eq!(config(REROUTE, text), virtual_machines, "{text:?}");
        let excluded = SidecarConfig { exclude_interfaces: list, ..default() };
        assert_eq!(config(EXCLUDE_INTERFACES, text), excluded, "{text:?}");
    }
}

const BAD_PORTS: [&str; 10] =
    ["65536", "-1", "+80", "80 443", "http", "0x50", "8.0", "*,80", "**", "99999999999999999999"];
const BAD_NETWORKS: [&str; 8] = [
    "10.0.0.0",
    "10.0.0.0/33",
    "fd00::/129",
    "10.0.0/8",
    "*,10.0.0.0/8",
    "10.0.0.0/-1",
    "10.0.0.0/255.0.0.0",
    "example.org/24",
];
const BAD_INTERFACES: [&str; 8] =
    ["0123456789abcdef", "a b", "net1;net2 x", "-j", "!net1", "a/b", "..", "net\"1"];

/// Annotation, refused values, and the valid ones in the error.
fn refused() -> Vec<(&'static str, Vec<&'static str>, &'static str)> {
    let ports = "'*', nothing, or a comma-separated list of ports from 0 to 65535";
    let networks = "nothing, or a comma-separated list of networks as 10.0.0.0/8";
    let interfaces = "nothing, or a comma-separated list of interface names of at most 15 bytes";
    let mut all = vec![
        (MODE, vec!["", "redirect", "TPROXY ", "none", "BOTH"], "REDIRECT, TPROXY or NONE"),
        (INCLUDE_NETWORKS, BAD_NETWORKS.to_vec(), "'*', nothing, or a comma-separated list of networks"),
        (EXCLUDE_NETWORKS, [&BAD_NETWORKS[..], &["*"]].concat(), networks),
        (KUBEVIRT, BAD_INTERFACES.to_vec(), interfaces),
        (REROUTE, BAD_INTERFACES.to_vec(), interfaces),
        (EXCLUDE_INTERFACES, BAD_INTERFACES.to_vec(), interfaces),
    ];
    for key in [INCLUDE_INBOUND, EXCLUDE_INBOUND, INCLUDE_OUTBOUND, EXCLUDE_OUTBOUND] {
        all.push((key, BAD_PORTS.to_vec(), ports));
    }
    all
}

#[test]
fn what_cannot_be_read_is_answered_with_pod_annotation_value_and_what_is_allowed() {
    let table = refused();
    assert_eq!(table.len(), ANNOTATIONS.len(), "every annotation");
    for (key, values, allowed) in table {
        for value in values {
            let error = redirected(&annotated(key, value)).expect_err(&format!("{key}: {value:?}"));
            assert_eq!((error.annotation, error.value.as_str()), (key, value));
            let text = error.to_string();
            for part in ["pod shop/web-0", key, &format!("{value:?}"), "allowed: ", allowed] {
                assert!(text.contains(part), "{text:?} does not say {part:?}");
            }
        }
    }
}

#[test]
fn an_endless_value_is_shown_in_part() {
    let error = redirected(&annotated(INCLUDE_INBOUND, &"\u{e4}".repeat(100_000))).unwrap_err();
    assert_eq!(error.value.chars().count(), 200);
    assert!(error.to_string().len() < 1000);
}

/// Each element becomes one rule or more, in the pod's own namespace: the annotation's author must not determine the duration of
/// the ADD, and a truncated list would not be the requested one.
#[test]
fn a_list_that_is_too_long_is_refused_whole() {
    let joined = |number: usize, of: fn(usize) -> String| (0..number).map(of).collect::<Vec<_>>().join(",");
    let port = |n: usize| (2000 + n).to_string();
    let odd_port = |n: usize| (2001 + 2 * n).to_string();
    let network = |n: usize| format!("10.0.{}.{}/32", n / 256, n % 256);
    let interface = |n: usize| format!("v{n}");
    for (key, fits, too_long, allowed) in [
        (INCLUDE_INBOUND, joined(512, odd_port), joined(513, odd_port), "at most 512 and 16384 bytes"),
        (EXCLUDE_INBOUND, joined(2048, port), "1,".repeat(8192) + "1", "consecutive ones count as one"),
        (INCLUDE_NETWORKS, joined(1024, network), joined(1025, network), "at most 1024 and 16384 bytes"),
        (EXCLUDE_NETWORKS, joined(1024, network), joined(1025, network), "at most 1024"),
        (KUBEVIRT, joined(32, interface), joined(33, interface), "at most 32 and 1024 bytes"),
        (REROUTE, joined(32, interface), joined(33, interface), "at most 32"),
        (EXCLUDE_INTERFACES, joined(32, interface), joined(33, interface), "at most 32"),
        (EXCLUDE_INTERFACES, "v".into(), "v".to_owned() + &" ".repeat(1024), "1024 bytes"),
        (EXCLUDE_OUTBOUND, "1".to_owned() + &",".repeat(16383), "1,".repeat(125_000) + "1", "at most 512"),
    ] {
        redirected(&annotated(key, &fits)).unwrap_or_else(|error| panic!("{key}: {error}"));
        let error = redirected(&annotated(key, &too_long)).expect_err(key).to_string();
        assert!(error.contains(allowed) && error.len() < 1000, "{error}");
    }
}

#[test]
fn annotations_of_other_names_do_not_count() {
    for key in ["sidecar.istio.io/interceptionmode", "includeInboundPorts", "traffic.sidecar.istio.io/"] {
        assert_eq!(config(key, "nonsense"), default(), "{key}");
    }
}

fn proxy(change: impl Fn(&mut model::Container)) -> Pod {
    let mut pod = injected();
    change(&mut pod.spec.containers[1]);
    pod
}

fn ids(user: Option<i64>, group: Option<i64>) -> Pod {
    let context = SecurityContext { run_as_user: user, run_as_group: group, ..SecurityContext::default() };
    proxy(|proxy| proxy.security_context = context.clone())
}

#[test]
fn user_and_group_of_the_proxy() {
    for (user, group, uid, gid) in [
        (None, None, 1337, 1337),
        (Some(0), Some(0), 1337, 1337),
        (Some(1338), None, 1338, 1337),
        (None, Some(1339), 1337, 1339),
        (Some(1), Some(4_294_967_294), 1, 4_294_967_294),
    ] {
        let config = redirected(&ids(user, group)).unwrap().config;
        assert_eq!(config, SidecarConfig { proxy_uids: vec![uid], proxy_gids: vec![gid], ..default() });
    }
    // The last number is no ID: the kernel treats it as "none" (`uid_valid`), iptables refuses it.
    for bad in [-1, i64::MIN, 4_294_967_295, 4_294_967_296, i64::MAX] {
        for (field, pod) in [
            ("securityContext.runAsUser", ids(Some(bad), None)),
            ("securityContext.runAsGroup", ids(None, Some(bad))),
        ] {
            let text = redirected(&pod).unwrap_err().to_string();
            for part in ["pod shop/web-0", "istio-proxy", field, &bad.to_string(), "0 to 4294967294"] {
                assert!(text.contains(part), "{text:?} does not say {part:?}");
            }
        }
    }
}

#[test]
fn ids_of_other_containers_do_not_count() {
    let mut pod = injected();
    pod.spec.containers[0].security_context.run_as_user = Some(7);
    assert_eq!(redirected(&pod).unwrap().config, default());
}

type Flag = (&'static str, fn(SidecarRedirect) -> bool);
const FLAGS: [Flag; 4] = [
    ("ISTIO_META_DNS_CAPTURE", |redirect| redirect.config.dns == DnsCapture::All),
    ("ISTIO_DUAL_STACK", |redirect| redirect.dual_stack),
    ("ISTIO_AGENT_DUAL_STACK", |redirect| redirect.dual_stack),
    ("INVALID_DROP", |redirect| redirect.config.drop_invalid),
];

#[test]
fn flags_in_the_environment_are_booleans_of_go() {
    for (name, is_on) in FLAGS {
        for (value, on) in [("1", true), ("t", true), ("True", true), ("0", false), ("F", false), ("", false)]
        {
            let redirect = redirected(&proxy(|proxy| proxy.env.push(env(name, value)))).unwrap();
            assert!(redirect.warnings.is_empty(), "{name}={value}");
            assert_eq!(is_on(redirect), on, "{name}={value}");
        }
    }
}

/// A proxy of Istio 1.18 reads the old name, a newer one the new.
#[test]
fn the_newer_name_of_dual_stack_counts_where_both_are_given() {
    for (old, new, on) in [("true", "false", false), ("false", "true", true)] {
        let both = [env("ISTIO_AGENT_DUAL_STACK", old), env("ISTIO_DUAL_STACK", new)];
        let redirect = redirected(&proxy(|proxy| proxy.env.extend(both.clone()))).unwrap();
        assert_eq!(redirect.dual_stack, on, "{old}, {new}");
    }
}

#[test]
fn a_flag_that_cannot_be_read_is_off_with_a_warning() {
    for (name, is_on) in FLAGS {
        for value in ["yes", "tRUE", " ", "on"] {
            let redirect = redirected(&proxy(|proxy| proxy.env.push(env(name, value)))).unwrap();
            assert_eq!(redirect.warnings.len(), 1);
            let warning = &redirect.warnings[0];
            assert!(warning.contains(name) && warning.contains(&format!("{value:?}")), "{warning}");
            assert_eq!(redirect.config, default());
            assert!(!is_on(redirect), "{name}={value}");
        }
    }
}

#[test]
fn the_loopback_network_comes_from_the_proxys_environment() {
    let read = |value| redirected(&proxy(|proxy| proxy.env.push(env(LOOPBACK, value)))).unwrap();
    for (value, loopback) in
        [("127.0.0.0/30", "127.0.0.0/30"), ("127.0.0.1/32", "127.0.0.1/32"), ("", "127.0.0.1/32")]
    {
        let redirect = read(value);
        assert!(redirect.warnings.is_empty());
        assert_eq!(redirect.config, SidecarConfig { loopback: loopback.parse().unwrap(), ..default() });
    }
    for value in ["10.0.0.0/8", "::1/128", "127.0.0.0/7", "127.0.0.1", "*", "127.0.0.0/8", "127.0.0.0/29"] {
        let redirect = read(value);
        assert_eq!(redirect.config, default(), "{value}");
        let [warning] = &redirect.warnings[..] else { panic!("{value}: {:?}", redirect.warnings) };
        assert!(warning.contains(LOOPBACK) && warning.contains(value), "{warning}");
    }
}

#[test]
fn the_last_value_of_a_flag_wins_also_when_it_comes_from_elsewhere() {
    for (name, is_on) in FLAGS {
        let from_elsewhere = model::EnvVar { name: name.to_owned(), value: None };
        for (values, on) in [
            (vec![env(name, "true"), env(name, "false")], false),
            (vec![env(name, "nonsense"), env(name, "true")], true),
            (vec![env(name, "true"), from_elsewhere], false),
        ] {
            let redirect = redirected(&proxy(|proxy| proxy.env.clone_from(&values))).unwrap();
            assert!(redirect.warnings.is_empty());
            assert_eq!(is_on(redirect), on, "{values:?}");
        }
    }
    let mut pod = injected();
    pod.spec.containers[0].env = FLAGS.map(|(name, _)| env(name, "true")).to_vec();
    assert_eq!(redirected(&pod).unwrap().config, default(), "the application's environment");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lists_of_ports_keep_their_order(ports in proptest::collection::vec(any::<u16>(), 1..20), blanks in any::<bool>()) {
        let separator = if blanks { " , " } else { "," };
        let text = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator);
        prop_assert_eq!(config(INCLUDE_INBOUND, &text).include_inbound, list(&ports));
        let PortSelection::List(excluded) = config(EXCLUDE_INBOUND, &text).exclude_inbound else { unreachable!() };
        let mut seen = Vec::new();
        for port in ports.into_iter().chain([15020, 15021, 15090]).map(Port) {
            if !seen.contains(&port) {
                seen.push(port);
            }
        }
        prop_assert_eq!(excluded, seen);
    }
}

#[test]
fn the_newer_name_of_virtual_interfaces_wins() {
    let mut pod = annotated(KUBEVIRT, "k6t-eth0");
    for (newer, expected) in [("vnet0", names(&["vnet0"])), ("", Vec::new())] {
        pod.metadata.annotations.insert(REROUTE.to_owned(), newer.to_owned());
        assert_eq!(redirected(&pod).unwrap().config.kubevirt_interfaces, expected, "{newer:?}");
    }
    // The older one is not read then, so that it may be invalid.
    pod.metadata.annotations.insert(KUBEVIRT.to_owned(), "no name".to_owned());
    assert!(redirected(&pod).is_ok());
}
