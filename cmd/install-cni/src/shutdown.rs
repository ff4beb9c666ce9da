//! Interpretation of the agent's termination: a restart or an upgrade, which must leave everything in place, or an uninstallation.
//!
//! The kubelet only sends SIGTERM. The agent determines its meaning by querying the API server for a few seconds, and keeps serving
//! meanwhile. `docs/install-cni.md` has the table of evidence and verdicts; [`verdict`] is that table.

use std::{
    sync::Mutex,
    sync::PoisonError,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use kube_api::{ApiErrorKind, Error, KubeClient, ObjectRef};
use model::{DaemonSet, Namespace, Node, Pod};
use serde::de::DeserializeOwned;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{sleep, timeout},
};

use daemon_settings::{AgentIdentity, CleanupOnExit, token_times};

mod placement;
mod verdict;

pub(crate) use verdict::ShutdownVerdict;
use verdict::{ApiAnswer, ApiAnswers, RoundOutcome};

/// Termination signals. One that arrives during the start is handled once all parts run.
pub(crate) struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    pub(crate) fn listen() -> Result<TerminationSignals> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(TerminationSignals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Returns the name of the signal received.
    pub(crate) async fn next_signal(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Facts that the agent recorded about itself while it ran, as far as its shutdown needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShutdownFacts {
    /// DaemonSet that owns our pod; `None`: not determined yet.
    daemon_set: Option<ObjectRef>,
    /// Presence of the DaemonSet, as the API server last reported it.
    presence: DaemonSetPresence,
    /// Whether a watch of it is connected, so that `presence` is up to date.
    watched: bool,
    /// Whether our role permitted reading our own pod.
    could_read_pod: bool,
}

/// Whether our DaemonSet exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DaemonSetPresence {
    /// The DaemonSet has never been seen.
    #[default]
    Unknown,
    /// The DaemonSet exists.
    Present,
    /// The DaemonSet existed, and has been deleted or is being deleted.
    Deleted,
}

/// [`ShutdownFacts`], shared between the watches and the decision.
#[derive(Debug, Default)]
pub(crate) struct SharedShutdownFacts(Mutex<ShutdownFacts>);

impl SharedShutdownFacts {
    /// Records which DaemonSet is ours. Facts about another one are discarded.
    pub(crate) fn set_daemon_set(&self, object: ObjectRef) {
        self.update_facts(|known| {
            if known.daemon_set.as_ref() != Some(&object) {
                known.presence = DaemonSetPresence::Unknown;
            }
            known.watched = false;
            known.daemon_set = Some(object);
        });
    }

    /// Records that our role permitted reading our own pod.
    pub(crate) fn set_pod_readable(&self) {
        self.update_facts(|known| known.could_read_pod = true);
    }

    /// Records the API server's answer to a request or a watch for our DaemonSet. Returns the presence if it changed.
    pub(crate) fn update_presence(
        &self,
        daemon_set: Option<&DaemonSet>,
        watched: bool,
    ) -> Option<DaemonSetPresence> {
        self.update_facts(|known| {
            let before = known.presence;
            known.watched = watched;
            known.presence = match (daemon_set, known.presence) {
                (Some(daemon_set), _) if daemon_set.metadata.deleted.is_none() => DaemonSetPresence::Present,
                (Some(_), _) | (None, DaemonSetPresence::Present | DaemonSetPresence::Deleted) => {
                    DaemonSetPresence::Deleted
                }
                // A DaemonSet never observed cannot have been deleted: ours may have another name.
                (None, DaemonSetPresence::Unknown) => DaemonSetPresence::Unknown,
            };
            (known.presence != before).then_some(known.presence)
        })
    }

    /// Records that the watch of our DaemonSet is interrupted.
    pub(crate) fn lose_watch(&self) {
        self.update_facts(|known| known.watched = false);
    }

    fn known_facts(&self) -> ShutdownFacts {
        self.update_facts(|known| known.clone())
    }

    fn update_facts<T>(&self, act: impl FnOnce(&mut ShutdownFacts) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Time to wait for evidence: Helm deletes the DaemonSet first, and roles and the service account within a second or so. Old charts
/// grant five seconds until SIGKILL, of which removal needs one.
const WINDOW: Duration = Duration::from_secs(2);
/// Time for which permissions must stay refused before that counts: an API server that has just started refuses everything until it
/// has read its roles, and `kubectl replace --force` deletes and creates a binding within milliseconds.
const CONFIRMATION: Duration = Duration::from_secs(1);
/// Extra time for a slow API server to confirm that permissions are refused.
const SLACK: Duration = Duration::from_secs(1);
/// Delay between two rounds of requests.
const PAUSE: Duration = Duration::from_millis(200);
/// Timeout of one request.
const QUESTION: Duration = Duration::from_millis(1500);

/// Decides whether the installation is kept or removed. Takes up to three seconds, four while permissions are refused.
pub(crate) async fn decide_verdict(
    mode: CleanupOnExit,
    client: Option<&KubeClient>,
    memory: &SharedShutdownFacts,
    identity: &AgentIdentity,
    ambient: bool,
) -> ShutdownVerdict {
    match mode {
        CleanupOnExit::Always => ShutdownVerdict::CleanUp("--cleanup-on-exit=always".to_owned()),
        CleanupOnExit::Never => ShutdownVerdict::Keep("--cleanup-on-exit=never".to_owned()),
        CleanupOnExit::Auto => match ask_until_decided(client, memory, identity).await {
            ShutdownVerdict::EndAmbient(why) if !ambient => ShutdownVerdict::Keep(why),
            verdict => verdict,
        },
    }
}

async fn ask_until_decided(
    client: Option<&KubeClient>,
    memory: &SharedShutdownFacts,
    identity: &AgentIdentity,
) -> ShutdownVerdict {
    let Some(client) = client else {
        return ShutdownVerdict::Keep("there is no credential for the API server".to_owned());
    };
    let started = Instant::now();
    let mut refused_since = None;
    let mut undecided = "the API server does not answer in time".to_owned();
    loop {
        let known = memory.known_facts();
        let slack = if refused_since.is_some() { SLACK } else { Duration::ZERO };
        let left = (WINDOW + CONFIRMATION + slack).saturating_sub(started.elapsed());
        let Ok(round) = timeout(left, ask_api_server(client, &known, identity)).await else {
            return ShutdownVerdict::Keep(undecided);
        };
        undecided = match verdict::judge_round(&known, &round) {
            RoundOutcome::Decided(verdict) => return verdict,
            RoundOutcome::Refused(why) => {
                let since = refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= CONFIRMATION {
                    return ShutdownVerdict::CleanUp(why);
                }
                why
            }
            RoundOutcome::Undecided(why) if started.elapsed() >= WINDOW => return ShutdownVerdict::Keep(why),
            RoundOutcome::Undecided(why) => {
                refused_since = None;
                why
            }
        };
        sleep(PAUSE).await;
    }
}

/// Returns the name of the DaemonSet that owns our pod.
pub(crate) fn owning_daemon_set(pod: &Pod) -> Option<&str> {
    let owner = pod.metadata.owners.iter().find(|owner| owner.kind == "DaemonSet")?;
    Some(&owner.name)
}

/// Returns the API path of our own pod.
pub(crate) fn own_pod_path(identity: &AgentIdentity) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", identity.namespace, identity.pod)
}

/// Returns the API path of a DaemonSet.
pub(crate) fn daemon_set_path(object: &ObjectRef) -> String {
    format!("/apis/apps/v1/namespaces/{}/daemonsets/{}", object.namespace, object.name)
}

/// Requests only the objects on which the verdict still depends after the answers so far.
async fn ask_api_server(client: &KubeClient, known: &ShutdownFacts, identity: &AgentIdentity) -> ApiAnswers {
    let mut round = ApiAnswers::default();
    if let Some(object) = &known.daemon_set {
        let name = format!("DaemonSet {}/{}", object.namespace, object.name);
        round.daemon_set = fetch_object(client, &name, &daemon_set_path(object)).await;
    }
    if let ApiAnswer::Found(daemon_set) = &round.daemon_set
        && daemon_set.metadata.deleted.is_none()
    {
        let (name, path) = (format!("Node {}", identity.node), format!("/api/v1/nodes/{}", identity.node));
        let asks_pod = placement::takes_part_in_ambient(daemon_set) == Some(false);
        let pod =
            async { if asks_pod { fetch_own_pod(client, identity).await } else { ApiAnswer::NotAsked } };
        (round.node, round.pod) = tokio::join!(fetch_object::<Node>(client, &name, &path), pod);
        return round;
    }
    let is_answered = matches!(round.daemon_set, ApiAnswer::Found(_) | ApiAnswer::Failed(_));
    if is_answered || known.presence == DaemonSetPresence::Deleted {
        return round;
    }
    round.pod = fetch_own_pod(client, identity).await;
    match &round.pod {
        ApiAnswer::Found(pod) if pod.metadata.deleted.is_some() => {
            let path = format!("/api/v1/namespaces/{}", identity.namespace);
            let name = format!("namespace {}", identity.namespace);
            round.namespace = fetch_object::<Namespace>(client, &name, &path).await;
        }
        ApiAnswer::Refused(_) => {
            // Deleting our service account does not change when its token expires.
            let expires = token_times().ok().flatten().map(|(_, expires)| expires);
            round.server_is_ready = client.server_is_ready(QUESTION, expires).await;
        }
        _ => {}
    }
    round
}

async fn fetch_own_pod(client: &KubeClient, identity: &AgentIdentity) -> ApiAnswer<Pod> {
    if identity.namespace.is_empty() {
        return ApiAnswer::NotAsked;
    }
    let name = format!("our own pod {}/{}", identity.namespace, identity.pod);
    fetch_object(client, &name, &own_pod_path(identity)).await
}

async fn fetch_object<T: DeserializeOwned>(client: &KubeClient, name: &str, path: &str) -> ApiAnswer<T> {
    client.get(name, path, QUESTION).await.map_or_else(ApiAnswer::from, ApiAnswer::Found)
}

impl<T> From<Error> for ApiAnswer<T> {
    fn from(error: Error) -> ApiAnswer<T> {
        match error.kind() {
            ApiErrorKind::NotFound => ApiAnswer::NotFound,
            ApiErrorKind::Refused => ApiAnswer::Refused(error.to_string()),
            ApiErrorKind::Conflict | ApiErrorKind::Expired | ApiErrorKind::Unavailable => {
                ApiAnswer::Failed(error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_daemon_set_that_was_seen_can_have_been_deleted() {
        let there = DaemonSet::default();
        let mut leaving = DaemonSet::default();
        leaving.metadata.deleted = Some("2026-01-01T00:00:00Z".to_owned());
        for (observed, expected) in [
            (vec![None], DaemonSetPresence::Unknown),
            (vec![Some(&there)], DaemonSetPresence::Present),
            (vec![Some(&there), None], DaemonSetPresence::Deleted),
            (vec![Some(&there), None, None], DaemonSetPresence::Deleted),
            (vec![Some(&leaving)], DaemonSetPresence::Deleted),
            (vec![Some(&there), Some(&leaving)], DaemonSetPresence::Deleted),
            (vec![Some(&there), None, Some(&there)], DaemonSetPresence::Present),
        ] {
            let memory = SharedShutdownFacts::default();
            for daemon_set in &observed {
                memory.update_presence(*daemon_set, true);
            }
            assert_eq!(memory.known_facts().presence, expected, "{observed:?}");
        }
    }

    #[test]
    fn what_is_known_of_another_daemon_set_is_forgotten() {
        let object = |name: &str| ObjectRef {
            group: "apps",
            kind: "DaemonSet",
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        };
        let memory = SharedShutdownFacts::default();
        for (name, expected) in [
            ("istio-cni-node", DaemonSetPresence::Unknown),
            ("istio-cni-node", DaemonSetPresence::Present),
            ("istio-cni-canary", DaemonSetPresence::Unknown),
        ] {
            memory.set_daemon_set(object(name));
            let known = memory.known_facts();
            assert_eq!((known.presence, known.watched), (expected, false), "{name}");
            memory.update_presence(Some(&DaemonSet::default()), true);
        }
    }
}
