//! Known limits of the network with our entry, derived from its plugins.

use std::path::Path;

use cni_types::ConflistEntry;

use crate::network;

/// First plugin of a network, and the limit in ambient mode (docs/networks.md).
const LIMITS: [(&str, &str); 3] = [
    ("macvlan", "behind macvlan, the kubelet's network probes of ambient pods fail"),
    (
        "ipvlan",
        "behind ipvlan, which was not tested, the kubelet's network probes of ambient pods are expected to fail",
    ),
    (
        "ovn-k8s-cni-overlay",
        "behind OVN-Kubernetes, the kubelet's network probes of ambient pods fail unless its gateway mode is local",
    ),
];

/// Returns a warning about ambient mode on a node with networks in this directory; `None`: no limit is known.
///
/// The kubelet's probes reach an ambient pod from an address of the node's own, to which the pod replies by its default route.
/// Behind these networks that route does not lead through the node, or not always.
pub(crate) fn ambient_limit(directory: &Path) -> Option<&'static str> {
    let chains = network::plugin_chains(directory);
    let chain = chains.iter().find(|chain| chain.iter().any(|plugin| plugin == ConflistEntry::TYPE))?;
    let limit = LIMITS.iter().find(|(plugin, _)| chain.first().is_some_and(|first| first == plugin))?;
    Some(limit.1)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_limited_network_that_has_our_entry_is_warned_of() {
        let list = |plugins: &[&str]| {
            let plugins: Vec<_> = plugins.iter().map(|plugin| format!(r#"{{"type": "{plugin}"}}"#)).collect();
            format!(r#"{{"cniVersion": "1.0.0", "name": "kit", "plugins": [{}]}}"#, plugins.join(", "))
        };
        let cases: [(&[&str], bool); 6] = [
            (&["macvlan", "istio-cni"], true),
            (&["ipvlan", "istio-cni"], true),
            (&["ovn-k8s-cni-overlay", "istio-cni"], true),
            (&["macvlan"], false),
            (&["bridge", "istio-cni"], false),
            (&["multus", "istio-cni"], false),
        ];
        for (plugins, is_warned_of) in cases {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("10-kit.conflist"), list(plugins)).unwrap();
            fs::write(directory.path().join("20-other.conflist"), list(&["macvlan"])).unwrap();
            assert_eq!(ambient_limit(directory.path()).is_some(), is_warned_of, "{plugins:?}");
        }
    }
}
