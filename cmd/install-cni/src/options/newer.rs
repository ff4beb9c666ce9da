//! Flags of Istio 1.29 to 1.31, beside those of in-pod capture. Istio has no flags for some of them, only the
//! variables. The last one is ours.

use flags::{Flag, flag, switch};

pub(crate) const NEWER: &[Flag] = &[
    flag(
        "cni-agent-run-dir",
        None,
        &["CNI_AGENT_RUN_DIR"],
        "/var/run/istio-cni",
        "directory of the sockets, on the host and in the container; without a template also of the plugin's kubeconfig",
    ),
    switch(
        "cni-conf-group-read",
        None,
        &["CNI_CONF_GROUP_READ"],
        "false",
        "network configurations of our own can be read by their group",
    ),
    switch(
        "ambient-reconcile-pod-rules-on-startup",
        None,
        &["AMBIENT_RECONCILE_POD_RULES_ON_STARTUP"],
        "true",
        "accepted for compatibility; pods' rules are always kept as they should be",
    ),
    switch(
        "enable-ambient-detection-retry",
        None,
        &["ENABLE_AMBIENT_DETECTION_RETRY"],
        "false",
        "accepted for compatibility, and told the plugin, which always tries again",
    ),
    switch(
        "ambient-enable-aws-branch-eni-probe",
        None,
        &["AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE"],
        "true",
        "route the node's probes of pods with an AWS branch network interface by their veth links",
    ),
    switch(
        "native-nftables",
        None,
        &["NATIVE_NFTABLES"],
        "false",
        "accepted for compatibility; rules always go through the iptables tools",
    ),
    switch(
        "ambient-disable-safe-upgrade",
        None,
        &["AMBIENT_DISABLE_SAFE_UPGRADE"],
        "false",
        "clean up at every end, unless --cleanup-on-exit says something else",
    ),
    flag(
        "host-root",
        None,
        &["HOST_ROOT"],
        "/host",
        "where paths of the host are seen that Istio's own plugin tells",
    ),
];
