//! Other writers of network configurations, derived from the directory's content, and the settings that resolve the conflict.

use std::{collections::BTreeSet, path::Path};

use crate::network;

/// Suffix that Cilium appends to the names of other components' files, and its own uninstallation removes.
pub(crate) const SET_ASIDE: &str = ".cilium_bak";

const CILIUM: KnownWriter = ("cilium-cni", "Cilium", "set its Helm value cni.exclusive=false");

/// Plugin types of Multus: the standalone program, and the shim that calls its daemon.
const MULTUS: [&str; 2] = ["multus", "multus-shim"];

/// Plugin type, name and advice.
type KnownWriter = (&'static str, &'static str, &'static str);

const KNOWN: [KnownWriter; 6] = [
    CILIUM,
    (MULTUS[0], "Multus", "let Multus call istio-cni by name: CHAINED_CNI_PLUGIN=false (provider multus)"),
    (MULTUS[1], "Multus", "let Multus call istio-cni by name: CHAINED_CNI_PLUGIN=false (provider multus)"),
    (
        "calico",
        "Calico",
        "let only one writer own the file: ISTIO_OWNED_CNI_CONFIG=true leaves Calico's alone",
    ),
    ("aws-cni", "the AWS VPC CNI", "ISTIO_OWNED_CNI_CONFIG=true leaves its file alone"),
    ("linkerd-cni", "Linkerd", "run only one mesh's CNI plugin on a node"),
];

/// Describes the likely conflicting writer.
pub(crate) fn describe_writers(directory: &Path) -> String {
    let names = network::file_names(directory).unwrap_or_default();
    if names.iter().any(|name| name.ends_with(SET_ASIDE)) {
        return writer_hint(&CILIUM);
    }
    let types = network::plugin_chains(directory).concat();
    let known = KNOWN.iter().find(|(plugin, ..)| types.iter().any(|kind| kind == plugin));
    if let Some(known) = known {
        return writer_hint(known);
    }
    let others: BTreeSet<&str> =
        types.iter().map(String::as_str).filter(|plugin| *plugin != cni_types::ConflistEntry::TYPE).collect();
    match others.is_empty() {
        true => "no other plugin is configured there".to_owned(),
        false => format!("the other plugins there are {}", Vec::from_iter(others).join(", ")),
    }
}

/// Whether a network of the directory calls Multus, which calls the plugins of other networks for a pod.
pub(crate) fn has_multus(directory: &Path) -> bool {
    network::plugin_chains(directory).iter().flatten().any(|plugin| MULTUS.contains(&plugin.as_str()))
}

fn writer_hint((plugin, name, advice): &KnownWriter) -> String {
    format!("this looks like {name} ({plugin}): {advice}")
}
