//! Refusals of the tool, and their messages.

use super::tool::{Ended, istio_iptables};
use crate::sidecar_kernel::state::{State, pod_netns};

const LOOPBACK: &str = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR";

/// Environment, arguments, and the expected parts of the message.
type Refusal<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a [&'a str]);

#[test]
fn wrong_values_are_refused_by_flag_and_value() {
    let many = (1..=65).map(|n: u32| n.to_string()).collect::<Vec<_>>().join(",");
    let cases: [Refusal<'_>; 34] = [
        (&[], &["-x", "*"], &["istio-service-exclude-cidr", "*"]),
        (&[], &["-x", "10.0.0.0/8,*"], &["istio-service-exclude-cidr", "10.0.0.0/8,*"]),
        (&[], &["-x", "10.0.0.0/33"], &["istio-service-exclude-cidr", "10.0.0.0/33"]),
        (&[], &["-i", "10.0.0.1"], &["istio-service-cidr", "10.0.0.1"]),
        (&[], &["-i", "nonsense"], &["istio-service-cidr", "nonsense"]),
        (&[], &["-p", "70000"], &["envoy-port", "70000"]),
        (&[], &["-p", "http"], &["envoy-port", "http"]),
        (&[], &["-p", ""], &["envoy-port"]),
        (&[], &["-z", "-1"], &["inbound-capture-port", "-1"]),
        (&[("INBOUND_CAPTURE_PORT", "x")], &[], &["inbound-capture-port", "x"]),
        (&[], &["-e", "65536"], &["inbound-tunnel-port", "65536"]),
        (&[], &["-b", "80,x,"], &["istio-inbound-ports", "80,x,"]),
        (&[], &["-d", "80;81"], &["istio-local-exclude-ports", "80;81"]),
        (&[], &["-q", "80-90"], &["istio-outbound-ports", "80-90"]),
        (&[], &["-q", "90:80"], &["istio-outbound-ports", "90:80"]),
        (&[], &["-q", "80:90:99"], &["istio-outbound-ports", "80:90:99"]),
        (&[("ISTIO_OUTBOUND_PORTS", "x")], &[], &["istio-outbound-ports", "x"]),
        (&[], &["-o", "+25"], &["istio-local-outbound-ports-exclude", "+25"]),
        (&[], &["-c", "a b"], &["istio-exclude-interfaces", "a b"]),
        (&[], &["-k", "sixteen-letters-"], &["kube-virt-interfaces", "sixteen-letters-"]),
        (&[], &["-u", "no-such-user"], &["proxy-uid", "no-such-user"]),
        (&[], &["-g", "1337,x y"], &["proxy-gid", "1337,x y"]),
        (&[(LOOPBACK, "10.0.0.0/8")], &[], &[LOOPBACK, "10.0.0.0/8", "127.0.0.0/8"]),
        (&[], &["-m", "TPROXY", "-t", "0"], &["istio-inbound-tproxy-mark", "0"]),
        (&[], &["-m", "TPROXY", "-t", "4294967295"], &["istio-inbound-tproxy-mark", "4294967295"]),
        (&[], &["-m", "TPROXY", "-r", "0"], &["istio-inbound-tproxy-route-table", "0"]),
        (&[], &["-m", "TPROXY", "-t", "0x539"], &["istio-inbound-tproxy-mark", "0x539"]),
        (&[], &["-m", "TPROXY", "-r", "x"], &["istio-inbound-tproxy-route-table", "x"]),
        (&[], &["--drop-invalid=maybe"], &["drop-invalid", "maybe"]),
        (&[("FORCE_IPTABLES_BINARY", "iptables")], &[], &["force-iptables-binary", "iptables"]),
        (&[], &["--run-validation", "--probe-timeout", "5"], &["probe-timeout", "5"]),
        (&[], &["--run-validation", "--iptables-probe-port", "x"], &["iptables-probe-port", "x"]),
        (&[("ISTIO_OUTBOUND_OWNER_GROUPS", &many)], &[], &["ISTIO_OUTBOUND_OWNER_GROUPS", "65", "64"]),
        (
            &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "no-such-group")],
            &[],
            &["istio-iptables: ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE has the value", "no-such-group"],
        ),
    ];
    let netns = pod_netns("refused");
    let before = State::of(&netns);
    for (env, arguments, named) in cases {
        let ended = istio_iptables(&netns, env, arguments);
        assert_eq!(ended.code, 1, "{env:?} {arguments:?}: {ended:?}");
        assert!(named.iter().all(|text| ended.stderr.contains(text)), "{env:?} {arguments:?}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
    State::of(&netns).assert_is(&before, "refused calls");
}

#[test]
fn a_variable_that_is_no_boolean_is_ignored_with_a_warning() {
    let netns = pod_netns("ignored");
    let ended = istio_iptables(&netns, &[("ISTIO_META_DNS_CAPTURE", "yes")], &["-b", "*"]);
    let warning = "warning: ISTIO_META_DNS_CAPTURE is \"yes\", which is not a boolean: ignored\n";
    assert!(ended.code == 0 && ended.stdout.starts_with(warning), "{ended:?}");
    assert!(!netns.sh("iptables-nft-save -t nat").split_whitespace().any(|word| word == "53"));
}

#[test]
fn what_is_no_flag_is_refused() {
    let netns = pod_netns("unknown");
    let before = State::of(&netns);
    for (arguments, named) in [
        (&["--nope"][..], "--nope"),
        (&["-Z", "1"], "-Z"),
        (&["word"], "word"),
        (&["--envoy-port"], "envoy-port"),
    ] {
        let Ended { code, stderr, .. } = istio_iptables(&netns, &[], arguments);
        assert_eq!(code, 1, "{arguments:?}: {stderr}");
        assert!(stderr.contains(named), "{arguments:?}: {stderr}");
    }
    let help = istio_iptables(&netns, &[], &["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    let flag = "  -x, --istio-service-exclude-cidr string";
    assert!(help.stdout.lines().any(|line| line == flag), "{}", help.stdout);
    State::of(&netns).assert_is(&before, "refused calls");
}

#[test]
fn a_namespace_without_an_address_is_refused() {
    let netns = kit::Netns::new("no-address");
    for arguments in [&[][..], &["--dry-run"]] {
        let ended = istio_iptables(&netns, &[], arguments);
        assert_eq!(ended.code, 1, "{ended:?}");
        let why = "the network namespace has no address beyond loopback and link-local ones";
        assert_eq!(ended.stderr, format!("istio-iptables: {why}\n"));
    }
}

#[test]
fn rules_that_the_kernel_does_not_evaluate_are_no_redirection() {
    let netns = pod_netns("dormant");
    netns.pipe("nft -f -", "add table ip nat { flags dormant; }");
    let ended = istio_iptables(&netns, &[], &[]);
    let why = "nf_tables ip nat is dormant, so the kernel does not evaluate our rules there";
    assert_eq!((ended.code, ended.stderr), (1, format!("istio-iptables: the rules are there, but {why}\n")));
}

/// Errors of failing host tools are quoted. Only legacy tables need them.
#[test]
fn a_failing_tool_is_told_in_its_own_words() {
    let (netns, dir) = (pod_netns("tool"), super::tool::tempdir());
    let tool = dir.path().join("iptables-legacy-restore");
    std::fs::write(&tool, "#!/bin/sh\necho 'RULE_APPEND failed (Invalid argument)' >&2\nexit 4\n").unwrap();
    netns.sh(&format!("chmod 755 {}", tool.display()));
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let ended = istio_iptables(&netns, &[("PATH", &path)], &["--iptables-backend", "legacy"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let why = "resource problem (exit status 4): RULE_APPEND failed (Invalid argument)";
    assert_eq!(ended.stderr, format!("istio-iptables: {} failed: {why}\n", tool.display()));
    let nothing = istio_iptables(&netns, &[("PATH", "/nonexistent")], &["--iptables-backend", "legacy"]);
    assert_eq!(nothing.code, 1);
    let why =
        "no iptables-restore for the legacy backend in /nonexistent (Debian and RHEL: package iptables)";
    assert_eq!(nothing.stderr, format!("istio-iptables: {why}\n"));
}

/// The tool of the other family is not killed half-way.
#[test]
fn a_tool_that_cannot_be_started_leaves_the_other_family_redirected() {
    let (netns, dir) = (pod_netns("unstarted"), super::tool::tempdir());
    let real = netns.pipe("sh", "command -v iptables-legacy-restore");
    let slow = format!("#!/bin/sh\nsleep 0.5\nexec {} \"$@\"\n", real.trim());
    kit::write_script(&dir.path().join("iptables-legacy-restore"), &slow);
    kit::write_script(&dir.path().join("ip6tables-legacy-restore"), "#!/nonexistent\n");
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let arguments = ["-b", "*", "--dual-stack", "--iptables-backend", "legacy"];
    let ended = istio_iptables(&netns, &[("PATH", &path)], &arguments);
    let tool = dir.path().join("ip6tables-legacy-restore");
    let why = format!("cannot run {}: No such file or directory (os error 2)", tool.display());
    assert_eq!((ended.code, ended.stderr), (1, format!("istio-iptables: {why}\n")));
    let [v4, v6] = ["iptables", "ip6tables"].map(|tool| format!("{tool}-legacy-save -t nat"));
    assert!(netns.has_rule(&v4, "-A OUTPUT -p tcp -j ISTIO_OUTPUT"));
    assert!(!netns.has_rule(&v6, "-A OUTPUT -p tcp -j ISTIO_OUTPUT"));
}

#[test]
fn no_tool_is_needed_for_nf_tables() {
    let netns = pod_netns("no-tool");
    let ended = istio_iptables(&netns, &[("PATH", "/nonexistent")], &[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.stdout.lines().next(), Some("IPv4: redirected (nft backend)"), "{ended:?}");
    assert!(netns.has_rule("iptables-nft-save -t nat", "-A OUTPUT -p tcp -j ISTIO_OUTPUT"));
}
