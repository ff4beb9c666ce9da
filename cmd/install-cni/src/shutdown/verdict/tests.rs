use kube_api::ObjectRef;
use serde_json::json;

use super::*;

fn known(presence: DaemonSetPresence, watched: bool, could_read_pod: bool) -> ShutdownFacts {
    let name = "istio-cni-node".to_owned();
    let object = ObjectRef { group: "apps", kind: "DaemonSet", namespace: "ns".to_owned(), name };
    ShutdownFacts { daemon_set: Some(object), presence, watched, could_read_pod }
}

fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> ApiAnswer<T> {
    ApiAnswer::Found(serde_json::from_value(value).unwrap())
}

fn refused<T>() -> ApiAnswer<T> {
    ApiAnswer::Refused("cannot get it: forbidden (403)".to_owned())
}

fn failed<T>() -> ApiAnswer<T> {
    ApiAnswer::Failed("cannot get it: no answer within 1 s".to_owned())
}

const NOW: &str = "2026-01-01T00:00:00Z";

/// The relevant part of an observation.
#[derive(Debug, PartialEq, Eq)]
enum Short {
    Keep,
    EndAmbient,
    CleanUp,
    Refused,
    Undecided,
}

fn short(observation: &RoundOutcome) -> Short {
    match observation {
        RoundOutcome::Decided(ShutdownVerdict::Keep(_)) => Short::Keep,
        RoundOutcome::Decided(ShutdownVerdict::EndAmbient(_)) => Short::EndAmbient,
        RoundOutcome::Decided(ShutdownVerdict::CleanUp(_)) => Short::CleanUp,
        RoundOutcome::Refused(_) => Short::Refused,
        RoundOutcome::Undecided(_) => Short::Undecided,
    }
}

#[test]
fn a_daemon_set_that_can_be_read_decides() {
    let selects = json!({"metadata": {"name": "istio-cni-node"}, "spec": {"template": {"spec": {"nodeSelector": {"mesh": "yes"}}}}});
    let deleted = json!({"metadata": {"name": "istio-cni-node", "deletionTimestamp": NOW}});
    let sidecar_only = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "install-cni", "env": [{"name": "AMBIENT_ENABLED", "value": "false"}]}]}}}});
    let labelled = json!({"metadata": {"labels": {"mesh": "yes"}}});
    let own = |deleted: serde_json::Value| read(json!({"metadata": {"deletionTimestamp": deleted}}));
    let none = || ApiAnswer::NotAsked;
    for (daemon_set, node, pod, expected) in [
        (deleted, ApiAnswer::NotAsked, none(), Short::CleanUp),
        (selects.clone(), read(labelled.clone()), none(), Short::Keep),
        (selects.clone(), read(json!({})), none(), Short::CleanUp),
        (sidecar_only.clone(), read(labelled.clone()), none(), Short::EndAmbient),
        (sidecar_only.clone(), read(labelled.clone()), refused(), Short::EndAmbient),
        (sidecar_only.clone(), read(labelled.clone()), own(json!(NOW)), Short::EndAmbient),
        // Its container is restarted, with the settings that the pod has.
        (sidecar_only, read(labelled), own(json!(null)), Short::Keep),
        (selects.clone(), ApiAnswer::NotFound, none(), Short::Keep),
        (selects.clone(), refused(), none(), Short::Keep),
        (selects, failed(), none(), Short::Keep),
    ] {
        let round = ApiAnswers { daemon_set: read(daemon_set), node, pod, ..ApiAnswers::default() };
        let observation = judge_round(&known(DaemonSetPresence::Present, true, true), &round);
        assert_eq!(short(&observation), expected, "{round:?}: {observation:?}");
    }
}

#[test]
fn what_was_seen_before_decides_when_the_daemon_set_cannot_be_read() {
    for (answer, presence, watched, expected) in [
        (ApiAnswer::NotFound, DaemonSetPresence::Present, false, Short::CleanUp),
        (ApiAnswer::NotFound, DaemonSetPresence::Deleted, false, Short::CleanUp),
        (ApiAnswer::NotFound, DaemonSetPresence::Unknown, false, Short::Undecided),
        (refused(), DaemonSetPresence::Deleted, false, Short::CleanUp),
        (failed(), DaemonSetPresence::Deleted, false, Short::CleanUp),
        // It is watched, and exists, whatever our permissions are.
        (refused(), DaemonSetPresence::Present, true, Short::Undecided),
        (failed(), DaemonSetPresence::Present, true, Short::Undecided),
    ] {
        let round = ApiAnswers { daemon_set: answer, pod: ApiAnswer::NotAsked, ..ApiAnswers::default() };
        let observation = judge_round(&known(presence, watched, true), &round);
        assert_eq!(short(&observation), expected, "{presence:?} {round:?}: {observation:?}");
    }
}

#[test]
fn else_our_own_pod_and_our_permissions_decide() {
    let pod = |metadata| read::<Pod>(json!({"metadata": metadata}));
    let (running, deleted) = (pod(json!({})), pod(json!({"deletionTimestamp": NOW})));
    let namespace = |metadata| read::<Namespace>(json!({"metadata": metadata}));
    let (there, gone) =
        (namespace(json!({"name": "ns"})), namespace(json!({"name": "ns", "deletionTimestamp": NOW})));
    // pod, namespace, could read the pod, server is ready
    for (pod, namespace, could_read, server_is_ready, expected) in [
        (running, ApiAnswer::NotAsked, true, true, Short::Keep),
        (deleted.clone(), there, true, true, Short::Undecided),
        (deleted.clone(), refused(), true, true, Short::Undecided),
        (deleted, gone, true, true, Short::CleanUp),
        (refused(), ApiAnswer::NotAsked, true, true, Short::Refused),
        (refused(), ApiAnswer::NotAsked, true, false, Short::Undecided),
        (refused(), ApiAnswer::NotAsked, false, true, Short::Undecided),
        (failed(), ApiAnswer::NotAsked, true, true, Short::Undecided),
        (ApiAnswer::NotFound, ApiAnswer::NotAsked, true, true, Short::Undecided),
    ] {
        for daemon_set in [refused(), failed(), ApiAnswer::NotFound] {
            let (pod, namespace) = (pod.clone(), namespace.clone());
            let round = ApiAnswers { daemon_set, node: ApiAnswer::NotAsked, pod, namespace, server_is_ready };
            let observation = judge_round(&known(DaemonSetPresence::Unknown, false, could_read), &round);
            assert_eq!(short(&observation), expected, "{round:?}: {observation:?}");
        }
    }
}

#[test]
fn nothing_is_known_of_a_daemon_set_before_it_was_determined() {
    let observation = judge_round(&ShutdownFacts::default(), &ApiAnswers::default());
    assert_eq!(short(&observation), Short::Undecided, "{observation:?}");
    let round = ApiAnswers { pod: refused(), server_is_ready: true, ..ApiAnswers::default() };
    let known = ShutdownFacts { could_read_pod: true, ..ShutdownFacts::default() };
    assert_eq!(short(&judge_round(&known, &round)), Short::Refused);
}
