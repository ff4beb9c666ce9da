//! Flags of in-pod capture. Variables and their meaning are Istio's of 1.30, except the first, the allowed exceptions and the last
//! two; Istio has no flags for most of them.

use flags::Flag;

/// Value of the two flags for probe sources that requests detection of the address from which the node reaches its pods.
pub const DETECT: &str = "detect";

flags::flag_table!(
    IN_POD,
    AMBIENT_CAPTURE = Flag::with_value(
        "auto",
        "capture mode: node (ztunnel up to 1.22), in-pod (ztunnel 1.23 and newer), or auto (what \
         ztunnel supports)"
    ),
    ZTUNNEL_UDS_ADDRESS =
        Flag::with_value("/var/run/ztunnel/ztunnel.sock", "socket that ztunnel connects to"),
    AMBIENT_ENABLEMENT_SELECTOR = Flag::with_value(
        "",
        "YAML list of pod and namespace selectors of ambient pods; empty: the labels \
         istio.io/dataplane-mode"
    ),
    AMBIENT_DNS_CAPTURE = Flag::new_switch("redirect DNS of ambient pods to ztunnel, unless a pod opts out"),
    AMBIENT_ALLOWED_EXCEPTIONS = Flag::with_value(
        "none",
        "traffic that annotations may leave outside of in-pod capture: none, all, or a list of \
         outbound-ports, outbound-networks, inbound-ports, interfaces, dns, without-ztunnel"
    ),
    EXISTING_CONNECTIONS = Flag::with_value(
        "keep",
        "connections of a running pod that joins the mesh: keep (they bypass the proxy until they \
         close) or reset"
    ),
    AMBIENT_IPV6 = Flag::new_switch_on("also capture IPv6"),
    AGENT_NAMESPACES = Flag::with_value(
        "",
        "comma-separated namespaces of other releases' agents; their pods start without a running agent"
    ),
    EXCLUDE_NAMESPACES = Flag::with_value("", "comma-separated namespaces whose pods are never captured"),
    HOST_PROBE_SNAT_IP = Flag::with_value(
        "169.254.7.127",
        "source address of the node's probes of captured pods, IPv4; detect: by the node's routes"
    ),
    HOST_PROBE_SNAT_IPV6 = Flag::with_value(
        "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
        "source address of the node's probes of captured pods, IPv6; detect: by the node's routes"
    ),
    ALLOW_SWITCH_TO_HOST_NS = Flag::new_switch(
        "the agent has its own network namespace: work in that of process 1 below --host-proc"
    ),
    HOST_PROC = Flag::with_value("/host/proc", "/proc of the node's PID namespace"),
);
