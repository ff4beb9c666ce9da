//! The annotation through a pod's status subresource: on this pod, and on no other with its name.

use kit::ApiServer;
use kube_api::{ApiErrorKind, KubeClient};
use model::{PodName, PodUid};
use serde_json::{Value, json};

use super::fixture::{Credential, LIMIT, run};

const KEY: &str = "ambient.istio.io/redirection";

fn annotation(api: &ApiServer) -> Value {
    let pod = api.admin().get("/api/v1/namespaces/annotated/pods/web");
    assert_eq!(pod["metadata"]["annotations"]["other"], "stays");
    pod["metadata"]["annotations"][KEY].clone()
}

#[test]
fn it_is_set_and_removed_on_the_pod_of_this_uid_only() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("annotated");
    let rules = json!([{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}]);
    let token = api.service_account("annotated", "agent", &rules);
    let credential = Credential::new(&token, api.ca_pem());
    let mut pod = ApiServer::pod("annotated", "web");
    pod["metadata"]["annotations"]["other"] = json!("stays");
    let uid = |stored: Value| PodUid::from(stored["metadata"]["uid"].as_str().unwrap());
    let first = uid(api.create_pod(&pod));
    let name = PodName { namespace: "annotated".into(), name: "web".into() };
    run(async {
        let client = KubeClient::new(&credential.connection("https://127.0.0.1:6443")).unwrap();
        let annotate = |uid: PodUid, value| {
            let (client, name) = (client.clone(), name.clone());
            async move { client.annotate_pod_status(&name, &uid, KEY, value).await }
        };
        for (value, expected) in [
            (Some("enabled"), json!("enabled")),
            (Some("enabled"), json!("enabled")),
            (None, Value::Null),
            (None, Value::Null),
            (Some("enabled"), json!("enabled")),
        ] {
            annotate(first.clone(), value).await.unwrap();
            assert_eq!(annotation(api), expected);
        }

        api.admin().delete("/api/v1/namespaces/annotated/pods/web");
        annotate(first.clone(), Some("enabled")).await.unwrap();
        annotate(first.clone(), None).await.unwrap();
        let successor = uid(api.create_pod(&pod));
        let refused = annotate(first.clone(), Some("enabled")).await.unwrap_err();
        assert_eq!(refused.kind(), ApiErrorKind::Conflict, "{refused}");
        assert!(refused.to_string().starts_with("cannot annotate pod annotated/web with"), "{refused}");
        assert_eq!(annotation(api), Value::Null, "the successor was not touched");
        annotate(successor, Some("enabled")).await.unwrap();
        let refused = annotate(first, None).await.unwrap_err();
        assert_eq!(refused.kind(), ApiErrorKind::Conflict, "{refused}");
        assert_eq!(annotation(api), json!("enabled"), "the successor keeps what it has");

        // This account may change the status alone, and did.
        let answer = client.get::<Value>("the pod", "/api/v1/namespaces/annotated/pods/web", LIMIT);
        assert_eq!(answer.await.unwrap_err().kind(), ApiErrorKind::Refused);
    });
}
