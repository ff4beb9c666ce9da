//! Rules compared with their record, without any tool: as an agent does whose image has none.

use std::net::TcpStream;

use firewall::{Backend, CapturedTraffic, Firewall};
use model::Family;
use netlink::{MessageFlags, NetlinkRequest};
use nftables::uapi::{
    CHAIN_NAME, DATA_VERDICT, ELEMENT, EXPRESSION_DATA, EXPRESSION_NAME, IMMEDIATE_DATA, IMMEDIATE_REGISTER,
    IPV4, NEW_CHAIN, NEW_RULE, NEW_TABLE, REGISTER_VERDICT, RULE_CHAIN, RULE_EXPRESSIONS, TABLE_NAME,
    VERDICT_CHAIN, VERDICT_CODE, VERDICT_JUMP,
};
use redirect::{DesiredRules, FamilyChoice, PreparedNetns};
use rules::{ChainSet, RecordedRules};

use super::{
    apply, at_once,
    cases::{self, Case},
    state::{BACKENDS, State, forced, iptables, pod_netns, rehook},
};

/// Adds foreign rules, which change the position of ours in the kernel's list and do not concern us.
fn foreign(netns: &kit::Netns, backend: Backend) {
    for family in Family::BOTH {
        iptables(netns, backend, family, "-t nat -N THEIRS");
        iptables(netns, backend, family, "-t nat -A THEIRS -p udp --dport 9 -j RETURN");
        iptables(netns, backend, family, "-t nat -I OUTPUT -p udp --dport 9 -j THEIRS");
        iptables(netns, backend, family, "-t mangle -A OUTPUT -p udp --dport 9 -j ACCEPT");
    }
}

fn shows_what_changed(case: &Case, backend: Backend) {
    let what = format!("{} {backend}", case.name);
    let netns = pod_netns("recorded");
    let blank = netns.run(redirect::found_rules).unwrap();
    assert!(blank.as_ref().is_some_and(RecordedRules::is_empty), "{what}: {blank:?}");
    apply(&netns, case, backend);
    let desired = DesiredRules::for_families(&case.config, &Family::BOTH);
    let rules = RecordedRules::from_lines(desired.rules.lines().clone());
    let found = netns.run(redirect::found_rules).unwrap().unwrap();
    let sorted = |rules: &RecordedRules| {
        let lines = rules.lines().iter().map(|(place, lines)| {
            let mut lines: Vec<String> = lines.lines().map(|line| line.replace("-I ", "")).collect();
            lines.sort();
            (place.clone(), lines)
        });
        lines.collect::<Vec<_>>()
    };
    assert_eq!(sorted(&found), sorted(&rules), "{what}: what is found is what was wanted");
    let traffic = netns.run(|| CapturedTraffic::observe_netns(ChainSet::SIDECAR)).unwrap();
    assert_eq!(traffic, desired.captured, "{what}: and redirects the same");
    let differences =
        || netns.run(|| redirect::compare_recorded(&case.config, FamilyChoice::Dual, &rules)).unwrap();
    assert_eq!(differences(), [""; 0], "{what}");
    apply(&netns, case, backend);
    netns.run(|| drop(TcpStream::connect("127.0.0.1:9"))); // changes counters
    foreign(&netns, backend);
    assert_eq!(differences(), [""; 0], "{what}: other rules, counters and a repetition");

    for family in Family::BOTH {
        iptables(&netns, backend, family, "-t nat -D ISTIO_REDIRECT 1");
        let missing =
            format!("{family} nat: chain ISTIO_REDIRECT lacks rule 1: -p tcp -j REDIRECT --to-ports 15001");
        assert_eq!(differences(), [missing], "{what}");
        iptables(&netns, backend, family, "-t nat -A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15002");
        let [other, ours] = ["15002", "15001"].map(|port| format!("-p tcp -j REDIRECT --to-ports {port}"));
        let changed = format!("{family} nat: chain ISTIO_REDIRECT rule 1 is {other}, expected {ours}");
        assert_eq!(differences(), [changed], "{what}");
        apply(&netns, case, backend);
        assert_eq!(differences(), [""; 0], "{what}: repaired");
    }
    iptables(&netns, backend, Family::V4, "-t nat -F OUTPUT");
    assert_eq!(differences(), ["IPv4 nat: OUTPUT does not jump to ISTIO_OUTPUT"], "{what}");
    apply(&netns, case, backend);
    iptables(&netns, backend, Family::V6, "-t nat -A PREROUTING -p tcp -j ISTIO_REDIRECT");
    let [added] = differences().try_into().unwrap();
    assert_eq!(added, "IPv6 nat: PREROUTING has an unexpected rule: -p tcp -j ISTIO_REDIRECT", "{what}");
}

#[test]
fn recorded_rules_show_changes_of_ours_and_no_others() {
    let wanted = ["injected", "tproxy-everything", "dns-servers", "kubevirt-networks", "trace"];
    let cases: Vec<Case> = cases::all().into_iter().filter(|case| wanted.contains(&case.name)).collect();
    assert_eq!(cases.len(), wanted.len());
    for backend in BACKENDS {
        at_once(&cases, |case| shows_what_changed(case, backend));
    }
}

/// Compares with the record, and with the configuration; returns the findings of both.
fn reported(netns: &kit::Netns, case: &Case, backend: Backend) -> Vec<String> {
    let rules = DesiredRules::for_families(&case.config, &Family::BOTH).rules;
    let (config, families) = (&case.config, FamilyChoice::Dual);
    let recorded = netns.run(|| redirect::compare_recorded(config, families, &rules)).unwrap();
    let verified =
        netns.run(|| redirect::verify(config, families, None, &forced(backend))).unwrap().differences;
    let inactive = netns.run(|| firewall::inactive_rules(ChainSet::SIDECAR)).unwrap();
    assert_eq!(recorded, if verified.is_empty() { inactive } else { verified });
    recorded
}

/// The rules are complete, but redirect nothing. Tables shared with other components stay unchanged; native ones are recreated.
#[test]
fn rules_that_the_kernel_does_not_evaluate_are_reported() {
    let case = cases::all().into_iter().find(|case| case.name == "injected").unwrap();
    let made = |backend| {
        let netns = pod_netns("recorded");
        apply(&netns, &case, backend);
        assert_eq!(reported(&netns, &case, backend), [""; 0]);
        netns
    };
    let (shared, legacy, native) = (made(Backend::Nft), made(Backend::Legacy), made(Backend::Native));
    let reason = |what: &str| format!("nf_tables {what}, so the kernel does not evaluate our rules there");
    for table in ["ip nat", "ip6 nat"] {
        let differs = |what: &str| {
            let expected = reason(&format!("{table} {what}"));
            assert_eq!(reported(&shared, &case, Backend::Nft), [expected.as_str()]);
            assert!(apply(&shared, &case, Backend::Nft).is_unchanged());
            assert_eq!(reported(&shared, &case, Backend::Nft), [expected], "nothing is done about it");
        };
        shared.pipe("nft -f -", &format!("add table {table} {{ flags dormant; }}"));
        differs("is dormant");
        shared.pipe("nft -f -", &format!("add table {table}"));
        assert_eq!(reported(&shared, &case, Backend::Nft), [""; 0]);
        rehook(&shared, table, "OUTPUT", "");
        differs("OUTPUT is not at its hook");
        rehook(&shared, table, "OUTPUT", "nat hook output priority -90");
        differs("OUTPUT is not at its hook");
        rehook(&shared, table, "OUTPUT", "nat hook output priority -100");
        rehook(&shared, table, "PREROUTING", "nat hook output priority -100");
        differs("PREROUTING is not at its hook");
        rehook(&shared, table, "PREROUTING", "nat hook prerouting priority -100");
        assert_eq!(reported(&shared, &case, Backend::Nft), [""; 0]);
    }
    // Foreign tables without a rule of ours.
    shared.pipe("nft -f -", "add table ip theirs { flags dormant; }\nadd chain ip theirs OUTPUT\n");
    legacy.pipe("nft -f -", "add table ip nat { flags dormant; }\nadd chain ip nat OUTPUT\n");
    assert_eq!(reported(&shared, &case, Backend::Nft), [""; 0]);
    assert_eq!(reported(&legacy, &case, Backend::Legacy), [""; 0]);

    let table = "inet istio-proxy-nat";
    for (damage, expected) in [("dormant", "the table is dormant"), ("", "chain output is at another hook")] {
        match damage {
            "dormant" => drop(native.pipe("nft -f -", &format!("add table {table} {{ flags dormant; }}"))),
            _ => rehook(&native, table, "output", damage),
        }
        assert_eq!(reported(&native, &case, Backend::Native), [format!("{table}: {expected}")]);
        assert!(!apply(&native, &case, Backend::Native).is_unchanged());
        assert_eq!(reported(&native, &case, Backend::Native), [""; 0], "it is made anew");
    }
}

/// The annotations of a running pod have changed, and its rules have not.
#[test]
fn recorded_rules_are_restored_whatever_the_configuration_is_now() {
    let named = |name: &str| cases::all().into_iter().find(|case| case.name == name).unwrap();
    let (then, now) = (named("injected"), named("outbound-exclude-ports"));
    let rules = DesiredRules::for_families(&then.config, &Family::BOTH).rules;
    for backend in BACKENDS {
        let netns = pod_netns("recorded");
        apply(&netns, &then, backend);
        let before = State::of(&netns);
        Family::BOTH.into_iter().for_each(|family| iptables(&netns, backend, family, "-t nat -F"));
        let options = forced(backend);
        let (config, families) = (&now.config, FamilyChoice::Dual);
        let restore =
            || PreparedNetns::observe(&options)?.apply_by(config, families, Some(&rules), Firewall::apply);
        let (report, _) = netns.run(restore).unwrap();
        assert!(!report.is_unchanged(), "{backend}");
        State::of(&netns).assert_is(&before, &backend.to_string());
        let verify = |recorded| netns.run(|| redirect::verify(config, families, recorded, &options)).unwrap();
        assert!(verify(Some(&rules)).is_unchanged() && !verify(None).is_unchanged(), "{backend}");
    }
}

/// Such a chain for NAT sees the first packet of each connection only.
#[test]
fn rules_in_a_built_in_chain_of_another_type_are_reported() {
    let case = cases::all().into_iter().find(|case| case.name == "tproxy").unwrap();
    let netns = pod_netns("recorded");
    apply(&netns, &case, Backend::Nft);
    let inactive = || {
        let (firewall, observed) = Firewall::open(&forced(Backend::Nft)).unwrap();
        firewall.inactive_rules(ChainSet::SIDECAR, &observed).unwrap()
    };
    for table in ["ip mangle", "ip6 mangle"] {
        rehook(&netns, table, "PREROUTING", "nat hook prerouting priority -150");
        let why = "PREROUTING is of another type, so our rules there have another effect";
        let expected = [format!("nf_tables {table} {why}")];
        assert_eq!(
            (reported(&netns, &case, Backend::Nft), netns.run(inactive)),
            (expected.to_vec(), expected.to_vec())
        );
        rehook(&netns, table, "PREROUTING", "filter hook prerouting priority -150");
        assert_eq!(reported(&netns, &case, Backend::Nft), [""; 0]);
    }
}

/// A name, the tables of the pod, and the attack.
type Attack<'a> = (&'a str, Backend, &'a (dyn Fn(&kit::Netns) + Sync));

/// A process with NET_ADMIN chooses names, and the kernel accepts any bytes.
#[test]
fn names_that_are_no_text_keep_nobody_from_comparing_rules() {
    // This case needs a policy rule, too.
    let case = cases::all().into_iter().find(|case| case.name == "tproxy").unwrap();
    let nf_tables = |netns: &kit::Netns| {
        let message = |kind, table: &[u8]| {
            let mut message = NetlinkRequest::new(kind, MessageFlags::CREATE, &[IPV4, 0, 0, 0]);
            message.put_bytes(TABLE_NAME, table); // CHAIN_TABLE has the same number
            message
        };
        let mut chain = message(NEW_CHAIN, b"nat\0");
        chain.put_bytes(CHAIN_NAME, b"\xff\0");
        let mut rule = message(NEW_RULE, b"nat\0");
        rule.put_bytes(RULE_CHAIN, b"\xff\0").put_nested(RULE_EXPRESSIONS, |rule| {
            rule.put_nested(ELEMENT, |jump| {
                jump.put_str(EXPRESSION_NAME, "immediate").put_nested(EXPRESSION_DATA, |data| {
                    data.put_be32(IMMEDIATE_REGISTER, REGISTER_VERDICT).put_nested(IMMEDIATE_DATA, |data| {
                        data.put_nested(DATA_VERDICT, |verdict| {
                            verdict.put_be32(VERDICT_CODE, VERDICT_JUMP.cast_unsigned());
                            verdict.put_str(VERDICT_CHAIN, "ISTIO_OUTPUT");
                        });
                    });
                });
            });
        });
        let messages = vec![message(NEW_TABLE, b"\xff\0"), chain, rule];
        netns.run(|| nftables::commit(messages)).unwrap();
    };
    let shell = |command: &'static str| {
        move |netns: &kit::Netns| drop(netns.pipe("sh -e", &command.replace("NAME", "\"$(printf '\\377')\"")))
    };
    let attacks: [Attack<'_>; 4] = [
        ("tables and chains", Backend::Nft, &nf_tables),
        (
            "legacy chains",
            Backend::Legacy,
            &shell(
                "iptables-legacy --wait=30 -t nat -N NAME; iptables-legacy --wait=30 -t nat -A NAME -j ISTIO_OUTPUT",
            ),
        ),
        ("links", Backend::Nft, &shell("ip link add NAME type veth peer name far9")),
        ("policy rules", Backend::Nft, &shell("ip rule add iif NAME lookup main")),
    ];
    at_once(&attacks, |(what, backend, attack)| {
        let netns = pod_netns("recorded");
        apply(&netns, &case, *backend);
        let captured = || netns.run(|| CapturedTraffic::observe_netns(ChainSet::SIDECAR)).unwrap();
        let before = captured();
        attack(&netns);
        assert_eq!(reported(&netns, &case, *backend), [""; 0], "{what}");
        assert_eq!(captured(), before, "{what}");
        assert!(netns.run(|| firewall::foreign_effects(ChainSet::IN_POD, &[], *backend)).is_ok(), "{what}");
        iptables(&netns, *backend, Family::V4, "-t nat -F OUTPUT");
        let expected = ["IPv4 nat: OUTPUT does not jump to ISTIO_OUTPUT"];
        assert_eq!(reported(&netns, &case, *backend), expected, "{what}");
        assert!(!apply(&netns, &case, *backend).is_unchanged());
        assert_eq!(reported(&netns, &case, *backend), [""; 0], "{what}");
    });
}
