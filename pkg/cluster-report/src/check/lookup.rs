//! Helpers of all checks: objects by name, and lists in messages.

use std::collections::BTreeMap;

use model::{Namespace, Node};

use crate::{cluster::Cluster, objects::Pod};

/// The cluster, with an index of objects that are looked up repeatedly.
pub(crate) struct Lookup<'a> {
    pub(super) cluster: &'a Cluster,
    namespaces: BTreeMap<&'a str, &'a Namespace>,
    nodes: BTreeMap<&'a str, &'a Node>,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Lookup<'a> {
        let namespaces = cluster.namespaces.iter().map(|it| (it.metadata.name.as_str(), it));
        let nodes = cluster.nodes.iter().map(|it| (it.metadata.name.as_str(), it));
        Lookup { cluster, namespaces: namespaces.collect(), nodes: nodes.collect() }
    }

    pub(super) fn pod_namespace(&self, pod: &Pod) -> Option<&'a Namespace> {
        self.namespaces.get(pod.metadata.namespace.as_str()).copied()
    }

    pub(super) fn node(&self, name: &str) -> Option<&'a Node> {
        self.nodes.get(name).copied()
    }

    /// Returns the pods in the mesh, according to labels.
    pub(super) fn mesh_pods(&self) -> impl Iterator<Item = &'a Pod> {
        let cluster = self.cluster;
        cluster.pods.iter().filter(|pod| crate::mesh_membership(pod, self.pod_namespace(pod)).is_some())
    }
}

/// Returns the first `most` items of a list, and the number of the others.
pub(super) fn shorten_list(all: &[String], most: usize) -> String {
    let shown: Vec<&str> = all.iter().take(most).map(String::as_str).collect();
    match all.len().saturating_sub(most) {
        0 => shown.join(", "),
        1 => format!("{} and 1 other", shown.join(", ")),
        rest => format!("{} and {rest} others", shown.join(", ")),
    }
}
