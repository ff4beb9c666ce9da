//! Ports that ztunnel opens in the network namespace of each pod with in-pod capture. It refuses a running pod that uses one of
//! them, whose traffic is held then; in a new pod it binds first, and the application cannot listen.

use report::list_ports;

use crate::{
    finding::{Code, Finding, ObjectName, Severity},
    objects::Pod,
    policy::HBONE,
};

/// Ports of outbound and inbound traffic, HBONE and DNS.
const PORTS: [u16; 4] = [15001, 15006, HBONE, 15053];

/// Returns a finding about a pod whose containers declare such a port: only a hint, because an application need not listen there,
/// and may listen elsewhere.
pub(crate) fn declared_finding(pod: &Pod) -> Option<Finding> {
    let ports = list_ports(&pod.declared_ports().filter(|port| PORTS.contains(port)).collect::<Vec<_>>())?;
    let message =
        format!("it declares {ports}, which ztunnel would open in it: only one of both can listen there");
    let object = ObjectName::in_namespace("Pod", &pod.metadata.namespace, &pod.metadata.name);
    Some(Finding { severity: Severity::Warning, ..Finding::new(Code::ZtunnelPortTaken, object, message) })
}
