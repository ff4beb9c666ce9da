//! Flags of Istio 1.29 to 1.31, beside those of in-pod capture. Istio has no flags for some of them, only the
//! variables. The last one is ours.

use flags::Flag;

pub const CNI_AGENT_RUN_DIR: Flag = Flag {
    long: "cni-agent-run-dir",
    env: &["CNI_AGENT_RUN_DIR"],
    default: "/var/run/istio-cni",
    help: "directory of the sockets, on the host and in the container; without a template also of the plugin's kubeconfig",
    ..Flag::VALUE
};
pub const CNI_CONF_GROUP_READ: Flag = Flag {
    long: "cni-conf-group-read",
    env: &["CNI_CONF_GROUP_READ"],
    help: "make configurations that the agent owns readable by their group",
    ..Flag::SWITCH
};
pub const AMBIENT_RECONCILE_POD_RULES_ON_STARTUP: Flag = Flag {
    long: "ambient-reconcile-pod-rules-on-startup",
    env: &["AMBIENT_RECONCILE_POD_RULES_ON_STARTUP"],
    default: "true",
    help: "accepted for compatibility; rules of pods are always reconciled",
    ..Flag::SWITCH
};
pub const ENABLE_AMBIENT_DETECTION_RETRY: Flag = Flag {
    long: "enable-ambient-detection-retry",
    env: &["ENABLE_AMBIENT_DETECTION_RETRY"],
    help: "accepted for compatibility; the plugin always retries",
    ..Flag::SWITCH
};
pub const AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE: Flag = Flag {
    long: "ambient-enable-aws-branch-eni-probe",
    env: &["AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE"],
    default: "true",
    help: "route the node's probes of pods with an AWS branch ENI through their veth",
    ..Flag::SWITCH
};
pub const NATIVE_NFTABLES: Flag = Flag {
    long: "native-nftables",
    env: &["NATIVE_NFTABLES"],
    help: "make the rules of pods as tables of family inet, where a pod has no other rules of Istio's",
    ..Flag::SWITCH
};
pub const AMBIENT_DISABLE_SAFE_UPGRADE: Flag = Flag {
    long: "ambient-disable-safe-upgrade",
    env: &["AMBIENT_DISABLE_SAFE_UPGRADE"],
    help: "clean up at every shutdown, unless --cleanup-on-exit is set",
    ..Flag::SWITCH
};
pub const HOST_ROOT: Flag = Flag {
    long: "host-root",
    env: &["HOST_ROOT"],
    default: "/host",
    help: "where the host's root is mounted, for paths that Istio's own plugin sends",
    ..Flag::VALUE
};

pub const NEWER: &[Flag] = &[
    CNI_AGENT_RUN_DIR,
    CNI_CONF_GROUP_READ,
    AMBIENT_RECONCILE_POD_RULES_ON_STARTUP,
    ENABLE_AMBIENT_DETECTION_RETRY,
    AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE,
    NATIVE_NFTABLES,
    AMBIENT_DISABLE_SAFE_UPGRADE,
    HOST_ROOT,
];
