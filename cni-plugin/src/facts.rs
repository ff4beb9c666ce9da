//! Where the plugin learns about a pod.

use std::{
    cell::OnceCell,
    fmt,
    time::{Duration, Instant},
};

use apiclient::{Client, Freshness, Reason, RetryPolicy};
use cni_types::NetConf;
use model::{Namespace, Pod, PodName};
use serde::de::DeserializeOwned;

use crate::agent::Silence;

/// Who knows about pods: the node's agent, or else the API server.
pub trait Facts {
    /// The pod of that name; with `uid`, as the runtime knows it, that very pod or the newest of its name.
    ///
    /// # Errors
    /// It could not be found out.
    fn pod(&self, name: &PodName, uid: Option<&str>) -> Result<Pod, Unknown>;

    /// A namespace as it is now.
    ///
    /// # Errors
    /// It could not be found out.
    fn namespace(&self, name: &str) -> Result<Namespace, Unknown>;

    /// Whether the agent has enrolled the pod; none if it is not the agent who knows.
    fn enrolled(&self) -> Option<bool> {
        None
    }

    /// What the agent found at CHECK; none if it is not the agent who knows.
    fn checked(&self) -> Option<Result<(), String>> {
        None
    }

    /// Why the agent is not the one who knows, if it was asked.
    fn silence(&self) -> Option<&Silence> {
        None
    }
}

/// Keeps the pod that was told, for the record.
#[derive(Debug)]
pub struct Remembering<F> {
    facts: F,
    pod: OnceCell<Pod>,
}

impl<F: Facts> Remembering<F> {
    /// Around those facts.
    pub fn new(facts: F) -> Self {
        Remembering { facts, pod: OnceCell::new() }
    }

    /// The pod, if anybody asked for it and was told.
    pub fn into_pod(self) -> Option<Pod> {
        self.pod.into_inner()
    }
}

impl<F: Facts> Facts for Remembering<F> {
    fn pod(&self, name: &PodName, uid: Option<&str>) -> Result<Pod, Unknown> {
        let pod = self.facts.pod(name, uid)?;
        Ok(self.pod.get_or_init(|| pod).clone())
    }

    fn namespace(&self, name: &str) -> Result<Namespace, Unknown> {
        self.facts.namespace(name)
    }

    fn enrolled(&self) -> Option<bool> {
        self.facts.enrolled()
    }

    fn checked(&self) -> Option<Result<(), String>> {
        self.facts.checked()
    }

    fn silence(&self) -> Option<&Silence> {
        self.facts.silence()
    }
}

/// Why a fact is not known.
#[derive(Debug)]
pub enum Unknown {
    /// The agent did not do its part.
    Agent(String),
    /// The configuration gives the plugin no credential.
    NoCredential,
    /// The kubeconfig cannot be used.
    Kubeconfig(Reason),
    /// The API server did not tell.
    Api(Box<apiclient::Error>),
    /// It told of something else than what was asked for: a proxy in between, perhaps.
    Mistaken {
        /// What was asked for.
        asked: String,
        /// Namespace and name in the answer, shortened.
        given: String,
    },
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::Agent(why) => write!(f, "the node agent says: {why}"),
            Unknown::NoCredential => f.write_str(
                "the plugin's configuration names no kubernetes.kubeconfig, so it cannot ask the API server; \
                 see whether the node agent (DaemonSet istio-cni-node) runs on this node, or let it write a kubeconfig",
            ),
            Unknown::Kubeconfig(error) => error.fmt(f),
            Unknown::Api(error) => error.fmt(f),
            Unknown::Mistaken { asked, given } => {
                write!(f, "the API server was asked for {asked} and answered with an object named {given:?}")
            }
        }
    }
}

impl std::error::Error for Unknown {}

/// The Kubernetes API server, with the credential that the installer wrote.
#[derive(Debug)]
pub struct ApiServer {
    kubeconfig: Option<String>,
    timeout: Duration,
    since: Instant,
}

impl ApiServer {
    /// Opens nothing; the credential is read at each request, because it changes. `api_timeout_seconds` counts from
    /// here and for all requests together: it is the call that must not take longer.
    #[must_use]
    pub fn new(conf: &NetConf) -> ApiServer {
        let timeout = Duration::from_secs(conf.kubernetes.api_timeout_seconds.into());
        ApiServer { kubeconfig: conf.kubernetes.kubeconfig.clone(), timeout, since: Instant::now() }
    }

    fn policy(&self) -> RetryPolicy {
        let deadline = self.timeout.saturating_sub(self.since.elapsed());
        RetryPolicy { deadline, ..RetryPolicy::default() }
    }

    /// Whether a request could be made: the kubeconfig is there and complete.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn is_usable(&self) -> Result<(), Unknown> {
        self.client()?.check().map_err(Unknown::Kubeconfig)
    }

    fn path(&self) -> Result<&str, Unknown> {
        self.kubeconfig.as_deref().ok_or(Unknown::NoCredential)
    }

    fn client(&self) -> Result<Client, Unknown> {
        Ok(Client::new(self.path()?))
    }

    fn get<T: DeserializeOwned>(&self, path: &[&str], freshness: Freshness) -> Result<T, Unknown> {
        let mut policy = self.policy();
        if freshness == Freshness::Cached {
            policy.not_found_grace = Duration::ZERO; // the newest is asked for then
        }
        self.client()?.get(path, freshness, &policy).map_err(|error| Unknown::Api(Box::new(error)))
    }

    /// The pod that has this UID, when the server knows it without looking into its store.
    fn known_pod(&self, path: &[&str], uid: &str) -> Result<Option<Pod>, Unknown> {
        match self.get(path, Freshness::Cached) {
            Ok(pod) => Ok(Some(pod).filter(|pod: &Pod| pod.has_runtime_uid(uid))),
            Err(Unknown::Api(error)) if matches!(error.reason, Reason::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Facts for ApiServer {
    /// A runtime that says the pod's UID makes it safe to ask for what the server has in memory: one of the same UID
    /// was made by the same admission, which decides, and of another it is not taken.
    fn pod(&self, name: &PodName, uid: Option<&str>) -> Result<Pod, Unknown> {
        let path = ["api", "v1", "namespaces", &name.namespace, "pods", &name.name];
        let known = uid.map_or(Ok(None), |uid| self.known_pod(&path, uid))?;
        let pod = known.map_or_else(|| self.get(&path, Freshness::Newest), Ok)?;
        same(format!("pod {name}"), &name.to_string(), &pod.name().to_string()).map(|()| pod)
    }

    fn namespace(&self, name: &str) -> Result<Namespace, Unknown> {
        let namespace: Namespace = self.get(&["api", "v1", "namespaces", name], Freshness::Newest)?;
        same(format!("namespace {name}"), name, &namespace.metadata.name).map(|()| namespace)
    }
}

/// Every member that we read may be absent, so any JSON object reads as a pod that is none of ours. The names tell.
fn same(asked: String, name: &str, given: &str) -> Result<(), Unknown> {
    if name == given {
        return Ok(());
    }
    Err(Unknown::Mistaken { asked, given: given.chars().take(100).collect() })
}
