//! All flags of `install-cni`, with variables and defaults. They are Istio's, except those marked as ours.

mod inpod;
mod newer;

use std::sync::LazyLock;

use flags::{Flag, FlagStyle};

pub use inpod::*;
pub use newer::*;

/// Istio's `--ctrlz_port`. Neither this flag nor the next one has a variable.
pub const CTRLZ_PORT: Flag = Flag::with_value(
    "9876",
    "port of the node's debug page and state JSON; 0 or less disables it; on the node's network (ambient mode \
           without --allow-switch-to-host-ns), it is closed unless this flag is given",
)
.long("ctrlz_port");
/// Istio's `--ctrlz_address`.
pub const CTRLZ_ADDRESS: Flag =
    Flag::with_value("localhost", "address to listen on; * listens on all").long("ctrlz_address");

// The daemon's flags. Those of in-pod capture, newer ones and logging flags are in `IN_POD`, `NEWER` and `flags::LOGGING`.
flags::flag_table!(
    FLAGS,
    CNI_NET_DIR = Flag::with_value("/etc/cni/net.d", "CNI configuration directory on the host"),
    MOUNTED_CNI_NET_DIR =
        Flag::with_value("/host/etc/cni/net.d", "that directory as mounted in the container"),
    CNI_CONF_NAME =
        Flag::with_value("", "configuration file to add the istio-cni entry to; empty: the first one"),
    CHAINED_CNI_PLUGIN = Flag::new_switch_on(
        "chain istio-cni after the existing plugins; false: write a standalone configuration"
    ),
    CNI_NETWORK_CONFIG = Flag::with_value(
        "",
        "template of the istio-cni entry; without any template, the entry is built from the settings, \
         as in Istio 1.29 to 1.31"
    ),
    CNI_NETWORK_CONFIG_FILE =
        Flag::with_value("", "file with the template; overrides --cni-network-config if it exists"),
    LOG_LEVEL = Flag::with_value("warn", "value of __LOG_LEVEL__ in the template"),
    KUBECFG_FILE_NAME = Flag::with_value(
        "ZZZ-istio-cni-kubeconfig",
        "file name of the plugin's kubeconfig in the CNI configuration directory (with a template)"
    ),
    KUBECONFIG_MODE = Flag::with_value("0600", "permission bits of the kubeconfig"),
    KUBE_CA_FILE = Flag::with_value("", "CA certificates of the API server; empty: the service account's"),
    SKIP_TLS_VERIFY = Flag::new_switch("do not verify the API server's certificate (insecure)"),
    MONITORING_PORT = Flag::with_value("15014", "port of /metrics; 0 or less disables it"),
    LOG_UDS_ADDRESS = Flag::with_value(
        "/var/run/istio-cni/log.sock",
        "socket that receives the plugin's log lines; empty disables it; default in --cni-agent-run-dir"
    ),
    AMBIENT_ENABLED = Flag::new_switch("enable ambient mode on this node"),
    EBPF_ENABLED = Flag::new_switch("accepted for compatibility; there is no eBPF mode"),
    REPAIR_ENABLED = Flag::new_switch_on("repair pods that started before the plugin was installed"),
    REPAIR_DELETE_PODS = Flag::new_switch("repair broken pods by deleting them"),
    REPAIR_LABEL_PODS = Flag::new_switch("label broken pods"),
    REPAIR_REPAIR_PODS = Flag::new_switch("repair broken pods in place"),
    REPAIR_BROKEN_POD_LABEL_KEY =
        Flag::with_value("cni.istio.io/uninitialized", "key of the label for broken pods"),
    REPAIR_BROKEN_POD_LABEL_VALUE = Flag::with_value("true", "its value"),
    REPAIR_NODE_NAME = Flag::with_value("", "node whose pods are checked for repair"),
    REPAIR_SIDECAR_ANNOTATION =
        Flag::with_value("sidecar.istio.io/status", "annotation that identifies injected pods"),
    REPAIR_INIT_CONTAINER_NAME =
        Flag::with_value("istio-validation", "init container whose failure marks a pod as broken"),
    REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE =
        Flag::with_value("", "its termination message to match; empty matches any"),
    REPAIR_INIT_CONTAINER_EXIT_CODE = Flag::with_value("126", "its exit code to match; 0 matches any"),
    REPAIR_LABEL_SELECTORS = Flag::with_value("", "label selector of pods to check"),
    REPAIR_FIELD_SELECTORS = Flag::with_value("", "field selector of pods to check"),
    REPAIR_DRY_RUN = Flag::new_switch("log which pods would be repaired, and change nothing"),
    CTRLZ_PORT,
    CTRLZ_ADDRESS,
    // Flags of newer releases of Istio.
    ISTIO_OWNED_CNI_CONFIG = Flag::new_switch(
        "write a complete copy of the configuration, with the istio-cni entry, to a file that sorts first"
    ),
    ISTIO_OWNED_CNI_CONFIG_FILENAME = Flag::with_value("02-istio-cni.conflist", "file name of that copy")
        .env(&["ISTIO_OWNED_CNI_CONFIG_FILENAME", "ISTIO_OWNED_CNI_CONF_FILENAME"]),
    // Flags of ours.
    CNI_CONFIG_MAP = Flag::with_value(
        "",
        "ConfigMap ([namespace/]name) with the template, watched for changes; empty disables it"
    ),
    CNI_CONFIG_MAP_KEY = Flag::with_value("cni_network_config", "key of the template in the ConfigMap"),
    WRITE_KUBECONFIG =
        Flag::new_switch_on("write the plugin's kubeconfig; false: the plugin queries only the agent"),
    CLEANUP_ON_EXIT = Flag::with_value(
        "auto",
        "when to remove everything at shutdown: auto (the DaemonSet is deleted or no longer selects \
         this node), always, never"
    ),
    DAEMON_SET = Flag::with_value(
        "",
        "name of the agent's DaemonSet; empty: the owner of the agent's pod, else istio-cni-node"
    ),
    NODE_CONDITION = Flag::new_switch(
        "maintain the node condition IstioCNIReady (requires permission to patch nodes/status)"
    ),
    METRICS_BY_NAMESPACE = Flag::new_switch(
        "count pods of the mesh by namespace as well: metric istio_cni_mesh_pods_by_namespace"
    ),
    PROOF_INTERVAL = Flag::with_value(
        "0",
        "prove by packets how the traffic of one pod after another is redirected, one pod each time, such as 10s: metric \
           istio_cni_proof_paths; 0: never"
    ),
    DRIFT_ATTRIBUTION = Flag::with_value(
        "",
        "where the process that changes firewall rules is named: node: on the node as well as in pods, which slows other components' \
           nftables transactions by up to a third; empty: in pods only"
    ),
    POD_NAMESPACE = Flag::with_value("", "the agent's namespace; empty: the service account's"),
    POD_NAME = Flag::with_value("", "the agent's pod; empty: the host name"),
    NODE_NAME = Flag::with_value("", "the agent's node; empty: --repair-node-name, else the host name")
        .env(&["NODE_NAME", "KUBERNETES_NODE_NAME"]),
    // Ambient mode.
    POD_SOURCE = Flag::with_value(
        "api",
        "source of pods and namespaces: api, or dir:<path> for a directory of manifests"
    ),
    AGENT_SOCKET = Flag::with_value(
        "/var/run/istio-cni/agent.sock",
        "socket for requests of the plugin; default in --cni-agent-run-dir"
    ),
    AMBIENT_CONFIG_FILE =
        Flag::with_value("/etc/ambient-config/config.json", "configuration file shared by agent and plugin"),
    NO_ZTUNNEL_POLICY = Flag::with_value(
        "hold",
        "policy for TCP of enrolled pods while no ztunnel is ready: hold, reject or open"
    ),
    NO_ZTUNNEL_POLICY_FILE = Flag::with_value(
        "",
        "file with the policy, watched for changes, such as a mounted ConfigMap; empty disables it"
    ),
    SYSTEM_NAMESPACE =
        Flag::with_value("istio-system", "namespace of ztunnel's pods; by default also the agent's own"),
    ZTUNNEL_SERVICE_ACCOUNT = Flag::with_value("ztunnel", "service account of ztunnel's pods"),
    ZTUNNEL_LABEL = Flag::with_value("app=ztunnel", "label of ztunnel's pods"),
    AMBIENT_TABLES = Flag::with_value(
        "100,101,110,120,130",
        "routing tables: inbound, outbound, and the first of two each for inbound, outbound and return \
         of a slot"
    ),
    AMBIENT_RULE_PRIORITY = Flag::with_value("100", "priority of the first of ten policy rules"),
    NETNS_DIR = Flag::with_value(
        "/var/run/netns",
        "where the container runtime mounts network namespaces; also searched below --host-root"
    ),
    FORCE_IPTABLES_BINARY =
        Flag::with_value("", "iptables backend of the node: nft or legacy; empty: the one in use"),
);

/// Flags that Istio removed in 1.19: accepted, without effect.
pub const REMOVED: &[Flag] = &[
    Flag::new_switch_on("").long("update-cni-binaries").env(&["UPDATE_CNI_BINARIES"]),
    Flag::with_value("", "").long("skip-cni-binaries").env(&["SKIP_CNI_BINARIES"]),
    Flag::new_switch_on("").long("cni-enable-install").env(&["CNI_ENABLE_INSTALL"]),
    Flag::new_switch_on("").long("cni-enable-reinstall").env(&["CNI_ENABLE_REINSTALL"]),
    Flag::new_switch_on("").long("repair-run-as-daemon"), // Istio's chart still sets the variable
];

/// Style of parsing the flags.
pub const STYLE: FlagStyle = FlagStyle { ignored: REMOVED, takes_operands: false };

/// All flags.
pub static ALL: LazyLock<Vec<Flag>> = LazyLock::new(|| [FLAGS, IN_POD, NEWER, flags::LOGGING].concat());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|flag| flag.long).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
