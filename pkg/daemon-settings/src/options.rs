//! Every flag of `install-cni`, with its variable and default. They are Istio's, but for those below the line.
#![expect(missing_docs, reason = "each flag has its help text")]

mod inpod;
mod newer;

use std::sync::LazyLock;

use flags::{Flag, FlagStyle};

pub use inpod::*;
pub use newer::*;

pub const CNI_NET_DIR: Flag = Flag {
    long: "cni-net-dir",
    env: &["CNI_NET_DIR"],
    default: "/etc/cni/net.d",
    help: "CNI configuration directory on the host",
    ..Flag::VALUE
};
pub const MOUNTED_CNI_NET_DIR: Flag = Flag {
    long: "mounted-cni-net-dir",
    env: &["MOUNTED_CNI_NET_DIR"],
    default: "/host/etc/cni/net.d",
    help: "that directory as mounted in the container",
    ..Flag::VALUE
};
pub const CNI_CONF_NAME: Flag = Flag {
    long: "cni-conf-name",
    env: &["CNI_CONF_NAME"],
    help: "configuration file to add the istio-cni entry to; empty: the first one",
    ..Flag::VALUE
};
pub const CHAINED_CNI_PLUGIN: Flag = Flag {
    long: "chained-cni-plugin",
    env: &["CHAINED_CNI_PLUGIN"],
    default: "true",
    help: "chain istio-cni after the existing plugins; false: write a standalone configuration",
    ..Flag::SWITCH
};
pub const CNI_NETWORK_CONFIG: Flag = Flag {
    long: "cni-network-config",
    env: &["CNI_NETWORK_CONFIG"],
    help: "template of the istio-cni entry; without any template, the entry is built from the settings, as in Istio 1.29 to 1.31",
    ..Flag::VALUE
};
pub const CNI_NETWORK_CONFIG_FILE: Flag = Flag {
    long: "cni-network-config-file",
    env: &["CNI_NETWORK_CONFIG_FILE"],
    help: "file with the template; overrides --cni-network-config if it exists",
    ..Flag::VALUE
};
pub const LOG_LEVEL: Flag = Flag {
    long: "log-level",
    env: &["LOG_LEVEL"],
    default: "warn",
    help: "value of __LOG_LEVEL__ in the template",
    ..Flag::VALUE
};
pub const KUBECFG_FILE_NAME: Flag = Flag {
    long: "kubecfg-file-name",
    env: &["KUBECFG_FILE_NAME"],
    default: "ZZZ-istio-cni-kubeconfig",
    help: "file name of the plugin's kubeconfig in the CNI configuration directory (with a template)",
    ..Flag::VALUE
};
pub const KUBECONFIG_MODE: Flag = Flag {
    long: "kubeconfig-mode",
    env: &["KUBECONFIG_MODE"],
    default: "0600",
    help: "permission bits of the kubeconfig",
    ..Flag::VALUE
};
pub const KUBE_CA_FILE: Flag = Flag {
    long: "kube-ca-file",
    env: &["KUBE_CA_FILE"],
    help: "CA certificates of the API server; empty: the service account's",
    ..Flag::VALUE
};
pub const SKIP_TLS_VERIFY: Flag = Flag {
    long: "skip-tls-verify",
    env: &["SKIP_TLS_VERIFY"],
    help: "do not verify the API server's certificate (insecure)",
    ..Flag::SWITCH
};
pub const MONITORING_PORT: Flag = Flag {
    long: "monitoring-port",
    env: &["MONITORING_PORT"],
    default: "15014",
    help: "port of /metrics; 0 or less disables it",
    ..Flag::VALUE
};
pub const LOG_UDS_ADDRESS: Flag = Flag {
    long: "log-uds-address",
    env: &["LOG_UDS_ADDRESS"],
    default: "/var/run/istio-cni/log.sock",
    help: "socket that receives the plugin's log lines; empty disables it; default in --cni-agent-run-dir",
    ..Flag::VALUE
};
pub const AMBIENT_ENABLED: Flag = Flag {
    long: "ambient-enabled",
    env: &["AMBIENT_ENABLED"],
    help: "enable ambient mode on this node",
    ..Flag::SWITCH
};
pub const EBPF_ENABLED: Flag = Flag {
    long: "ebpf-enabled",
    env: &["EBPF_ENABLED"],
    help: "accepted for compatibility; there is no eBPF mode",
    ..Flag::SWITCH
};
pub const REPAIR_ENABLED: Flag = Flag {
    long: "repair-enabled",
    env: &["REPAIR_ENABLED"],
    default: "true",
    help: "repair pods that started before the plugin was installed",
    ..Flag::SWITCH
};
pub const REPAIR_DELETE_PODS: Flag = Flag {
    long: "repair-delete-pods",
    env: &["REPAIR_DELETE_PODS"],
    help: "repair broken pods by deleting them",
    ..Flag::SWITCH
};
pub const REPAIR_LABEL_PODS: Flag = Flag {
    long: "repair-label-pods",
    env: &["REPAIR_LABEL_PODS"],
    help: "label broken pods",
    ..Flag::SWITCH
};
pub const REPAIR_REPAIR_PODS: Flag = Flag {
    long: "repair-repair-pods",
    env: &["REPAIR_REPAIR_PODS"],
    help: "repair broken pods in place",
    ..Flag::SWITCH
};
pub const REPAIR_BROKEN_POD_LABEL_KEY: Flag = Flag {
    long: "repair-broken-pod-label-key",
    env: &["REPAIR_BROKEN_POD_LABEL_KEY"],
    default: "cni.istio.io/uninitialized",
    help: "key of the label for broken pods",
    ..Flag::VALUE
};
pub const REPAIR_BROKEN_POD_LABEL_VALUE: Flag = Flag {
    long: "repair-broken-pod-label-value",
    env: &["REPAIR_BROKEN_POD_LABEL_VALUE"],
    default: "true",
    help: "its value",
    ..Flag::VALUE
};
pub const REPAIR_NODE_NAME: Flag = Flag {
    long: "repair-node-name",
    env: &["REPAIR_NODE_NAME"],
    help: "node whose pods are checked for repair",
    ..Flag::VALUE
};
pub const REPAIR_SIDECAR_ANNOTATION: Flag = Flag {
    long: "repair-sidecar-annotation",
    env: &["REPAIR_SIDECAR_ANNOTATION"],
    default: "sidecar.istio.io/status",
    help: "annotation that identifies injected pods",
    ..Flag::VALUE
};
pub const REPAIR_INIT_CONTAINER_NAME: Flag = Flag {
    long: "repair-init-container-name",
    env: &["REPAIR_INIT_CONTAINER_NAME"],
    default: "istio-validation",
    help: "init container whose failure marks a pod as broken",
    ..Flag::VALUE
};
pub const REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE: Flag = Flag {
    long: "repair-init-container-termination-message",
    env: &["REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE"],
    help: "its termination message to match; empty matches any",
    ..Flag::VALUE
};
pub const REPAIR_INIT_CONTAINER_EXIT_CODE: Flag = Flag {
    long: "repair-init-container-exit-code",
    env: &["REPAIR_INIT_CONTAINER_EXIT_CODE"],
    default: "126",
    help: "its exit code to match; 0 matches any",
    ..Flag::VALUE
};
pub const REPAIR_LABEL_SELECTORS: Flag = Flag {
    long: "repair-label-selectors",
    env: &["REPAIR_LABEL_SELECTORS"],
    help: "label selector of pods to check",
    ..Flag::VALUE
};
pub const REPAIR_FIELD_SELECTORS: Flag = Flag {
    long: "repair-field-selectors",
    env: &["REPAIR_FIELD_SELECTORS"],
    help: "field selector of pods to check",
    ..Flag::VALUE
};
pub const REPAIR_DRY_RUN: Flag = Flag {
    long: "repair-dry-run",
    env: &["REPAIR_DRY_RUN"],
    help: "log which pods would be repaired, and change nothing",
    ..Flag::SWITCH
};
pub const CTRLZ_PORT: Flag = Flag {
    long: "ctrlz_port",
    default: "9876",
    help: "port of the node's debug page and state JSON; 0 or less disables it; on the node's network (ambient mode \
           without --allow-switch-to-host-ns), it is closed unless this flag is given",
    ..Flag::VALUE
};
pub const CTRLZ_ADDRESS: Flag = Flag {
    long: "ctrlz_address",
    default: "localhost",
    help: "address to listen on; * listens on all",
    ..Flag::VALUE
};
// Istio's newer releases have these two.
pub const ISTIO_OWNED_CNI_CONFIG: Flag = Flag {
    long: "istio-owned-cni-config",
    env: &["ISTIO_OWNED_CNI_CONFIG"],
    help: "write a complete copy of the configuration, with the istio-cni entry, to a file that sorts first",
    ..Flag::SWITCH
};
pub const ISTIO_OWNED_CNI_CONFIG_FILENAME: Flag = Flag {
    long: "istio-owned-cni-config-filename",
    env: &["ISTIO_OWNED_CNI_CONFIG_FILENAME", "ISTIO_OWNED_CNI_CONF_FILENAME"],
    default: "02-istio-cni.conflist",
    help: "file name of that copy",
    ..Flag::VALUE
};
// And Millrace has these.
pub const CNI_CONFIG_MAP: Flag = Flag {
    long: "cni-config-map",
    env: &["CNI_CONFIG_MAP"],
    help: "ConfigMap ([namespace/]name) with the template, watched for changes; empty disables it",
    ..Flag::VALUE
};
pub const CNI_CONFIG_MAP_KEY: Flag = Flag {
    long: "cni-config-map-key",
    env: &["CNI_CONFIG_MAP_KEY"],
    default: "cni_network_config",
    help: "key of the template in the ConfigMap",
    ..Flag::VALUE
};
pub const WRITE_KUBECONFIG: Flag = Flag {
    long: "write-kubeconfig",
    env: &["WRITE_KUBECONFIG"],
    default: "true",
    help: "write the plugin's kubeconfig; false: the plugin queries only the agent",
    ..Flag::SWITCH
};
pub const CLEANUP_ON_EXIT: Flag = Flag {
    long: "cleanup-on-exit",
    env: &["CLEANUP_ON_EXIT"],
    default: "auto",
    help: "when to remove everything at shutdown: auto (the DaemonSet is deleted or no longer selects this node), always, never",
    ..Flag::VALUE
};
pub const DAEMON_SET: Flag = Flag {
    long: "daemon-set",
    env: &["DAEMON_SET"],
    help: "name of the agent's DaemonSet; empty: the owner of the agent's pod, else istio-cni-node",
    ..Flag::VALUE
};
pub const METRICS_BY_NAMESPACE: Flag = Flag {
    long: "metrics-by-namespace",
    env: &["METRICS_BY_NAMESPACE"],
    help: "count pods of the mesh by namespace as well: metric istio_cni_mesh_pods_by_namespace",
    ..Flag::SWITCH
};
pub const PROOF_INTERVAL: Flag = Flag {
    long: "proof-interval",
    env: &["PROOF_INTERVAL"],
    default: "0",
    help: "prove by packets how the traffic of one pod after another is redirected, one pod each time, such as 10s: metric \
           istio_cni_proof_paths; 0: never",
    ..Flag::VALUE
};
pub const DRIFT_ATTRIBUTION: Flag = Flag {
    long: "drift-attribution",
    env: &["DRIFT_ATTRIBUTION"],
    help: "where the process that changes firewall rules is named: node: on the node as well as in pods, which makes each transaction \
           of others on the node up to a third slower; empty: in pods only",
    ..Flag::VALUE
};
pub const NODE_CONDITION: Flag = Flag {
    long: "node-condition",
    env: &["NODE_CONDITION"],
    help: "maintain the node condition IstioCNIReady (requires permission to patch nodes/status)",
    ..Flag::SWITCH
};
pub const POD_NAMESPACE: Flag = Flag {
    long: "pod-namespace",
    env: &["POD_NAMESPACE"],
    help: "the agent's namespace; empty: the service account's",
    ..Flag::VALUE
};
pub const POD_NAME: Flag = Flag {
    long: "pod-name",
    env: &["POD_NAME"],
    help: "the agent's pod; empty: the host name",
    ..Flag::VALUE
};
pub const NODE_NAME: Flag = Flag {
    long: "node-name",
    env: &["NODE_NAME", "KUBERNETES_NODE_NAME"],
    help: "the agent's node; empty: --repair-node-name, else the host name",
    ..Flag::VALUE
};
// Ambient mode.
pub const POD_SOURCE: Flag = Flag {
    long: "pod-source",
    env: &["POD_SOURCE"],
    default: "api",
    help: "source of pods and namespaces: api, or dir:<path> for a directory of manifests",
    ..Flag::VALUE
};
pub const AGENT_SOCKET: Flag = Flag {
    long: "agent-socket",
    env: &["AGENT_SOCKET"],
    default: "/var/run/istio-cni/agent.sock",
    help: "socket for requests of the plugin; default in --cni-agent-run-dir",
    ..Flag::VALUE
};
pub const AMBIENT_CONFIG_FILE: Flag = Flag {
    long: "ambient-config-file",
    env: &["AMBIENT_CONFIG_FILE"],
    default: "/etc/ambient-config/config.json",
    help: "configuration file shared by agent and plugin",
    ..Flag::VALUE
};
pub const NO_ZTUNNEL_POLICY: Flag = Flag {
    long: "no-ztunnel-policy",
    env: &["NO_ZTUNNEL_POLICY"],
    default: "hold",
    help: "policy for TCP of enrolled pods while no ztunnel is ready: hold, reject or open",
    ..Flag::VALUE
};
pub const NO_ZTUNNEL_POLICY_FILE: Flag = Flag {
    long: "no-ztunnel-policy-file",
    env: &["NO_ZTUNNEL_POLICY_FILE"],
    help: "file with the policy, watched for changes, such as a mounted ConfigMap; empty disables it",
    ..Flag::VALUE
};
pub const SYSTEM_NAMESPACE: Flag = Flag {
    long: "system-namespace",
    env: &["SYSTEM_NAMESPACE"],
    default: "istio-system",
    help: "namespace of ztunnel's pods; by default also the agent's own",
    ..Flag::VALUE
};
pub const ZTUNNEL_SERVICE_ACCOUNT: Flag = Flag {
    long: "ztunnel-service-account",
    env: &["ZTUNNEL_SERVICE_ACCOUNT"],
    default: "ztunnel",
    help: "service account of ztunnel's pods",
    ..Flag::VALUE
};
pub const ZTUNNEL_LABEL: Flag = Flag {
    long: "ztunnel-label",
    env: &["ZTUNNEL_LABEL"],
    default: "app=ztunnel",
    help: "label of ztunnel's pods",
    ..Flag::VALUE
};
pub const AMBIENT_TABLES: Flag = Flag {
    long: "ambient-tables",
    env: &["AMBIENT_TABLES"],
    default: "100,101,110,120,130",
    help: "routing tables: inbound, outbound, and the first of two each for inbound, outbound and return of a slot",
    ..Flag::VALUE
};
pub const AMBIENT_RULE_PRIORITY: Flag = Flag {
    long: "ambient-rule-priority",
    env: &["AMBIENT_RULE_PRIORITY"],
    default: "100",
    help: "priority of the first of ten policy rules",
    ..Flag::VALUE
};
pub const NETNS_DIR: Flag = Flag {
    long: "netns-dir",
    env: &["NETNS_DIR"],
    default: "/var/run/netns",
    help: "where the container runtime mounts network namespaces; also searched below --host-root",
    ..Flag::VALUE
};
pub const FORCE_IPTABLES_BINARY: Flag = Flag {
    long: "force-iptables-binary",
    env: &["FORCE_IPTABLES_BINARY"],
    help: "iptables backend of the node: nft or legacy; empty: the one in use",
    ..Flag::VALUE
};

/// The daemon's flags. Those of in-pod capture, newer ones and logging flags come in addition (`IN_POD`, `NEWER` and
/// [`flags::LOGGING`]).
pub const FLAGS: &[Flag] = &[
    CNI_NET_DIR,
    MOUNTED_CNI_NET_DIR,
    CNI_CONF_NAME,
    CHAINED_CNI_PLUGIN,
    CNI_NETWORK_CONFIG,
    CNI_NETWORK_CONFIG_FILE,
    LOG_LEVEL,
    KUBECFG_FILE_NAME,
    KUBECONFIG_MODE,
    KUBE_CA_FILE,
    SKIP_TLS_VERIFY,
    MONITORING_PORT,
    LOG_UDS_ADDRESS,
    AMBIENT_ENABLED,
    EBPF_ENABLED,
    REPAIR_ENABLED,
    REPAIR_DELETE_PODS,
    REPAIR_LABEL_PODS,
    REPAIR_REPAIR_PODS,
    REPAIR_BROKEN_POD_LABEL_KEY,
    REPAIR_BROKEN_POD_LABEL_VALUE,
    REPAIR_NODE_NAME,
    REPAIR_SIDECAR_ANNOTATION,
    REPAIR_INIT_CONTAINER_NAME,
    REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE,
    REPAIR_INIT_CONTAINER_EXIT_CODE,
    REPAIR_LABEL_SELECTORS,
    REPAIR_FIELD_SELECTORS,
    REPAIR_DRY_RUN,
    CTRLZ_PORT,
    CTRLZ_ADDRESS,
    // Istio's newer releases have these two.
    ISTIO_OWNED_CNI_CONFIG,
    ISTIO_OWNED_CNI_CONFIG_FILENAME,
    // And Millrace has these.
    CNI_CONFIG_MAP,
    CNI_CONFIG_MAP_KEY,
    WRITE_KUBECONFIG,
    CLEANUP_ON_EXIT,
    DAEMON_SET,
    NODE_CONDITION,
    METRICS_BY_NAMESPACE,
    PROOF_INTERVAL,
    DRIFT_ATTRIBUTION,
    POD_NAMESPACE,
    POD_NAME,
    NODE_NAME,
    // Ambient mode.
    POD_SOURCE,
    AGENT_SOCKET,
    AMBIENT_CONFIG_FILE,
    NO_ZTUNNEL_POLICY,
    NO_ZTUNNEL_POLICY_FILE,
    SYSTEM_NAMESPACE,
    ZTUNNEL_SERVICE_ACCOUNT,
    ZTUNNEL_LABEL,
    AMBIENT_TABLES,
    AMBIENT_RULE_PRIORITY,
    NETNS_DIR,
    FORCE_IPTABLES_BINARY,
];

/// Flags that Istio removed with 1.19: accepted, without effect.
pub const REMOVED: &[Flag] = &[
    Flag { long: "update-cni-binaries", env: &["UPDATE_CNI_BINARIES"], default: "true", ..Flag::SWITCH },
    Flag { long: "skip-cni-binaries", env: &["SKIP_CNI_BINARIES"], ..Flag::VALUE },
    Flag { long: "cni-enable-install", env: &["CNI_ENABLE_INSTALL"], default: "true", ..Flag::SWITCH },
    Flag { long: "cni-enable-reinstall", env: &["CNI_ENABLE_REINSTALL"], default: "true", ..Flag::SWITCH },
    Flag { long: "repair-run-as-daemon", default: "true", ..Flag::SWITCH }, // Istio's chart sets the variable to this day
];

/// How the flags are read.
pub const STYLE: FlagStyle = FlagStyle { ignored: REMOVED };

/// Every flag.
pub static ALL: LazyLock<Vec<Flag>> = LazyLock::new(|| [FLAGS, IN_POD, NEWER, flags::LOGGING].concat());

#[cfg(test)]
mod tests {
    use super::*;

    /// How many flags a source file defines.
    fn defined(source: &str) -> usize {
        source.lines().filter(|line| line.starts_with("pub const") && line.contains(": Flag = ")).count()
    }

    #[test]
    fn every_flag_is_in_its_table_once() {
        assert_eq!(defined(include_str!("options.rs")), FLAGS.len());
        assert_eq!(defined(include_str!("options/inpod.rs")), IN_POD.len());
        assert_eq!(defined(include_str!("options/newer.rs")), NEWER.len());
        let all = [FLAGS, IN_POD, NEWER, flags::LOGGING].concat();
        let names: std::collections::BTreeSet<_> = all.iter().map(|flag| flag.long).collect();
        assert_eq!(names.len(), all.len());
    }
}
