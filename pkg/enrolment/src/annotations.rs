//! Redirect parameters of a pod with a sidecar: its annotations, and settings of its `istio-proxy` container.

use std::collections::{BTreeMap, BTreeSet};

use model::{Container, Family, Mark, Pod, PodName, Port, TableId, parse_go_bool};
use rules::sidecar::{
    DnsCapture, InboundMode, LoopbackNet, NetworkSelection, PortSelection, SidecarConfig, passthrough_source,
};

use crate::{
    decision::SidecarRedirect,
    lists::{
        INTERFACES, NETWORKS, PORTS, excerpt, network_list, parse_interfaces, parse_networks, parse_ports,
    },
};

/// Annotation by which a pod requests TPROXY, or no interception at all.
pub const MODE: &str = "sidecar.istio.io/interceptionMode";
const INCLUDE_CIDRS: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
const EXCLUDE_CIDRS: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
const INCLUDE_INBOUND: &str = "traffic.sidecar.istio.io/includeInboundPorts";
const EXCLUDE_INBOUND: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
const INCLUDE_OUTBOUND: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
const EXCLUDE_OUTBOUND: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const KUBEVIRT: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";
// The newer name takes precedence if both are set: KubeVirt writes both.
const REROUTE: &str = crate::inpod::VIRTUAL_INTERFACES;
const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
pub(crate) const LOOPBACK: &str = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR";
pub(crate) const DUAL_STACK: &str = "ISTIO_DUAL_STACK";
/// Name of [`DUAL_STACK`] up to Istio 1.18.
pub(crate) const OLD_DUAL_STACK: &str = "ISTIO_AGENT_DUAL_STACK";

/// Annotations that are lists, and the maximum number of significant bytes of each.
pub(crate) const LISTS: [(&str, usize); 8] = [
    (INCLUDE_CIDRS, NETWORKS.bytes),
    (EXCLUDE_CIDRS, NETWORKS.bytes),
    (INCLUDE_INBOUND, PORTS.bytes),
    (EXCLUDE_INBOUND, PORTS.bytes),
    (INCLUDE_OUTBOUND, PORTS.bytes),
    (EXCLUDE_OUTBOUND, PORTS.bytes),
    (KUBEVIRT, INTERFACES.bytes),
    (EXCLUDE_INTERFACES, INTERFACES.bytes),
];

const PORTS_ALLOWED: &str = "'*', nothing, or a comma-separated list of ports from 0 to 65535, at most 512 and 16384 bytes; \
     of more ports, consecutive ones count as one";
const NETWORKS_ALLOWED: &str = "'*', nothing, or a comma-separated list of networks as 10.0.0.0/8, at most \
                                1024 and 16384 bytes";
const EXCLUDED_NETWORKS_ALLOWED: &str = "nothing, or a comma-separated list of networks as 10.0.0.0/8, at most \
                                         1024 and 16384 bytes";
const INTERFACES_ALLOWED: &str =
    "nothing, or a comma-separated list of interface names of at most 15 bytes, at most 32 and 1024 bytes";
const MODE_ALLOWED: &str = "REDIRECT, TPROXY or NONE";

/// The proxy's own ports for metrics, health and Prometheus: never captured inbound.
const PROXY_PORTS: [Port; 3] = [Port(15020), Port(15021), Port(15090)];
/// Istio's TPROXY mark and routing table.
const TPROXY: InboundMode = InboundMode::Tproxy { mark: Mark::with_full_mask(1337), table: TableId(133) };

/// An annotation that cannot be parsed; the pod must not start partially captured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {pod}: annotation {annotation} has the value {value:?}; allowed: {allowed}")]
pub struct InvalidAnnotation {
    /// Pod with the annotation.
    pub pod: PodName,
    /// Key of the annotation (or field of the container).
    pub annotation: &'static str,
    /// Value of the annotation, truncated to 200 characters.
    pub value: String,
    /// Description of the permitted values.
    pub allowed: &'static str,
}

/// Whether the pod requests no interception at all.
pub(crate) fn intercepts_nothing(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(MODE).is_some_and(|mode| mode == "NONE")
}

/// Returns the redirect parameters of an injected pod.
pub(crate) fn parse_redirect(pod: &Pod, proxy: &Container) -> Result<SidecarRedirect, InvalidAnnotation> {
    let read = AnnotationReader { pod };
    let mut warnings = Vec::new();
    let mut flag = |name: &str| env_flag(proxy, name, &mut warnings);
    let dns = if flag("ISTIO_META_DNS_CAPTURE") { DnsCapture::All } else { DnsCapture::Off };
    let is_renamed = proxy.env_value(DUAL_STACK).is_some();
    let dual_stack = flag(if is_renamed { DUAL_STACK } else { OLD_DUAL_STACK });
    let drop_invalid = flag("INVALID_DROP");
    let loopback = loopback_net(proxy, &mut warnings);
    let ports = |annotation, default| read.read_value(annotation, PORTS_ALLOWED, default, parse_ports);
    let interfaces =
        |annotation| read.read_value(annotation, INTERFACES_ALLOWED, Vec::new(), parse_interfaces);
    let is_rerouted = pod.metadata.annotations.contains_key(REROUTE);
    let config = SidecarConfig {
        proxy_uids: vec![
            read.read_id("istio-proxy securityContext.runAsUser", proxy.security_context.run_as_user)?,
        ],
        proxy_gids: vec![
            read.read_id("istio-proxy securityContext.runAsGroup", proxy.security_context.run_as_group)?,
        ],
        inbound_mode: read.read_value(MODE, MODE_ALLOWED, InboundMode::Redirect, parse_inbound_mode)?,
        include_inbound: ports(INCLUDE_INBOUND, PortSelection::All)?,
        exclude_inbound: with_proxy_ports(ports(EXCLUDE_INBOUND, port_list(&[15020]))?),
        include_networks: read.read_value(
            INCLUDE_CIDRS,
            NETWORKS_ALLOWED,
            NetworkSelection::All,
            parse_networks,
        )?,
        exclude_networks: read.read_value(
            EXCLUDE_CIDRS,
            EXCLUDED_NETWORKS_ALLOWED,
            Vec::new(),
            network_list,
        )?,
        include_outbound: ports(INCLUDE_OUTBOUND, PortSelection::NONE)?,
        exclude_outbound: ports(EXCLUDE_OUTBOUND, port_list(&[15020]))?,
        kubevirt_interfaces: interfaces(if is_rerouted { REROUTE } else { KUBEVIRT })?,
        exclude_interfaces: interfaces(EXCLUDE_INTERFACES)?,
        loopback,
        dns,
        drop_invalid,
        ..SidecarConfig::default()
    };
    Ok(SidecarRedirect { config, dual_stack, warnings })
}

struct AnnotationReader<'a> {
    pod: &'a Pod,
}

impl AnnotationReader<'_> {
    /// Returns the annotation's value parsed by `parse`, or the default if it is absent.
    fn read_value<T>(
        &self,
        annotation: &'static str,
        allowed: &'static str,
        default: T,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, InvalidAnnotation> {
        match self.pod.metadata.annotations.get(annotation) {
            None => Ok(default),
            Some(value) => parse(value).ok_or_else(|| self.invalid_annotation(annotation, value, allowed)),
        }
    }

    /// Parses a user or group ID: unset and zero mean Istio's 1337. The maximum number is no valid ID (kernel: `uid_valid`), and
    /// iptables rejects it.
    fn read_id(&self, field: &'static str, id: Option<i64>) -> Result<u32, InvalidAnnotation> {
        match id.filter(|id| *id != 0) {
            None => Ok(1337),
            Some(id) => u32::try_from(id)
                .ok()
                .filter(|id| *id != u32::MAX)
                .ok_or_else(|| self.invalid_annotation(field, &id.to_string(), "0 to 4294967294")),
        }
    }

    fn invalid_annotation(
        &self,
        annotation: &'static str,
        value: &str,
        allowed: &'static str,
    ) -> InvalidAnnotation {
        let value = value.chars().take(200).collect();
        InvalidAnnotation { pod: self.pod.name(), annotation, value, allowed }
    }
}

fn env_flag(proxy: &Container, name: &str, warnings: &mut Vec<String>) -> bool {
    let Some(value) = proxy.env_value(name).filter(|value| !value.is_empty()) else { return false };
    parse_go_bool(value).unwrap_or_else(|| {
        let value = excerpt(value);
        warnings.push(format!("{name} of istio-proxy is {value:?}, which is not a boolean: taken as false"));
        false
    })
}

/// Returns the loopback network. Istio's plugin reads the variable from its own environment, which is the container runtime's;
/// `istio-init` has it from `proxyMetadata`, as `istio-proxy` does. `istio-validation` connects to the passthrough address as the
/// proxy's user, so a network that contains it would keep the pod from starting.
fn loopback_net(proxy: &Container, warnings: &mut Vec<String>) -> LoopbackNet {
    let Some(value) = proxy.env_value(LOOPBACK).filter(|value| !value.is_empty()) else {
        return LoopbackNet::default();
    };
    let usable = |net: &LoopbackNet| !net.net().contains(&passthrough_source(Family::V4));
    value.parse().ok().filter(usable).unwrap_or_else(|| {
        let value = excerpt(value);
        warnings.push(format!(
            "{LOOPBACK} of istio-proxy is {value:?}; allowed: a part of 127.0.0.0/8 without 127.0.0.6; taken as 127.0.0.1/32"
        ));
        LoopbackNet::default()
    })
}

fn parse_inbound_mode(text: &str) -> Option<InboundMode> {
    match text {
        "REDIRECT" => Some(InboundMode::Redirect),
        "TPROXY" => Some(TPROXY),
        _ => None,
    }
}

fn port_list(ports: &[u16]) -> PortSelection {
    PortSelection::List(ports.iter().copied().map(Port).collect())
}

fn with_proxy_ports(excluded: PortSelection) -> PortSelection {
    let PortSelection::List(list) = excluded else { return excluded };
    let mut known = BTreeSet::new();
    let ports = list.into_iter().chain(PROXY_PORTS).filter(|port| known.insert(*port));
    PortSelection::List(ports.collect())
}
