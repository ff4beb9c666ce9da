//! What a pod's annotations ask of capture from within.

use model::{IfName, Pod, parse_go_bool};
use rules::inpod;

/// Pod annotation: whether ztunnel answers its DNS.
pub const DNS_CAPTURE: &str = "ambient.istio.io/dns-capture";
/// Pod annotation: whether inbound connections go straight to the application.
pub const BYPASS_INBOUND: &str = "ambient.istio.io/bypass-inbound-capture";
/// Pod annotation: interfaces of virtual machines inside of it.
pub const VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";

/// What is special about a pod, and what of its annotations could not be read, in sentences: such a value counts as
/// none. `dns_capture`: what holds for pods that do not say.
#[must_use]
pub fn options(pod: &Pod, dns_capture: bool) -> (inpod::Pod, Vec<String>) {
    let mut warnings = Vec::new();
    let annotations = &pod.metadata.annotations;
    let mut boolean = |key: &str, default: bool| {
        let Some(value) = annotations.get(key) else { return default };
        parse_go_bool(value).unwrap_or_else(|| {
            warnings.push(format!("annotation {key} is neither true nor false: {value:?}"));
            default
        })
    };
    let (dns, bypass_inbound) = (boolean(DNS_CAPTURE, dns_capture), boolean(BYPASS_INBOUND, false));
    let mut virtual_interfaces = Vec::new();
    let names = annotations.get(VIRTUAL_INTERFACES).map_or("", String::as_str);
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match IfName::new(name) {
            Ok(name) => virtual_interfaces.push(name),
            Err(_) => {
                warnings.push(format!("annotation {VIRTUAL_INTERFACES} has {name:?}, no interface name"));
            }
        }
    }
    (inpod::Pod { dns, bypass_inbound, virtual_interfaces }, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &[(&str, &str)], dns_capture: bool) -> (inpod::Pod, usize) {
        let mut pod = Pod::default();
        let pairs = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        pod.metadata.annotations = pairs.collect();
        let (options, warnings) = options(&pod, dns_capture);
        (options, warnings.len())
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
}
