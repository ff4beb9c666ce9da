//! Reads the API and asks the agents, many at a time.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use cluster_report::{Cluster, NetworkObjects, NodeAnswer, NodeReply, Pod, Unread};
use futures_util::{StreamExt as _, stream};
use kubeio::{ApiErrorKind, KubeClient, KubeconfigChoice, KubeconfigSession};
use report::{Proof, SimulatedChange, percent_encode};
use serde::de::DeserializeOwned;

use crate::{
    arguments::Options,
    discovery::agents_by_node,
    node_query::{AgentQuery, QueryError},
    progress::ProgressBar,
};

/// Objects of networks.
const CILIUM: &str = "/api/v1/namespaces/kube-system/configmaps/cilium-config";
const FELIX: &str = "/apis/crd.projectcalico.org/v1/felixconfigurations/default";
const OPENSHIFT: &str = "/apis/operator.openshift.io/v1/networks/cluster";

/// A cluster to ask.
pub(crate) struct ClusterSource<'a> {
    pub(crate) session: KubeconfigSession,
    options: &'a Options,
}

impl<'a> ClusterSource<'a> {
    /// As the flags say. It connects when it is first asked.
    ///
    /// # Errors
    /// The kubeconfig or the credential cannot be used.
    pub(crate) async fn open(options: &'a Options) -> Result<ClusterSource<'a>> {
        let choice = KubeconfigChoice {
            file: options.kubeconfig.clone(),
            context: options.context.clone(),
            user: options.as_user.clone(),
            groups: options.as_group.clone(),
        };
        let session = KubeClient::from_kubeconfig(&choice).await?;
        Ok(ClusterSource { session, options })
    }

    pub(crate) fn agent_query(&self) -> AgentQuery {
        AgentQuery::new(self.session.client.clone(), self.options)
    }

    /// The agents' pods, on one node if one is meant.
    ///
    /// # Errors
    /// The API server does not list them.
    pub(crate) async fn list_agents(&self, node: Option<&str>) -> Result<Vec<Pod>> {
        let mut query = format!("labelSelector={}", percent_encode(&self.options.selector));
        if let Some(node) = node {
            query = format!("{query}&fieldSelector=spec.nodeName%3D{}", percent_encode(node));
        }
        let path = match &self.options.agent_namespace {
            Some(namespace) => format!("/api/v1/namespaces/{}/pods", percent_encode(namespace)),
            None => "/api/v1/pods".to_owned(),
        };
        let listed =
            self.session.client.list_all("the agents' pods", &path, &query, self.options.request_timeout);
        listed.await.with_context(|| format!("cannot find agents through {}", self.session.server))
    }

    /// Returns the answers of the agents, each within its time limit, and nothing else of the cluster.
    ///
    /// # Errors
    /// The agents cannot be found.
    pub(crate) async fn query_states(&self, node: Option<&str>) -> Result<Cluster> {
        let agents = self.list_agents(node).await?;
        let answers = self.query_answers(&agents).await;
        Ok(Cluster { agents, answers, ..Cluster::default() })
    }

    /// Everything that a check needs; of pods and what belongs to them, in one namespace if one is meant.
    ///
    /// # Errors
    /// The agents cannot be found, or there is no such namespace.
    pub(crate) async fn read_cluster(&self, namespace: Option<&str>, node: Option<&str>) -> Result<Cluster> {
        let agents = self.list_agents(node).await?;
        let nodes_of = name_selector("metadata.name", node);
        let label = format!("labelSelector={}", percent_encode(&self.options.selector));
        let (answers, read, nodes, daemon_sets) = tokio::join!(
            self.query_answers(&agents),
            self.read_objects(namespace, node),
            self.list_objects("nodes", "/api/v1/nodes", &nodes_of),
            self.list_objects("daemonsets", "/apis/apps/v1/daemonsets", &label),
        );
        let mut cluster = Cluster { agents, answers, ..read? };
        cluster.nodes = value_or_default(nodes, &mut cluster.unread);
        cluster.daemon_sets = value_or_default(daemon_sets, &mut cluster.unread);
        if let Some(namespace) = namespace {
            cluster.keep_namespace(namespace);
        }
        Ok(cluster)
    }

    /// Returns the objects that a change concerns, of one namespace if labels change, without the agents' states, and each agent's
    /// answer to what it would do, by node.
    ///
    /// # Errors
    /// As [`ClusterSource::read_cluster`].
    pub(crate) async fn query_simulation(
        &self,
        change: &SimulatedChange,
    ) -> Result<(Cluster, BTreeMap<String, NodeReply>)> {
        let namespace = match change {
            SimulatedChange::Labels(change) => Some(change.namespace.as_str()),
            SimulatedChange::Settings(_) => None,
        };
        let agents = self.list_agents(None).await?;
        let (replies, read) = tokio::join!(
            self.ask_each_node(&agents, async |query, agent| query.simulate_change(agent, change).await),
            self.read_objects(namespace, None),
        );
        Ok((Cluster { agents, ..read? }, replies))
    }

    /// Returns the proofs of the pods of each node, by node; of one namespace or one node, if one is meant.
    ///
    /// # Errors
    /// The agents cannot be found.
    pub(crate) async fn query_proofs(
        &self,
        namespace: Option<&str>,
        node: Option<&str>,
    ) -> Result<BTreeMap<String, Result<Vec<Proof>, String>>> {
        let agents = self.list_agents(node).await?;
        Ok(self.ask_each_node(&agents, async |query, agent| query.prove_all(agent, namespace).await).await)
    }

    /// Returns what a check before an installation needs: NetworkPolicies and pods of one namespace, if one is meant.
    ///
    /// # Errors
    /// There is no such namespace.
    pub(crate) async fn before_installation(
        &self,
        namespace: Option<&str>,
    ) -> Result<(Cluster, NetworkObjects)> {
        let (read, nodes, daemon_sets, cilium, felix, openshift) = tokio::join!(
            self.read_objects(namespace, None),
            self.list_objects("nodes", "/api/v1/nodes", ""),
            self.list_objects("daemonsets", "/apis/apps/v1/daemonsets", ""),
            self.find_object("ConfigMap cilium-config", CILIUM),
            self.find_object("FelixConfiguration default", FELIX),
            self.find_object("OpenShift network cluster", OPENSHIFT),
        );
        let mut cluster = read?;
        cluster.nodes = value_or_default(nodes, &mut cluster.unread);
        let objects = NetworkObjects {
            daemon_sets: value_or_default(daemon_sets, &mut cluster.unread),
            cilium: value_or_default(cilium, &mut cluster.unread),
            felix: value_or_default(felix, &mut cluster.unread),
            openshift: value_or_default(openshift, &mut cluster.unread),
        };
        Ok((cluster, objects))
    }

    /// Returns pods, of one node if one is meant, namespaces and NetworkPolicies; of one namespace, if one is meant.
    ///
    /// # Errors
    /// There is no such namespace.
    async fn read_objects(&self, namespace: Option<&str>, node: Option<&str>) -> Result<Cluster> {
        let inside =
            namespace.map(|name| format!("/namespaces/{}", percent_encode(name))).unwrap_or_default();
        let pods_at = format!("/api/v1{inside}/pods");
        let policies_at = format!("/apis/networking.k8s.io/v1{inside}/networkpolicies");
        let (pods_of, namespaces_of) =
            (name_selector("spec.nodeName", node), name_selector("metadata.name", namespace));
        let (pods, namespaces, policies) = tokio::join!(
            self.list_objects("pods", &pods_at, &pods_of),
            self.list_objects("namespaces", "/api/v1/namespaces", &namespaces_of),
            self.list_objects("networkpolicies", &policies_at, ""),
        );
        if let (Some(name), Ok([])) = (namespace, namespaces.as_deref()) {
            bail!("there is no namespace {name}");
        }
        let mut unread = Vec::new();
        let cluster = Cluster {
            pods: value_or_default(pods, &mut unread),
            namespaces: value_or_default(namespaces, &mut unread),
            policies: value_or_default(policies, &mut unread),
            ..Cluster::default()
        };
        Ok(Cluster { unread, ..cluster })
    }

    /// Returns an object that may not exist, nor its kind.
    async fn find_object<T: DeserializeOwned>(&self, what: &str, path: &str) -> Result<Option<T>, Unread> {
        match self.session.client.get(what, path, self.options.request_timeout).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ApiErrorKind::NotFound => Ok(None),
            Err(error) => Err(Unread { what: what.to_owned(), why: error.to_string() }),
        }
    }

    async fn list_objects<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        query: &str,
    ) -> Result<Vec<T>, Unread> {
        let listed = self.session.client.list_all(what, path, query, self.options.request_timeout).await;
        listed.map_err(|error| Unread { what: what.to_owned(), why: error.to_string() })
    }

    async fn query_answers(&self, agents: &[Pod]) -> BTreeMap<String, NodeAnswer> {
        self.ask_each_node(agents, async |query, agent| query.node_state(agent).await).await
    }

    /// Something of each node, from its agent, in no order, with a progress bar.
    async fn ask_each_node<T>(
        &self,
        agents: &[Pod],
        ask: impl AsyncFn(&AgentQuery, &Pod) -> Result<T, QueryError>,
    ) -> BTreeMap<String, Result<T, String>> {
        let (ask, query) = (&ask, &self.agent_query());
        let chosen = agents_by_node(agents);
        let mut bar = ProgressBar::new(chosen.len());
        let mut answers = BTreeMap::new();
        let questions = chosen.into_iter().map(|(node, agent)| async move {
            let answer = match agent.status.phase.as_str() {
                "Running" => ask(query, agent).await.map_err(|error| error.to_string()),
                _ => Err(format!("its agent does not run: {}", agent.phase_summary())),
            };
            (node.to_owned(), answer)
        });
        let mut questions = stream::iter(questions).buffer_unordered(usize::from(self.options.concurrency));
        while let Some((node, answer)) = questions.next().await {
            answers.insert(node, answer);
            bar.step();
        }
        answers
    }
}

/// Returns the query for the object of this name; without a name, for all.
fn name_selector(field: &str, name: Option<&str>) -> String {
    name.map(|name| format!("fieldSelector={field}%3D{}", percent_encode(name))).unwrap_or_default()
}

fn value_or_default<T: Default>(read: Result<T, Unread>, unread: &mut Vec<Unread>) -> T {
    read.unwrap_or_else(|why| {
        unread.push(why);
        T::default()
    })
}
