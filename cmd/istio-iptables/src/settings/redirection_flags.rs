//! The flags that say which traffic is redirected, and to where.

use flags::Flag;

pub(super) const ENVOY_PORT: Flag = Flag {
    long: "envoy-port",
    short: Some('p'),
    env: &["ENVOY_PORT"],
    default: "15001",
    help: "port of the proxy's outbound listener",
    ..Flag::VALUE
};
pub(super) const INBOUND_CAPTURE_PORT: Flag = Flag {
    long: "inbound-capture-port",
    short: Some('z'),
    env: &["INBOUND_CAPTURE_PORT"],
    default: "15006",
    help: "port of the proxy's inbound listener",
    ..Flag::VALUE
};
pub(super) const INBOUND_TUNNEL_PORT: Flag = Flag {
    long: "inbound-tunnel-port",
    short: Some('e'),
    env: &["INBOUND_TUNNEL_PORT"],
    default: "15008",
    help: "HBONE port, never redirected",
    ..Flag::VALUE
};
pub(super) const PROXY_UID: Flag = Flag {
    long: "proxy-uid",
    short: Some('u'),
    env: &["PROXY_UID"],
    help: "comma-separated users whose traffic is the proxy's own; empty: user $ENVOY_USER, else 1337",
    ..Flag::VALUE
};
pub(super) const PROXY_GID: Flag = Flag {
    long: "proxy-gid",
    short: Some('g'),
    env: &["PROXY_GID"],
    help: "comma-separated groups whose traffic is the proxy's own; empty: as --proxy-uid",
    ..Flag::VALUE
};
pub(super) const ISTIO_INBOUND_INTERCEPTION_MODE: Flag = Flag {
    long: "istio-inbound-interception-mode",
    short: Some('m'),
    env: &["ISTIO_INBOUND_INTERCEPTION_MODE", "INBOUND_INTERCEPTION_MODE"],
    help: "REDIRECT or TPROXY",
    ..Flag::VALUE
};
pub(super) const ISTIO_INBOUND_PORTS: Flag = Flag {
    long: "istio-inbound-ports",
    short: Some('b'),
    env: &["ISTIO_INBOUND_PORTS"],
    help: "inbound ports to capture, or *",
    ..Flag::VALUE
};
pub(super) const ISTIO_LOCAL_EXCLUDE_PORTS: Flag = Flag {
    long: "istio-local-exclude-ports",
    short: Some('d'),
    env: &["ISTIO_LOCAL_EXCLUDE_PORTS"],
    help: "inbound ports to leave alone; only with *",
    ..Flag::VALUE
};
pub(super) const ISTIO_EXCLUDE_INTERFACES: Flag = Flag {
    long: "istio-exclude-interfaces",
    short: Some('c'),
    env: &["ISTIO_EXCLUDE_INTERFACES"],
    help: "interfaces to leave alone",
    ..Flag::VALUE
};
pub(super) const ISTIO_SERVICE_CIDR: Flag = Flag {
    long: "istio-service-cidr",
    short: Some('i'),
    env: &["ISTIO_SERVICE_CIDR"],
    help: "outbound networks to capture, or *",
    ..Flag::VALUE
};
pub(super) const ISTIO_SERVICE_EXCLUDE_CIDR: Flag = Flag {
    long: "istio-service-exclude-cidr",
    short: Some('x'),
    env: &["ISTIO_SERVICE_EXCLUDE_CIDR"],
    help: "outbound networks to leave alone",
    ..Flag::VALUE
};
pub(super) const ISTIO_OUTBOUND_PORTS: Flag = Flag {
    long: "istio-outbound-ports",
    short: Some('q'),
    env: &["ISTIO_OUTBOUND_PORTS"],
    help: "outbound ports to capture whatever the network",
    ..Flag::VALUE
};
pub(super) const ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE: Flag = Flag {
    long: "istio-local-outbound-ports-exclude",
    short: Some('o'),
    env: &["ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE"],
    help: "outbound ports to leave alone",
    ..Flag::VALUE
};
pub(super) const KUBE_VIRT_INTERFACES: Flag = Flag {
    long: "kube-virt-interfaces",
    short: Some('k'),
    env: &["KUBE_VIRT_INTERFACES"],
    help: "interfaces of virtual machines, whose traffic is outbound",
    ..Flag::VALUE
};
pub(super) const ISTIO_INBOUND_TPROXY_MARK: Flag = Flag {
    long: "istio-inbound-tproxy-mark",
    short: Some('t'),
    env: &["ISTIO_INBOUND_TPROXY_MARK", "INBOUND_TPROXY_MARK"],
    default: "1337",
    help: "mark of TPROXY connections",
    ..Flag::VALUE
};
pub(super) const ISTIO_INBOUND_TPROXY_ROUTE_TABLE: Flag = Flag {
    long: "istio-inbound-tproxy-route-table",
    short: Some('r'),
    env: &["ISTIO_INBOUND_TPROXY_ROUTE_TABLE"],
    default: "133",
    help: "routing table of TPROXY",
    ..Flag::VALUE
};
pub(super) const IPTABLES_TRACE_LOGGING: Flag = Flag {
    long: "iptables-trace-logging",
    env: &["IPTABLES_TRACE_LOGGING"],
    help: "add NFLOG rules (group 1337)",
    ..Flag::SWITCH
};
pub(super) const REDIRECT_DNS: Flag = Flag {
    long: "redirect-dns",
    env: &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"],
    help: "capture DNS",
    ..Flag::SWITCH
};
pub(super) const DROP_INVALID: Flag = Flag {
    long: "drop-invalid",
    env: &["DROP_INVALID", "INVALID_DROP"],
    help: "discard packets that belong to no connection",
    ..Flag::SWITCH
};
pub(super) const DUAL_STACK: Flag = Flag {
    long: "dual-stack",
    env: &["DUAL_STACK", "ISTIO_DUAL_STACK"],
    help: "redirect both address families",
    ..Flag::SWITCH
};
pub(super) const CAPTURE_ALL_DNS: Flag = Flag {
    long: "capture-all-dns",
    env: &["CAPTURE_ALL_DNS"],
    help: "capture DNS to any server, not only those of /etc/resolv.conf",
    ..Flag::SWITCH
};
