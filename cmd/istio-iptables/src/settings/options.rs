//! Flags for the redirected traffic, its destination, and the tool's operation.

use flags::Flag;

flags::flag_table!(
    FLAGS,
    ENVOY_PORT = Flag::with_value("15001", "port of the proxy's outbound listener").short('p'),
    INBOUND_CAPTURE_PORT = Flag::with_value("15006", "port of the proxy's inbound listener").short('z'),
    INBOUND_TUNNEL_PORT = Flag::with_value("15008", "HBONE port, never redirected").short('e'),
    PROXY_UID = Flag::with_value(
        "",
        "comma-separated users of the proxy's own traffic; empty: user $ENVOY_USER or istio-proxy, else 1337"
    )
    .short('u'),
    PROXY_GID =
        Flag::with_value("", "comma-separated groups of the proxy's own traffic; empty: as --proxy-uid")
            .short('g'),
    ISTIO_INBOUND_INTERCEPTION_MODE = Flag::with_value("", "REDIRECT or TPROXY")
        .short('m')
        .env(&["ISTIO_INBOUND_INTERCEPTION_MODE", "INBOUND_INTERCEPTION_MODE"]),
    ISTIO_INBOUND_PORTS = Flag::with_value("", "inbound ports to capture, or *").short('b'),
    ISTIO_LOCAL_EXCLUDE_PORTS = Flag::with_value("", "inbound ports to exclude; only with *").short('d'),
    ISTIO_EXCLUDE_INTERFACES = Flag::with_value("", "interfaces to exclude").short('c'),
    ISTIO_SERVICE_CIDR = Flag::with_value("", "outbound networks to capture, or *").short('i'),
    ISTIO_SERVICE_EXCLUDE_CIDR = Flag::with_value("", "outbound networks to exclude").short('x'),
    ISTIO_OUTBOUND_PORTS = Flag::with_value("", "outbound ports to capture whatever the network").short('q'),
    ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE = Flag::with_value("", "outbound ports to exclude").short('o'),
    KUBE_VIRT_INTERFACES =
        Flag::with_value("", "interfaces of virtual machines, whose traffic is outbound").short('k'),
    ISTIO_INBOUND_TPROXY_MARK = Flag::with_value("1337", "mark of TPROXY connections")
        .short('t')
        .env(&["ISTIO_INBOUND_TPROXY_MARK", "INBOUND_TPROXY_MARK"]),
    ISTIO_INBOUND_TPROXY_ROUTE_TABLE = Flag::with_value("133", "routing table of TPROXY").short('r'),
    DRY_RUN = Flag::new_switch("only print what would be done").short('n'),
    IPTABLES_TRACE_LOGGING = Flag::new_switch("add NFLOG rules (group 1337)"),
    RESTORE_FORMAT =
        Flag::new_switch_on("with --dry-run, print one iptables-restore instead of one command per rule")
            .short('f'),
    IPTABLES_PROBE_PORT = Flag::with_value("15002", "port that the validation connects to"),
    PROBE_TIMEOUT = Flag::with_value("5s", "how long the validation tries"),
    SKIP_RULE_APPLY = Flag::new_switch("change nothing"),
    RUN_VALIDATION =
        Flag::new_switch("prove the redirection with a connection; exit status 126 when it is not there"),
    REDIRECT_DNS = Flag::new_switch("capture DNS").env(&["ISTIO_META_DNS_CAPTURE", "REDIRECT_DNS"]),
    DROP_INVALID = Flag::new_switch("discard packets that belong to no connection")
        .env(&["INVALID_DROP", "DROP_INVALID"]),
    DUAL_STACK = Flag::new_switch("redirect both address families").env(&[
        "ISTIO_DUAL_STACK",
        "DUAL_STACK",
        "ISTIO_AGENT_DUAL_STACK"
    ]),
    CAPTURE_ALL_DNS = Flag::new_switch("capture DNS to any server, not only those of /etc/resolv.conf"),
    NETWORK_NAMESPACE = Flag::with_value("", "accepted for compatibility, without effect"),
    CNI_MODE = Flag::new_switch("work in the pod's namespace without the host's lock and name services"),
    IPTABLES_VERSION = Flag::with_value(
        "",
        "accepted for compatibility: iptables' version text; 'nf_tables' in it selects that backend"
    ),
    IPTABLES_BACKEND = Flag::with_value("", "nft or legacy; empty: as the namespace and the host use"),
    // Flags of Istio 1.24 and newer.
    FORCE_IPTABLES_BINARY = Flag::with_value(
        "",
        "as --iptables-backend, with Istio's names: iptables-nft or iptables-legacy, nft or legacy"
    ),
    CLEANUP_ONLY = Flag::new_switch("remove everything, as istio-clean-iptables does, and apply nothing"),
    RECONCILE = Flag::new_switch("accepted for compatibility; rules that differ are always repaired"),
    FORCE_APPLY =
        Flag::new_switch("accepted for compatibility; each rule is always compared with the kernel's"),
    NATIVE_NFTABLES =
        Flag::new_switch("use native nftables tables (family inet) where no other Istio rules exist"),
);
