//! Criteria for broken pods.

use model::{ContainerStatus, Termination};

use crate::observed_pod::ObservedPod;

/// Signs of a broken pod. An empty text, and exit code 0, match anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairCriteria {
    /// Key of an annotation that the pod must have.
    pub sidecar_annotation: String,
    /// Name of the init container that must have failed.
    pub init_container: String,
    /// Termination message of that container.
    pub termination_message: String,
    /// Exit code of that container.
    pub exit_code: i32,
}

impl RepairCriteria {
    /// Returns the signs that a pod is broken, as a clause; `None` if it is not, or is already being deleted.
    ///
    /// Detects an init container that failed and was restarted, as in Istio, and also one in its first failure, and one
    /// that is never restarted.
    pub fn find_breakage(&self, pod: &ObservedPod) -> Option<String> {
        let has = |key: &String| pod.annotations.contains(key);
        if pod.is_terminating || !(self.sidecar_annotation.is_empty() || has(&self.sidecar_annotation)) {
            return None;
        }
        pod.init_containers.iter().find_map(|container| self.container_failure(container))
    }

    fn container_failure(&self, container: &ContainerStatus) -> Option<String> {
        if !(self.init_container.is_empty() || container.name == self.init_container) {
            return None;
        }
        // After a success, earlier failures do not count.
        if container.state.terminated.as_deref().is_some_and(is_success) {
            return None;
        }
        let ends = container.state.terminated.iter().chain(&container.last_state.terminated);
        let failure = ends.into_iter().find(|ended| self.is_sought(ended))?;
        Some(format!("its init container {} failed with exit code {}", container.name, failure.exit_code))
    }

    fn is_sought(&self, ended: &Termination) -> bool {
        let message = self.termination_message.trim();
        !is_success(ended)
            && (message.is_empty() || ended.message.trim() == message)
            && (self.exit_code == 0 || ended.exit_code == self.exit_code)
    }
}

fn is_success(ended: &Termination) -> bool {
    ended.exit_code == 0 || ended.reason == "Completed"
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Pod;
    use serde_json::{Value, json};

    fn criteria() -> RepairCriteria {
        RepairCriteria {
            sidecar_annotation: "sidecar.istio.io/status".into(),
            init_container: "istio-validation".into(),
            termination_message: String::new(),
            exit_code: 126,
        }
    }

    fn failed(code: i32) -> Value {
        json!({"terminated": {"exitCode": code, "reason": "Error", "message": " no redirection\n"}})
    }

    fn pod(statuses: &Value) -> ObservedPod {
        let object = json!({
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u", "resourceVersion": "7",
                "annotations": {"sidecar.istio.io/status": "{}"}
            },
            "status": {"initContainerStatuses": statuses},
        });
        serde_json::from_value::<Pod>(object).unwrap().into()
    }

    fn validation(state: &Value, last: &Value) -> ObservedPod {
        pod(&json!([
            {"name": "first", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            {"name": "istio-validation", "state": state, "lastState": last},
        ]))
    }

    #[test]
    fn an_init_container_that_failed_tells_a_broken_pod() {
        let (waiting, running) = (json!({"waiting": {"reason": "CrashLoopBackOff"}}), json!({"running": {}}));
        let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let none = json!(null);
        for (state, last, broken) in [
            (&waiting, &failed(126), true),
            (&running, &failed(126), true),
            (&failed(126), &failed(126), true),
            (&failed(126), &none, true),
            (&failed(126), &json!({}), true),
            (&none, &failed(126), true),
            (&done, &failed(126), false),
            (&running, &none, false),
            (&waiting, &none, false),
            (&waiting, &failed(1), false),
            (&failed(1), &none, false),
            (&failed(1), &failed(126), true),
            (&waiting, &done, false),
            (&none, &none, false),
        ] {
            let found = criteria().find_breakage(&validation(state, last));
            let clause = "its init container istio-validation failed with exit code 126";
            assert_eq!(found.as_deref(), broken.then_some(clause), "{state} after {last}");
        }
        assert_eq!(criteria().find_breakage(&pod(&none)), None);
        assert_eq!(criteria().find_breakage(&pod(&json!([{"name": "other", "state": failed(126)}]))), None);
    }

    #[test]
    fn each_criterion_can_be_left_out() {
        let broken = validation(&failed(126), &json!(null));
        let with = |change: fn(&mut RepairCriteria)| {
            let mut criteria = criteria();
            change(&mut criteria);
            criteria.find_breakage(&broken).is_some()
        };
        assert!(with(|c| c.exit_code = 0));
        assert!(!with(|c| c.exit_code = 127));
        assert!(with(|c| c.init_container.clear()));
        assert!(!with(|c| c.init_container = "linkerd".into()));
        assert!(with(|c| c.termination_message = "no redirection".into()));
        assert!(with(|c| c.termination_message = "\tno redirection ".into()));
        assert!(!with(|c| c.termination_message = "no".into()));
        assert!(with(|c| c.sidecar_annotation.clear()));
        assert!(!with(|c| c.sidecar_annotation = "other".into()));
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_left_alone() {
        let pod = ObservedPod { is_terminating: true, ..validation(&failed(126), &json!(null)) };
        assert_eq!(criteria().find_breakage(&pod), None);
    }

    #[test]
    fn what_the_api_leaves_out_or_calls_null_is_absent() {
        for object in [
            json!({}),
            json!({"metadata": {}, "status": null}),
            json!({"metadata": {"labels": null, "annotations": null, "ownerReferences": null}}),
            json!({"status": {"phase": null, "initContainerStatuses": [{"state": {"terminated": {
                "exitCode": 126, "reason": null, "message": null}}}]}}),
        ] {
            let pod: ObservedPod = serde_json::from_value::<Pod>(object).unwrap().into();
            assert_eq!(criteria().find_breakage(&pod), None);
        }
    }
}
