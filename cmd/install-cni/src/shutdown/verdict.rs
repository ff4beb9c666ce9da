//! Decision table: answers of the API server, and the verdict that follows.

use model::{DaemonSet, Namespace, Node, Pod};

use super::{DaemonSetPresence, ShutdownFacts, placement};

/// Verdict on the installation at shutdown, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownVerdict {
    /// Nothing is removed.
    Keep(String),
    /// Capture in ambient mode is removed, and the plugin stays.
    EndAmbient(String),
    /// Everything is removed.
    CleanUp(String),
}

/// Answer of the API server.
#[derive(Clone, Debug, Default)]
pub(super) enum ApiAnswer<T> {
    /// Not requested in this round.
    #[default]
    NotAsked,
    /// The object.
    Found(T),
    /// There is no such object (404).
    NotFound,
    /// The credential or role is rejected (401, 403): the error.
    Refused(String),
    /// No answer, or an inconclusive one: the error.
    Failed(String),
}

/// Answers of one round.
#[derive(Debug, Default)]
pub(super) struct ApiAnswers {
    pub(super) daemon_set: ApiAnswer<DaemonSet>,
    pub(super) node: ApiAnswer<Node>,
    pub(super) pod: ApiAnswer<Pod>,
    pub(super) namespace: ApiAnswer<Namespace>,
    /// Whether the API server reports itself ready, or forbids us to ask.
    pub(super) server_is_ready: bool,
}

/// Outcome of one round.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RoundOutcome {
    /// No further round is needed.
    Decided(ShutdownVerdict),
    /// Permissions that worked before are refused, which counts once it persists.
    Refused(String),
    /// No evidence of an uninstallation so far.
    Undecided(String),
}

/// Evaluates one round.
pub(super) fn judge_round(known: &ShutdownFacts, round: &ApiAnswers) -> RoundOutcome {
    let name = match &known.daemon_set {
        Some(object) => format!("DaemonSet {}/{}", object.namespace, object.name),
        None => return by_pod(known, round, "it is not known which DaemonSet is ours"),
    };
    let deleted = || RoundOutcome::Decided(ShutdownVerdict::CleanUp(format!("{name} has been deleted")));
    match &round.daemon_set {
        ApiAnswer::Found(daemon_set) if daemon_set.metadata.deleted.is_some() => {
            RoundOutcome::Decided(ShutdownVerdict::CleanUp(format!("{name} is being deleted")))
        }
        ApiAnswer::Found(daemon_set) => RoundOutcome::Decided(by_node(daemon_set, round, &name)),
        _ if known.presence == DaemonSetPresence::Deleted => deleted(),
        ApiAnswer::NotFound if known.presence == DaemonSetPresence::Present => deleted(),
        ApiAnswer::NotFound => by_pod(known, round, &format!("{name} has never been seen")),
        ApiAnswer::Refused(error) | ApiAnswer::Failed(error)
            if known.watched && known.presence == DaemonSetPresence::Present =>
        {
            RoundOutcome::Undecided(format!("{name} exists, as its watch shows ({error})"))
        }
        ApiAnswer::Refused(error) | ApiAnswer::Failed(error) => by_pod(known, round, error),
        ApiAnswer::NotAsked => by_pod(known, round, "the API server was not asked"),
    }
}

/// Decides if the DaemonSet exists. Without a clear answer about the node, it is assumed to select the node.
fn by_node(daemon_set: &DaemonSet, round: &ApiAnswers, name: &str) -> ShutdownVerdict {
    // A restarted container has the settings of this one, and would capture every pod again.
    let is_restart = matches!(&round.pod, ApiAnswer::Found(pod) if pod.metadata.deleted.is_none());
    match &round.node {
        ApiAnswer::Found(node) => match placement::exclusion_reason(daemon_set, node) {
            Some(why) => ShutdownVerdict::CleanUp(format!("{name} no longer selects this node: {why}")),
            // The next agent may lack the permission even to inspect what this one has made.
            None if !is_restart && placement::takes_part_in_ambient(daemon_set) == Some(false) => {
                ShutdownVerdict::EndAmbient(format!("{name} still selects this node, without ambient mode"))
            }
            None => ShutdownVerdict::Keep(format!("{name} still selects this node")),
        },
        ApiAnswer::Refused(error) | ApiAnswer::Failed(error) => {
            ShutdownVerdict::Keep(format!("{name} exists, and {error}"))
        }
        ApiAnswer::NotFound | ApiAnswer::NotAsked => {
            ShutdownVerdict::Keep(format!("{name} exists, and our Node object was not found"))
        }
    }
}

/// Decides if the DaemonSet cannot be read, for this reason.
fn by_pod(known: &ShutdownFacts, round: &ApiAnswers, reason: &str) -> RoundOutcome {
    match &round.pod {
        ApiAnswer::Found(pod) if pod.metadata.deleted.is_none() => {
            RoundOutcome::Decided(ShutdownVerdict::Keep(
                "our own pod is not being deleted: its container is restarted, or the node shuts down"
                    .to_owned(),
            ))
        }
        ApiAnswer::Found(_) => match &round.namespace {
            ApiAnswer::Found(namespace) if namespace.metadata.deleted.is_some() => {
                let name = &namespace.metadata.name;
                RoundOutcome::Decided(ShutdownVerdict::CleanUp(format!("namespace {name} is being deleted")))
            }
            _ => RoundOutcome::Undecided(format!(
                "our own pod is being deleted and our permissions are in force, as in an upgrade ({reason})"
            )),
        },
        ApiAnswer::Refused(error) if known.could_read_pod && round.server_is_ready => {
            RoundOutcome::Refused(format!("permissions that we had are gone: {error}"))
        }
        ApiAnswer::Refused(error) => RoundOutcome::Undecided(error.clone()),
        ApiAnswer::Failed(_) | ApiAnswer::NotFound | ApiAnswer::NotAsked => {
            RoundOutcome::Undecided(reason.to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
