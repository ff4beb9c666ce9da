//! Periodic proof by packets of one pod after another, at an interval that the operator chooses.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use metrics::Labelled;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use report::{PodState, Proof, ProofResult, RedirectionMode};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::state_collector::StateCollector;

metrics::metric_set! {
    /// Counters of the proofs' results; clones share their values.
    pub(crate) struct ProofMetrics, fn register_all() {
        paths: Labelled<Counter> = "istio_cni_proof_paths",
            "Paths of pods' traffic that the packets of a periodic proof were sent on, by result: proven, bypasses, held, not-testable";
    }
}

impl ProofMetrics {
    /// Registers the counters of all results, so that each starts at zero.
    pub(crate) fn register(registry: &mut Registry) -> ProofMetrics {
        let metrics = ProofMetrics::register_all(registry);
        for result in ProofResult::ALL {
            drop(metrics.paths.get_or_create(&[("result", result.as_str())]));
        }
        metrics
    }

    fn count_proof(&self, proof: &Proof) {
        for path in &proof.paths {
            self.paths.get_or_create(&[("result", path.result.as_str())]).inc();
        }
    }
}

/// Namespace and name of a pod.
type PodKey = (String, String);

/// Proves one pod per interval, in the order of their names, while it is polled.
pub(crate) struct ProofSampler {
    collector: Arc<StateCollector>,
    interval: Duration,
    metrics: ProofMetrics,
    last: Option<PodKey>,
    /// Pods that were logged as bypassing.
    bypassing: BTreeSet<PodKey>,
}

impl ProofSampler {
    pub(crate) fn new(
        collector: Arc<StateCollector>,
        interval: Duration,
        metrics: ProofMetrics,
    ) -> ProofSampler {
        ProofSampler { collector, interval, metrics, last: None, bypassing: BTreeSet::new() }
    }

    pub(crate) async fn run(&mut self) {
        loop {
            sleep(self.interval).await;
            self.prove_next().await;
        }
    }

    /// Proves the next pod. Errors of the observation are reported by other callers; the next one may succeed.
    async fn prove_next(&mut self) {
        let alone = self.collector.wait_for_proof().await;
        let Ok(state) = self.collector.collect_state().await else { return };
        let pods = redirected_pods(&state.pods);
        self.bypassing.retain(|key| pods.contains(key));
        let Some(key) = next_pod(&pods, self.last.take()).cloned() else { return };
        self.last = Some(key.clone());
        let Ok(proof) = self.collector.prove_in(alone, state, &key.0, &key.1).await else { return };
        self.metrics.count_proof(&proof);
        self.report_proof(&key, &proof);
    }

    fn report_proof(&mut self, key: &PodKey, proof: &Proof) {
        let (namespace, pod) = key;
        let is_tested = proof.paths.iter().any(|path| path.result == ProofResult::Proven);
        match proof.paths.iter().find(|path| path.result == ProofResult::Bypasses) {
            Some(path) if self.bypassing.insert(key.clone()) => {
                warn!(target: "ambient", %namespace, %pod, path = path.name, destination = path.destination, error = path.message, "a packet bypassed the proxy");
            }
            None if is_tested && self.bypassing.remove(key) => {
                info!(target: "ambient", %namespace, %pod, "packets no longer bypass the proxy");
            }
            _ => {}
        }
    }
}

/// Returns the pods whose own network namespace has a redirection.
fn redirected_pods(pods: &[PodState]) -> BTreeSet<PodKey> {
    let has_rules =
        |pod: &&PodState| matches!(pod.mode, Some(RedirectionMode::InPod | RedirectionMode::Sidecar));
    let pods = pods.iter().filter(has_rules);
    pods.map(|pod| (pod.namespace.clone(), pod.name.clone())).collect()
}

/// Returns the pod that follows `last`; after the last one the first.
fn next_pod(pods: &BTreeSet<PodKey>, last: Option<PodKey>) -> Option<&PodKey> {
    let later = last.and_then(|last| pods.iter().find(|key| **key > last));
    later.or_else(|| pods.first())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_has_its_turn_whoever_comes_and_goes() {
        let key = |name: &str| ("shop".to_owned(), name.to_owned());
        let pods = |names: &[&str]| names.iter().map(|name| key(name)).collect();
        let next = |names: &[&str], last: Option<&str>| {
            next_pod(&pods(names), last.map(key)).map(|(_, name)| name.clone())
        };
        assert_eq!(next(&[], None), None);
        assert_eq!(next(&["a", "b"], None).as_deref(), Some("a"));
        assert_eq!(next(&["a", "b"], Some("a")).as_deref(), Some("b"));
        assert_eq!(next(&["a", "b"], Some("b")).as_deref(), Some("a"));
        assert_eq!(next(&["a", "c"], Some("b")).as_deref(), Some("c"), "its last one is gone");
        assert_eq!(next(&[], Some("b")), None);
    }
}
