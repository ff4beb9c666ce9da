//! Reads the API and queries the agents, many concurrently.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use cluster_report::{
    Cluster, NetworkObjects, NodeAnswer, NodeMessage, NodeReply, Pod, UnreadObjects, uncovered_nodes,
    unreported_pods,
};
use futures_util::{StreamExt as _, stream};
use kube_api::{ApiErrorKind, KubeClient, KubeconfigChoice, KubeconfigSession};
use model::{DaemonSet, Namespace, Node, PodName};
use report::{Proof, SimulatedChange, percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    arguments::Options,
    discovery::{agents_by_node, rival_message},
    node_query::AgentQuery,
    progress::ProgressBar,
};

/// Names of these objects in messages.
const NAMESPACES: &str = "namespaces";
pub(crate) const PODS: &str = "pods";
/// Maximum number of pods that are read again.
const MOST_REREAD: usize = 64;
/// Network objects: name in messages, or API path.
const CILIUM: &str = "ConfigMap cilium-config";
const FELIX: &str = "/apis/crd.projectcalico.org/v1/felixconfigurations/default";
const OPENSHIFT: &str = "/apis/operator.openshift.io/v1/networks/cluster";

/// A cluster to be queried.
pub(crate) struct ClusterSource<'a> {
    pub(crate) session: KubeconfigSession,
    pub(crate) options: &'a Options,
}

impl<'a> ClusterSource<'a> {
    /// Opens the cluster selected by the flags. Connects at the first request.
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

    /// Returns the agents' pods, on one node if given.
    ///
    /// # Errors
    /// The API server does not list them.
    pub(crate) async fn list_agents(&self, node: Option<&str>) -> Result<Vec<Pod>> {
        let mut query = format!("labelSelector={}", percent_encode(&self.options.selector));
        if let Some(node) = node {
            query = format!("{query}&fieldSelector=spec.nodeName%3D{}", percent_encode(node));
        }
        let path = format!("/api/v1{}/pods", in_namespace(self.options.agent_namespace.as_deref()));
        let listed =
            self.session.client.list_all("the agents' pods", &path, &query, self.options.request_timeout);
        listed.await.with_context(|| format!("cannot find agents through {}", self.session.server))
    }

    /// Returns the answers of the agents, each within its time limit, without further objects of the cluster.
    ///
    /// # Errors
    /// The agents cannot be found.
    pub(crate) async fn query_states(&self, node: Option<&str>) -> Result<Cluster> {
        let agents = self.list_agents(node).await?;
        let answers = self.query_answers(&agents).await;
        Ok(Cluster { agents, answers, ..Cluster::default() })
    }

    /// Returns the answers like [`ClusterSource::query_states`], and, as nodes that did not answer, those with mesh pods on which no
    /// agent runs; pods of one namespace, if given.
    ///
    /// # Errors
    /// The agents cannot be found, or the namespace does not exist.
    pub(crate) async fn query_all_nodes(
        &self,
        namespace: Option<&str>,
        node: Option<&str>,
    ) -> Result<Cluster> {
        let agents = self.list_agents(node).await?;
        let (mut answers, (uncovered, unread), confirmed) = tokio::join!(
            self.query_answers(&agents),
            self.uncovered_nodes(&agents, namespace, node),
            self.confirm_namespace(namespace),
        );
        confirmed?;
        add_uncovered(&mut answers, uncovered);
        let mut cluster = Cluster { agents, answers, unread, ..Cluster::default() };
        if let Some(namespace) = namespace {
            cluster.keep_namespace(namespace);
        }
        Ok(cluster)
    }

    /// Returns nodes with mesh pods on which no agent runs, and kinds of objects that could not be read. Pods are only read if
    /// there is a node without an agent, or nodes cannot be read.
    async fn uncovered_nodes(
        &self,
        agents: &[Pod],
        namespace: Option<&str>,
        node: Option<&str>,
    ) -> (Vec<NodeMessage>, Vec<UnreadObjects>) {
        let with_agent = agents_by_node(agents);
        let nodes_of = name_selector("metadata.name", node);
        let nodes: Result<Vec<Node>, _> = self.list_objects("nodes", "/api/v1/nodes", &nodes_of).await;
        let has_agent = |node: &Node| with_agent.contains_key(node.metadata.name.as_str());
        if nodes.is_ok_and(|nodes| nodes.iter().all(has_agent)) {
            return (Vec::new(), Vec::new());
        }
        let cluster = Cluster { agents: agents.to_vec(), ..self.read_pods(namespace, node).await };
        (uncovered_nodes(&cluster), cluster.unread)
    }

    /// Reads everything that a check needs; pods and related objects of one namespace, if given.
    ///
    /// # Errors
    /// The agents cannot be found, or the namespace or the node does not exist.
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
        let only_node = node.map(str::to_owned);
        let mut cluster = Cluster { agents, answers, only_node, ..read? };
        cluster.nodes = value_or_default(nodes, &mut cluster.unread);
        if let Some(name) = node.filter(|_| cluster.nodes.is_empty() && cluster.has_read("nodes")) {
            bail!("there is no node {name}");
        }
        cluster.daemon_sets = value_or_default(daemon_sets, &mut cluster.unread);
        self.reread_unreported(&mut cluster).await;
        if let Some(namespace) = namespace {
            cluster.keep_namespace(namespace);
        }
        Ok(cluster)
    }

    /// Reads pods again that their agents do not report: they may have ended since. Of those that cannot be read nothing new is
    /// known.
    async fn reread_unreported(&self, cluster: &mut Cluster) {
        let questions = unreported_pods(cluster).into_iter().take(MOST_REREAD).map(async |name| {
            let found = self.find_object::<Pod>(PODS, &name.api_path()).await;
            (name, found)
        });
        let mut questions = stream::iter(questions).buffer_unordered(usize::from(self.options.concurrency));
        while let Some((PodName { namespace, name }, found)) = questions.next().await {
            if let Ok(now) = found {
                let is_other = |pod: &Pod| pod.metadata.namespace != namespace || pod.metadata.name != name;
                cluster.pods.retain(is_other);
                let is_on_node =
                    |pod: &Pod| cluster.only_node.as_ref().is_none_or(|node| pod.spec.node_name == *node);
                cluster.pods.extend(now.filter(is_on_node));
            }
        }
    }

    /// Returns the objects affected by a change, of one namespace if labels change, without the agents' states, and each agent's
    /// simulation, by node.
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

    /// Returns the proofs of the pods of each node, by node; of one namespace or one node, if given. A node with mesh pods on which
    /// no agent runs has not answered; other nodes are unknown if a kind of objects could not be read.
    ///
    /// # Errors
    /// The agents cannot be found, or the namespace does not exist.
    pub(crate) async fn query_proofs(
        &self,
        namespace: Option<&str>,
        node: Option<&str>,
    ) -> Result<(BTreeMap<String, Result<Vec<Proof>, String>>, Vec<UnreadObjects>)> {
        self.confirm_namespace(namespace).await?;
        let agents = self.list_agents(node).await?;
        let (mut answers, (uncovered, unread)) = tokio::join!(
            self.ask_each_node(&agents, async |query, agent| query.prove_all(agent, namespace).await),
            self.uncovered_nodes(&agents, namespace, node),
        );
        add_uncovered(&mut answers, uncovered);
        Ok((answers, unread))
    }

    /// Returns the data that a check before an installation needs: NetworkPolicies and pods of one namespace, if given.
    ///
    /// # Errors
    /// The namespace does not exist.
    pub(crate) async fn before_installation(
        &self,
        namespace: Option<&str>,
    ) -> Result<(Cluster, NetworkObjects)> {
        let (read, nodes, (daemon_sets, cilium), felix, openshift) = tokio::join!(
            self.read_objects(namespace, None),
            self.list_objects("nodes", "/api/v1/nodes", ""),
            self.find_cilium(),
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

    /// Returns all DaemonSets, and Cilium's configuration, which is in the namespace of its agents; in clouds that name these
    /// differently, it is in kube-system. `None` only if Cilium is known not to run.
    async fn find_cilium(
        &self,
    ) -> (Result<Vec<DaemonSet>, UnreadObjects>, Result<Option<Value>, UnreadObjects>) {
        let listed = self.list_objects("daemonsets", "/apis/apps/v1/daemonsets", "").await;
        let agent = listed.iter().flatten().find(|found: &&DaemonSet| found.metadata.name == "cilium");
        let namespace = agent.map_or("kube-system", |found| found.metadata.namespace.as_str());
        let path = format!("/api/v1/namespaces/{}/configmaps/cilium-config", percent_encode(namespace));
        let config = self.find_object(CILIUM, &path).await;
        let absent = match &listed {
            Ok(_) => {
                agent.map(|_| format!("DaemonSet {namespace}/cilium is there, and its ConfigMap is not"))
            }
            Err(_) => Some(format!("{namespace} has none, and where Cilium runs is not known")),
        };
        let config = match (config, absent) {
            (Ok(None), Some(why)) => Err(UnreadObjects { what: CILIUM.to_owned(), why }),
            (config, _) => config,
        };
        (listed, config)
    }

    /// Returns pods, of one node if given, namespaces and NetworkPolicies; of one namespace, if given.
    ///
    /// # Errors
    /// The namespace does not exist.
    async fn read_objects(&self, namespace: Option<&str>, node: Option<&str>) -> Result<Cluster> {
        let policies_at = format!("/apis/networking.k8s.io/v1{}/networkpolicies", in_namespace(namespace));
        let (mut cluster, policies) = tokio::join!(
            self.read_pods(namespace, node),
            self.list_objects("networkpolicies", &policies_at, ""),
        );
        if cluster.has_read(NAMESPACES) {
            require_namespace(namespace, &cluster.namespaces)?;
        }
        cluster.policies = value_or_default(policies, &mut cluster.unread);
        Ok(cluster)
    }

    /// Checks that a namespace exists, unless namespaces cannot be read: nothing would be found in a misspelt one.
    ///
    /// # Errors
    /// The namespace does not exist.
    async fn confirm_namespace(&self, name: Option<&str>) -> Result<()> {
        if name.is_none() {
            return Ok(());
        }
        let query = name_selector("metadata.name", name);
        let found = self.list_objects(NAMESPACES, "/api/v1/namespaces", &query).await;
        found.map_or(Ok(()), |found| require_namespace(name, &found))
    }

    /// Returns pods, of one node if given, and namespaces; of one namespace, if given.
    async fn read_pods(&self, namespace: Option<&str>, node: Option<&str>) -> Cluster {
        let pods_at = format!("/api/v1{}/pods", in_namespace(namespace));
        let (pods_of, namespaces_of) =
            (name_selector("spec.nodeName", node), name_selector("metadata.name", namespace));
        let (pods, namespaces) = tokio::join!(
            self.list_objects(PODS, &pods_at, &pods_of),
            self.list_objects(NAMESPACES, "/api/v1/namespaces", &namespaces_of),
        );
        let mut cluster = Cluster::default();
        cluster.pods = value_or_default(pods, &mut cluster.unread);
        cluster.namespaces = value_or_default(namespaces, &mut cluster.unread);
        cluster
    }

    /// Returns an object that may not exist, nor its kind.
    async fn find_object<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
    ) -> Result<Option<T>, UnreadObjects> {
        match self.session.client.get(what, path, self.options.request_timeout).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ApiErrorKind::NotFound => Ok(None),
            Err(error) => Err(UnreadObjects { what: what.to_owned(), why: error.to_string() }),
        }
    }

    async fn list_objects<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        query: &str,
    ) -> Result<Vec<T>, UnreadObjects> {
        let listed = self.session.client.list_all(what, path, query, self.options.request_timeout).await;
        listed.map_err(|error| UnreadObjects { what: what.to_owned(), why: error.to_string() })
    }

    async fn query_answers(&self, agents: &[Pod]) -> BTreeMap<String, NodeAnswer> {
        self.ask_each_node(agents, async |query, agent| query.node_state(agent).await).await
    }

    /// Queries the agent of each node, in no particular order, with a progress bar.
    pub(crate) async fn ask_each_node<T>(
        &self,
        agents: &[Pod],
        ask: impl AsyncFn(&AgentQuery, &Pod) -> Result<T>,
    ) -> BTreeMap<String, Result<T, String>> {
        let (ask, query) = (&ask, &self.agent_query());
        let chosen = agents_by_node(agents);
        let mut bar = ProgressBar::new(chosen.len());
        let mut answers = BTreeMap::new();
        let questions = chosen.into_iter().map(|(node, agent)| async move {
            let answer = match (rival_message(agents, agent), agent.status.phase.as_str()) {
                (Some(why), _) => Err(why),
                (None, "Running") => ask(query, agent).await.map_err(|error| silence_reason(agent, &error)),
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

/// Returns why a running agent did not answer, with its state unless it is ready: nothing listens while its container restarts.
fn silence_reason(agent: &Pod, error: &anyhow::Error) -> String {
    match agent.status.is_ready() {
        true => error.to_string(),
        false => format!("its agent is {}: {error}", agent.phase_summary()),
    }
}

/// Returns the selector of the object with this name; without a name, of all.
fn name_selector(field: &str, name: Option<&str>) -> String {
    name.map(|name| format!("fieldSelector={field}%3D{}", percent_encode(name))).unwrap_or_default()
}

/// Returns the path prefix that restricts a request to a namespace; without a namespace, empty.
fn in_namespace(namespace: Option<&str>) -> String {
    namespace.map(|name| format!("/namespaces/{}", percent_encode(name))).unwrap_or_default()
}

/// Fails if the namespace is not among those found by its name.
fn require_namespace(name: Option<&str>, found: &[Namespace]) -> Result<()> {
    match name.filter(|_| found.is_empty()) {
        Some(name) => bail!("there is no namespace {name}"),
        None => Ok(()),
    }
}

/// Adds nodes without an agent; the answer of an agent started meanwhile takes precedence.
fn add_uncovered<T>(answers: &mut BTreeMap<String, Result<T, String>>, uncovered: Vec<NodeMessage>) {
    for NodeMessage { node, message } in uncovered {
        answers.entry(node).or_insert(Err(message));
    }
}

fn value_or_default<T: Default>(read: Result<T, UnreadObjects>, unread: &mut Vec<UnreadObjects>) -> T {
    read.unwrap_or_else(|why| {
        unread.push(why);
        T::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_that_restarts_is_named_as_the_reason() {
        let waiting = json!([{"name": "install-cni", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]);
        let ready = json!([{"type": "Ready", "status": "True"}]);
        for (status, expected) in [
            (json!({"phase": "Running", "conditions": ready}), "refused"),
            (
                json!({"phase": "Running", "containerStatuses": waiting}),
                "its agent is Running, CrashLoopBackOff: refused",
            ),
        ] {
            let agent: Pod = serde_json::from_value(json!({"status": status})).unwrap();
            assert_eq!(silence_reason(&agent, &anyhow::anyhow!("refused")), expected);
        }
    }
}
