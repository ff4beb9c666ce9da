//! Client of the API server, queried for pods that no agent identifies.

use std::{
    cell::RefCell,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use apiclient::{ApiClient, FailureReason, Freshness, RetryDecision, RetryPolicy};
use cni_types::NetConf;
use model::{Namespace, Pod, PodName, PodUid};
use serde::de::DeserializeOwned;

/// Maximum wait for the successor of an agent, or for the credential that it writes. A rollout leaves a node without an agent for
/// two to four seconds; this is twice that. The runtime allows minutes for a call, and the kubelet backs off 10 s and more after a
/// failed one.
pub const SUCCESSOR: Duration = Duration::from_secs(8);
/// Time limit of a CHECK's queries: the runtime checks one sandbox after the other, and 200 ms are left for the rest.
const CHECK_LIMIT: Duration = Duration::from_millis(1800);
/// Interval at which the agent and the kubeconfig are polled meanwhile.
const POLL: Duration = Duration::from_millis(50);

/// Reason why a fact is unknown.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The agent failed.
    #[error("the node agent answered: {0}")]
    Agent(String),
    /// The configuration has no credential for the plugin.
    #[error(
        "the plugin's configuration names no kubernetes.kubeconfig, so it cannot ask the API server; \
         check whether the node agent (DaemonSet istio-cni-node) runs on this node, or let it write a kubeconfig"
    )]
    NoCredential,
    /// The API server failed.
    #[error("{0}")]
    Api(Box<apiclient::Error>),
    /// The API server's response is about another object than requested, perhaps due to a proxy.
    #[error("the API server was asked for {asked} and answered with an object named {given:?}")]
    Mistaken {
        /// Requested object.
        asked: String,
        /// Namespace and name in the response, truncated.
        given: String,
    },
}

impl LookupError {
    /// Whether the API server reports that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, LookupError::Api(error) if matches!(error.reason, FailureReason::NotFound(_)))
    }

    /// Whether the API server rejects the plugin's credential, or permits it nothing.
    pub fn is_refusal(&self) -> bool {
        let refused = |reason: &FailureReason| {
            matches!(reason, FailureReason::Unauthorized(_) | FailureReason::Forbidden(_))
        };
        matches!(self, LookupError::Api(error) if refused(&error.reason))
    }
}

/// Client of the Kubernetes API server, with the credential written by the installer.
#[derive(Debug)]
pub struct ApiServer {
    kubeconfig: Option<String>,
    timeout: Duration,
    since: Instant,
    /// Fingerprint of the kubeconfig at the last wait.
    last_kubeconfig: RefCell<Option<String>>,
    /// Whether a single failed request is final.
    tries_once: bool,
}

impl ApiServer {
    /// Returns a client, without opening anything; the credential is read at each request, because it changes.
    /// `api_timeout_seconds` starts here and covers all requests together, because it limits the call.
    pub fn new(conf: &NetConf) -> ApiServer {
        ApiServer {
            kubeconfig: conf.kubernetes.kubeconfig.clone(),
            timeout: Duration::from_secs(conf.kubernetes.api_timeout_seconds.into()),
            since: Instant::now(),
            last_kubeconfig: RefCell::default(),
            tries_once: false,
        }
    }

    /// Returns a client like [`Self::new`], for CHECK: without retries, within its limit.
    pub fn for_check(conf: &NetConf) -> ApiServer {
        let server = ApiServer::new(conf);
        ApiServer { timeout: server.timeout.min(CHECK_LIMIT), tries_once: true, ..server }
    }

    /// Whether the file of the credential exists.
    pub fn has_kubeconfig(&self) -> bool {
        self.kubeconfig.as_deref().is_some_and(|path| Path::new(path).exists())
    }

    /// Returns the duration of the call so far.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits until a change, at most as long as a successor may take. Returns whether there was one.
    pub fn await_change(&self, is_answered: &dyn Fn() -> bool) -> bool {
        let end = self.since + SUCCESSOR.min(self.timeout);
        Instant::now() < end && self.wait_until(end, is_answered)
    }

    /// Returns the retry policy. A refusal is not final: the token may be bound to an agent's pod that is being replaced, and the
    /// successor writes another one.
    fn retry_policy(&self) -> RetryPolicy {
        let deadline = self.timeout.saturating_sub(self.since.elapsed());
        RetryPolicy { deadline, unauthorized_grace: SUCCESSOR, ..RetryPolicy::default() }
    }

    /// Waits until the agent has answered, or the kubeconfig has changed; false: neither happened until `end`.
    fn wait_until(&self, end: Instant, is_answered: &dyn Fn() -> bool) -> bool {
        loop {
            if is_answered() || self.has_new_credential() {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            thread::sleep(left.min(POLL));
        }
    }

    fn has_new_credential(&self) -> bool {
        let Some(path) = &self.kubeconfig else { return false };
        let now = file_fingerprint(Path::new(path));
        let before = self.last_kubeconfig.replace(Some(now.clone()));
        before.is_some_and(|before| before != now)
    }

    fn fetch_object<T: DeserializeOwned>(
        &self,
        path: &[&str],
        freshness: Freshness,
        is_answered: &dyn Fn() -> bool,
    ) -> Result<T, LookupError> {
        let mut policy = self.retry_policy();
        if freshness == Freshness::Cached {
            policy.not_found_grace = Duration::ZERO; // a `Newest` request follows
        }
        let wait = |delay| self.wait_to_retry(delay, is_answered);
        let kubeconfig = self.kubeconfig.as_deref().ok_or(LookupError::NoCredential)?;
        let got = ApiClient::new(kubeconfig).get_interruptible(path, freshness, &policy, &wait);
        got.map_err(|error| LookupError::Api(Box::new(error)))
    }

    fn wait_to_retry(&self, delay: Duration, is_answered: &dyn Fn() -> bool) -> RetryDecision {
        let gives_up =
            self.tries_once || self.wait_until(Instant::now() + delay, is_answered) && is_answered();
        if gives_up { RetryDecision::GiveUp } else { RetryDecision::Try }
    }

    /// Returns the pod with this UID, if it is in the server's cache.
    fn known_pod(
        &self,
        path: &[&str],
        uid: &PodUid,
        is_answered: &dyn Fn() -> bool,
    ) -> Result<Option<Pod>, LookupError> {
        match self.fetch_object(path, Freshness::Cached, is_answered) {
            Ok(pod) => Ok(Some(pod).filter(|pod: &Pod| pod.has_runtime_uid(uid))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fetches the pod of that name; with `uid`, as passed by the runtime, exactly that pod or the newest of its name.
    /// `is_answered`: the agent has answered meanwhile, and the request is obsolete.
    ///
    /// With the UID from the runtime the server's cache can be used safely: a pod of that UID was made by the same admission, which
    /// decides, and any other is rejected.
    ///
    /// # Errors
    /// The pod could not be determined.
    pub fn fetch_pod(
        &self,
        name: &PodName,
        uid: Option<&PodUid>,
        is_answered: &dyn Fn() -> bool,
    ) -> Result<Pod, LookupError> {
        let path = ["api", "v1", "namespaces", &name.namespace, "pods", &name.name];
        let known = uid.map_or(Ok(None), |uid| self.known_pod(&path, uid, is_answered))?;
        let pod = known.map_or_else(|| self.fetch_object(&path, Freshness::Newest, is_answered), Ok)?;
        check_name(format!("pod {name}"), &name.to_string(), &pod.name().to_string()).map(|()| pod)
    }

    /// Fetches the namespace, likewise.
    ///
    /// # Errors
    /// The namespace could not be determined.
    pub fn fetch_namespace(
        &self,
        name: &str,
        is_answered: &dyn Fn() -> bool,
    ) -> Result<Namespace, LookupError> {
        let path = ["api", "v1", "namespaces", name];
        let namespace: Namespace = self.fetch_object(&path, Freshness::Newest, is_answered)?;
        check_name(format!("namespace {name}"), name, &namespace.metadata.name).map(|()| namespace)
    }
}

/// Returns a text that changes whenever the file is written; empty if there is no file.
pub fn file_fingerprint(path: &Path) -> String {
    let Ok(found) = fs::metadata(path) else { return String::new() };
    let (dev, ino, len) = (found.dev(), found.ino(), found.len());
    format!("{dev}:{ino}:{len}:{}.{:09}", found.mtime(), found.mtime_nsec())
}

/// Checks the names: all other members may be absent, so any JSON object would be parsed as a pod outside the mesh.
fn check_name(asked: String, name: &str, given: &str) -> Result<(), LookupError> {
    if name == given {
        return Ok(());
    }
    Err(LookupError::Mistaken { asked, given: given.chars().take(100).collect() })
}
