//! Options of in-pod capture that a pod's annotations request.

use std::collections::BTreeMap;

use model::{ExistingConnections, IfName, Pod, list_elements, parse_go_bool};
use rules::inpod;

use crate::{
    exceptions::{AllowedExceptions, EffectiveExceptions, RequestedExceptions},
    lists::{MAX_INTERFACES, MAX_INTERFACES_BYTES, excerpt},
};

/// Pod annotation: whether ztunnel answers its DNS.
pub const DNS_CAPTURE: &str = "ambient.istio.io/dns-capture";
/// Pod annotation: whether inbound connections bypass ztunnel.
pub const BYPASS_INBOUND: &str = "ambient.istio.io/bypass-inbound-capture";
/// Pod annotation: interfaces of virtual machines inside the pod.
pub const VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
/// Pod annotation: treatment of connections that exist when the pod joins the mesh, `keep` or `reset`. Not in Istio.
pub const EXISTING_CONNECTIONS: &str = "cni.istio.io/existing-connections";

/// Administrator's settings for the options of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodOptionPolicy {
    /// Whether ztunnel answers the DNS of pods without a request.
    pub dns_capture: bool,
    /// Exceptions that pods and namespaces may request.
    pub allowed: AllowedExceptions,
}

/// Options of a pod, as far as the administrator permits them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EffectiveOptions {
    /// Options from which its rules are derived.
    pub options: inpod::PodOptions,
    /// Refused requests, each as a sentence without a full stop.
    pub refused: Vec<String>,
}

/// Options of in-pod capture that a pod's annotations request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InPodAnnotations {
    dns: Option<bool>,
    bypass_inbound: bool,
    virtual_interfaces: Vec<IfName>,
    /// Treatment of connections that the pod has when it joins; `None`: not specified.
    pub existing: Option<ExistingConnections>,
    /// Traffic that is not to be captured.
    pub exceptions: RequestedExceptions,
    /// Sentences on values that could not be parsed, at most one for each annotation. Such a value counts as absent.
    pub warnings: Vec<String>,
}

impl InPodAnnotations {
    /// Parses the annotations of a pod.
    pub fn read_from(pod: &Pod) -> InPodAnnotations {
        let (annotations, mut warnings) = (&pod.metadata.annotations, Vec::new());
        let mut boolean =
            |key| read_annotation(annotations, key, parse_go_bool, "true nor false", &mut warnings);
        let (dns, bypass_inbound) = (boolean(DNS_CAPTURE), boolean(BYPASS_INBOUND).unwrap_or(false));
        let names = annotations.get(VIRTUAL_INTERFACES).map_or("", String::as_str);
        let virtual_interfaces = virtual_interfaces(names, &mut warnings);
        let existing = existing_connections(annotations, &mut warnings);
        let exceptions = RequestedExceptions::read_from(annotations);
        InPodAnnotations { dns, bypass_inbound, virtual_interfaces, existing, exceptions, warnings }
    }

    /// Returns the options of the pod. `namespace`: requests of its namespace.
    pub fn effective_options(
        &self,
        namespace: Option<&RequestedExceptions>,
        policy: &PodOptionPolicy,
    ) -> EffectiveOptions {
        let EffectiveExceptions { mut traffic, dns, refused } =
            self.exceptions.effective_exceptions(namespace, &policy.allowed, policy.dns_capture);
        let captures_dns = self.dns.or(dns).unwrap_or(policy.dns_capture);
        traffic.dns = policy.dns_capture && !captures_dns;
        let options = inpod::PodOptions {
            dns: captures_dns,
            bypass_inbound: self.bypass_inbound,
            virtual_interfaces: self.virtual_interfaces.clone(),
            exceptions: traffic,
            open: false,
        };
        EffectiveOptions { options, refused }
    }
}

/// Returns the requested treatment of connections that exist when a pod is redirected. A value that cannot be parsed counts as
/// absent and is added to `warnings`.
pub fn existing_connections(
    annotations: &BTreeMap<String, String>,
    warnings: &mut Vec<String>,
) -> Option<ExistingConnections> {
    let parse = ExistingConnections::from_name;
    read_annotation(annotations, EXISTING_CONNECTIONS, parse, "keep nor reset", warnings)
}

fn read_annotation<T>(
    annotations: &BTreeMap<String, String>,
    key: &str,
    parse: impl Fn(&str) -> Option<T>,
    allowed: &str,
    warnings: &mut Vec<String>,
) -> Option<T> {
    let value = annotations.get(key)?;
    let read = parse(value);
    if read.is_none() {
        warnings.push(format!("annotation {key} is neither {allowed}: {:?}", excerpt(value)));
    }
    read
}

/// Parses unique interface names. Invalid names are skipped; a list that is too long counts as absent.
fn virtual_interfaces(names: &str, warnings: &mut Vec<String>) -> Vec<IfName> {
    let mut warn = |why: String| warnings.push(format!("annotation {VIRTUAL_INTERFACES} {why}"));
    if names.len() > MAX_INTERFACES_BYTES {
        let shown = excerpt(names);
        warn(format!("has more than {MAX_INTERFACES_BYTES} bytes, and begins with {shown:?}"));
        return Vec::new();
    }
    let (mut interfaces, mut invalid) = (Vec::new(), Vec::new());
    for name in list_elements(names) {
        match IfName::new(name) {
            Ok(name) if interfaces.contains(&name) => {}
            Ok(name) => interfaces.push(name),
            Err(_) => invalid.push(name),
        }
    }
    if interfaces.len() > MAX_INTERFACES {
        warn(format!("names {} interfaces, more than {MAX_INTERFACES}", interfaces.len()));
        return Vec::new();
    }
    if let Some(first) = invalid.first() {
        warn(format!("has {:?}, which is not an interface name ({} such)", excerpt(first), invalid.len()));
    }
    interfaces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &[(&str, &str)], dns_capture: bool) -> (inpod::PodOptions, usize) {
        effective(annotations, &PodOptionPolicy { dns_capture, ..PodOptionPolicy::default() })
    }

    fn effective(annotations: &[(&str, &str)], policy: &PodOptionPolicy) -> (inpod::PodOptions, usize) {
        let mut pod = Pod::default();
        let pairs = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        pod.metadata.annotations = pairs.collect();
        let asked = InPodAnnotations::read_from(&pod);
        (asked.effective_options(None, policy).options, asked.warnings.len())
    }

    #[test]
    fn annotations_win_over_what_holds_for_all() {
        for default in [false, true] {
            assert_eq!(read(&[], default).0.dns, default);
            assert!(read(&[(DNS_CAPTURE, "true")], default).0.dns);
            assert!(!read(&[(DNS_CAPTURE, "False")], default).0.dns);
        }
        assert!(read(&[(BYPASS_INBOUND, "1")], false).0.bypass_inbound);
        assert!(!read(&[(BYPASS_INBOUND, "0")], false).0.bypass_inbound);
        let outside = |value: &str| read(&[(BYPASS_INBOUND, value)], false).0.outside_descriptions();
        assert_eq!((outside("true"), outside("false")), (vec!["inbound TCP".to_owned()], vec![]));
    }

    #[test]
    fn dns_is_outside_by_intent_where_an_annotation_switches_it_off() {
        let exception = crate::exceptions::ExceptionKind::Dns.annotation();
        let policy =
            |dns_capture, allowed: &str| PodOptionPolicy { dns_capture, allowed: allowed.parse().unwrap() };
        for (default, allowed, annotations, expected) in [
            (true, "dns", &[(exception, "false")][..], true),
            (true, "none", &[(exception, "false")], false),
            (true, "dns", &[(exception, "true")], false),
            (true, "dns", &[(exception, "false"), (DNS_CAPTURE, "true")], false),
            (true, "dns", &[(exception, "false"), (DNS_CAPTURE, "false")], true),
            // Istio's own annotation needs no permission.
            (true, "none", &[(DNS_CAPTURE, "false")], true),
            (true, "none", &[(DNS_CAPTURE, "true")], false),
            (false, "none", &[(DNS_CAPTURE, "false")], false),
            (false, "dns", &[(exception, "false")], false),
        ] {
            let options = effective(annotations, &policy(default, allowed)).0;
            let text = options.outside_descriptions();
            assert_eq!((options.exceptions.dns, text == ["DNS"]), (expected, expected), "{annotations:?}");
            assert!(!(expected && options.dns), "{annotations:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_counts_as_none_and_is_told() {
        for default in [false, true] {
            let (options, warnings) = read(&[(DNS_CAPTURE, "yes"), (BYPASS_INBOUND, "")], default);
            assert_eq!((options.dns, options.bypass_inbound, warnings), (default, false, 2));
        }
        let (options, warnings) = read(&[(VIRTUAL_INTERFACES, " k6t-eth0,, a name , vnet1 ")], false);
        let names: Vec<_> = options.virtual_interfaces.iter().map(IfName::as_str).collect();
        assert_eq!((names, warnings), (vec!["k6t-eth0", "vnet1"], 1));
    }

    #[test]
    fn a_pod_says_what_becomes_of_its_connections() {
        let read = |value: Option<&str>, default| {
            let mut pod = Pod::default();
            pod.metadata.annotations =
                value.map(|value| (EXISTING_CONNECTIONS.to_owned(), value.to_owned())).into_iter().collect();
            let asked = InPodAnnotations::read_from(&pod);
            (asked.existing.unwrap_or(default), asked.warnings.len())
        };
        let (keep, reset) = (ExistingConnections::Keep, ExistingConnections::Reset);
        for (value, default, expected) in [
            (None, keep, (keep, 0)),
            (None, reset, (reset, 0)),
            (Some("keep"), reset, (keep, 0)),
            (Some("reset"), keep, (reset, 0)),
            (Some("drop"), keep, (keep, 1)),
            (Some(""), reset, (reset, 1)),
        ] {
            assert_eq!(read(value, default), expected, "{value:?}");
        }
    }

    #[test]
    fn a_list_of_interfaces_is_bounded_and_what_is_said_of_it_too() {
        let many = |number: usize| (0..number).map(|n| format!("v{n}")).collect::<Vec<_>>().join(",");
        let of = |value: &str| {
            let (options, warnings) = read(&[(VIRTUAL_INTERFACES, value)], false);
            (options.virtual_interfaces.len(), warnings)
        };
        assert_eq!(of(&many(32)), (32, 0));
        assert_eq!(of(&many(33)), (0, 1));
        assert_eq!(of(&"a,".repeat(500)), (1, 0), "each counts once");
        assert_eq!(of(&"a,".repeat(125_000)), (0, 1));
        assert_eq!(of(&"!,".repeat(500)), (0, 1), "one warning, not one for each");
        assert_eq!(of(&"!,".repeat(125_000)), (0, 1));
        let mut pod = Pod::default();
        let keys = [VIRTUAL_INTERFACES, DNS_CAPTURE, BYPASS_INBOUND, EXISTING_CONNECTIONS];
        pod.metadata.annotations = keys.map(|key| (key.to_owned(), "ä\n".repeat(80_000))).into();
        let said = InPodAnnotations::read_from(&pod).warnings;
        assert!(said.len() == 4 && said.iter().all(|one| one.len() < 400), "{said:?}");
    }
}
