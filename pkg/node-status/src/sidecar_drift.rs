//! Pods with a sidecar whose rules were removed. The plugin made them when the pod started, and only repair in place maintains
//! them: so each periodic observation of the node counts such pods, and reports them.

use std::{collections::BTreeMap, time::Instant};

use agent::MeshPodMetrics;
use metrics::{Labelled, gauge_value};
use model::{EventLevel, EventSubject, NOTICE_INTERVAL, Notice, PodName, PodUid};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use report::{CaptureState, PodState, RedirectionMode, StatePart, StateReport, is_captured_with_fault};

/// Number of consecutive observations in this state after which a pod is reported: one that starts or ends is observed in
/// transition.
const OBSERVATIONS: u32 = 2;

metrics::metric_set! {
    /// Number of pods with a sidecar that are captured, are not, or could not be observed; whether there may be others; and number
    /// of captured pods of any kind that have a fault.
    pub struct SidecarDriftMetrics, fn register_all(mesh_pods: MeshPodMetrics) {
        pods: Labelled<Gauge> = "istio_cni_sidecar_pods",
            "Pods with a sidecar on this node, by whether all rules that redirect to it are in place";
        pods_unrecorded: Gauge = "istio_cni_pods_unrecorded",
            "Whether pods run on this node of which the agent knows nothing, because their ADD was not recorded";
        faulty: Gauge = "istio_cni_captured_pods_with_fault",
            "Captured pods with a fault that their state does not show, such as a missing annotation";
    }
}

impl SidecarDriftMetrics {
    /// Registers `istio_cni_sidecar_pods`; 0 before the first observation.
    pub fn register(registry: &mut Registry, mesh_pods: MeshPodMetrics) -> SidecarDriftMetrics {
        let metrics = SidecarDriftMetrics::register_all(registry, mesh_pods);
        STATES.iter().for_each(|state| metrics.set(*state, 0));
        metrics
    }

    fn set(&self, state: CaptureState, number: usize) {
        self.pods.get_or_create(&[("state", state.as_str())]).set(gauge_value(number));
    }
}

/// States of a pod with a sidecar.
const STATES: [CaptureState; 4] =
    [CaptureState::Captured, CaptureState::Pending, CaptureState::Bypassing, CaptureState::Unknown];

/// Observations and reports of a pod that bypasses the mesh.
#[derive(Debug, Default)]
struct BypassRecord {
    observations: u32,
    reported: Option<Instant>,
}

/// Detects drift from one observation to the next; stores observations and reports.
#[derive(Debug)]
pub struct SidecarDriftChecker {
    metrics: SidecarDriftMetrics,
    watched: BTreeMap<PodUid, BypassRecord>,
}

impl SidecarDriftChecker {
    /// Returns a checker that has observed nothing yet.
    pub fn new(metrics: SidecarDriftMetrics) -> SidecarDriftChecker {
        SidecarDriftChecker { metrics, watched: BTreeMap::new() }
    }

    /// Evaluates one observation of the node, and returns the Events that are due.
    pub fn due_notices(&mut self, state: &StateReport, now: Instant) -> Vec<Notice> {
        let sidecars: Vec<&PodState> =
            state.pods.iter().filter(|pod| pod.mode == Some(RedirectionMode::Sidecar)).collect();
        for state in STATES {
            self.metrics.set(state, sidecars.iter().filter(|pod| pod.capture == state).count());
        }
        self.metrics
            .mesh_pods
            .set_pod_counts("sidecar", sidecars.iter().map(|pod| (pod.namespace.as_str(), pod.capture)));
        let mut unobserved = state.observation.unobserved.iter();
        let is_unrecorded = unobserved.any(|one| one.part == StatePart::UnrecordedPods);
        self.metrics.pods_unrecorded.set(i64::from(is_unrecorded));
        let faulty = state.pods.iter().filter(|pod| is_captured_with_fault(state, pod));
        self.metrics.faulty.set(gauge_value(faulty.count()));
        let mut before = std::mem::take(&mut self.watched);
        let mut notices = Vec::new();
        for pod in sidecars.into_iter().filter(|pod| pod.capture == CaptureState::Bypassing) {
            let mut watched = before.remove(&pod.uid).unwrap_or_default();
            watched.observations = watched.observations.saturating_add(1);
            let is_old = |reported| now.saturating_duration_since(reported) >= NOTICE_INTERVAL;
            let is_due = watched.reported.is_none_or(is_old);
            if watched.observations >= OBSERVATIONS && is_due {
                watched.reported = Some(now);
                notices.push(bypass_notice(pod));
            }
            self.watched.insert(pod.uid.clone(), watched);
        }
        notices
    }
}

fn bypass_notice(pod: &PodState) -> Notice {
    let what = pod.kernel.differences.join("; ");
    let what = if what.is_empty() { pod.problem.clone().unwrap_or_default() } else { what };
    Notice {
        about: EventSubject::Pod {
            name: PodName { namespace: pod.namespace.clone(), name: pod.name.clone() },
            uid: pod.uid.clone(),
        },
        level: EventLevel::Warning,
        reason: "BypassesMesh",
        message: format!(
            "The rules that redirect its traffic to its sidecar are not in place, so some of it bypasses the mesh: {what}. \
             Restart the pod."
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use report::{KernelView, Unobserved, ZtunnelView};

    fn pod(uid: &str, capture: CaptureState) -> PodState {
        PodState {
            namespace: "shop".into(),
            name: uid.into(),
            uid: uid.into(),
            phase: "Running".into(),
            capture,
            mode: Some(RedirectionMode::Sidecar),
            kernel: KernelView {
                differences: vec!["IPv4 nat: chain X is missing".into()],
                ..KernelView::default()
            },
            ..PodState::default()
        }
    }

    fn state(pods: Vec<PodState>) -> StateReport {
        StateReport { pods, ..StateReport::default() }
    }

    #[test]
    fn a_pod_is_told_of_when_it_stays_so_and_again_after_half_an_hour() {
        let mut checker = SidecarDriftChecker::new(SidecarDriftMetrics::register(
            &mut Registry::default(),
            MeshPodMetrics::default(),
        ));
        let start = Instant::now();
        let minutes = |count: u64| start + Duration::from_secs(60 * count);
        let gone = state(vec![pod("web", CaptureState::Bypassing)]);
        let told =
            |checker: &mut SidecarDriftChecker, state: &StateReport, at| checker.due_notices(state, at).len();
        assert_eq!(told(&mut checker, &gone, minutes(0)), 0);
        let notices = checker.due_notices(&gone, minutes(1));
        assert_eq!((notices.len(), notices[0].reason), (1, "BypassesMesh"));
        assert!(notices[0].message.contains("chain X is missing"), "{}", notices[0].message);
        assert_eq!(told(&mut checker, &gone, minutes(2)), 0);
        assert_eq!(told(&mut checker, &gone, minutes(30)), 0);
        assert_eq!(told(&mut checker, &gone, minutes(31)), 1);
        // The rules were in place in between: this counts as a new change.
        assert_eq!(told(&mut checker, &state(vec![pod("web", CaptureState::Captured)]), minutes(32)), 0);
        assert_eq!(told(&mut checker, &gone, minutes(33)), 0);
        assert_eq!(told(&mut checker, &gone, minutes(34)), 1);
    }

    #[test]
    fn only_pods_with_a_sidecar_are_counted() {
        let metrics = SidecarDriftMetrics::register(&mut Registry::default(), MeshPodMetrics::default());
        let mut checker = SidecarDriftChecker::new(metrics.clone());
        let ambient =
            PodState { mode: Some(RedirectionMode::Node), ..pod("ambient", CaptureState::Bypassing) };
        let pods = vec![
            pod("a", CaptureState::Captured),
            pod("b", CaptureState::Captured),
            pod("c", CaptureState::Bypassing),
            pod("d", CaptureState::Pending),
            ambient,
        ];
        assert_eq!(checker.due_notices(&state(pods), Instant::now()), Vec::new());
        let number = |state: CaptureState| metrics.pods.get_or_create(&[("state", state.as_str())]).get();
        assert_eq!(STATES.map(number), [2, 1, 1, 0]);
        let mut unrecorded = state(Vec::new());
        unrecorded.observation.unobserved = vec![Unobserved::new(StatePart::UnrecordedPods, "1 namespace")];
        checker.due_notices(&unrecorded, Instant::now());
        assert_eq!((STATES.map(number), metrics.pods_unrecorded.get()), ([0; 4], 1));
        checker.due_notices(&state(Vec::new()), Instant::now());
        assert_eq!(metrics.pods_unrecorded.get(), 0);
    }

    #[test]
    fn captured_pods_with_a_fault_are_counted() {
        let metrics = SidecarDriftMetrics::register(&mut Registry::default(), MeshPodMetrics::default());
        let mut checker = SidecarDriftChecker::new(metrics.clone());
        let in_pod = |uid: &str, change: fn(&mut PodState)| {
            let mut pod = PodState { kernel: KernelView::default(), ..pod(uid, CaptureState::Captured) };
            (pod.mode, pod.redirection_annotation) = (Some(RedirectionMode::InPod), Some("enabled".into()));
            pod.ztunnel = Some(ZtunnelView { acknowledged: true, error: None });
            change(&mut pod);
            pod
        };
        let pods = vec![
            in_pod("well", |_| ()),
            in_pod("without-dns", |pod| pod.kernel.dns_unanswered = true),
            in_pod("without-annotation", |pod| pod.redirection_annotation = None),
            in_pod("held", |pod| pod.capture = CaptureState::Held),
        ];
        let mut state = state(pods);
        state.node.agent_started_at = Some("2026-11-21T00:00:00Z".into());
        for (observed_at, faulty) in [("2026-11-21T00:01:00Z", 1), ("2026-11-21T00:01:01Z", 2)] {
            state.observation.observed_at = observed_at.into();
            checker.due_notices(&state, Instant::now());
            assert_eq!(metrics.faulty.get(), faulty, "{observed_at}");
        }
    }
}
