//! Flags of in-pod capture. Variables, and what they mean, are Istio's of 1.30, but for the first and the
//! last two; Istio has no flags for most of them.

use flags::{Flag, flag, switch};

pub(crate) const IN_POD: &[Flag] = &[
    flag(
        "ambient-capture",
        None,
        &["AMBIENT_CAPTURE"],
        "auto",
        "how pods are captured: node (ztunnel up to 1.22), in-pod (ztunnel since 1.23), or auto: what ztunnel speaks",
    ),
    flag(
        "ztunnel-uds-address",
        None,
        &["ZTUNNEL_UDS_ADDRESS"],
        "/var/run/ztunnel/ztunnel.sock",
        "socket that ztunnel connects to",
    ),
    flag(
        "ambient-enablement-selector",
        None,
        &["AMBIENT_ENABLEMENT_SELECTOR"],
        "",
        "YAML list of pod and namespace selectors: which pods belong to ambient mode; empty: those labelled so",
    ),
    switch(
        "ambient-dns-capture",
        None,
        &["AMBIENT_DNS_CAPTURE"],
        "false",
        "ztunnel answers the DNS of pods that do not say otherwise",
    ),
    switch("ambient-ipv6", None, &["AMBIENT_IPV6"], "true", "capture IPv6, too"),
    flag(
        "exclude-namespaces",
        None,
        &["EXCLUDE_NAMESPACES"],
        "",
        "comma-separated namespaces whose pods are never touched",
    ),
    flag(
        "host-probe-snat-ip",
        None,
        &["HOST_PROBE_SNAT_IP"],
        "169.254.7.127",
        "source of the node's probes of captured pods, IPv4",
    ),
    flag(
        "host-probe-snat-ipv6",
        None,
        &["HOST_PROBE_SNAT_IPV6"],
        "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
        "source of the node's probes of captured pods, IPv6",
    ),
    switch(
        "allow-switch-to-host-ns",
        None,
        &["ALLOW_SWITCH_TO_HOST_NS"],
        "false",
        "the daemon has a network of its own: work on that of process 1 of --host-proc",
    ),
    flag("host-proc", None, &["HOST_PROC"], "/host/proc", "where the processes of the whole node are seen"),
];
