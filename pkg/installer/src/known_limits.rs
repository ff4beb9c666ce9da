//! Limits of the network that has our entry, as far as its plugins show them.

use std::path::Path;

use cni_types::ConflistEntry;

use crate::network;

/// Warning about ambient mode on a node whose networks are in this directory; `None`: nothing is known that fails.
///
/// The kubelet's probes reach an ambient pod from an address of the node's own, which the pod answers by its default route. Behind
/// macvlan that does not lead over the node.
pub(crate) fn ambient_limit(directory: &Path) -> Option<&'static str> {
    let chains = network::plugin_chains(directory);
    let chain = chains.iter().find(|chain| chain.iter().any(|plugin| plugin == ConflistEntry::TYPE))?;
    let is_macvlan = chain.first().is_some_and(|plugin| plugin == "macvlan");
    is_macvlan.then_some("behind macvlan, the kubelet's network probes of ambient pods fail")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn macvlan_as_the_network_of_our_entry_is_warned_of() {
        let list = |plugins: &[&str]| {
            let plugins: Vec<_> = plugins.iter().map(|plugin| format!(r#"{{"type": "{plugin}"}}"#)).collect();
            format!(r#"{{"cniVersion": "1.0.0", "name": "kit", "plugins": [{}]}}"#, plugins.join(", "))
        };
        let cases: [(&[&str], bool); 4] = [
            (&["macvlan", "istio-cni"], true),
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
