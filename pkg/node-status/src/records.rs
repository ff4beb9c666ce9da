//! Pods known from the plugin's records of ADDs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use agent::AgentSnapshot;
use agent_protocol::PodRecord;
use daemon_settings::DaemonSettings;
use enrolment::{EnrolmentPolicy, EnrolmentReason, PodDecision, SkipReason};
use model::{Pod, PodName, PodUid};
use netns::{Netns, NetnsId};
use pod_capture::recorded_netns;
use pod_identity::{PodIds, belongs_to};
use pod_status::{Evidence, RulesEvidence};
use report::{
    CaptureState, KernelView, NetworkState, NodeState, Observer, PodState, Provenance, RedirectionMode,
    StatePart, StateReason, StateReport, Unobserved,
};
use rules::RecordedRules;

use crate::{
    local,
    pods::{NodeNetwork, PodContext, PodRedirects, creation_time},
    sidecar::{self, NetnsPaths, SIDECAR},
    stale_collections,
};

/// Adds the error of each pod's last ADD to its network, if it failed. If no agent follows the node's pods, a pod that is known from
/// no other source is added; otherwise the failure is that of a removed pod. Sorts the pods, which are all there then.
pub fn add_failures(records: &[Arc<PodRecord>], state: &mut StateReport) {
    let follows_pods = state.observation.observer == Observer::Agent && state.node.synced;
    let pods = &mut state.pods;
    // The record of a failed ADD may stay after another one of the pod, in a new sandbox, has succeeded.
    let last: BTreeMap<(PodName, &str), &Arc<PodRecord>> = in_order(records, |_| true)
        .map(|record| ((pod_name(record), record.network.as_str()), record))
        .collect();
    for record in last.into_values() {
        let Some(error) = &record.error else { continue };
        let why = format!("its last ADD failed at {}: {error}", record.at);
        let known = pods.iter_mut().find(|pod| pod.namespace == record.namespace && pod.name == record.name);
        match known {
            Some(pod)
                if pod.capture == CaptureState::Captured
                    || !record.pod_uid.is_empty() && record.pod_uid != pod.uid => {}
            Some(pod) => pod.problem = pod.problem.take().or(Some(why)),
            None if follows_pods => {}
            None => {
                let mut pod = recorded_pod(record);
                let rules = RulesEvidence::Absent { failing: true };
                pod.capture = Evidence { rules, awaited: true, ..Evidence::UNKNOWN }.classify().state;
                pod.problem = Some(why);
                pods.push(pod);
            }
        }
    }
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
}

/// Adds the pods whose ADD succeeded after the last agent had observed `state`, in place of those that had their names then. Their
/// rules are yet to be observed. In ambient mode, only pods that are captured have such records.
pub(super) fn add_later_pods(records: &[Arc<PodRecord>], state: &mut StateReport) {
    let is_later =
        |record: &&Arc<PodRecord>| record.error.is_none() && record.at > state.observation.observed_at;
    let later: BTreeMap<PodName, &Arc<PodRecord>> =
        in_order(records, |_| true).filter(is_later).map(|record| (pod_name(record), record)).collect();
    for (name, record) in &later {
        let mut pod = recorded_pod(record);
        if !record.pod_uid.is_empty() {
            pod.uid.clone_from(&record.pod_uid);
        }
        if let Some(reason) = EnrolmentReason::from_name(&record.decision) {
            (pod.mode, pod.capture) = (state.node.mode, Evidence::UNKNOWN.classify().state);
            pod.reason.message = reason.to_string();
        }
        match state.pods.iter().find(|known| known.uid == pod.uid) {
            Some(known) => {
                pod.created_at.clone_from(&known.created_at);
                pod.redirection_annotation.clone_from(&known.redirection_annotation);
                pod.privilege.clone_from(&known.privilege);
            }
            None => state.history.retain(|change| change.pod.as_deref() != Some(pod.title().as_str())),
        }
        state.pods.retain(|known| (&*known.namespace, &*known.name) != (&*name.namespace, &*name.name));
        state.pods.push(pod);
    }
}

/// Returns network namespaces without a record: their pods started before the plugin was installed, or under another version of it.
fn unrecorded_netns(records: &[Arc<PodRecord>], places: NetnsPaths<'_>) -> Option<Unobserved> {
    let unrecorded = |why: String| Unobserved::new(StatePart::UnrecordedPods, why);
    if places.are_unknown() {
        let directory = places.netns_directory.display();
        let why = format!("{directory} is not there, so they cannot be distinguished from the others");
        return Some(unrecorded(why));
    }
    let name = |path: &Path| path.file_name().map(ToOwned::to_owned);
    // The kernel reuses the inode number of a removed namespace: that of a failed ADD, which is removed immediately, and that of a
    // pod whose DEL was lost. Therefore numbers are used only where namespaces have no names.
    let records: Vec<_> = records.iter().filter(|record| record.error.is_none()).collect();
    let known: BTreeSet<_> = records.iter().filter_map(|record| name(Path::new(&record.netns))).collect();
    let numbered = records.iter().filter(|_| places.by_process().is_some());
    let ids: BTreeSet<_> = numbered.filter_map(|record| recorded_netns(record)).collect();
    let found = match places.list_netns() {
        Ok(found) => found,
        Err(error) => return Some(unrecorded(error.to_string())),
    };
    let is_known = |(path, netns): &(PathBuf, Netns)| {
        ids.contains(&netns.id()) || name(path).is_some_and(|name| known.contains(&name))
    };
    let number = found.iter().filter(|one| !is_known(one)).count();
    let why = format!(
        "{number} network namespaces in {} have no record of an ADD: only the API server knows whether their pods \
         belong to the mesh",
        places.used_path().display()
    );
    (number > 0).then(|| unrecorded(why))
}

/// Observes a node without ambient mode: the pods that the plugin recorded, and, if an agent (`snapshot`) follows the node's pods,
/// those that started before the plugin. `excluded`: namespaces that the plugin's entry excludes.
pub(super) fn observe_recorded(
    settings: &DaemonSettings,
    excluded: &[String],
    snapshot: Option<&AgentSnapshot>,
    records: &[Arc<PodRecord>],
    cache: &mut sidecar::SidecarCache,
) -> StateReport {
    let known = snapshot.filter(|snapshot| snapshot.has_pods);
    let followed = known.iter().flat_map(|snapshot| &snapshot.pods);
    let followed = followed.map(|known| (known.pod.name(), &known.pod)).collect();
    let recorded = recorded_pods(records, &followed);
    let (mut pods, mut redirects) = (Vec::new(), PodRedirects::new());
    let network = NetworkState::nothing_desired();
    if let Some(snapshot) = known {
        let traces = &settings.ambient_traces.agent;
        let excluded_namespaces = [&traces.policy.excluded_namespaces, excluded].concat();
        let policy = EnrolmentPolicy { excluded_namespaces, ..EnrolmentPolicy::default() };
        let of_node = NodeNetwork::from_state(&network);
        let context = PodContext { snapshot, network: of_node, settings: traces, policy: &policy };
        let others = snapshot.pods.iter().filter(|known| !recorded.contains_key(&known.pod.name()));
        pods.extend(others.map(|known| context.pod_state(known, &mut redirects)));
    }
    pods.extend(recorded.into_values());
    let places = NetnsPaths { netns_directory: &settings.netns_directory, proc: Some(&settings.host_proc) };
    sidecar::observe_sidecars(places, records, &redirects, cache, &mut pods);
    let missing = if known.is_some() { None } else { unrecorded_netns(records, places) };
    StateReport {
        observation: Provenance {
            unobserved: missing.into_iter().chain(snapshot.into_iter().flat_map(stale_collections)).collect(),
            ..Provenance::default()
        },
        node: NodeState { synced: known.is_some(), ..NodeState::default() },
        history: snapshot.map(|snapshot| snapshot.history.clone()).unwrap_or_default(),
        pods,
        network,
        ..local::empty_report()
    }
}

/// Returns each pod by its newest ADD that succeeded. `followed`: the pods that the API server reports, by name, of which a
/// predecessor of that name is none.
fn recorded_pods(
    records: &[Arc<PodRecord>],
    followed: &BTreeMap<PodName, &Pod>,
) -> BTreeMap<PodName, PodState> {
    let pods = in_order(records, |_| true).filter_map(|record| {
        let name = pod_name(record);
        let pod = followed.get(&name);
        let is_current =
            record.error.is_none() && pod.is_none_or(|pod| belongs_to(record, &PodIds::from(*pod)));
        let created_at = pod.and_then(|pod| creation_time(pod));
        is_current.then(|| (name, PodState { created_at, ..recorded_pod(record) }))
    });
    pods.collect()
}

/// Pods whose ADDs recorded network namespaces: of several with one number, the newest, because the others have ended.
#[derive(Debug, Default)]
pub(super) struct NetnsOwners(BTreeMap<NetnsId, PodName>);

impl NetnsOwners {
    pub(super) fn from_records(records: &[Arc<PodRecord>]) -> NetnsOwners {
        let done = in_order(records, |_| true).filter(|record| record.error.is_none());
        NetnsOwners(done.filter_map(|record| Some((recorded_netns(record)?, pod_name(record)))).collect())
    }

    /// Whether the namespace is that of a pod with another name.
    pub(super) fn belongs_to_another(&self, netns: NetnsId, namespace: &str, name: &str) -> bool {
        self.0.get(&netns).is_some_and(|owner| (&*owner.namespace, &*owner.name) != (namespace, name))
    }
}

fn pod_name(record: &PodRecord) -> PodName {
    PodName { namespace: record.namespace.clone(), name: record.name.clone() }
}

/// Returns the rules that the newest ADDs of these pods recorded. Other records are not parsed: there may be thousands.
pub(super) fn rules_by_record(
    records: &[Arc<PodRecord>],
    is_meant: impl Fn(&PodUid) -> bool,
) -> BTreeMap<PodUid, RecordedRules> {
    let rules = |record: &Arc<PodRecord>| (pod_uid(record), RecordedRules::from_lines(record.rules.clone()));
    in_order(records, is_meant).map(rules).collect()
}

/// Returns the redirections that the newest successful ADDs of these pods decided on. Those whose pods are too long for a record are
/// missing, and long annotations are omitted ([`agent_protocol::MAX_ANNOTATION`]).
pub(super) fn redirects_by_record(
    records: &[Arc<PodRecord>],
    is_meant: impl Fn(&PodUid) -> bool,
) -> PodRedirects {
    let done = in_order(records, is_meant).filter(|record| record.error.is_none());
    let redirects = done.filter_map(|record| {
        match enrolment::decide(record.pod.as_deref()?, None, &EnrolmentPolicy::default()) {
            Ok(PodDecision::Sidecar(redirect)) => Some((pod_uid(record), redirect)),
            _ => None,
        }
    });
    redirects.collect()
}

/// Returns the network namespaces that the newest successful ADDs of these pods recorded.
pub(super) fn netns_by_record(
    records: &[Arc<PodRecord>],
    is_meant: impl Fn(&PodUid) -> bool,
) -> BTreeMap<PodUid, NetnsId> {
    let done = in_order(records, is_meant).filter(|record| record.error.is_none());
    done.filter_map(|record| Some((pod_uid(record), recorded_netns(record)?))).collect()
}

/// Returns the records of these pods, oldest first.
fn in_order(
    records: &[Arc<PodRecord>],
    is_meant: impl Fn(&PodUid) -> bool,
) -> impl Iterator<Item = &Arc<PodRecord>> {
    let mut records: Vec<_> = records.iter().filter(|record| is_meant(&pod_uid(record))).collect();
    records.sort_by(|a, b| a.at.cmp(&b.at));
    records.into_iter()
}

/// Returns the pod's UID. If the runtime does not pass it, the container ID, which is equally unique, is used instead.
fn pod_uid(record: &PodRecord) -> PodUid {
    if record.uid.is_empty() { record.container.as_str().into() } else { record.uid.clone() }
}

fn recorded_pod(record: &PodRecord) -> PodState {
    let is_sidecar = record.decision == "sidecar";
    let why_unobserved = is_sidecar.then(|| "its rules have not been observed".to_owned());
    PodState {
        namespace: record.namespace.clone(),
        name: record.name.clone(),
        uid: pod_uid(record),
        ips: record.ips.clone(),
        // The pod was about to run at its ADD; a DEL would have reported its end.
        phase: "Running".to_owned(),
        capture: if is_sidecar { SIDECAR } else { Evidence::OUTSIDE }.classify().state,
        mode: is_sidecar.then_some(RedirectionMode::Sidecar),
        reason: StateReason { code: record.decision.clone(), message: reason_text(record) },
        last_transition_time: Some(record.at.clone()),
        kernel: KernelView { unobserved: why_unobserved, ..KernelView::default() },
        ..PodState::default()
    }
}

/// Returns the reason of the plugin's decision. A decision of another version has its own message.
fn reason_text(record: &PodRecord) -> String {
    if EnrolmentReason::from_name(&record.decision).is_some() {
        return "it was enrolled in ambient mode, which is off now".to_owned();
    }
    if record.decision == "sidecar" {
        return "it was injected".to_owned();
    }
    SkipReason::from_name(&record.decision).map_or_else(|| record.message.clone(), |known| known.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(at: &str, error: Option<&str>) -> Arc<PodRecord> {
        let record = json!({"namespace": "shop", "name": "web", "container": at, "at": at, "error": error});
        Arc::new(serde_json::from_value(record).unwrap())
    }

    #[test]
    fn the_newest_successful_add_decides_on_the_redirection() {
        let add = |at: &str, error: Option<&str>| {
            let annotations = json!({
                "sidecar.istio.io/status": "{}", "traffic.sidecar.istio.io/excludeOutboundPorts": at,
            });
            let pod = json!({
                "metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "istio-proxy"}]},
            });
            let record = json!({
                "namespace": "shop", "name": "web", "uid": "u", "container": at, "at": at,
                "error": error, "pod": pod,
            });
            Arc::new(serde_json::from_value::<PodRecord>(record).unwrap())
        };
        let redirect = |records: &[Arc<PodRecord>]| {
            redirects_by_record(records, |uid| *uid == PodUid::from("u")).into_values().next().unwrap()
        };
        let records = [add("2", None), add("1", None), add("3", Some("no route"))];
        assert_eq!(redirect(&records), redirect(&records[..1]));
        assert_ne!(redirect(&records), redirect(&records[1..2]));
    }

    #[test]
    fn pods_that_started_after_the_last_agents_observation_are_added() {
        let record = |name: &str, at: &str, decision: &str| {
            let record = json!({
                "namespace": "shop", "name": name, "uid": at, "container": name, "at": at,
                "decision": decision,
            });
            Arc::new(serde_json::from_value::<PodRecord>(record).unwrap())
        };
        let pod = |name: &str| PodState {
            namespace: "shop".into(),
            name: name.into(),
            uid: "1".into(),
            ..PodState::default()
        };
        let mut state = StateReport { pods: vec![pod("api"), pod("web")], ..StateReport::default() };
        state.node.mode = Some(RedirectionMode::InPod);
        state.observation.observed_at = "2".into();
        let (web, late) = (record("web", "3", "ambient-namespace"), record("late", "3", "sidecar"));
        add_later_pods(&[web, late, record("early", "1", "sidecar")], &mut state);
        let shown: Vec<_> = state.pods.iter().map(|pod| (&*pod.name, pod.uid.as_str(), pod.mode)).collect();
        let expected = [
            ("api", "1", None),
            ("late", "3", Some(RedirectionMode::Sidecar)),
            ("web", "3", Some(RedirectionMode::InPod)),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_pod_with_several_records_is_listed_once_and_its_predecessor_not_at_all() {
        let record = |at: &str, uid: &str| {
            let record = json!({"namespace": "shop", "name": "web", "uid": uid, "container": at, "at": at});
            Arc::new(serde_json::from_value::<PodRecord>(record).unwrap())
        };
        let records = [record("2", "u"), record("1", "u"), record("3", "of-another")];
        let metadata = json!({
            "namespace": "shop", "name": "web", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        let web: Pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        for (followed, expected) in [
            (BTreeMap::from([(web.name(), &web)]), (Some("2"), Some("2026-01-01T00:00:00Z"))),
            (BTreeMap::new(), (Some("3"), None)),
        ] {
            let pods = recorded_pods(&records, &followed);
            let shown = pods.values();
            let shown = shown.map(|pod| (pod.last_transition_time.as_deref(), pod.created_at.as_deref()));
            assert_eq!(shown.collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn an_add_that_failed_before_another_one_succeeded_is_not_the_last() {
        let (first, second) = (record("1", Some("no route")), record("2", None));
        let third = record("3", Some("no route"));
        for (records, has_failed) in [
            (vec![first.clone()], true),
            (vec![second.clone(), first.clone()], false),
            (vec![third, first, second], true),
        ] {
            let pod = PodState { namespace: "shop".into(), name: "web".into(), ..PodState::default() };
            let mut state = StateReport { pods: vec![pod], ..StateReport::default() };
            add_failures(&records, &mut state);
            assert_eq!(state.pods[0].problem.is_some(), has_failed, "{records:?}");
        }
    }

    #[test]
    fn a_pod_that_only_its_failed_add_shows_has_its_place_among_the_others() {
        let pod = PodState { namespace: "shop".into(), name: "worker".into(), ..PodState::default() };
        let mut state = StateReport { pods: vec![pod], ..StateReport::default() };
        add_failures(&[record("1", Some("no route"))], &mut state);
        assert_eq!(state.pods.iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["web", "worker"]);
    }
}
