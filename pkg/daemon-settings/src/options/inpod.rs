//! Flags of in-pod capture. Variables, and what they mean, are Istio's of 1.30, but for the first, the allowed exceptions and the
//! last two; Istio has no flags for most of them.

use flags::Flag;

pub const AMBIENT_CAPTURE: Flag = Flag {
    long: "ambient-capture",
    env: &["AMBIENT_CAPTURE"],
    default: "auto",
    help: "capture mode: node (ztunnel up to 1.22), in-pod (ztunnel 1.23 and newer), or auto (what ztunnel supports)",
    ..Flag::VALUE
};
pub const ZTUNNEL_UDS_ADDRESS: Flag = Flag {
    long: "ztunnel-uds-address",
    env: &["ZTUNNEL_UDS_ADDRESS"],
    default: "/var/run/ztunnel/ztunnel.sock",
    help: "socket that ztunnel connects to",
    ..Flag::VALUE
};
pub const AMBIENT_ENABLEMENT_SELECTOR: Flag = Flag {
    long: "ambient-enablement-selector",
    env: &["AMBIENT_ENABLEMENT_SELECTOR"],
    help: "YAML list of pod and namespace selectors of ambient pods; empty: the labels istio.io/dataplane-mode",
    ..Flag::VALUE
};
pub const AMBIENT_DNS_CAPTURE: Flag = Flag {
    long: "ambient-dns-capture",
    env: &["AMBIENT_DNS_CAPTURE"],
    help: "redirect DNS of ambient pods to ztunnel, unless a pod opts out",
    ..Flag::SWITCH
};
pub const AMBIENT_ALLOWED_EXCEPTIONS: Flag = Flag {
    long: "ambient-allowed-exceptions",
    env: &["AMBIENT_ALLOWED_EXCEPTIONS"],
    default: "none",
    help: "traffic that annotations may leave outside of in-pod capture: none, all, or a list of outbound-ports, outbound-networks, inbound-ports, interfaces, dns, without-ztunnel",
    ..Flag::VALUE
};
pub const EXISTING_CONNECTIONS: Flag = Flag {
    long: "existing-connections",
    env: &["EXISTING_CONNECTIONS"],
    default: "keep",
    help: "connections of a running pod that joins the mesh: keep (they bypass the proxy until they close) or reset",
    ..Flag::VALUE
};
pub const AMBIENT_IPV6: Flag = Flag {
    long: "ambient-ipv6",
    env: &["AMBIENT_IPV6"],
    default: "true",
    help: "also capture IPv6",
    ..Flag::SWITCH
};
pub const EXCLUDE_NAMESPACES: Flag = Flag {
    long: "exclude-namespaces",
    env: &["EXCLUDE_NAMESPACES"],
    help: "comma-separated namespaces whose pods are never captured",
    ..Flag::VALUE
};
/// Value of the next two that stands for the address from which the node reaches its pods.
pub const DETECT: &str = "detect";
pub const HOST_PROBE_SNAT_IP: Flag = Flag {
    long: "host-probe-snat-ip",
    env: &["HOST_PROBE_SNAT_IP"],
    default: "169.254.7.127",
    help: "source address of the node's probes of captured pods, IPv4; detect: by the node's routes",
    ..Flag::VALUE
};
pub const HOST_PROBE_SNAT_IPV6: Flag = Flag {
    long: "host-probe-snat-ipv6",
    env: &["HOST_PROBE_SNAT_IPV6"],
    default: "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
    help: "source address of the node's probes of captured pods, IPv6; detect: by the node's routes",
    ..Flag::VALUE
};
pub const ALLOW_SWITCH_TO_HOST_NS: Flag = Flag {
    long: "allow-switch-to-host-ns",
    env: &["ALLOW_SWITCH_TO_HOST_NS"],
    help: "the agent has its own network namespace: work in that of process 1 below --host-proc",
    ..Flag::SWITCH
};
pub const HOST_PROC: Flag = Flag {
    long: "host-proc",
    env: &["HOST_PROC"],
    default: "/host/proc",
    help: "/proc of the node's PID namespace",
    ..Flag::VALUE
};

pub const IN_POD: &[Flag] = &[
    AMBIENT_CAPTURE,
    ZTUNNEL_UDS_ADDRESS,
    AMBIENT_ENABLEMENT_SELECTOR,
    AMBIENT_DNS_CAPTURE,
    AMBIENT_ALLOWED_EXCEPTIONS,
    EXISTING_CONNECTIONS,
    AMBIENT_IPV6,
    EXCLUDE_NAMESPACES,
    HOST_PROBE_SNAT_IP,
    HOST_PROBE_SNAT_IPV6,
    ALLOW_SWITCH_TO_HOST_NS,
    HOST_PROC,
];
