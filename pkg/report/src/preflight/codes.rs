//! Codes of the node checks, with their consequences and advice.

macro_rules! preflight_codes {
    ($($(#[$doc:meta])* $name:ident $word:literal $check:literal $why:literal $advice:literal)*) => {
        model::word_enum! {
            /// Kind of a finding about a node, in the order of the output.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
            pub enum PreflightCode { $($(#[$doc])* $name = $word),* }
        }

        impl PreflightCode {
            /// Returns the condition that holds without such a finding.
            pub fn check(self) -> &'static str { match self { $(PreflightCode::$name => $check),* } }

            /// Returns the consequence as a sentence.
            pub fn consequence(self) -> &'static str { match self { $(PreflightCode::$name => $why),* } }

            /// Returns the recommended action as a sentence.
            pub fn advice(self) -> &'static str { match self { $(PreflightCode::$name => $advice),* } }
        }
    };
}

preflight_codes! {
    /// The kernel refuses the rules of a captured pod.
    PodRules "pod-rules" "the kernel takes the rules of a captured pod"
        "In-pod capture is impossible."
        "Load the modules nf_tables, nft_compat, nf_nat, xt_REDIRECT, xt_connmark and xt_mark, or use a kernel that has them."
    /// The kernel refuses policy rules by mark.
    PolicyRules "policy-rules" "the kernel delivers packets by their mark"
        "Answers to connections under a client's address would leave the pod."
        "Use a kernel with CONFIG_IP_MULTIPLE_TABLES, and CONFIG_IPV6_MULTIPLE_TABLES for IPv6."
    /// The kernel refuses sets of addresses.
    AddressSets "address-sets" "the kernel has sets of addresses"
        "Probes of captured pods could not be distinguished from other traffic."
        "Load the modules ip_set and ip_set_hash_ip, or use a kernel that has them."
    /// The kernel refuses the rules of the node.
    NodeRules "node-rules" "the kernel takes the node's rules"
        "Probes of captured pods would fail; with node-level capture, no pod can be captured."
        "Load the modules nft_compat, xt_set, xt_socket, xt_mark, xt_connmark and nf_nat, or use a kernel that has them."
    /// The kernel does not list tracked connections.
    Tracking "connection-tracking" "the kernel shows tracked connections"
        "Open connections of a pod that joins the mesh break, and prove cannot show where packets are redirected."
        "Load the module nf_conntrack_netlink."
    /// The kernel refuses the rules of pods with a sidecar.
    SidecarRules "sidecar-rules" "the kernel takes the rules of a pod with a sidecar"
        "Pods with a sidecar would not start."
        "Load the modules nf_tables, nft_compat, nf_nat, xt_REDIRECT and xt_owner, or use a kernel that has them."
    /// The kernel refuses TPROXY.
    Tproxy "tproxy" "the kernel has TPROXY"
        "Pods with a sidecar in the interception mode TPROXY would not start; others do."
        "Load the modules xt_TPROXY and xt_socket, or use the mode REDIRECT."
    /// Legacy tables are in use, which the agent cannot change.
    LegacyTables "legacy-tables" "every kind of tables that is in use can be changed"
        "Pods whose tables are legacy ones cannot be captured, and rules of the node exist beside those of the other kind."
        "Use the image with -ambient, which has the iptables tools."
    /// Numbers of the node path are used by another component.
    NumbersTaken "numbers-taken" "priorities, tables and networks of the node path are free"
        "The other component's policy rules or routes take packets that are meant for ztunnel."
        "Choose others by AMBIENT_TABLES and AMBIENT_RULE_PRIORITY, or change the other component's."
    /// Foreign objects in pods have the numbers of captured pods.
    PodNumbersTaken "pod-numbers-taken" "marks, table and priorities of captured pods are free in pods"
        "Captured pods would lose traffic, or traffic would bypass the mesh: packets are taken by another component's rules, or have ztunnel's mark."
        "Let the other component, such as a CNI plugin that runs before ours, use other marks and tables, or keep its pods out of ambient mode."
    /// The mount of the kernel's settings is read-only.
    KernelSettings "kernel-settings" "kernel settings can be written"
        "With node-level capture, no pod can be captured: the node would drop what ztunnel sends with the address of a pod."
        "Run the agent's container with privileged: true, which mounts /proc/sys for writing; the chart does so with ambientCapture=node."
    /// The source of probes is to be detected, and was not.
    ProbeSource "probe-source" "the source of the node's probes is known"
        "Where the network's own programs send the node's packets past the node's rules, probes of captured pods go to ztunnel."
        "Delete the agent's pod while other pods run on the node: the agent detects the source when it starts."
    /// Another component has the probe address.
    ProbeAddressTaken "probe-address-taken" "the address of the node's probes is free"
        "Captured pods accept everything from this address as a probe, past ztunnel and its policies."
        "Remove the address from the link, or set HOST_PROBE_SNAT_IP and HOST_PROBE_SNAT_IPV6."
    /// Another process listens on a port of the agent.
    PortTaken "port-taken" "the agent's ports are free"
        "The kubelet's probes, or Prometheus, reach another process."
        "Stop the other process, or give the agent a network namespace of its own; --monitoring-port and --ctrlz_port move two of the ports."
    /// Another process serves a socket of the agent.
    SocketTaken "socket-taken" "no other agent serves the sockets"
        "The agent does not start: it would take the other agent's clients."
        "Remove the other agent from the node: Istio's as described in docs/migrate.md, or Cilium's ztunnel."
    /// No inotify instances or watches are left.
    NoInotify "no-inotify" "the kernel reports changes of directories"
        "The agent polls its directories four times a second, which costs CPU."
        "Raise fs.inotify.max_user_instances and fs.inotify.max_user_watches on the node."
    /// The agent may open too few files.
    FewFiles "few-files" "the agent may open enough files"
        "ADDs of pods fail when none are left, and drift in pods is found more slowly."
        "Raise the container runtime's limit of open files (LimitNOFILE) to 4096 or more."
    /// The agent's memory limit is too low.
    LittleMemory "little-memory" "the agent has enough memory"
        "The kernel kills the agent when it needs more."
        "Raise the container's memory limit: docs/sizing.md."
    /// The clock contradicts the service account's token.
    Clock "clock" "the node's clock agrees with the service account's token"
        "The API server refuses the token, or its certificate counts as invalid."
        "Synchronize the node's clock."
    /// No network exists into which our entry can be chained.
    NoNetwork "no-network" "the container runtime has a network that our entry can be part of"
        "The plugin is not installed until there is one, and the agent is not ready."
        "Install the primary CNI plugin, or correct CNI_NET_DIR and CNI_CONF_NAME: docs/install-cni.md."
    /// A directory of the node is read-only.
    ReadOnly "read-only" "the node's directories can be written to"
        "The agent cannot install the plugin, or keep it installed."
        "Correct the mount of the directory; where SELinux confines containers, set seLinuxOptions: docs/platforms.md."
    /// SELinux confines the agent.
    SeLinux "selinux" "SELinux does not confine the agent"
        "The policy for containers denies writes to the node's directories and access to its processes, whatever the permissions are."
        "Set seLinuxOptions.type=spc_t, or the platform in the chart: docs/platforms.md."
    /// An AppArmor profile confines the agent.
    AppArmor "apparmor" "no AppArmor profile confines the agent"
        "The runtime's profile denies mounts, which the agent makes in mount namespaces of its own to enter pods."
        "Run the container unconfined, as the chart does: appArmorProfile.type=Unconfined, or useAppArmorAnnotation on older clusters."
    /// The agent has a user namespace of its own.
    UserNamespace "user-namespace" "the agent is in the node's user namespace"
        "Its root is not the node's, so it can enter no network namespace of the node or of a pod."
        "Remove hostUsers: false from the agent's pod."
}
