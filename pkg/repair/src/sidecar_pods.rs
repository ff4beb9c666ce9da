//! Running pods with a sidecar to which their traffic shall be redirected.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use enrolment::{
    EnrolmentPolicy, InvalidAnnotation, PodDecision, SidecarRedirect, inpod::existing_connections,
};
use kube_api::ListEvent;
use model::{ExistingConnections, Pod, PodName, PodUid};
use pod_identity::{KnownPods, PodIds};

use crate::ObservedPod;

/// A running pod whose traffic shall be redirected to its sidecar.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SidecarPod {
    pub(crate) ids: PodIds,
    pub(crate) ips: Vec<IpAddr>,
    /// Redirection that its annotations request now. An invalid one was changed after its ADD, or it had none.
    pub(crate) redirect: Result<Arc<SidecarRedirect>, InvalidAnnotation>,
    /// Treatment of the pod's connections, if its annotation requests one.
    pub(crate) existing: Option<ExistingConnections>,
}

impl SidecarPod {
    /// Converts a pod; `None`: it has no sidecar to which the plugin would redirect it, or no address yet.
    fn from_pod(pod: &Pod, policy: &EnrolmentPolicy) -> Option<SidecarPod> {
        let ips = pod.status.ips();
        let redirect = match enrolment::decide(pod, None, policy) {
            Ok(PodDecision::Sidecar(redirect)) => Ok(Arc::from(redirect)),
            Ok(_) => return None,
            Err(invalid) => Err(invalid),
        };
        (!ips.is_empty()).then(|| SidecarPod {
            ids: PodIds::from(pod),
            ips,
            redirect,
            existing: existing_connections(&pod.metadata.annotations, &mut Vec::new()),
        })
    }
}

/// All such pods, updated by events of the API server.
#[derive(Debug, Default)]
pub(crate) struct SidecarPods {
    policy: EnrolmentPolicy,
    pods: BTreeMap<PodUid, Arc<SidecarPod>>,
    /// Namespaces that the plugin's entry excludes; `None`: there is no entry yet.
    excluded: Option<Vec<String>>,
    /// All observed pods, with or without a sidecar.
    observed: BTreeMap<PodUid, PodIds>,
    /// Whether the API server has listed the pods.
    listed: bool,
}

impl SidecarPods {
    pub(crate) fn new(policy: EnrolmentPolicy) -> SidecarPods {
        SidecarPods { policy, ..SidecarPods::default() }
    }

    /// Applies an event of the API server, and takes the part out of it that no other component needs. Returns whether
    /// a pod is new, or has other addresses than before.
    pub(crate) fn observe_event(&mut self, event: &mut ListEvent<ObservedPod>) -> bool {
        match event {
            ListEvent::Reset(pods) => {
                let before = std::mem::take(&mut self.pods);
                self.observed.clear();
                self.listed = true;
                // All of them, also behind the first new one.
                let new: Vec<bool> =
                    pods.iter_mut().map(|pod| self.update_pod(pod, before.get(&pod.uid))).collect();
                new.contains(&true)
            }
            ListEvent::Applied(pod) => {
                let before = self.pods.remove(&pod.uid);
                self.update_pod(pod, before.as_ref())
            }
            ListEvent::Deleted(pod) => {
                self.pods.remove(&pod.uid);
                self.observed.remove(&pod.uid);
                false
            }
        }
    }

    /// Returns whether the pod is one of them and was not `before`, or had other addresses: its sandbox was replaced.
    fn update_pod(&mut self, observed: &mut ObservedPod, before: Option<&Arc<SidecarPod>>) -> bool {
        let pod = observed.running.take();
        let manifest_hash = pod.as_ref().and_then(|pod| pod.manifest_hash());
        let ids = PodIds { name: observed.name.clone(), uid: observed.uid.clone(), manifest_hash };
        self.observed.insert(observed.uid.clone(), ids);
        let Some(pod) = pod.and_then(|pod| SidecarPod::from_pod(&pod, &self.policy)) else { return false };
        let is_new = before.is_none_or(|before| before.ips != pod.ips);
        self.pods.insert(pod.ids.uid.clone(), Arc::new(pod));
        is_new
    }

    /// Returns whether the API server has listed the pods, and it is known which of them the plugin skips.
    pub(crate) fn is_complete(&self) -> bool {
        self.listed && self.excluded.is_some()
    }

    /// Excludes the pods of these namespaces, as the plugin does; `None`: its entry is not known yet.
    pub(crate) fn set_excluded(&mut self, namespaces: Option<Vec<String>>) {
        self.excluded = namespaces;
    }

    /// Returns whether the plugin skips this pod because of its namespace.
    pub(crate) fn is_excluded(&self, pod: &PodName) -> bool {
        self.excluded.iter().flatten().any(|namespace| *namespace == pod.namespace)
    }

    /// Returns one of [`SidecarPods::all_pods`].
    pub(crate) fn pod(&self, uid: &PodUid) -> Option<Arc<SidecarPod>> {
        self.pods.get(uid).filter(|pod| !self.is_excluded(&pod.ids.name)).cloned()
    }

    /// Returns all pods to which a process may belong.
    pub(crate) fn known_pods(&self) -> KnownPods {
        KnownPods::new(self.observed.values().cloned())
    }

    /// Returns the pods that are not excluded, by UID.
    pub(crate) fn all_pods(&self) -> BTreeMap<PodUid, Arc<SidecarPod>> {
        let kept = self.pods.iter().filter(|(_, pod)| !self.is_excluded(&pod.ids.name));
        kept.map(|(uid, pod)| (uid.clone(), Arc::clone(pod))).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> ObservedPod {
        let mut pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "1",
                "annotations": {"sidecar.istio.io/status": "{}"}},
            "spec": {"containers": [{"name": "istio-proxy"}, {"name": "app"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        });
        change(&mut pod);
        serde_json::from_value::<Pod>(pod).unwrap().into()
    }

    /// Changes a pod's object.
    type Change = fn(&mut Value);

    fn kept(pod: ObservedPod) -> Option<Vec<IpAddr>> {
        let mut pods = SidecarPods::new(EnrolmentPolicy {
            excluded_namespaces: vec!["kube-system".into()],
            ..EnrolmentPolicy::default()
        });
        pods.observe_event(&mut ListEvent::Reset(vec![pod]));
        pods.all_pods().values().next().map(|pod| pod.ips.clone())
    }

    /// The annotations of a running pod can change at any time.
    #[test]
    fn a_pod_with_an_invalid_annotation_is_kept() {
        let invalid = kept(pod(|pod| {
            pod["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] = json!("x");
        }));
        assert_eq!(invalid.unwrap().len(), 2);
    }

    #[test]
    fn only_running_pods_that_the_plugin_would_redirect_are_kept() {
        assert_eq!(kept(pod(|_| {})).unwrap().len(), 2);
        // The label takes precedence over the annotation, for the plugin and therefore for repair.
        let injected = kept(pod(|pod| {
            pod["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "true", "app": "web"});
            pod["metadata"]["annotations"]["sidecar.istio.io/inject"] = json!("false");
        }));
        assert_eq!(injected.unwrap().len(), 2);
        let rows: [(&str, Change); 9] = [
            ("not running", |pod| pod["status"]["phase"] = json!("Pending")),
            ("terminated", |pod| pod["status"]["phase"] = json!("Succeeded")),
            ("being deleted", |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-31T23:59:59Z")),
            ("not injected", |pod| pod["metadata"]["annotations"] = json!(null)),
            ("without a proxy", |pod| pod["spec"]["containers"] = json!([{"name": "app"}])),
            ("redirected by its init container", |pod| {
                pod["spec"]["initContainers"] = json!([{"name": "istio-init"}]);
            }),
            ("opted out by its label", |pod| {
                pod["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "false"});
            }),
            ("of an excluded namespace", |pod| pod["metadata"]["namespace"] = json!("kube-system")),
            ("without an address", |pod| pod["status"] = json!({"phase": "Running"})),
        ];
        for (what, change) in rows {
            assert_eq!(kept(pod(change)), None, "{what}");
        }
    }

    /// The ConfigMap of the plugin's entry can change at any time.
    #[test]
    fn pods_of_namespaces_that_the_plugins_entry_excludes_are_left_out() {
        let mut pods = SidecarPods::new(EnrolmentPolicy::default());
        pods.observe_event(&mut ListEvent::Reset(vec![pod(|_| {})]));
        assert!(!pods.is_complete(), "the entry is not known yet");
        for (excluded, kept) in [("other", 1), ("shop", 0), ("other", 1)] {
            pods.set_excluded(Some(vec![excluded.to_owned()]));
            assert_eq!((pods.is_complete(), pods.all_pods().len()), (true, kept), "{excluded}");
        }
    }

    #[test]
    fn a_pod_that_ends_or_is_gone_is_kept_no_more() {
        let mut pods = SidecarPods::new(EnrolmentPolicy::default());
        pods.set_excluded(Some(Vec::new()));
        assert!(!pods.is_complete(), "nothing is known before the list");
        let running = || ListEvent::Applied(pod(|_| {}));
        let rows = [
            (ListEvent::Reset(Vec::new()), false, 0),
            (running(), true, 1),
            (running(), false, 1),
            // Its sandbox was replaced.
            (ListEvent::Applied(pod(|pod| pod["status"]["podIPs"] = json!([{"ip": "10.0.0.2"}]))), true, 1),
            (running(), true, 1),
            (ListEvent::Reset(vec![pod(|_| {})]), false, 1),
            (ListEvent::Applied(pod(|pod| pod["status"]["phase"] = json!("Failed"))), false, 0),
            (running(), true, 1),
            // Another pod of that name.
            (ListEvent::Deleted(pod(|pod| pod["metadata"]["uid"] = json!("u0"))), false, 1),
            (ListEvent::Deleted(pod(|_| {})), false, 0),
            (ListEvent::Reset(vec![pod(|_| {})]), true, 1),
        ];
        for (at, (mut event, is_new, left)) in rows.into_iter().enumerate() {
            assert_eq!((pods.observe_event(&mut event), pods.all_pods().len()), (is_new, left), "event {at}");
        }
    }
}
