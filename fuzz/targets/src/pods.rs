//! Pods and namespaces from the API server, or from a directory of manifests.

use enrolment::{
    EnrolmentPolicy, Fact, FactIndex, ambient, decide,
    exceptions::{AllowedExceptions, RequestedExceptions},
    facts,
    inpod::{InPodAnnotations, PodOptionPolicy},
};
use model::{Namespace, Pod};

/// Any text is a pod, a namespace, a list of manifests in YAML, or none of them. A parsed pod parses back to itself; trimming
/// changes no decision, and trimming again changes nothing; the index has the trimmed pod, and recognises it when it arrives again.
///
/// # Panics
/// If one of these does not hold.
pub fn pod_object(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(error) = apiclient::parse_yaml(&text) {
        assert!(!error.is_empty());
    }
    let namespace: Namespace = serde_json::from_slice(data).unwrap_or_default();
    let Ok(pod) = serde_json::from_slice::<Pod>(data) else { return };
    let line = serde_json::to_string(&pod).unwrap_or_default();
    assert_eq!(serde_json::from_str::<Pod>(&line).ok(), Some(as_written(pod.clone())), "{line}");
    let mut trimmed = pod.clone();
    facts::trim_pod(&mut trimmed);
    same_decisions(&pod, &trimmed, &namespace);
    let mut index = FactIndex::default();
    assert!(index.apply(Fact::Pod(Box::new(pod.clone()))));
    assert_eq!(index.pod(&pod.name()), Some(&trimmed));
    assert!(!index.apply(Fact::Pod(Box::new(trimmed))), "it is no news");
}

/// A container's privileges are read and never written.
fn as_written(mut pod: Pod) -> Pod {
    let spec = &mut pod.spec;
    let all =
        spec.containers.iter_mut().chain(&mut spec.init_containers).chain(&mut spec.ephemeral_containers);
    for container in all {
        container.security_context.privileged = false;
        container.security_context.capabilities = Default::default();
    }
    pod
}

fn same_decisions(pod: &Pod, trimmed: &Pod, namespace: &Namespace) {
    for ambient in [false, true] {
        let policy = EnrolmentPolicy { ambient, ..EnrolmentPolicy::default() };
        let [whole, small] = [pod, trimmed].map(|pod| decide(pod, Some(namespace), &policy));
        assert_eq!(whole, small);
    }
    let policy = EnrolmentPolicy::default();
    let [whole, small] = [pod, trimmed].map(|pod| ambient::pod_standing(pod, Some(namespace), &policy));
    assert_eq!(whole, small);
    let options = PodOptionPolicy { dns_capture: true, allowed: AllowedExceptions::all() };
    let mut small_namespace = namespace.clone();
    facts::trim_namespace(&mut small_namespace);
    let [whole, small] = [(pod, namespace), (trimmed, &small_namespace)].map(|(pod, namespace)| {
        let inherited = RequestedExceptions::read_from(&namespace.metadata.annotations);
        InPodAnnotations::read_from(pod).effective_options(Some(&inherited), &options)
    });
    assert_eq!(whole, small);
}
