//! Flags of Istio since 1.21, except those of in-pod capture. For some of them Istio has variables only. The last one is ours.

use flags::Flag;

flags::flag_table!(
    NEWER,
    CNI_AGENT_RUN_DIR = Flag::with_value(
        "/var/run/istio-cni",
        "directory of the sockets, on the host and in the container; without a template also of the \
         plugin's kubeconfig"
    ),
    CNI_EVENT_ADDRESS = Flag::with_value(
        "/var/run/istio-cni/pluginevent.sock",
        "socket for requests of Istio's own plugin; default in --cni-agent-run-dir"
    ),
    CNI_CONF_GROUP_READ = Flag::new_switch("make configurations that the agent owns readable by their group"),
    AMBIENT_RECONCILE_POD_RULES_ON_STARTUP =
        Flag::new_switch_on("accepted for compatibility; rules of pods are always reconciled"),
    ENABLE_AMBIENT_DETECTION_RETRY =
        Flag::new_switch("accepted for compatibility; the plugin always retries"),
    AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE =
        Flag::new_switch_on("route the node's probes of pods with an AWS branch ENI through their veth"),
    NATIVE_NFTABLES = Flag::new_switch(
        "use native nftables tables (family inet) for pods' rules where no other Istio rules exist"
    ),
    AMBIENT_DISABLE_SAFE_UPGRADE =
        Flag::new_switch("clean up at every shutdown, unless --cleanup-on-exit is set"),
    HOST_ROOT = Flag::with_value(
        "/host",
        "where the host's root is mounted, for paths that Istio's own plugin sends"
    ),
);
