//! Every flag of `install-cni`, with its variable and default. They are Istio's, but for those below the line.

mod inpod;
mod newer;

use flags::Flag;

pub(crate) use inpod::*;
pub(crate) use newer::*;

pub(crate) const CNI_NET_DIR: Flag = Flag {
    long: "cni-net-dir",
    env: &["CNI_NET_DIR"],
    default: "/etc/cni/net.d",
    help: "the directory of network configurations, on the host",
    ..Flag::VALUE
};
pub(crate) const MOUNTED_CNI_NET_DIR: Flag = Flag {
    long: "mounted-cni-net-dir",
    env: &["MOUNTED_CNI_NET_DIR"],
    default: "/host/etc/cni/net.d",
    help: "the same directory, as it is mounted in the container",
    ..Flag::VALUE
};
pub(crate) const CNI_CONF_NAME: Flag = Flag {
    long: "cni-conf-name",
    env: &["CNI_CONF_NAME"],
    help: "the file to add our entry to; empty: the first one",
    ..Flag::VALUE
};
pub(crate) const CHAINED_CNI_PLUGIN: Flag = Flag {
    long: "chained-cni-plugin",
    env: &["CHAINED_CNI_PLUGIN"],
    default: "true",
    help: "add our entry to the network that is there; false: write a network of our own",
    ..Flag::SWITCH
};
pub(crate) const CNI_NETWORK_CONFIG: Flag = Flag {
    long: "cni-network-config",
    env: &["CNI_NETWORK_CONFIG"],
    help: "our entry (template), as text; without any template it is made from the settings, as Istio 1.29 to 1.31 does",
    ..Flag::VALUE
};
pub(crate) const CNI_NETWORK_CONFIG_FILE: Flag = Flag {
    long: "cni-network-config-file",
    env: &["CNI_NETWORK_CONFIG_FILE"],
    help: "file with our entry (template); wins over the text if it exists",
    ..Flag::VALUE
};
pub(crate) const LOG_LEVEL: Flag = Flag {
    long: "log-level",
    env: &["LOG_LEVEL"],
    default: "warn",
    help: "value of __LOG_LEVEL__ in the template",
    ..Flag::VALUE
};
pub(crate) const KUBECFG_FILE_NAME: Flag = Flag {
    long: "kubecfg-file-name",
    env: &["KUBECFG_FILE_NAME"],
    default: "ZZZ-istio-cni-kubeconfig",
    help: "name of the plugin's kubeconfig in the directory of network configurations, with a template",
    ..Flag::VALUE
};
pub(crate) const KUBECONFIG_MODE: Flag = Flag {
    long: "kubeconfig-mode",
    env: &["KUBECONFIG_MODE"],
    default: "0600",
    help: "permission bits of that file",
    ..Flag::VALUE
};
pub(crate) const KUBE_CA_FILE: Flag = Flag {
    long: "kube-ca-file",
    env: &["KUBE_CA_FILE"],
    help: "certificates of the API server's authority; empty: the service account's",
    ..Flag::VALUE
};
pub(crate) const SKIP_TLS_VERIFY: Flag = Flag {
    long: "skip-tls-verify",
    env: &["SKIP_TLS_VERIFY"],
    help: "believe anybody to be the API server",
    ..Flag::SWITCH
};
pub(crate) const MONITORING_PORT: Flag = Flag {
    long: "monitoring-port",
    env: &["MONITORING_PORT"],
    default: "15014",
    help: "port of /metrics; 0 or less: none",
    ..Flag::VALUE
};
pub(crate) const LOG_UDS_ADDRESS: Flag = Flag {
    long: "log-uds-address",
    env: &["LOG_UDS_ADDRESS"],
    default: "/var/run/istio-cni/log.sock",
    help: "socket for the plugin's log lines; empty: none; by default in --cni-agent-run-dir",
    ..Flag::VALUE
};
pub(crate) const AMBIENT_ENABLED: Flag = Flag {
    long: "ambient-enabled",
    env: &["AMBIENT_ENABLED"],
    help: "take part in ambient mode",
    ..Flag::SWITCH
};
pub(crate) const EBPF_ENABLED: Flag = Flag {
    long: "ebpf-enabled",
    env: &["EBPF_ENABLED"],
    help: "accepted for compatibility; there is no eBPF mode",
    ..Flag::SWITCH
};
pub(crate) const REPAIR_ENABLED: Flag = Flag {
    long: "repair-enabled",
    env: &["REPAIR_ENABLED"],
    default: "true",
    help: "repair pods that started before the plugin was there",
    ..Flag::SWITCH
};
pub(crate) const REPAIR_DELETE_PODS: Flag = Flag {
    long: "repair-delete-pods",
    env: &["REPAIR_DELETE_PODS"],
    help: "repair by deleting",
    ..Flag::SWITCH
};
pub(crate) const REPAIR_LABEL_PODS: Flag = Flag {
    long: "repair-label-pods",
    env: &["REPAIR_LABEL_PODS"],
    help: "repair by labelling",
    ..Flag::SWITCH
};
pub(crate) const REPAIR_REPAIR_PODS: Flag = Flag {
    long: "repair-repair-pods",
    env: &["REPAIR_REPAIR_PODS"],
    help: "repair in place",
    ..Flag::SWITCH
};
pub(crate) const REPAIR_BROKEN_POD_LABEL_KEY: Flag = Flag {
    long: "repair-broken-pod-label-key",
    env: &["REPAIR_BROKEN_POD_LABEL_KEY"],
    default: "cni.istio.io/uninitialized",
    help: "label of broken pods",
    ..Flag::VALUE
};
pub(crate) const REPAIR_BROKEN_POD_LABEL_VALUE: Flag = Flag {
    long: "repair-broken-pod-label-value",
    env: &["REPAIR_BROKEN_POD_LABEL_VALUE"],
    default: "true",
    help: "its value",
    ..Flag::VALUE
};
pub(crate) const REPAIR_NODE_NAME: Flag = Flag {
    long: "repair-node-name",
    env: &["REPAIR_NODE_NAME"],
    help: "node whose pods are repaired",
    ..Flag::VALUE
};
pub(crate) const REPAIR_SIDECAR_ANNOTATION: Flag = Flag {
    long: "repair-sidecar-annotation",
    env: &["REPAIR_SIDECAR_ANNOTATION"],
    default: "sidecar.istio.io/status",
    help: "annotation of injected pods",
    ..Flag::VALUE
};
pub(crate) const REPAIR_INIT_CONTAINER_NAME: Flag = Flag {
    long: "repair-init-container-name",
    env: &["REPAIR_INIT_CONTAINER_NAME"],
    default: "istio-validation",
    help: "init container that tells",
    ..Flag::VALUE
};
pub(crate) const REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE: Flag = Flag {
    long: "repair-init-container-termination-message",
    env: &["REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE"],
    help: "its last words; empty: any",
    ..Flag::VALUE
};
pub(crate) const REPAIR_INIT_CONTAINER_EXIT_CODE: Flag = Flag {
    long: "repair-init-container-exit-code",
    env: &["REPAIR_INIT_CONTAINER_EXIT_CODE"],
    default: "126",
    help: "its exit status; 0: any",
    ..Flag::VALUE
};
pub(crate) const REPAIR_LABEL_SELECTORS: Flag = Flag {
    long: "repair-label-selectors",
    env: &["REPAIR_LABEL_SELECTORS"],
    help: "only pods with these labels",
    ..Flag::VALUE
};
pub(crate) const REPAIR_FIELD_SELECTORS: Flag = Flag {
    long: "repair-field-selectors",
    env: &["REPAIR_FIELD_SELECTORS"],
    help: "only pods with these fields",
    ..Flag::VALUE
};
pub(crate) const CTRLZ_PORT: Flag = Flag {
    long: "ctrlz_port",
    default: "9876",
    help: "port of the node's page and its state as JSON; 0 or less: none",
    ..Flag::VALUE
};
pub(crate) const CTRLZ_ADDRESS: Flag =
    Flag { long: "ctrlz_address", default: "localhost", help: "their address; *: all", ..Flag::VALUE };
// Istio's newer releases have these two.
pub(crate) const ISTIO_OWNED_CNI_CONFIG: Flag = Flag {
    long: "istio-owned-cni-config",
    env: &["ISTIO_OWNED_CNI_CONFIG"],
    help: "write a complete copy of the network, with our entry, in a file that comes first",
    ..Flag::SWITCH
};
pub(crate) const ISTIO_OWNED_CNI_CONFIG_FILENAME: Flag = Flag {
    long: "istio-owned-cni-config-filename",
    env: &["ISTIO_OWNED_CNI_CONFIG_FILENAME", "ISTIO_OWNED_CNI_CONF_FILENAME"],
    default: "02-istio-cni.conflist",
    help: "name of that file",
    ..Flag::VALUE
};
// And Millrace has these.
pub(crate) const CNI_CONFIG_MAP: Flag = Flag {
    long: "cni-config-map",
    env: &["CNI_CONFIG_MAP"],
    help: "ConfigMap ([namespace/]name) with our entry (template), followed while the daemon runs; empty: none",
    ..Flag::VALUE
};
pub(crate) const CNI_CONFIG_MAP_KEY: Flag = Flag {
    long: "cni-config-map-key",
    env: &["CNI_CONFIG_MAP_KEY"],
    default: "cni_network_config",
    help: "key of the template in the ConfigMap",
    ..Flag::VALUE
};
pub(crate) const WRITE_KUBECONFIG: Flag = Flag {
    long: "write-kubeconfig",
    env: &["WRITE_KUBECONFIG"],
    default: "true",
    help: "write the plugin's kubeconfig; false: the plugin asks only the agent",
    ..Flag::SWITCH
};
pub(crate) const CLEANUP_ON_EXIT: Flag = Flag {
    long: "cleanup-on-exit",
    env: &["CLEANUP_ON_EXIT"],
    default: "auto",
    help: "auto: clean up when the DaemonSet is gone or does not want this node any more; always; never",
    ..Flag::VALUE
};
pub(crate) const DAEMON_SET: Flag = Flag {
    long: "daemon-set",
    env: &["DAEMON_SET"],
    help: "name of the DaemonSet that we belong to; empty: our pod's owner, else istio-cni-node",
    ..Flag::VALUE
};
pub(crate) const NODE_CONDITION: Flag = Flag {
    long: "node-condition",
    env: &["NODE_CONDITION"],
    help: "keep the condition IstioCNIReady of our node, which needs the permission to patch nodes/status",
    ..Flag::SWITCH
};
pub(crate) const POD_NAMESPACE: Flag = Flag {
    long: "pod-namespace",
    env: &["POD_NAMESPACE"],
    help: "our namespace; empty: the service account's",
    ..Flag::VALUE
};
pub(crate) const POD_NAME: Flag =
    Flag { long: "pod-name", env: &["POD_NAME"], help: "our pod; empty: the host name", ..Flag::VALUE };
pub(crate) const NODE_NAME: Flag = Flag {
    long: "node-name",
    env: &["NODE_NAME", "KUBERNETES_NODE_NAME"],
    help: "our node; empty: --repair-node-name, else the host name",
    ..Flag::VALUE
};
// Ambient mode.
pub(crate) const POD_SOURCE: Flag = Flag {
    long: "pod-source",
    env: &["POD_SOURCE"],
    default: "api",
    help: "where pods and namespaces are read from: api, or dir:<path> for a directory of manifests",
    ..Flag::VALUE
};
pub(crate) const AGENT_SOCKET: Flag = Flag {
    long: "agent-socket",
    env: &["AGENT_SOCKET"],
    default: "/var/run/istio-cni/agent.sock",
    help: "socket for the plugin's questions; by default in --cni-agent-run-dir",
    ..Flag::VALUE
};
pub(crate) const AMBIENT_CONFIG_FILE: Flag = Flag {
    long: "ambient-config-file",
    env: &["AMBIENT_CONFIG_FILE"],
    default: "/etc/ambient-config/config.json",
    help: "file that agent and plugin share",
    ..Flag::VALUE
};
pub(crate) const NO_ZTUNNEL_POLICY: Flag = Flag {
    long: "no-ztunnel-policy",
    env: &["NO_ZTUNNEL_POLICY"],
    default: "hold",
    help: "what happens to enrolled pods' TCP while no ztunnel is ready: hold, reject or open",
    ..Flag::VALUE
};
pub(crate) const NO_ZTUNNEL_POLICY_FILE: Flag = Flag {
    long: "no-ztunnel-policy-file",
    env: &["NO_ZTUNNEL_POLICY_FILE"],
    help: "file with that word, followed while the daemon runs, such as a mounted ConfigMap; empty: none",
    ..Flag::VALUE
};
pub(crate) const SYSTEM_NAMESPACE: Flag = Flag {
    long: "system-namespace",
    env: &["SYSTEM_NAMESPACE"],
    default: "istio-system",
    help: "namespace that ztunnel's pods must be in; by default our own, too",
    ..Flag::VALUE
};
pub(crate) const ZTUNNEL_SERVICE_ACCOUNT: Flag = Flag {
    long: "ztunnel-service-account",
    env: &["ZTUNNEL_SERVICE_ACCOUNT"],
    default: "ztunnel",
    help: "service account that ztunnel's pods must run as",
    ..Flag::VALUE
};
pub(crate) const ZTUNNEL_LABEL: Flag = Flag {
    long: "ztunnel-label",
    env: &["ZTUNNEL_LABEL"],
    default: "app=ztunnel",
    help: "label that ztunnel's pods must have",
    ..Flag::VALUE
};
pub(crate) const AMBIENT_LINKS: Flag = Flag {
    long: "ambient-links",
    env: &["AMBIENT_LINKS"],
    default: "veth",
    help: "links to ztunnel: veth, geneve or vxlan",
    ..Flag::VALUE
};
pub(crate) const AMBIENT_TABLES: Flag = Flag {
    long: "ambient-tables",
    env: &["AMBIENT_TABLES"],
    default: "100,101,110,120,130",
    help: "routing tables: inbound, outbound, and the first of two each for inbound, outbound and return of a slot",
    ..Flag::VALUE
};
pub(crate) const AMBIENT_RULE_PRIORITY: Flag = Flag {
    long: "ambient-rule-priority",
    env: &["AMBIENT_RULE_PRIORITY"],
    default: "100",
    help: "priority of the first of ten policy rules",
    ..Flag::VALUE
};
pub(crate) const NETNS_DIR: Flag = Flag {
    long: "netns-dir",
    env: &["NETNS_DIR"],
    default: "/var/run/netns",
    help: "where the container runtime binds network namespaces, also below --host-root",
    ..Flag::VALUE
};
pub(crate) const FORCE_IPTABLES_BINARY: Flag = Flag {
    long: "force-iptables-binary",
    env: &["FORCE_IPTABLES_BINARY"],
    help: "backend of the node's firewall: nft or legacy; empty: the one in use",
    ..Flag::VALUE
};

/// What the daemon takes. Logging flags come in addition ([`flags::LOGGING`]).
pub(crate) const FLAGS: &[Flag] = &[
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
    AMBIENT_LINKS,
    AMBIENT_TABLES,
    AMBIENT_RULE_PRIORITY,
    NETNS_DIR,
    FORCE_IPTABLES_BINARY,
];

/// What Istio removed with 1.19: accepted, without effect.
pub(crate) const REMOVED: &[Flag] = &[
    Flag { long: "update-cni-binaries", env: &["UPDATE_CNI_BINARIES"], default: "true", ..Flag::SWITCH },
    Flag { long: "skip-cni-binaries", env: &["SKIP_CNI_BINARIES"], ..Flag::VALUE },
    Flag { long: "cni-enable-install", env: &["CNI_ENABLE_INSTALL"], default: "true", ..Flag::SWITCH },
    Flag { long: "cni-enable-reinstall", env: &["CNI_ENABLE_REINSTALL"], default: "true", ..Flag::SWITCH },
    Flag { long: "repair-run-as-daemon", default: "true", ..Flag::SWITCH }, // Istio's chart sets the variable to this day
];

#[cfg(test)]
mod tests {
    use super::*;

    /// How many flags a source file defines.
    fn defined(source: &str) -> usize {
        source
            .lines()
            .filter(|line| line.starts_with("pub(crate) const") && line.contains(": Flag = "))
            .count()
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
