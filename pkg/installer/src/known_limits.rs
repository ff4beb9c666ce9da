//! What cannot work behind the network that has our entry, as far as the network's plugins show it.

use std::path::Path;

use cni_types::{ConflistEntry, plugin_types};

use crate::network::{self, NetworkConf};

/// Warning about ambient mode on a node whose networks are in this directory; `None`: nothing is known that fails.
///
/// The kubelet's probes reach an ambient pod from an address of the node's own, which the pod answers by its default route. Behind
/// macvlan that does not lead over the node.
pub(crate) fn of_ambient(directory: &Path) -> Option<&'static str> {
    let names = network::names(directory).unwrap_or_default();
    let read = |name: &String| NetworkConf::read(directory, name).ok().flatten();
    let mut types = names.iter().filter_map(read).map(|network| plugin_types(&network.content));
    let chain = types.find(|types| types.iter().any(|plugin| plugin == ConflistEntry::TYPE))?;
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
            assert_eq!(of_ambient(directory.path()).is_some(), is_warned_of, "{plugins:?}");
        }
    }
}
