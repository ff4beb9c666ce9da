//! Exceptions from in-pod capture that a pod or its namespace requests, and those that the administrator permits.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use model::{IfName, IpNet, Port, list_elements, parse_go_bool};
use rules::inpod::{InPodRulesConfig, PodExceptions};
use rules::sidecar::PortSelection;

use crate::lists::{self, excerpt};

/// Interfaces whose traffic is always captured, whatever annotations request. Runtimes give this name to the interface of the
/// cluster's network in every pod, whatever plugins create it: containerd (`defaultIfName`, internal/cri/server/helpers.go), CRI-O
/// (`DefaultInterfaceName`, pkg/ocicni/types.go of ocicni).
const ALWAYS_CAPTURED: [&str; 2] = ["lo", "eth0"];

model::word_enum! {
    /// A kind of exception, permitted individually by the administrator.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ExceptionKind {
        /// Destination ports of TCP connections.
        OutboundPorts = "outbound-ports",
        /// Destination networks of TCP connections.
        OutboundNetworks = "outbound-networks",
        /// Ports that are reached without ztunnel, and therefore without its policies.
        InboundPorts = "inbound-ports",
        /// Network interfaces of the pod.
        Interfaces = "interfaces",
        /// Whether ztunnel answers DNS.
        Dns = "dns",
        /// Traffic while the node has no ztunnel.
        WithoutZtunnel = "without-ztunnel",
    }
}

impl ExceptionKind {
    /// Returns the annotation of pods and namespaces that requests it.
    pub const fn annotation(self) -> &'static str {
        match self {
            ExceptionKind::OutboundPorts => "cni.istio.io/excludeOutboundPorts",
            ExceptionKind::OutboundNetworks => "cni.istio.io/excludeOutboundIPRanges",
            ExceptionKind::InboundPorts => "cni.istio.io/excludeInboundPorts",
            ExceptionKind::Interfaces => "cni.istio.io/excludeInterfaces",
            ExceptionKind::Dns => "cni.istio.io/dnsCapture",
            ExceptionKind::WithoutZtunnel => "cni.istio.io/withoutZtunnel",
        }
    }

    /// Returns the maximum number of significant bytes of a value.
    pub(crate) const fn max_length(self) -> usize {
        match self {
            ExceptionKind::OutboundPorts | ExceptionKind::InboundPorts => lists::PORTS.bytes,
            ExceptionKind::OutboundNetworks => lists::NETWORKS.bytes,
            ExceptionKind::Interfaces => lists::INTERFACES.bytes,
            ExceptionKind::Dns | ExceptionKind::WithoutZtunnel => 16,
        }
    }

    fn allowed_values(self) -> &'static str {
        match self {
            ExceptionKind::OutboundPorts => "a comma-separated list of ports from 1 to 65535",
            ExceptionKind::OutboundNetworks => {
                "a comma-separated list of networks as 10.0.0.0/8, which are not IPv4-mapped and no whole address family, also not together"
            }
            ExceptionKind::InboundPorts => {
                "a comma-separated list of ports from 1 to 65535, without those of ztunnel"
            }
            ExceptionKind::Interfaces => {
                "a comma-separated list of interface names, without lo, eth0 and what matches one of them"
            }
            ExceptionKind::Dns => "true or false",
            ExceptionKind::WithoutZtunnel => "open or closed",
        }
    }
}

/// Kinds of exceptions that the administrator permits. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedExceptions(BTreeSet<ExceptionKind>);

impl AllowedExceptions {
    /// Returns all kinds.
    pub fn all() -> AllowedExceptions {
        AllowedExceptions(ExceptionKind::ALL.into())
    }
}

impl FromStr for AllowedExceptions {
    type Err = String;

    /// Parses an empty text, `none`, `all`, or a comma-separated list of names of kinds.
    fn from_str(text: &str) -> Result<AllowedExceptions, String> {
        let names: Vec<&str> = list_elements(text).collect();
        let kinds: Result<BTreeSet<_>, &str> = match names.as_slice() {
            ["none"] => Ok(BTreeSet::new()),
            ["all"] => return Ok(AllowedExceptions::all()),
            names => names.iter().map(|name| ExceptionKind::from_name(name).ok_or(*name)).collect(),
        };
        kinds.map(AllowedExceptions).map_err(|name| {
            let known = ExceptionKind::ALL.map(ExceptionKind::as_str).join(", ");
            format!(
                "{:?} is not a kind of exception; known are {known}, and none or all, each alone",
                excerpt(name)
            )
        })
    }
}

/// Exceptions that the annotations of one object request, by kind; `Err`: the beginning of a value that cannot be applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedExceptions(BTreeMap<ExceptionKind, Result<ExceptionValue, String>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExceptionValue {
    Ports(Vec<Port>),
    Networks(Vec<IpNet>),
    Interfaces(Vec<IfName>),
    Switch(bool),
}

/// Exceptions that apply to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveExceptions {
    /// Traffic that is not redirected.
    pub traffic: PodExceptions,
    /// Whether ztunnel answers its DNS; `None`: no exception applies.
    pub dns: Option<bool>,
    /// Requests that are not applied, each as a sentence without a full stop.
    pub refused: Vec<String>,
}

impl RequestedExceptions {
    /// Parses the annotations of a pod or of a namespace.
    pub fn read_from(annotations: &BTreeMap<String, String>) -> RequestedExceptions {
        let read = |kind: ExceptionKind| {
            let text = annotations.get(kind.annotation())?;
            let value = parse_value(kind, text).ok_or_else(|| excerpt(text));
            Some((kind, value))
        };
        RequestedExceptions(ExceptionKind::ALL.into_iter().filter_map(read).collect())
    }

    /// Returns the exceptions of a pod with these requests. Kinds that it does not mention are taken from its namespace.
    /// `dns_capture`: whether DNS is captured for pods without such a request.
    pub fn effective_exceptions(
        &self,
        namespace: Option<&RequestedExceptions>,
        allowed: &AllowedExceptions,
        dns_capture: bool,
    ) -> EffectiveExceptions {
        let mut all = EffectiveExceptions::default();
        for (kind, whose, value) in self.with_inherited(namespace) {
            let annotation = kind.annotation();
            match value {
                _ if !allowed.0.contains(&kind) && leaves_outside(kind, value, dns_capture) => all.refused.push(format!(
                    "annotation {annotation} of {whose} has no effect: AMBIENT_ALLOWED_EXCEPTIONS does not contain {}",
                    kind.as_str()
                )),
                Err(text) => all.refused.push(format!(
                    "annotation {annotation} of {whose} has no effect: {text:?} is not {}",
                    kind.allowed_values()
                )),
                Ok(value) => all.apply_value(kind, value.clone()),
            }
        }
        all
    }

    /// Returns the requests of a pod with node-level capture, where none is applied, each as a sentence without a full stop.
    pub fn refused_on_node(&self, namespace: Option<&RequestedExceptions>) -> Vec<String> {
        let requests =
            self.with_inherited(namespace).filter(|(kind, _, value)| leaves_outside(*kind, value, true));
        let sentence = |(kind, whose, _): (ExceptionKind, _, _)| {
            format!(
                "annotation {} of {whose} has no effect: node-level capture has no exceptions",
                kind.annotation()
            )
        };
        requests.map(sentence).collect()
    }

    /// Returns each request with its origin: of each kind the pod's own value, or else that of its namespace.
    fn with_inherited<'a>(
        &'a self,
        namespace: Option<&'a RequestedExceptions>,
    ) -> impl Iterator<Item = (ExceptionKind, &'static str, &'a Result<ExceptionValue, String>)> {
        ExceptionKind::ALL.into_iter().filter_map(move |kind| {
            let inherited = || Some((kind, "its namespace", namespace?.0.get(&kind)?));
            self.0.get(&kind).map(|value| (kind, "the pod", value)).or_else(inherited)
        })
    }
}

impl EffectiveExceptions {
    fn apply_value(&mut self, kind: ExceptionKind, value: ExceptionValue) {
        match value {
            ExceptionValue::Ports(ports) if kind == ExceptionKind::InboundPorts => {
                self.traffic.inbound_ports = ports;
            }
            ExceptionValue::Ports(ports) => self.traffic.outbound_ports = ports,
            ExceptionValue::Networks(networks) => self.traffic.outbound_networks = networks,
            ExceptionValue::Interfaces(interfaces) => self.traffic.interfaces = interfaces,
            ExceptionValue::Switch(on) if kind == ExceptionKind::WithoutZtunnel => {
                self.traffic.without_ztunnel = on;
            }
            ExceptionValue::Switch(on) => self.dns = Some(on),
        }
    }
}

/// Whether a request would exclude any traffic, or cannot be parsed. An empty list and a switch that captures as much as its
/// absence need no permission.
fn leaves_outside(kind: ExceptionKind, value: &Result<ExceptionValue, String>, dns_capture: bool) -> bool {
    match value {
        Ok(ExceptionValue::Ports(ports)) => !ports.is_empty(),
        Ok(ExceptionValue::Networks(networks)) => !networks.is_empty(),
        Ok(ExceptionValue::Interfaces(interfaces)) => !interfaces.is_empty(),
        Ok(ExceptionValue::Switch(on)) if kind == ExceptionKind::Dns => !on && dns_capture,
        Ok(ExceptionValue::Switch(open)) => *open,
        Err(_) => true,
    }
}

/// Parses a value; `None`: it cannot be applied in full. A value that excludes the pod from the mesh altogether cannot either: that
/// is the purpose of the label `istio.io/dataplane-mode=none`.
fn parse_value(kind: ExceptionKind, text: &str) -> Option<ExceptionValue> {
    match kind {
        ExceptionKind::OutboundPorts => parse_ports(text).map(ExceptionValue::Ports),
        ExceptionKind::InboundPorts => {
            let InPodRulesConfig { outbound, inbound, tunnel, dns, .. } = InPodRulesConfig::default();
            let of_ztunnel = [outbound, inbound, tunnel, dns];
            let ports = parse_ports(text)?;
            (!ports.iter().any(|port| of_ztunnel.contains(port))).then_some(ExceptionValue::Ports(ports))
        }
        ExceptionKind::OutboundNetworks => {
            let networks = lists::network_list(text)?;
            // Two halves of an address family are merged to one network.
            let joined = IpNet::aggregate(&networks);
            let is_family = joined.iter().any(|network| network.prefix_len() == 0);
            (!is_family && !networks.iter().any(is_mapped)).then_some(ExceptionValue::Networks(networks))
        }
        ExceptionKind::Interfaces => {
            let interfaces = lists::parse_interfaces(text)?;
            let is_captured = |name: &IfName| ALWAYS_CAPTURED.iter().any(|interface| name.matches(interface));
            (!interfaces.iter().any(is_captured)).then_some(ExceptionValue::Interfaces(interfaces))
        }
        ExceptionKind::Dns => parse_go_bool(text).map(ExceptionValue::Switch),
        ExceptionKind::WithoutZtunnel => match text {
            "open" => Some(ExceptionValue::Switch(true)),
            "closed" => Some(ExceptionValue::Switch(false)),
            _ => None,
        },
    }
}

/// Whether a network contains only IPv4-mapped addresses: packets to these are IPv4.
fn is_mapped(network: &IpNet) -> bool {
    matches!(network, IpNet::V6(network) if network.prefix_len() >= 96 && network.addr().to_ipv4_mapped().is_some())
}

/// Parses ports to a sorted list without duplicates, so that equivalent lists are equal.
fn parse_ports(text: &str) -> Option<Vec<Port>> {
    let PortSelection::List(ports) = lists::parse_ports(text)? else { return None };
    let ports: BTreeSet<Port> = ports.into_iter().collect();
    (!ports.contains(&Port(0))).then(|| ports.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requested(annotations: &[(ExceptionKind, &str)]) -> RequestedExceptions {
        let named =
            annotations.iter().map(|(kind, value)| (kind.annotation().to_owned(), (*value).to_owned()));
        RequestedExceptions::read_from(&named.collect())
    }

    #[test]
    fn nothing_is_allowed_unless_the_administrator_says_so() {
        use ExceptionKind::*;
        assert_eq!("".parse(), Ok(AllowedExceptions::default()));
        assert_eq!("none".parse(), Ok(AllowedExceptions::default()));
        assert_eq!("all".parse(), Ok(AllowedExceptions::all()));
        assert_eq!(" dns, inbound-ports ,".parse(), Ok(AllowedExceptions([Dns, InboundPorts].into())));
        for wrong in ["ports", "dns,all", "none,dns", "DNS", "*"] {
            assert!(wrong.parse::<AllowedExceptions>().is_err(), "{wrong}");
        }
        let asked = requested(&[(OutboundPorts, "5432"), (Dns, "false")]);
        let refused = asked.effective_exceptions(None, &AllowedExceptions::default(), true);
        assert_eq!(
            (refused.traffic, refused.dns, refused.refused.len()),
            (PodExceptions::default(), None, 2)
        );
        let one = asked.effective_exceptions(None, &"dns".parse().unwrap(), true);
        assert_eq!((one.traffic, one.dns, one.refused.len()), (PodExceptions::default(), Some(false), 1));
    }

    #[test]
    fn a_request_that_leaves_nothing_outside_needs_no_permission() {
        use ExceptionKind::*;
        let none = AllowedExceptions::default();
        for (kind, value, dns_capture, dns, refused) in [
            (OutboundPorts, "", true, None, 0),
            (OutboundNetworks, "", true, None, 0),
            (InboundPorts, " ", true, None, 0),
            (Interfaces, "", true, None, 0),
            (WithoutZtunnel, "closed", true, None, 0),
            (WithoutZtunnel, "open", true, None, 1),
            (Dns, "true", true, Some(true), 0),
            (Dns, "true", false, Some(true), 0),
            (Dns, "false", false, Some(false), 0),
            (Dns, "false", true, None, 1),
            (OutboundPorts, "no port", true, None, 1),
        ] {
            let effective = requested(&[(kind, value)]).effective_exceptions(None, &none, dns_capture);
            let found = (effective.traffic, effective.dns, effective.refused.len());
            assert_eq!(found, (PodExceptions::default(), dns, refused), "{kind:?} {value:?} {dns_capture}");
        }
    }

    #[test]
    fn a_pod_that_is_captured_on_the_node_is_told_of_each_request_that_would_change_something() {
        use ExceptionKind::*;
        let namespace =
            requested(&[(OutboundPorts, "5432"), (InboundPorts, "9100"), (WithoutZtunnel, "closed")]);
        let pod = requested(&[(InboundPorts, ""), (Dns, "false"), (Interfaces, "lo")]);
        let why = "has no effect: node-level capture has no exceptions";
        let expected = [
            format!("annotation cni.istio.io/excludeOutboundPorts of its namespace {why}"),
            format!("annotation cni.istio.io/excludeInterfaces of the pod {why}"),
            format!("annotation cni.istio.io/dnsCapture of the pod {why}"),
        ];
        assert_eq!(pod.refused_on_node(Some(&namespace)), expected);
        assert!(RequestedExceptions::default().refused_on_node(None).is_empty());
    }

    #[test]
    fn the_word_of_the_pod_precedes_that_of_its_namespace() {
        use ExceptionKind::*;
        let namespace = requested(&[(OutboundPorts, "5432"), (InboundPorts, "9100"), (Dns, "false")]);
        let pod = requested(&[(OutboundPorts, "6379, 27017"), (InboundPorts, "")]);
        let effective = pod.effective_exceptions(Some(&namespace), &AllowedExceptions::all(), true);
        assert_eq!(effective.traffic.outbound_ports, [Port(6379), Port(27017)]);
        assert_eq!(effective.traffic.inbound_ports, [], "an empty list of the pod's own is none");
        assert_eq!((effective.dns, effective.refused), (Some(false), vec![]));
        // An invalid annotation does not fall back to the namespace's: the pod requested something else.
        let invalid = requested(&[(OutboundPorts, "https")]).effective_exceptions(
            Some(&namespace),
            &AllowedExceptions::all(),
            true,
        );
        assert_eq!((invalid.traffic.outbound_ports, invalid.refused.len()), (vec![], 1));
        assert_eq!(invalid.traffic.inbound_ports, [Port(9100)]);
    }

    #[test]
    fn values_are_those_of_the_annotations_for_sidecars_without_what_is_no_exception() {
        use ExceptionKind::*;
        let is_refused = |kind, value: &str| {
            let effective =
                requested(&[(kind, value)]).effective_exceptions(None, &AllowedExceptions::all(), true);
            if !effective.refused.is_empty() {
                assert_eq!((effective.traffic, effective.dns), (PodExceptions::default(), None), "{value}");
            }
            !effective.refused.is_empty()
        };
        for (kind, value) in [
            (OutboundPorts, "5432,5432, 1"),
            (OutboundNetworks, "10.0.0.0/8,2001:db8::/32,192.0.2.7/32"),
            (InboundPorts, "9100"),
            (OutboundNetworks, "0.0.0.0/1,128.0.0.0/2,8000::/1"),
            (OutboundNetworks, "::/80"),
            (Interfaces, "net1,eth1,eth01,vnet+,lo1+,eth1+"),
            (Dns, "False"),
            (WithoutZtunnel, "open"),
            (WithoutZtunnel, "closed"),
        ] {
            assert!(!is_refused(kind, value), "{value}");
        }
        let long = "1,".repeat(10_000);
        for (kind, value) in [
            (OutboundPorts, "*"),
            (OutboundPorts, "0"),
            (OutboundPorts, "80-90"),
            (OutboundPorts, "65536"),
            (OutboundPorts, &long),
            (OutboundNetworks, "*"),
            (OutboundNetworks, "10.0.0.0/8,::/0"),
            (OutboundNetworks, "10.0.0.1"),
            (OutboundNetworks, "10.0.0.0/8,::ffff:0:0/96"),
            (OutboundNetworks, "::ffff:10.0.0.1/128"),
            (InboundPorts, "80,15006"),
            (InboundPorts, "15008"),
            (OutboundNetworks, "0.0.0.0/1,128.0.0.0/1"),
            (OutboundNetworks, "10.0.0.0/8,8000::/1,4000::/2,::/3,2000::/3"),
            (Interfaces, "eth1,lo"),
            (Interfaces, "eth1,+"),
            (Interfaces, "l+"),
            (Interfaces, "lo+"),
            (Interfaces, "net1,eth0"),
            (Interfaces, "e+"),
            (Interfaces, "eth+"),
            (Interfaces, "eth0+"),
            (Interfaces, "a-name-that-is-too-long"),
            (Dns, "off"),
            (Dns, ""),
            (WithoutZtunnel, "Open"),
            (WithoutZtunnel, "true"),
        ] {
            assert!(is_refused(kind, value), "{value}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_only_what_is_allowed_applies(
            values in prop::array::uniform6(prop_oneof!["[0-9a-z,./: *]{0,24}", Just("open".to_owned())]),
            allowed in prop::collection::btree_set(0_usize..6, 0..6),
        ) {
            let pairs: Vec<_> = ExceptionKind::ALL.into_iter().zip(values.iter().map(String::as_str)).collect();
            let allowed = AllowedExceptions(allowed.into_iter().map(|at| ExceptionKind::ALL[at]).collect());
            let EffectiveExceptions { traffic, dns, .. } = requested(&pairs).effective_exceptions(None, &allowed, true);
            let applied = [
                !traffic.outbound_ports.is_empty(),
                !traffic.outbound_networks.is_empty(),
                !traffic.inbound_ports.is_empty(),
                !traffic.interfaces.is_empty(),
                dns == Some(false),
                traffic.without_ztunnel,
            ];
            for (kind, applies) in ExceptionKind::ALL.into_iter().zip(applied) {
                prop_assert!(!applies || allowed.0.contains(&kind));
            }
        }
    }
}
