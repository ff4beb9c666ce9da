//! `istio-clean-iptables` leaves nothing of sidecar redirection, whichever program created it, and everything of other components.

use std::process::Command;

use firewall::Backend;
use kit::{Netns, binary, kit_traffic};
use model::Family;
use rules::sidecar;

use crate::{
    iptables_cli::tool::{Ended, applied, ended, run},
    sidecar_kernel::{
        self, at_once, cases,
        state::{BACKENDS, State, iptables, network, pod_netns, restore},
    },
};

fn clean(netns: &Netns, env: &[(&str, &str)], arguments: &[&str]) -> Ended {
    run(netns, &binary("istio-clean-iptables"), env, arguments)
}

fn cleaned(netns: &Netns, env: &[(&str, &str)], arguments: &[&str]) -> String {
    let ended = clean(netns, env, arguments);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{env:?} {arguments:?}: {}", ended.stdout);
    ended.stdout
}

/// Creates the rules of a case in both backends, as an earlier version or another node image may have left them.
fn make_in_both(netns: &Netns, case: &cases::Case) {
    sidecar_kernel::apply(netns, case, Backend::Legacy);
    for family in Family::BOTH {
        restore(netns, Backend::Nft, family, &sidecar::restore_text(&case.config, family));
    }
}

/// A run that prefers one backend leaves nothing in the other, and one without a preference results in one backend.
#[test]
fn rules_in_two_backends_become_rules_in_one() {
    let case = cases::all().into_iter().find(|case| case.name == "injected").unwrap();
    for backend in BACKENDS {
        let netns = pod_netns("elsewhere");
        make_in_both(&netns, &case);
        let report = sidecar_kernel::apply(&netns, &case, backend);
        assert!(!report.is_unchanged(), "{report:?}");
        let after = State::of(&netns);
        let other = if backend == Backend::Nft { Backend::Legacy } else { Backend::Nft };
        assert!(after.is_blank(other) && !after.is_blank(backend), "{backend}: {after:#?}");
        assert!(sidecar_kernel::apply(&netns, &case, backend).is_unchanged());
    }
    let netns = pod_netns("unforced");
    make_in_both(&netns, &case);
    applied(&netns, &[], &["-b", "*", "-i", "*"]);
    let after = State::of(&netns);
    assert!(after.is_blank(Backend::Legacy) && !after.is_blank(Backend::Nft), "{after:#?}");
}

/// Leftovers of both backends together.
#[test]
fn every_case_of_both_backends_goes() {
    at_once(&cases::all(), |case| {
        let netns = pod_netns("clean");
        let before = network(&netns);
        make_in_both(&netns, case);
        let there = State::of(&netns);
        let foretold = cleaned(&netns, &[], &["--dry-run"]);
        State::of(&netns).assert_is(&there, "a dry run");
        let told = cleaned(&netns, &[], &[]);
        assert_eq!(foretold.replace("would remove: ", "removed: "), told, "{}", case.name);
        let after = State::of(&netns);
        assert!(BACKENDS.into_iter().all(|backend| after.is_blank(backend)), "{}: {after:#?}", case.name);
        assert_eq!(after.network, before, "{}", case.name);
        assert_eq!(cleaned(&netns, &[], &[]), "nothing to remove\n");
    });
}

/// A kernel without nf_tables has no native tables either.
#[test]
fn rules_go_on_a_kernel_without_nf_tables() {
    let case = cases::all().into_iter().find(|case| case.name == "injected").unwrap();
    for (program, arguments) in [("istio-clean-iptables", &[][..]), ("istio-iptables", &["--cleanup-only"])] {
        let netns = pod_netns("no-nf-tables");
        sidecar_kernel::apply(&netns, &case, Backend::Legacy);
        let mut command = Command::new(kit_traffic());
        command.args(["refuse", "netfilter"]).arg(binary(program)).args(arguments);
        let ended = ended(&netns, command, &[]);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{program}: {}", ended.stdout);
        let after = State::of(&netns);
        assert!(after.is_blank(Backend::Legacy), "{program}: {after:#?}");
    }
}

#[test]
fn what_the_tool_made_goes_and_foreign_rules_stay() {
    for backend in BACKENDS {
        let netns = pod_netns("foreign");
        for (family, far) in [(Family::V4, "10.7.0.1"), (Family::V6, "fd00:7::1")] {
            for table in ["raw", "mangle", "nat"] {
                iptables(&netns, backend, family, &format!("-t {table} -A OUTPUT -d {far} -p tcp -j ACCEPT"));
                iptables(&netns, backend, family, &format!("-t {table} -N THEIRS"));
            }
        }
        netns.sh("ip rule add fwmark 7 lookup 133");
        netns.sh("ip route add local 10.7.0.0/16 dev lo table 133");
        let before = State::of(&netns);
        let name = backend.to_string();
        let everything = "-i * -b * -m TPROXY --redirect-dns --capture-all-dns --drop-invalid --dual-stack -k vnet0 -c net1 --iptables-trace-logging";
        let words: Vec<&str> = everything.split(' ').chain(["--iptables-backend", &name]).collect();
        applied(&netns, &[], &words);
        assert!(State::of(&netns) != before);
        cleaned(&netns, &[], &[]);
        State::of(&netns).assert_is(&before, &name);
    }
}

#[test]
fn one_backend_only_when_asked_for() {
    let case = cases::all().into_iter().find(|case| case.name == "injected").unwrap();
    for (flag, gone, stays) in
        [("nft", Backend::Nft, Backend::Legacy), ("iptables-legacy", Backend::Legacy, Backend::Nft)]
    {
        let netns = pod_netns("one");
        make_in_both(&netns, &case);
        cleaned(&netns, &[("FORCE_IPTABLES_BINARY", flag)], &[]);
        let after = State::of(&netns);
        assert!(after.is_blank(gone) && !after.is_blank(stays), "{flag}: {after:#?}");
    }
}

#[test]
fn the_mark_tells_which_policy_rules_are_ours() {
    for (env, arguments) in [
        (&[][..], &["-t", "7"][..]),
        (&[("INBOUND_TPROXY_MARK", "7")], &[]),
        (&[("ISTIO_INBOUND_TPROXY_MARK", "7")], &[]),
    ] {
        let netns = pod_netns("mark");
        let before = network(&netns);
        applied(&netns, &[], &["-b", "*", "-m", "TPROXY", "-t", "7", "-r", "77", "--dual-stack"]);
        cleaned(
            &netns,
            &[],
            &["-u", "1337", "-g", "1337", "--redirect-dns", "--capture-all-dns", "-m", "REDIRECT"],
        );
        let rule = "-4 32765:\tfrom all fwmark 0x7 lookup 77";
        assert!(network(&netns).lines().any(|line| line == rule), "not the mark that was asked for");
        cleaned(&netns, env, arguments);
        assert_eq!(network(&netns), before);
    }
}

/// Chains of Istio's own istio-iptables, and all jumps to them; routes as `ip` creates them.
#[test]
fn the_chains_of_istios_own_tool_go() {
    for backend in BACKENDS {
        let netns = pod_netns("istio");
        let before = network(&netns);
        for (family, localhost, source) in
            [(Family::V4, "127.0.0.1/32", "127.0.0.6/32"), (Family::V6, "::1/128", "::6/128")]
        {
            let text = UPSTREAM.replace("LOCALHOST", localhost).replace("SOURCE", source);
            restore(&netns, backend, family, &text);
        }
        for ip in ["ip -4", "ip -6"] {
            netns.sh(&format!("{ip} rule add fwmark 1337 lookup 133"));
            netns.sh(&format!("{ip} route add local default dev lo table 133"));
        }
        netns.sh("ip -6 address add ::6/128 dev lo");
        cleaned(&netns, &[], &[]);
        let after = State::of(&netns);
        assert!(after.is_blank(backend), "{after:#?}");
        assert_eq!(after.network, before);
    }
}

const UPSTREAM: &str = "*nat
:ISTIO_INBOUND - [0:0]
:ISTIO_REDIRECT - [0:0]
:ISTIO_IN_REDIRECT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -o lo -s SOURCE -j RETURN
-A ISTIO_OUTPUT -o lo ! -d LOCALHOST -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d LOCALHOST -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
-I PREROUTING 1 -i vnet0 -j ISTIO_REDIRECT
-A OUTPUT -p tcp -j ISTIO_OUTPUT
COMMIT
*mangle
:ISTIO_INBOUND - [0:0]
:ISTIO_DIVERT - [0:0]
:ISTIO_TPROXY - [0:0]
-A ISTIO_DIVERT -j MARK --set-mark 1337
-A ISTIO_DIVERT -j ACCEPT
-A ISTIO_TPROXY ! -d LOCALHOST -p tcp -j TPROXY --tproxy-mark 1337/0xffffffff --on-port 15006
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A ISTIO_INBOUND -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ISTIO_DIVERT
-A ISTIO_INBOUND -p tcp -j ISTIO_TPROXY
COMMIT
";

#[test]
fn wrong_flags_are_refused() {
    let netns = pod_netns("refused");
    applied(&netns, &[], &["-b", "*"]);
    let before = State::of(&netns);
    for (env, arguments, named) in [
        (&[][..], &["--nope"][..], "--nope"),
        (&[], &["-t", "0"], "istio-inbound-tproxy-mark"),
        (&[("INBOUND_TPROXY_MARK", "x")], &[], "istio-inbound-tproxy-mark"),
        (&[], &["--iptables-backend", "ebtables"], "ebtables"),
        (&[], &["--dry-run=perhaps"], "perhaps"),
    ] {
        let ended = clean(&netns, env, arguments);
        assert_eq!(ended.code, 1, "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(named), "{arguments:?}: {ended:?}");
    }
    let help = cleaned(&netns, &[], &["--help"]);
    assert!(help.lines().any(|line| line == "  -t, --istio-inbound-tproxy-mark string"), "{help}");
    State::of(&netns).assert_is(&before, "refused calls");
}
