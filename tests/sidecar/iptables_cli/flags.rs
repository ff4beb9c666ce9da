//! Each flag and variable compared with its configuration: two namespaces, one set up by the tool and one by the library, must be
//! equal.

use firewall::{Backend, FirewallOptions};
use model::{IfName, Mark, Port, TableId};
use redirect::FamilyChoice;
use rules::sidecar::{DnsCapture, InboundMode, NetworkSelection, OwnerGroups, PortSelection, SidecarConfig};

use super::tool::{applied, with_file};
use crate::sidecar_kernel::{
    cases::{self, TPROXY, injected, networks, ports},
    state::{State, detecting, forced, pod_netns},
};

type Env<'a> = &'a [(&'a str, &'a str)];

fn same(env: Env<'_>, arguments: &[&str], config: &SidecarConfig) {
    same_with(env, arguments, config, FamilyChoice::First, &detecting());
}

fn same_with(
    env: Env<'_>,
    arguments: &[&str],
    config: &SidecarConfig,
    families: FamilyChoice,
    options: &FirewallOptions,
) {
    let (by_tool, by_library) = (pod_netns("tool"), pod_netns("library"));
    let printed = applied(&by_tool, env, arguments);
    let backend = options.forced.unwrap_or_else(|| firewall::available_backend().unwrap());
    let done = ["IPv4", "IPv6", "IPv4 and IPv6"].map(|of| format!("{of}: redirected ({backend} backend)"));
    assert!(printed.lines().any(|line| done.iter().any(|done| done == line)), "{printed}");
    by_library.run(|| redirect::apply(config, families, options)).unwrap();
    State::of(&by_tool).assert_is(&State::of(&by_library), &format!("{env:?} {arguments:?}"));
}

fn interfaces(names: &[&str]) -> Vec<IfName> {
    names.iter().map(|name| IfName::new(name).unwrap()).collect()
}

#[test]
fn without_flags_the_defaults_are_istios() {
    same(&[], &[], &SidecarConfig::default());
}

/// The call of an injected `istio-init`.
#[test]
fn the_injectors_call_makes_the_injected_rules() {
    let call = "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x  -b * -d 15020,15021,15090 -o 15020 --log_output_level=default:info";
    let words: Vec<&str> = call.split(' ').collect();
    same(&[], &words, &injected());
    let netns = pod_netns("again");
    applied(&netns, &[], &words);
    let before = State::of(&netns);
    let again = applied(&netns, &[], &words);
    let backend = firewall::available_backend().unwrap();
    assert_eq!(again, format!("IPv4: everything is in place ({backend} backend)\n"));
    State::of(&netns).assert_is(&before, "a second call");
}

/// Kubernetes sets `ENVOY_PORT` in a namespace with a Service `envoy`.
#[test]
fn variables_of_services_are_no_ports() {
    let link = "tcp://10.96.0.9:80";
    let names = ["ENVOY_PORT", "INBOUND_CAPTURE_PORT", "INBOUND_TUNNEL_PORT", "IPTABLES_PROBE_PORT"];
    same(&names.map(|name| (name, link)), &[], &SidecarConfig::default());
    let printed = applied(&pod_netns("link"), &[("ENVOY_PORT", link)], &["-p", "16001"]);
    let warning = format!("warning: ENVOY_PORT is {link:?}, which is an address of a Service: ignored");
    assert_eq!(printed.lines().next(), Some(warning.as_str()), "{printed}");
}

#[test]
fn every_form_of_a_flag_means_the_same() {
    let config = SidecarConfig { outbound_port: Port(16001), drop_invalid: true, ..SidecarConfig::default() };
    for form in [
        &["-p16001", "--drop-invalid"][..],
        &["-p", "16001", "--drop-invalid=true"],
        &["-p=16001", "--drop-invalid=1"],
        &["--envoy-port=16001", "--drop-invalid=T"],
        &["--drop-invalid", "--envoy-port", "16001"],
    ] {
        same(&[], form, &config);
    }
}

/// Short flag, long flag and variable of every text flag.
#[test]
fn every_text_flag_by_all_its_names() {
    let default = SidecarConfig::default;
    let cases: [(&str, &str, &str, &str, SidecarConfig); 13] = [
        (
            "-p",
            "--envoy-port",
            "ENVOY_PORT",
            "16001",
            SidecarConfig { outbound_port: Port(16001), ..default() },
        ),
        (
            "-z",
            "--inbound-capture-port",
            "INBOUND_CAPTURE_PORT",
            "16006",
            SidecarConfig { inbound_port: Port(16006), ..default() },
        ),
        (
            "-e",
            "--inbound-tunnel-port",
            "INBOUND_TUNNEL_PORT",
            "16008",
            SidecarConfig { tunnel_port: Port(16008), ..default() },
        ),
        (
            "-u",
            "--proxy-uid",
            "PROXY_UID",
            "7,8",
            SidecarConfig { proxy_uids: vec![7, 8], proxy_gids: vec![7, 8], ..default() },
        ),
        ("-g", "--proxy-gid", "PROXY_GID", "9", SidecarConfig { proxy_gids: vec![9], ..default() }),
        (
            "-b",
            "--istio-inbound-ports",
            "ISTIO_INBOUND_PORTS",
            "80,443",
            SidecarConfig { include_inbound: ports(&[80, 443]), ..default() },
        ),
        (
            "-c",
            "--istio-exclude-interfaces",
            "ISTIO_EXCLUDE_INTERFACES",
            "net1,net2",
            SidecarConfig { exclude_interfaces: interfaces(&["net1", "net2"]), ..default() },
        ),
        (
            "-i",
            "--istio-service-cidr",
            "ISTIO_SERVICE_CIDR",
            "10.0.0.0/8,fd00::/8",
            SidecarConfig { include_networks: networks(&["10.0.0.0/8", "fd00::/8"]), ..default() },
        ),
        (
            "-x",
            "--istio-service-exclude-cidr",
            "ISTIO_SERVICE_EXCLUDE_CIDR",
            "10.1.2.3/16",
            SidecarConfig { exclude_networks: vec!["10.1.0.0/16".parse().unwrap()], ..default() },
        ),
        (
            "-q",
            "--istio-outbound-ports",
            "ISTIO_OUTBOUND_PORTS",
            "80:82,25",
            SidecarConfig { include_outbound: PortSelection::Ranges(vec![80..=82, 25..=25]), ..default() },
        ),
        (
            "-o",
            "--istio-local-outbound-ports-exclude",
            "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE",
            "25,:1,65534:,:",
            SidecarConfig {
                exclude_outbound: PortSelection::Ranges(vec![25..=25, 0..=1, 65534..=65535, 1..=65535]),
                ..default()
            },
        ),
        (
            "-k",
            "--kube-virt-interfaces",
            "KUBE_VIRT_INTERFACES",
            "vnet0",
            SidecarConfig { kubevirt_interfaces: interfaces(&["vnet0"]), ..default() },
        ),
        (
            "-i",
            "--istio-service-cidr",
            "ISTIO_SERVICE_CIDR",
            "*",
            SidecarConfig { include_networks: NetworkSelection::All, ..default() },
        ),
    ];
    for (short, long, variable, value, config) in cases {
        same(&[], &[short, value], &config);
        same(&[], &[long, value], &config);
        same(&[(variable, value)], &[], &config);
        same(&[(variable, "1")], &[long, value], &config); // the flag overrides the variable
    }
}

#[test]
fn flags_that_only_matter_together() {
    let all_but = SidecarConfig {
        include_inbound: PortSelection::All,
        exclude_inbound: ports(&[22]),
        ..SidecarConfig::default()
    };
    same(&[], &["-b", "*", "-d", "22"], &all_but);
    same(&[("ISTIO_LOCAL_EXCLUDE_PORTS", "22")], &["-b", "*"], &all_but);
    let tproxy = |mark, table| SidecarConfig {
        inbound_mode: InboundMode::Tproxy { mark: Mark::with_full_mask(mark), table: TableId(table) },
        include_inbound: PortSelection::All,
        ..SidecarConfig::default()
    };
    same(&[], &["-m", "TPROXY", "-b", "*"], &tproxy(1337, 133));
    same(&[], &["-m", "TPROXY", "-b", "*", "-t", "7", "-r", "77"], &tproxy(7, 77));
    let env = [
        ("ISTIO_INBOUND_INTERCEPTION_MODE", "TPROXY"),
        ("ISTIO_INBOUND_TPROXY_MARK", "7"),
        ("ISTIO_INBOUND_TPROXY_ROUTE_TABLE", "77"),
    ];
    same(&env, &["-b", "*"], &tproxy(7, 77));
    let newer = [("INBOUND_INTERCEPTION_MODE", "TPROXY"), ("INBOUND_TPROXY_MARK", "7")];
    same(&newer, &["-b", "*", "-r", "77"], &tproxy(7, 77));
    same(&newer, &["-m", "REDIRECT", "-b", "*"], &injected_ports());
    same(
        &[],
        &["-m", "tproxy", "-b", "*"],
        &SidecarConfig { include_inbound: PortSelection::All, ..SidecarConfig::default() },
    );
}

#[test]
fn switches_by_flag_and_by_variable() {
    let invalid = SidecarConfig { drop_invalid: true, ..SidecarConfig::default() };
    let traced = SidecarConfig { trace: true, ..SidecarConfig::default() };
    let dns = SidecarConfig { dns: DnsCapture::All, ..SidecarConfig::default() };
    let cases: [(Env<'_>, &[&str], &SidecarConfig); 10] = [
        (&[("INVALID_DROP", "true")], &[], &invalid),
        (&[("DROP_INVALID", "1")], &[], &invalid),
        (&[("INVALID_DROP", "true")], &["--drop-invalid=false"], &SidecarConfig::default()),
        (&[], &["--iptables-trace-logging"], &traced),
        (&[("IPTABLES_TRACE_LOGGING", "true")], &[], &traced),
        (&[], &["--redirect-dns", "--capture-all-dns"], &dns),
        (&[("ISTIO_META_DNS_CAPTURE", "true")], &["--capture-all-dns"], &dns),
        (&[("REDIRECT_DNS", "true"), ("CAPTURE_ALL_DNS", "true")], &[], &dns),
        // Of two variables, the one that Istio added to the flag's own takes precedence.
        (&[("REDIRECT_DNS", "false"), ("ISTIO_META_DNS_CAPTURE", "true")], &["--capture-all-dns"], &dns),
        (&[("CAPTURE_ALL_DNS", "true")], &[], &SidecarConfig::default()),
    ];
    for (env, arguments, config) in cases {
        same(env, arguments, config);
    }
}

#[test]
fn the_servers_to_capture_are_those_of_resolv_conf() {
    let conf = "search x\nnameserver 10.96.0.10\nnameserver fd00:96::a\n";
    let servers = vec!["10.96.0.10".parse().unwrap(), "fd00:96::a".parse().unwrap()];
    let config = SidecarConfig { dns: DnsCapture::Servers(servers), ..SidecarConfig::default() };
    let (by_tool, by_library) = (pod_netns("tool"), pod_netns("library"));
    let ended = with_file(&by_tool, "/etc/resolv.conf", conf, &[], &["--redirect-dns", "--dual-stack"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    by_library.run(|| redirect::apply(&config, FamilyChoice::Dual, &detecting())).unwrap();
    State::of(&by_tool).assert_is(&State::of(&by_library), conf);
}

/// Each list, by flag and by variable, as templates render it.
#[test]
fn empty_elements_of_lists_are_dropped() {
    let config = SidecarConfig {
        proxy_uids: vec![7, 8],
        proxy_gids: vec![9],
        include_inbound: ports(&[80]),
        exclude_inbound: ports(&[15090, 15021]),
        include_outbound: ports(&[81]),
        exclude_outbound: ports(&[25]),
        exclude_interfaces: interfaces(&["net1"]),
        kubevirt_interfaces: interfaces(&["vnet0"]),
        include_networks: networks(&["10.0.0.0/8", "fd00::/8"]),
        exclude_networks: vec!["10.1.0.0/16".parse().unwrap()],
        owner_groups: OwnerGroups::Only(vec![888]),
        ..SidecarConfig::default()
    };
    let lists = [
        ("-u", "PROXY_UID", "7,,8,"),
        ("-g", "PROXY_GID", ",9"),
        ("-b", "ISTIO_INBOUND_PORTS", "80,"),
        ("-d", "ISTIO_LOCAL_EXCLUDE_PORTS", "15090,15021,"),
        ("-q", "ISTIO_OUTBOUND_PORTS", ",,81"),
        ("-o", "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE", "25, ,"),
        ("-c", "ISTIO_EXCLUDE_INTERFACES", "net1,"),
        ("-k", "KUBE_VIRT_INTERFACES", ",vnet0"),
        ("-i", "ISTIO_SERVICE_CIDR", "10.0.0.0/8,,fd00::/8,"),
        ("-x", "ISTIO_SERVICE_EXCLUDE_CIDR", "10.1.0.0/16,"),
    ];
    let groups = ("ISTIO_OUTBOUND_OWNER_GROUPS", "888,,");
    let arguments: Vec<&str> = lists.iter().flat_map(|(flag, _, list)| [*flag, *list]).collect();
    same(&[groups], &arguments, &config);
    let env: Vec<_> = lists.iter().map(|(_, variable, list)| (*variable, *list)).chain([groups]).collect();
    same(&env, &[], &config);
    same(
        &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "7,")],
        &["-i", "*,"],
        &SidecarConfig {
            owner_groups: OwnerGroups::Except(vec![7]),
            include_networks: NetworkSelection::All,
            ..SidecarConfig::default()
        },
    );
    same(&[], &["-u", ",", "-b", ",", "-i", ","], &SidecarConfig::default());
}

#[test]
fn the_loopback_network_comes_from_the_environment() {
    let variable = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR";
    let loopback = |net: &str| SidecarConfig {
        include_networks: NetworkSelection::All,
        loopback: net.parse().unwrap(),
        ..SidecarConfig::default()
    };
    same(&[(variable, "127.0.0.0/8")], &["-i", "*"], &loopback("127.0.0.0/8"));
    same(&[(variable, "")], &["-i", "*"], &loopback("127.0.0.1/32"));
}

#[test]
fn without_a_name_server_dns_is_not_captured_and_the_tool_warns() {
    let before = pod_netns("library");
    before.run(|| redirect::apply(&SidecarConfig::default(), FamilyChoice::First, &detecting())).unwrap();
    for conf in ["", "search x\n", "nameserver nonsense\n"] {
        let netns = pod_netns("tool");
        let ended = with_file(&netns, "/etc/resolv.conf", conf, &[], &["--redirect-dns"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        let warning = "warning: --redirect-dns has no effect: /etc/resolv.conf names no server; --capture-all-dns captures \
                       DNS to any";
        assert_eq!(ended.stdout.lines().next(), Some(warning), "{ended:?}");
        State::of(&netns).assert_is(&State::of(&before), conf);
    }
}

#[test]
fn both_families_when_asked_for() {
    let dual = |env: Env<'_>, arguments: &[&str]| {
        same_with(env, arguments, &injected_ports(), FamilyChoice::Dual, &detecting());
    };
    dual(&[], &["--dual-stack", "-b", "*"]);
    dual(&[("ISTIO_DUAL_STACK", "true")], &["-b", "*"]);
    dual(&[("DUAL_STACK", "true")], &["-b", "*"]);
    dual(&[("ISTIO_AGENT_DUAL_STACK", "true")], &["-b", "*"]);
}

fn injected_ports() -> SidecarConfig {
    SidecarConfig { include_inbound: PortSelection::All, ..SidecarConfig::default() }
}

const NO_FORCE: &str = "warning: --force-apply has no effect: each rule is compared with the kernel's, and what differs is repaired";

/// Flags of Istio 1.24 and newer: those for behaviour that is always on, or not implemented, do not change the rules.
#[test]
fn newer_flags_are_accepted_and_those_without_effect_are_reported() {
    let netns = pod_netns("newer");
    let before = State::of(&netns);
    for flag in ["reconcile", "force-apply"] {
        let variable = flag.to_uppercase().replace('-', "_");
        let by_flag = applied(&netns, &[], &[&format!("--{flag}")]);
        let by_variable = applied(&netns, &[(&variable, "true")], &[]);
        for printed in [by_flag, by_variable] {
            let warnings: Vec<_> = printed.lines().filter(|line| line.starts_with("warning: ")).collect();
            let expected = if flag == "reconcile" { &[][..] } else { &[NO_FORCE] };
            assert_eq!(warnings, expected, "{flag}: {printed}");
        }
        same(&[], &[&format!("--{flag}=false")], &SidecarConfig::default());
    }
    let there = State::of(&netns);
    let pretended = applied(&netns, &[], &["--cleanup-only", "--dry-run"]);
    let would: Vec<&str> =
        pretended.lines().map(|line| line.strip_prefix("would remove: ").unwrap()).collect();
    assert_eq!(would.len(), 5, "{pretended}");
    State::of(&netns).assert_is(&there, "a dry run");
    let removed = applied(&netns, &[("CLEANUP_ONLY", "true")], &["-b", "*"]);
    let removed: Vec<&str> = removed.lines().map(|line| line.strip_prefix("removed: ").unwrap()).collect();
    assert_eq!(removed, would, "as the dry run has it");
    let after = State::of(&netns);
    assert!(after.is_blank(firewall::available_backend().unwrap()), "{after:?}");
    assert_eq!(after.network, before.network);
}

#[test]
fn native_tables_by_flag_and_variable_are_removed_by_both_commands() {
    let netns = pod_netns("native");
    let before = State::of(&netns);
    let shown = || netns.sh("nft list ruleset");
    for (env, arguments) in
        [(&[][..], &["--native-nftables"][..]), (&[("NATIVE_NFTABLES", "true")][..], &[][..])]
    {
        let printed = applied(&netns, env, arguments);
        let table = "  repaired: inet istio-proxy-nat: the table is missing\n";
        assert_eq!(printed, format!("IPv4: redirected (native backend)\n{table}"));
        let made = shown();
        assert_eq!(netns.sh("nft list tables"), "table inet istio-proxy-nat\n");
        let printed = applied(&netns, &[], &[]);
        assert_eq!(printed, "IPv4: everything is in place (native backend)\n");
        assert_eq!(shown(), made, "what is there decides");
        let removed = applied(&netns, &[("CLEANUP_ONLY", "true")], &[]);
        assert_eq!(removed, "removed: inet istio-proxy-nat: the table should not exist\n");
        assert_eq!(shown(), "");
        State::of(&netns).assert_is(&before, "after the cleanup");
    }
}

#[test]
fn the_backend_can_be_forced() {
    let forced_to = |env: Env<'_>, arguments: &[&str], backend| {
        same_with(env, arguments, &SidecarConfig::default(), FamilyChoice::First, &forced(backend));
    };
    forced_to(&[("FORCE_IPTABLES_BINARY", "iptables-legacy")], &[], Backend::Legacy);
    forced_to(&[("FORCE_IPTABLES_BINARY", "iptables-nft")], &[], Backend::Nft);
    forced_to(&[("IPTABLES_BACKEND", "legacy")], &[], Backend::Legacy);
    forced_to(&[], &["--force-iptables-binary", "legacy"], Backend::Legacy);
    forced_to(&[], &["--force-iptables-binary=iptables-nft"], Backend::Nft);
    forced_to(&[("FORCE_IPTABLES_BINARY", "iptables-legacy")], &["--iptables-backend=nft"], Backend::Nft);
    forced_to(&[], &["--iptables-version", "iptables v1.8.7 (legacy)"], Backend::Legacy);
    forced_to(&[], &["--iptables-version", "iptables v1.8.7 (nf_tables)"], Backend::Nft);
}

#[test]
fn owners_by_number_by_name_and_by_the_proxys_user() {
    let owners = |uids: &[u32], gids: &[u32]| SidecarConfig {
        proxy_uids: uids.to_vec(),
        proxy_gids: gids.to_vec(),
        ..SidecarConfig::default()
    };
    same(&[("ENVOY_USER", "root")], &[], &owners(&[0], &[0]));
    same(&[("ENVOY_USER", "nobody-of-that-name")], &[], &owners(&[1337], &[1337]));
    same(&[("ENVOY_USER", "root")], &["-u", "5", "-g", "6,7"], &owners(&[5], &[6, 7]));
    same(&[], &["-u", "root,5", "-g", "root"], &owners(&[0, 5], &[0]));
}

#[test]
fn owner_groups_come_from_the_environment() {
    let (include, exclude) = ("ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE");
    let groups = |owner_groups| SidecarConfig {
        owner_groups,
        include_networks: NetworkSelection::All,
        ..SidecarConfig::default()
    };
    let all = ["-i", "*"];
    same(&[(include, "888,root")], &all, &groups(OwnerGroups::Only(vec![888, 0])));
    same(&[(include, "")], &all, &groups(OwnerGroups::Only(vec![])));
    same(&[(exclude, "888,999")], &all, &groups(OwnerGroups::Except(vec![888, 999])));
    same(&[(include, "*"), (exclude, "888")], &all, &groups(OwnerGroups::Except(vec![888])));
    same(&[(include, "888"), (exclude, "999")], &all, &groups(OwnerGroups::Only(vec![888])));
}

/// The maximum number of groups fits into the input limits of the restores of both backends, and is recognised afterwards.
#[test]
fn sixty_four_groups_fit_into_one_rule() {
    let groups: Vec<u32> = (1..=64).map(|n| 4_000_000_000 + n).collect();
    let list = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let config = SidecarConfig {
        owner_groups: OwnerGroups::Only(groups),
        include_networks: NetworkSelection::All,
        dns: DnsCapture::All,
        ..SidecarConfig::default()
    };
    let env = [("ISTIO_OUTBOUND_OWNER_GROUPS", list.as_str())];
    for backend in ["nft", "legacy"] {
        let call = ["-i", "*", "--redirect-dns", "--capture-all-dns", "--iptables-backend", backend];
        let options = forced(backend.parse().unwrap());
        same_with(&env, &call, &config, FamilyChoice::First, &options);
        let netns = pod_netns("again");
        applied(&netns, &env, &call);
        let save = netns.sh(&format!("iptables-{backend}-save"));
        let each = list.replace(',', " -m owner ! --gid-owner ");
        let rule = format!("-A ISTIO_OUTPUT -m owner ! --gid-owner {each} -j RETURN");
        assert!(save.lines().any(|line| line == rule), "{save}");
        let again = format!("IPv4: everything is in place ({backend} backend)\n");
        assert_eq!(applied(&netns, &env, &call), again);
    }
}

#[test]
fn every_form_and_cni_mode_lead_to_the_same() {
    let arguments = "-m TPROXY -b * -i * -d 15020,15021,15090 -o 15020 --redirect-dns --capture-all-dns \
                     --drop-invalid -c net1 -k vnet0 --dual-stack";
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let everything = cases::all().into_iter().find(|case| case.name == "tproxy-everything").unwrap();
    for backend in ["nft", "legacy"] {
        let options = forced(backend.parse().unwrap());
        for more in [&["--restore-format=false"][..], &["-f=false", "--cni-mode"], &["--cni-mode"], &[]] {
            let words = [&words[..], &["--iptables-backend", backend], more].concat();
            same_with(&[], &words, &everything.config, FamilyChoice::Dual, &options);
        }
    }
    assert_eq!(everything.config.inbound_mode, TPROXY);
}

/// As on hosts whose users are in a network directory: the tools of a pod must not query it.
#[test]
fn cni_mode_works_where_users_live_in_the_network() {
    let conf = "passwd: files oslogin\ngroup: files ldap\nhosts: files dns\n";
    for backend in ["nft", "legacy"] {
        let netns = pod_netns("names");
        let path = netns.path();
        let arguments =
            ["--cni-mode", "--network-namespace", path.to_str().unwrap(), "--iptables-backend", backend];
        let ended = with_file(&netns, "/etc/nsswitch.conf", conf, &[], &arguments);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
        assert!(!ended.stdout.lines().any(|line| line.starts_with("warning: ")), "{}", ended.stdout);
    }
}
