//! The pod of `helm test`: its permissions, and the node on which it runs. `agent` runs its command in every mode.

use kit::ApiServer;
use serde_json::{Value, json};

use super::helm::{Helm, each, object};
use super::schema::{at, candidates, schema};

fn pod(objects: &[Value]) -> &Value {
    object(objects, "Pod", "istio-cni-test")
}

#[test]
fn it_asks_an_agent_of_its_release_on_every_platform() {
    let Some(helm) = Helm::find() else { return };
    let schema = schema();
    let set = ["profile", "platform", "compatibilityVersion"].into_iter().flat_map(|key| {
        let all = candidates(at(&schema, key)).into_iter();
        all.map(move |value| json!({key: value, "pullPolicy": "Always", "seLinuxOptions": {"level": "s0"}}))
    });
    each(set.collect(), |values| {
        let objects = helm.template_values(&values).unwrap();
        let (pod, agent) =
            (pod(&objects), &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]);
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        let its_agent = &agent["spec"]["containers"][0];
        assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test", "{values}");
        for field in ["image", "imagePullPolicy"] {
            assert_eq!(container[field], its_agent[field], "{values}");
        }
        let selinux = "/securityContext/seLinuxOptions";
        assert_eq!(container.pointer(selinux), its_agent.pointer(selinux), "{values}");
        for field in ["tolerations", "serviceAccountName"] {
            assert_eq!(spec[field], agent["spec"][field], "{values}");
        }
        let near = &spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
        let label = &near["labelSelector"]["matchLabels"]["k8s-app"];
        assert_eq!(label, &agent["metadata"]["labels"]["k8s-app"], "{values}");
        assert_ne!(label, &pod["metadata"]["labels"]["k8s-app"], "{values}: the DaemonSet would adopt it");
    });
}

/// Without observation of sidecar pods, `verify` never succeeds.
#[test]
fn it_verifies_where_the_agent_can() {
    let Some(helm) = Helm::find() else { return };
    for (set, command) in [
        (&[][..], "verify"),
        (&["profile=ambient", "repair.enabled=false"], "verify"),
        (&["repair.enabled=false", "millrace.inspectSidecars=true"], "verify"),
        (&["repair.enabled=false"], "log-level"),
        (&["repair.repairPods=false", "repair.deletePods=true"], "log-level"),
    ] {
        let objects = helm.template(set).unwrap();
        let expected = json!(["install-cni", command]);
        assert_eq!(pod(&objects)["spec"]["containers"][0]["command"], expected, "{set:?}");
    }
    let cluster = helm.template(&["global.resourceScope=cluster"]).unwrap();
    assert!(cluster.iter().all(|one| one["kind"] != "Pod"), "it has a namespace");
}

/// A namespace that admits the agent admits the pod; of the stricter rules, it violates only those that root and one directory of
/// the node violate.
#[test]
fn the_api_server_admits_it_for_its_directory_alone() {
    const OWN: &str = "chart-test-pod";
    let Some(helm) = Helm::find() else { return };
    let Some(api) = ApiServer::shared() else { return };
    let admin = api.admin();
    api.create_namespace(OWN);
    admin.create(
        &format!("/api/v1/namespaces/{OWN}/serviceaccounts"),
        &json!({"metadata": {"name": "istio-cni"}}),
    );
    let enforce = |level: &str| {
        let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
        admin.patch(&format!("/api/v1/namespaces/{OWN}"), &label);
    };
    for set in [&[][..], &["profile=ambient", "platform=openshift"], &["compatibilityVersion=1.20"]] {
        let mut document = pod(&helm.template(set).unwrap()).clone();
        document["metadata"]["namespace"] = json!(OWN);
        let create = || {
            let path = format!("/api/v1/namespaces/{OWN}/pods?fieldValidation=Strict&dryRun=All");
            let answer = admin.request("POST", &path, Some(&document));
            (answer.status, answer.body["message"].as_str().unwrap_or_default().to_owned())
        };
        // The API server receives labels from its own watch.
        enforce("privileged");
        kit::until(format_args!("admitted: {set:?}"), || create() == (201, String::new()));
        enforce("baseline");
        let message = kit::until(format_args!("refused: {set:?}"), || {
            let (status, message) = create();
            (status == 403).then_some(message)
        });
        let (_, violations) = message.split_once("\"baseline:latest\": ").unwrap();
        let selinux = if set.len() == 2 {
            ", seLinuxOptions (container \"test\" set forbidden securityContext.seLinuxOptions: type \"spc_t\")"
        } else {
            ""
        };
        assert_eq!(violations, format!("hostPath volumes (volume \"run\"){selinux}"), "{set:?}");
    }
}
