//! The flags that say how the tool works: what it does with the rules, by which means, and how it validates them.

use flags::Flag;

pub(super) const DRY_RUN: Flag = Flag {
    long: "dry-run",
    short: Some('n'),
    env: &["DRY_RUN"],
    help: "only print what would be done",
    ..Flag::SWITCH
};
pub(super) const RESTORE_FORMAT: Flag = Flag {
    long: "restore-format",
    short: Some('f'),
    env: &["RESTORE_FORMAT"],
    default: "true",
    help: "with --dry-run, print one iptables-restore instead of one command per rule",
    ..Flag::SWITCH
};
pub(super) const IPTABLES_PROBE_PORT: Flag = Flag {
    long: "iptables-probe-port",
    env: &["IPTABLES_PROBE_PORT"],
    default: "15002",
    help: "port that the validation calls",
    ..Flag::VALUE
};
pub(super) const PROBE_TIMEOUT: Flag = Flag {
    long: "probe-timeout",
    env: &["PROBE_TIMEOUT"],
    default: "5s",
    help: "how long the validation tries",
    ..Flag::VALUE
};
pub(super) const SKIP_RULE_APPLY: Flag =
    Flag { long: "skip-rule-apply", env: &["SKIP_RULE_APPLY"], help: "change nothing", ..Flag::SWITCH };
pub(super) const RUN_VALIDATION: Flag = Flag {
    long: "run-validation",
    env: &["RUN_VALIDATION"],
    help: "prove the redirection with a connection; exit status 126 when it is not there",
    ..Flag::SWITCH
};
pub(super) const NETWORK_NAMESPACE: Flag = Flag {
    long: "network-namespace",
    env: &["NETWORK_NAMESPACE"],
    help: "accepted for compatibility: with --cni-mode the file of this namespace is the lock",
    ..Flag::VALUE
};
pub(super) const CNI_MODE: Flag = Flag {
    long: "cni-mode",
    env: &["CNI_MODE"],
    help: "work in the pod's namespace without the host's lock and name services",
    ..Flag::SWITCH
};
pub(super) const IPTABLES_VERSION: Flag = Flag {
    long: "iptables-version",
    env: &["IPTABLES_VERSION"],
    help: "accepted for compatibility: iptables' version text; 'nf_tables' in it selects that backend",
    ..Flag::VALUE
};
pub(super) const IPTABLES_BACKEND: Flag = Flag {
    long: "iptables-backend",
    env: &["IPTABLES_BACKEND"],
    help: "nft or legacy; empty: as the namespace and the host use",
    ..Flag::VALUE
};
// Of Istio 1.24 and newer.
pub(super) const FORCE_IPTABLES_BINARY: Flag = Flag {
    long: "force-iptables-binary",
    env: &["FORCE_IPTABLES_BINARY"],
    help: "the same, with the names that Istio has: iptables-nft or iptables-legacy, nft or legacy",
    ..Flag::VALUE
};
pub(super) const CLEANUP_ONLY: Flag = Flag {
    long: "cleanup-only",
    env: &["CLEANUP_ONLY"],
    help: "remove everything, as istio-clean-iptables does, and make nothing",
    ..Flag::SWITCH
};
pub(super) const RECONCILE: Flag = Flag {
    long: "reconcile",
    env: &["RECONCILE"],
    help: "accepted for compatibility; rules that differ are always repaired",
    ..Flag::SWITCH
};
pub(super) const FORCE_APPLY: Flag = Flag {
    long: "force-apply",
    env: &["FORCE_APPLY"],
    help: "accepted for compatibility; each rule is always compared with the kernel's",
    ..Flag::SWITCH
};
pub(super) const NATIVE_NFTABLES: Flag = Flag {
    long: "native-nftables",
    env: &["NATIVE_NFTABLES"],
    help: "make the rules as tables of family inet, where no other tables have rules of Istio's",
    ..Flag::SWITCH
};
