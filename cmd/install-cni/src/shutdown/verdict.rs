//! The table: what the API server answered, and what follows.

use model::{DaemonSet, Namespace, Node};
use planner::placement;

use super::{Known, OwnPod, Presence};

/// What happens to the installation at shutdown, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is removed.
    Keep(String),
    /// Node-level capture is removed, and the plugin stays.
    EndAmbient(String),
    /// Everything is removed.
    CleanUp(String),
}

/// An answer of the API server.
#[derive(Clone, Debug, Default)]
pub(super) enum Answer<T> {
    /// Not asked for in this round.
    #[default]
    NotAsked,
    /// The object.
    Found(T),
    /// There is no such object (404).
    NotFound,
    /// Our credential or role does not allow it (401, 403): the error.
    Refused(String),
    /// No answer, or none that says anything: the error.
    Failed(String),
}

/// The answers of one round.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) daemon_set: Answer<DaemonSet>,
    pub(super) node: Answer<Node>,
    pub(super) pod: Answer<OwnPod>,
    pub(super) namespace: Answer<Namespace>,
    /// The API server calls itself ready, or does not let us ask.
    pub(super) server_is_ready: bool,
}

/// What one round amounts to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// No further round is needed.
    Decided(Verdict),
    /// Permissions that worked are refused. It counts when it stays so.
    Refused(String),
    /// Nothing speaks for an uninstallation so far.
    Undecided(String),
}

/// Judges one round.
pub(super) fn judge(known: &Known, round: &Round) -> Observation {
    let name = match &known.daemon_set {
        Some(object) => format!("DaemonSet {}/{}", object.namespace, object.name),
        None => return by_pod(known, round, "it is not known which DaemonSet is ours"),
    };
    let deleted = || Observation::Decided(Verdict::CleanUp(format!("{name} has been deleted")));
    match &round.daemon_set {
        Answer::Found(daemon_set) if daemon_set.metadata.deleted.is_some() => {
            Observation::Decided(Verdict::CleanUp(format!("{name} is being deleted")))
        }
        Answer::Found(daemon_set) => Observation::Decided(by_node(daemon_set, &round.node, &name)),
        _ if known.presence == Presence::Deleted => deleted(),
        Answer::NotFound if known.presence == Presence::Present => deleted(),
        Answer::NotFound => by_pod(known, round, &format!("{name} has never been seen")),
        Answer::Refused(error) | Answer::Failed(error)
            if known.watched && known.presence == Presence::Present =>
        {
            Observation::Undecided(format!("{name} exists, as its watch shows ({error})"))
        }
        Answer::Refused(error) | Answer::Failed(error) => by_pod(known, round, error),
        Answer::NotAsked => by_pod(known, round, "the API server was not asked"),
    }
}

/// The DaemonSet exists. Without a clear answer about the node it is taken to want it.
fn by_node(daemon_set: &DaemonSet, node: &Answer<Node>, name: &str) -> Verdict {
    match node {
        Answer::Found(node) => match placement::unwanted(daemon_set, node) {
            Some(why) => Verdict::CleanUp(format!("{name} no longer selects this node: {why}")),
            // The next agent may not even be allowed to see what this one has made.
            None if placement::takes_part_in_ambient(daemon_set) == Some(false) => {
                Verdict::EndAmbient(format!("{name} still selects this node, without ambient mode"))
            }
            None => Verdict::Keep(format!("{name} still selects this node")),
        },
        Answer::Refused(error) | Answer::Failed(error) => {
            Verdict::Keep(format!("{name} exists, and {error}"))
        }
        Answer::NotFound | Answer::NotAsked => {
            Verdict::Keep(format!("{name} exists, and our Node object was not found"))
        }
    }
}

/// The DaemonSet cannot be read, for this reason.
fn by_pod(known: &Known, round: &Round, reason: &str) -> Observation {
    match &round.pod {
        Answer::Found(pod) if !pod.is_being_deleted() => Observation::Decided(Verdict::Keep(
            "our own pod is not being deleted: its container is restarted, or the node shuts down".to_owned(),
        )),
        Answer::Found(_) => match &round.namespace {
            Answer::Found(namespace) if namespace.metadata.deleted.is_some() => {
                let name = &namespace.metadata.name;
                Observation::Decided(Verdict::CleanUp(format!("namespace {name} is being deleted")))
            }
            _ => Observation::Undecided(format!(
                "our own pod is being deleted and our permissions are in force, as in an upgrade ({reason})"
            )),
        },
        Answer::Refused(error) if known.could_read_pod && round.server_is_ready => {
            Observation::Refused(format!("permissions that we had are gone: {error}"))
        }
        Answer::Refused(error) => Observation::Undecided(error.clone()),
        Answer::Failed(_) | Answer::NotFound | Answer::NotAsked => Observation::Undecided(reason.to_owned()),
    }
}

#[cfg(test)]
mod tests;
