use std::{collections::BTreeSet, fs, path::Path};

use super::*;

fn unknown<T>() -> Observed<T> {
    Err("no permission".to_owned())
}

fn tables(chains: &[&str], has_legacy_tool: bool) -> PreflightFact {
    with_nft(chains, &["INPUT", "filter"], has_legacy_tool)
}

fn with_nft(chains: &[&str], nft: &[&str], has_legacy_tool: bool) -> PreflightFact {
    let [legacy_chains, nft_names] =
        [chains, nft].map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    PreflightFact::Tables(Ok(TablesInUse { legacy_chains, nft_names, has_legacy_tool }))
}

fn taken_port() -> PreflightFact {
    let message = "another process listens on TCP port 8000".to_owned();
    PreflightFact::Found(PreflightCode::PortTaken, Severity::Warning, Ok(vec![message]))
}

fn clock(issued: i64, expires: i64, now: i64) -> PreflightFact {
    PreflightFact::Clock(Ok(TokenTimes { issued, expires }), now)
}

/// A fact, its code, the severity, and the message.
type Case = (PreflightFact, PreflightCode, Option<Severity>, &'static str);

fn kernel_cases() -> Vec<Case> {
    use PreflightCode::{
        AddressSets, KernelSettings, NodeRules, PodRules, PolicyRules, SidecarRules, Tproxy, Tracking,
    };
    let mut cases = Vec::new();
    let codes =
        [PodRules, PolicyRules, AddressSets, NodeRules, Tracking, SidecarRules, Tproxy, KernelSettings];
    for code in codes {
        let refused = || Trial::Refused("kernel: no".to_owned());
        let untried = || Trial::NotTested("no permission".to_owned());
        cases.extend([
            (PreflightFact::Kernel(code, Trial::Accepted, true), code, None, ""),
            (PreflightFact::Kernel(code, refused(), true), code, Some(Severity::Error), "kernel: no"),
            (PreflightFact::Kernel(code, refused(), false), code, Some(Severity::Warning), "kernel: no"),
            // Never passed, and never an error.
            (PreflightFact::Kernel(code, untried(), true), code, Some(Severity::Unknown), "no permission"),
            (PreflightFact::Kernel(code, untried(), false), code, Some(Severity::Unknown), "no permission"),
        ]);
    }
    cases
}

fn found_cases() -> Vec<Case> {
    use PreflightCode::{NumbersTaken, PortTaken, ProbeAddressTaken, ReadOnly, SocketTaken};
    let mut cases = Vec::new();
    for code in [NumbersTaken, PortTaken, ProbeAddressTaken, ReadOnly, SocketTaken] {
        for severity in [Severity::Warning, Severity::Error] {
            let found = || Ok(vec!["one".to_owned(), "two".to_owned()]);
            cases.extend([
                (PreflightFact::Found(code, severity, Ok(Vec::new())), code, None, ""),
                (PreflightFact::Found(code, severity, found()), code, Some(severity), "one; two"),
                (
                    PreflightFact::Found(code, severity, unknown()),
                    code,
                    Some(Severity::Unknown),
                    "no permission",
                ),
            ]);
        }
    }
    cases
}

fn other_cases() -> Vec<Case> {
    use PreflightCode as Code;
    use PreflightFact as Fact;
    let (warning, error, not_known) =
        (Some(Severity::Warning), Some(Severity::Error), Some(Severity::Unknown));
    let kube = "legacy tables hold rules in 2 chains, by their names of kube-proxy or the kubelet";
    vec![
        (tables(&[], false), Code::LegacyTables, None, "no legacy tables with rules"),
        (tables(&["KUBE-A", "KUBE-B"], true), Code::LegacyTables, None, kube),
        (
            tables(&["INPUT"], false),
            Code::LegacyTables,
            warning,
            "legacy tables hold rules in 1 chain, and there is no iptables-legacy here",
        ),
        (
            with_nft(
                &[],
                &["kube-proxy", "KUBE-IPTABLES-HINT", "firewalld", "ufw-user-input", "calico", "x"],
                false,
            ),
            Code::LegacyTables,
            None,
            "no legacy tables with rules; nf_tables have those of Calico, firewalld, kube-proxy or the kubelet, ufw",
        ),
        (
            with_nft(&["CILIUM_INPUT"], &["docker-bridges", "ovn-kubernetes"], false),
            Code::LegacyTables,
            warning,
            "legacy tables hold rules in 1 chain, by their names of Cilium, and there is no iptables-legacy here; \
             nf_tables have those of Docker, OVN-Kubernetes",
        ),
        (
            Fact::PodNumbers(Ok((2, Vec::new()))),
            Code::PodNumbersTaken,
            None,
            "network namespaces of pods examined: 2",
        ),
        (
            Fact::PodNumbers(Ok((1, (1..=6).map(|number| format!("rule {number}")).collect()))),
            Code::PodNumbersTaken,
            warning,
            "rule 1; rule 2; rule 3; rule 4; and 2 more",
        ),
        (
            sources(&["10.0.0.1", "fd00::1"], &["169.254.7.127", "fd00::1"], &[]),
            Code::ProbeSource,
            None,
            "the node reaches its pods from 10.0.0.1 and fd00::1; probes come from 169.254.7.127 and fd00::1",
        ),
        (
            sources(&[], &["169.254.7.127"], &[]),
            Code::ProbeSource,
            None,
            "the node has no route to a pod that runs; probes come from 169.254.7.127",
        ),
        (
            sources(&["10.0.0.1"], &["10.0.0.1", "fd00::7"], &["fd00::7"]),
            Code::ProbeSource,
            warning,
            "the node reaches its pods from 10.0.0.1; not detected: fd00::7 is used",
        ),
        (Fact::Found(Code::NoInotify, Severity::Warning, Ok(vec![])), Code::NoInotify, None, ""),
        (
            Fact::Found(Code::NoInotify, Severity::Warning, Ok(vec!["full".to_owned()])),
            Code::NoInotify,
            warning,
            "full",
        ),
        (Fact::Files(None), Code::FewFiles, None, "any number"),
        (Fact::Files(Some(FILES)), Code::FewFiles, None, "at most 512 files can be open"),
        (Fact::Files(Some(FILES - 1)), Code::FewFiles, warning, "at most 511 files can be open"),
        (Fact::Memory(Ok(None)), Code::LittleMemory, None, "no limit"),
        (Fact::Memory(Ok(Some(MEMORY << 20))), Code::LittleMemory, None, "the memory limit is 32 MiB"),
        (
            Fact::Memory(Ok(Some((MEMORY << 20) - 1))),
            Code::LittleMemory,
            warning,
            "the memory limit is 31 MiB",
        ),
        (clock(1000, 4600, 1000), Code::Clock, None, ""),
        (clock(1000, 4600, 1000 - SKEW), Code::Clock, None, ""),
        (
            clock(1000, 4600, 1000 - SKEW - 1),
            Code::Clock,
            warning,
            "the clock is at least 61 s behind the time at which the token was issued",
        ),
        (
            clock(1000, 4600, 4600 + SKEW + 1),
            Code::Clock,
            warning,
            "the token expired 61 s ago: the clock is ahead, or the kubelet does not renew the token",
        ),
        (
            clock(i64::MAX, i64::MIN, 0),
            Code::Clock,
            warning,
            "the clock is at least 9223372036854775807 s behind the time at which the token was issued",
        ),
        (
            Fact::Network(Ok(Ok("/a; our entry is in it".to_owned()))),
            Code::NoNetwork,
            None,
            "/a; our entry is in it",
        ),
        (Fact::Network(Ok(Err("none yet".to_owned()))), Code::NoNetwork, warning, "none yet"),
        (selinux("spc_t", None), Code::SeLinux, None, "the agent has the type spc_t, which is not confined"),
        (
            selinux("container_t", Some(true)),
            Code::SeLinux,
            warning,
            "the agent has the type container_t, and the policy is enforced",
        ),
        (
            selinux("container_t", Some(false)),
            Code::SeLinux,
            None,
            "the agent has the type container_t, and the policy is not enforced",
        ),
        (
            selinux("container_t", None),
            Code::SeLinux,
            not_known,
            "the agent has the type container_t, and whether the policy is enforced cannot be seen",
        ),
        (
            selinux("other_t", Some(true)),
            Code::SeLinux,
            not_known,
            "it is not known here what the type other_t may do",
        ),
        (Fact::SeLinux(Ok(None)), Code::SeLinux, None, "no SELinux"),
        (Fact::AppArmor(Ok(None)), Code::AppArmor, None, "no profile"),
        (apparmor(false), Code::AppArmor, None, "the profile p denies nothing"),
        (apparmor(true), Code::AppArmor, warning, "the profile p confines the agent"),
        (own_user_namespace(Ok(vec![])), Code::UserNamespace, None, ""),
        (
            own_user_namespace(Ok(vec!["it is its own".to_owned()])),
            Code::UserNamespace,
            error,
            "it is its own",
        ),
        // Parts that could not be examined are unknown.
        (Fact::SeLinux(unknown()), Code::SeLinux, not_known, "no permission"),
        (Fact::AppArmor(unknown()), Code::AppArmor, not_known, "no permission"),
        (own_user_namespace(unknown()), Code::UserNamespace, not_known, "no permission"),
        (Fact::Tables(unknown()), Code::LegacyTables, not_known, "no permission"),
        (Fact::ProbeSources(unknown()), Code::ProbeSource, not_known, "no permission"),
        (Fact::PodNumbers(unknown()), Code::PodNumbersTaken, not_known, "no permission"),
        (Fact::Memory(unknown()), Code::LittleMemory, not_known, "no permission"),
        (Fact::Clock(unknown(), 0), Code::Clock, not_known, "no permission"),
        (Fact::Network(unknown()), Code::NoNetwork, not_known, "no permission"),
    ]
}

fn sources(routes: &[&str], used: &[&str], undetected: &[&str]) -> PreflightFact {
    let [routes, used, undetected] = [routes, used, undetected]
        .map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>());
    PreflightFact::ProbeSources(Ok(ProbeSources { routes: routes.into_iter().collect(), used, undetected }))
}

fn selinux(domain: &str, enforcing: Option<bool>) -> PreflightFact {
    PreflightFact::SeLinux(Ok(Some(SeLinuxContext { domain: domain.to_owned(), enforcing })))
}

fn own_user_namespace(found: Observed<Vec<String>>) -> PreflightFact {
    PreflightFact::Found(PreflightCode::UserNamespace, Severity::Error, found)
}

fn apparmor(enforced: bool) -> PreflightFact {
    PreflightFact::AppArmor(Ok(Some(AppArmorProfile { name: "p".to_owned(), enforced })))
}

#[test]
fn every_code_follows_from_facts_and_from_these_alone() {
    let cases = [kernel_cases(), found_cases(), other_cases()].concat();
    for (fact, code, severity, message) in &cases {
        let [check] = judge_preflight(std::slice::from_ref(fact)).try_into().unwrap();
        assert_eq!(
            (check.code.as_str(), check.severity, check.message.as_str()),
            (code.as_str(), *severity, *message),
            "{fact:?}"
        );
        let explains = !check.consequence.is_empty() && !check.advice.is_empty();
        assert_eq!(explains, severity.is_some(), "{fact:?}");
        let is_of_code = check.consequence == code.consequence() && check.advice == code.advice();
        assert_eq!(is_of_code, severity.is_some_and(|severity| severity != Severity::Unknown), "{fact:?}");
        assert_eq!(check.link, format!("docs/preflight.md#{}", code.as_str()));
    }
    let failing: BTreeSet<_> =
        cases.iter().filter(|(.., severity, _)| severity.is_some()).map(|(_, code, ..)| *code).collect();
    assert_eq!(
        failing,
        PreflightCode::ALL.iter().copied().collect(),
        "each code has a case in which it is found"
    );
}

#[test]
fn exit_status_readiness_and_findings_follow_from_the_worst() {
    let of = |facts: &[PreflightFact]| {
        let checks = judge_preflight(facts);
        let findings: Vec<_> = preflight_findings(&checks).map(|finding| finding.code).collect();
        let error = preflight_error(&checks);
        let all = NodePreflight { schema: PREFLIGHT_SCHEMA, node: "n1".to_owned(), checks };
        let statuses =
            [Severity::Warning, Severity::Unknown, Severity::Error].map(|least| all.exit_status(least));
        (statuses, error, findings.len())
    };
    let (warning, not_known) = (taken_port(), PreflightFact::Memory(unknown()));
    let error = PreflightFact::Kernel(PreflightCode::PodRules, Trial::Refused("kernel: no".to_owned()), true);
    assert_eq!(of(&[PreflightFact::Files(None)]), ([0, 0, 0], None, 0));
    assert_eq!(of(std::slice::from_ref(&warning)), ([1, 0, 0], None, 1));
    assert_eq!(of(&[warning.clone(), not_known.clone()]), ([2, 2, 0], None, 2));
    let why = "capture is impossible on this node: kernel: no (pod-rules)";
    assert_eq!(of(&[warning, not_known, error]), ([1, 1, 1], Some(why.to_owned()), 3));
}

#[test]
fn the_table_has_a_line_for_each_check_and_hints_for_what_was_found() {
    let checks = judge_preflight(&[taken_port(), PreflightFact::Files(None), clock(0, 1, 0)]);
    let preflight = NodePreflight { schema: PREFLIGHT_SCHEMA, node: "n1".to_owned(), checks };
    assert_eq!(
        preflight.render_table(false),
        "CODE        SEVERITY  FOUND\n\
         port-taken  warning   another process listens on TCP port 8000\n\
         few-files   ok        any number\n\
         clock       ok        the node's clock agrees with the service account's token\n\
         \n\
         port-taken\n    The kubelet's probes, or Prometheus, reach another process.\n    Stop the other process, or give the agent a \
         network namespace of its own; --monitoring-port and --ctrlz_port move two of the ports.\n    see \
         docs/preflight.md#port-taken for hints\n"
    );
    let suite =
        "<testsuite name=\"install-cni check\" tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"0\">";
    assert_eq!(preflight.to_junit(Severity::Warning).lines().nth(1), Some(suite));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test of a pure crate may read the documentation")]
fn each_code_has_a_section_of_the_page() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(DOCS);
    let page = fs::read_to_string(page).unwrap();
    let sections: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
    let codes: Vec<&str> = PreflightCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(sections, codes);
    for code in PreflightCode::ALL {
        for text in [code.consequence(), code.advice()] {
            assert!(page.lines().any(|line| line == text), "{}: {text}", code.as_str());
        }
    }
}
