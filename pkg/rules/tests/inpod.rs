//! The rule sets of in-pod capture: their text compared with `golden-inpod/<case>.txt` (after an intended change:
//! `MILLRACE_UPDATE_GOLDEN=1 cargo test -p rules --test inpod`, then read the diff), and their invariants.
#![expect(clippy::disallowed_methods, reason = "a test of a pure crate may read its golden files")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "properties/kernel.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod kernel;

use std::{collections::BTreeSet, fs, path::Path};

use kernel::Kernel;
use model::{Family, IfName, Port};
use rules::{
    ChainSet, JumpPlace, RuleSet, SavedTables, Table,
    inpod::{self, InPodRulesConfig, PodExceptions, PodOptions},
};

struct Case {
    name: &'static str,
    owner: ChainSet,
    rules: fn(Family) -> RuleSet,
}

fn pod(pod: &PodOptions, family: Family) -> RuleSet {
    inpod::pod_rules(&InPodRulesConfig::default(), pod, family)
}

fn virtual_machine() -> PodOptions {
    let interfaces = ["k6t-eth0", "vnet1"].map(|name| IfName::new(name).unwrap());
    PodOptions { virtual_interfaces: interfaces.to_vec(), ..PodOptions::default() }
}

const CASES: [Case; 6] = [
    Case { name: "pod", owner: ChainSet::IN_POD, rules: |family| pod(&PodOptions::default(), family) },
    Case {
        name: "pod-dns",
        owner: ChainSet::IN_POD,
        rules: |family| pod(&PodOptions { dns: true, ..PodOptions::default() }, family),
    },
    Case {
        name: "pod-bypass-inbound",
        owner: ChainSet::IN_POD,
        rules: |family| pod(&PodOptions { bypass_inbound: true, dns: true, ..PodOptions::default() }, family),
    },
    Case {
        name: "pod-virtual-interfaces",
        owner: ChainSet::IN_POD,
        rules: |family| pod(&virtual_machine(), family),
    },
    Case {
        name: "pod-virtual-interfaces-bypass-inbound",
        owner: ChainSet::IN_POD,
        rules: |family| pod(&PodOptions { bypass_inbound: true, ..virtual_machine() }, family),
    },
    Case {
        name: "host",
        owner: ChainSet::PROBES,
        rules: |family| {
            let set = if family == Family::V4 { "istio-inpod-probes-v4" } else { "istio-inpod-probes-v6" };
            inpod::host(&InPodRulesConfig::default(), set, family)
        },
    },
];

#[test]
fn every_case_prints_its_golden_text() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden-inpod");
    for case in &CASES {
        let text = |family: &Family| {
            let change = case.owner.apply(&(case.rules)(*family), &SavedTables::default());
            format!("# {family}\n{}", change.restore_text())
        };
        let text: String = Family::BOTH.iter().map(text).collect();
        let path = dir.join(case.name).with_extension("txt");
        if std::env::var_os("MILLRACE_UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(&dir).unwrap();
            fs::write(&path, &text).unwrap();
        }
        assert_eq!(text, fs::read_to_string(&path).unwrap_or_default(), "case {}", case.name);
    }
    let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
    assert_eq!(fs::read_dir(dir).unwrap().count(), names.len(), "golden files without a case");
}

/// A change of options from any one to any other is a single change, and everything is removed at the end.
#[test]
fn options_change_in_place_and_all_goes() {
    for (from, to) in CASES.iter().flat_map(|from| CASES.iter().map(move |to| (from, to))) {
        if from.owner != to.owner {
            continue;
        }
        for family in Family::BOTH {
            let mut kernel = Kernel::new();
            for case in [from, to] {
                let saved = SavedTables::parse(&kernel.save(false)).unwrap();
                kernel.restore(&case.owner.apply(&(case.rules)(family), &saved).restore_text()).unwrap();
            }
            let saved = SavedTables::parse(&kernel.save(false)).unwrap();
            let left = to.owner.apply(&(to.rules)(family), &saved);
            assert!(left.is_empty(), "{} to {}: {:?}", from.name, to.name, left.edits);
            kernel.restore(&to.owner.remove(&saved).restore_text()).unwrap();
            let saved = SavedTables::parse(&kernel.save(false)).unwrap();
            assert!(to.owner.remove(&saved).is_empty());
        }
    }
}

#[test]
fn our_rules_come_first_and_nat_switches_on_last() {
    for case in &CASES {
        for family in Family::BOTH {
            let rules = (case.rules)(family);
            assert!(
                rules
                    .tables
                    .values()
                    .flat_map(|table| &table.jumps)
                    .all(|jump| jump.place != JumpPlace::Last)
            );
            assert_eq!(rules.tables.keys().next_back(), Some(&Table::Nat), "{}", case.name);
        }
    }
}

/// For existing connections: an exception applies in the direction that the rules give it.
#[test]
fn an_exception_covers_connections_of_its_direction_only() {
    let exceptions = PodExceptions {
        outbound_ports: vec![Port(5432)],
        outbound_networks: vec!["192.0.2.0/24".parse().unwrap()],
        inbound_ports: vec![Port(9100)],
        ..PodExceptions::default()
    };
    for (local, remote, accepted, covered) in [
        ("10.0.0.2:40000", "10.0.0.9:5432", false, true),
        ("10.0.0.2:40000", "192.0.2.7:80", false, true),
        ("10.0.0.2:40000", "10.0.0.9:80", false, false),
        ("10.0.0.2:9100", "10.0.0.9:80", false, false),
        ("10.0.0.2:9100", "10.0.0.9:40000", true, true),
        ("10.0.0.2:80", "10.0.0.9:5432", true, false),
        ("10.0.0.2:80", "192.0.2.7:40000", true, false),
    ] {
        let [local_end, remote_end] = [local, remote].map(|end| end.parse().unwrap());
        assert_eq!(
            exceptions.excludes_connection(local_end, remote_end, accepted),
            covered,
            "{local} {remote} {accepted}"
        );
    }
}
