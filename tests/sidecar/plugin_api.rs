//! The plugin with API servers: the real one, and misbehaving ones.

mod ambient;
mod credentials;
mod crowd;
mod mesh;
mod outside;
mod trouble;

use std::path::PathBuf;

use kit::{ApiServer, Netns, Node, NodeOptions, Request, istio};
use serde_json::Value;

use crate::fixtures::plugin::{Call, plugin_auth};

/// A node, the real API server, and the test's own namespace.
struct Cluster {
    api: &'static ApiServer,
    node: Node,
    kubeconfig: PathBuf,
    namespace: &'static str,
}

impl Cluster {
    /// Starts the fixture; `None` means that there is no API server.
    fn start(namespace: &'static str, options: NodeOptions) -> Option<Self> {
        let api = ApiServer::shared()?;
        api.create_namespace(namespace);
        let node = Node::new(options);
        let kubeconfig = istio::write_kubeconfig(&node, api, &plugin_auth(api));
        Some(Self { api, node, kubeconfig, namespace })
    }

    /// An ADD for a pod of the namespace, which need not exist in the API server.
    fn add(&self, pod: &Netns, name: &str) -> Call<'_> {
        let call = Call::new(&self.node, "ADD").netns(&pod.path()).kubeconfig(&self.kubeconfig);
        call.pod(self.namespace, name)
    }

    /// Creates an injected pod with a change.
    fn create(&self, name: &str, change: impl FnOnce(Value) -> Value) -> Value {
        self.api.create_pod(&change(istio::injected_pod(self.namespace, name)))
    }

    /// Requests of the plugin about this namespace and its pods, refused ones included.
    fn asked(&self) -> Vec<Request> {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let ours = |request: &Request| request.user_agent == "istio-cni" && request.uri.starts_with(&path);
        self.api.requests().into_iter().filter(ours).collect()
    }
}
