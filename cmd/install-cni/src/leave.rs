//! What an end means: an upgrade or restart, after which everything shall be as it was, or a removal from the node.

use std::{sync::Mutex, sync::PoisonError, time::Duration};

use kubeio::{Client, Kind, Object};
use model::{DaemonSet, Node};
use planner::placement;

use crate::settings::CleanupOnExit;

/// What is to be done, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Nothing is removed.
    Keep(String),
    /// The node path is removed, and the plugin stays.
    EndAmbient(String),
    /// Everything is removed.
    CleanUp(String),
}

/// What the watch of our DaemonSet has told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing.
    #[default]
    Nothing,
    /// It is there.
    There,
    /// It was there, and is gone or on its way out.
    Gone,
}

/// What is known of our DaemonSet while we run. When somebody uninstalls us, our permission to ask may go before we
/// are told to end, but not before the DaemonSet goes: so it is watched.
#[derive(Debug, Default)]
pub(crate) struct Ours {
    known: Mutex<(Option<Object>, Seen)>,
}

impl Ours {
    /// This is it.
    pub(crate) fn is(&self, object: Object) {
        self.with(|known| known.0 = Some(object));
    }

    /// The watch told something. What is known since, when that is news.
    pub(crate) fn saw(&self, daemon_set: Option<&DaemonSet>) -> Option<Seen> {
        self.with(|known| {
            let before = known.1;
            known.1 = match (daemon_set, known.1) {
                (Some(daemon_set), _) if daemon_set.metadata.deleted.is_none() => Seen::There,
                (Some(_), _) | (None, Seen::There | Seen::Gone) => Seen::Gone,
                // One that never was there cannot have gone: it has another name.
                (None, Seen::Nothing) => Seen::Nothing,
            };
            (known.1 != before).then_some(known.1)
        })
    }

    fn known(&self) -> (Option<Object>, Seen) {
        self.with(|known| known.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut (Option<Object>, Seen)) -> T) -> T {
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// For each question. The kubelet gives us five seconds in all.
const LIMIT: Duration = Duration::from_millis(1500);

/// Decides.
/// `ambient`: we take part in ambient mode.
pub(crate) async fn decide(
    mode: CleanupOnExit,
    client: Option<&Client>,
    ours: &Ours,
    node: &str,
    ambient: bool,
) -> Leave {
    match mode {
        CleanupOnExit::Always => Leave::CleanUp("--cleanup-on-exit=always".to_owned()),
        CleanupOnExit::Never => Leave::Keep("--cleanup-on-exit=never".to_owned()),
        CleanupOnExit::Auto => match ask(client, ours, node).await {
            Leave::EndAmbient(why) if !ambient => Leave::Keep(why),
            leave => leave,
        },
    }
}

async fn ask(client: Option<&Client>, ours: &Ours, node: &str) -> Leave {
    let (object, seen) = ours.known();
    let Some(object) = object else {
        return Leave::Keep("it is not known which DaemonSet is ours".to_owned());
    };
    let name = format!("DaemonSet {}/{}", object.namespace, object.name);
    let gone = || Leave::CleanUp(format!("{name} is gone"));
    let Some(client) = client else { return Leave::Keep("the API server cannot be asked".to_owned()) };
    let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/{}", object.namespace, object.name);
    match client.get::<DaemonSet>(&name, &path, LIMIT).await {
        Ok(daemon_set) => wanted(client, &daemon_set, &name, node).await,
        Err(_) if seen == Seen::Gone => gone(),
        Err(error) if error.kind() == Kind::NotFound && seen == Seen::There => gone(),
        Err(error) if error.kind() == Kind::NotFound => {
            Leave::Keep(format!("there never was a {name}, so that its absence says nothing"))
        }
        Err(error) => Leave::Keep(error.to_string()),
    }
}

async fn wanted(client: &Client, daemon_set: &DaemonSet, name: &str, node: &str) -> Leave {
    if daemon_set.metadata.deleted.is_some() {
        return Leave::CleanUp(format!("{name} is being deleted"));
    }
    match client.get::<Node>(&format!("Node {node}"), &format!("/api/v1/nodes/{node}"), LIMIT).await {
        Ok(node) => match placement::unwanted(daemon_set, &node) {
            Some(why) => Leave::CleanUp(format!("{name} does not want this node any more: {why}")),
            // The next agent may not even be allowed to see what this one has made.
            None if placement::takes_part_in_ambient(daemon_set) == Some(false) => {
                Leave::EndAmbient(format!("{name} still wants this node, and takes no part in ambient mode"))
            }
            None => Leave::Keep(format!("{name} still wants this node")),
        },
        Err(error) => Leave::Keep(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_there_can_have_gone() {
        let there = DaemonSet::default();
        let mut leaving = DaemonSet::default();
        leaving.metadata.deleted = Some("2026-01-01T00:00:00Z".to_owned());
        for (told, expected) in [
            (vec![None], Seen::Nothing),
            (vec![Some(&there)], Seen::There),
            (vec![Some(&there), None], Seen::Gone),
            (vec![Some(&there), None, None], Seen::Gone),
            (vec![Some(&leaving)], Seen::Gone),
            (vec![Some(&there), Some(&leaving)], Seen::Gone),
            (vec![Some(&there), None, Some(&there)], Seen::There),
        ] {
            let ours = Ours::default();
            for seen in &told {
                ours.saw(*seen);
            }
            assert_eq!(ours.known().1, expected, "{told:?}");
        }
    }
}
