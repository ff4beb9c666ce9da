//! Lists, changes and deletions of this node's pods alone, and of namespaces.

use enrolment::Fact;
use kit::ApiServer;
use model::PodName;
use serde_json::{Value, json};

use super::fixture::{Credential, Follower};

fn pod(namespace: &str, name: &str, node: &str) -> Value {
    let mut pod = ApiServer::pod(namespace, name);
    pod["spec"]["nodeName"] = json!(node);
    pod
}

fn uid(stored: &Value) -> &str {
    stored["metadata"]["uid"].as_str().unwrap()
}

/// The permissions of the manifests, and no more.
fn rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]},
    ])
}

#[test]
fn pods_of_this_node_are_told_from_first_to_last() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("facts");
    let token = api.service_account("facts", "agent", &rules());
    let credential = Credential::new(&token, api.ca_pem());
    let first = api.create_pod(&pod("facts", "a", "facts-1"));
    api.create_pod(&pod("facts", "elsewhere", "facts-2"));
    api.create_pod(&ApiServer::pod("facts", "nowhere"));

    let mut follower = Follower::start(credential.connection("https://127.0.0.1:6443"), "facts-1");
    follower.wait_for_pods("the list", &[uid(&first)]);
    assert!(follower.index.namespace("facts").is_some() && follower.index.namespace("kube-system").is_some());

    let second = api.create_pod(&pod("facts", "b", "facts-1"));
    follower.wait_for_pods("one more", &[uid(&first), uid(&second)]);
    let path = "/api/v1/namespaces/facts/pods/a";
    api.admin().patch(path, &json!({"metadata": {"labels": {"istio.io/dataplane-mode": "none"}}}));
    let name = PodName { namespace: "facts".into(), name: "a".into() };
    let mode = |pod: &model::Pod| pod.metadata.labels.get("istio.io/dataplane-mode").cloned();
    follower.wait_until("its label", |index| index.pod(&name).and_then(mode).as_deref() == Some("none"));
    api.admin().patch_status(
        path,
        &json!({"phase": "Running", "podIPs": [{"ip": "10.1.2.3"}], "podIP": "10.1.2.3"}),
    );
    follower
        .wait_until("its address", |index| index.pod(&name).is_some_and(|pod| pod.status.ips().len() == 1));

    api.admin().delete(path);
    follower.wait_for_pods("its end", &[uid(&second)]);
    let gone = Fact::PodGone { name: name.clone(), uid: uid(&first).into() };
    assert!(follower.told.contains(&gone), "{:#?}", follower.told);
    // A successor of the same name, and a pod that is bound only now.
    let successor = api.create_pod(&pod("facts", "a", "facts-1"));
    follower.wait_for_pods("the successor", &[uid(&successor), uid(&second)]);
    let binding = json!({"metadata": {"name": "nowhere"}, "target": {"kind": "Node", "name": "facts-1"}});
    api.admin().create("/api/v1/namespaces/facts/pods/nowhere/binding", &binding);
    follower.wait_until("one that was bound", |index| index.pods().count() == 3);
    assert_eq!(follower.lists(), 1, "all this was one watch: {:#?}", follower.told);

    let mut seen = api.requests_to_pods("facts");
    seen.retain(|request| request.user == "system:serviceaccount:facts:agent");
    let selector = Some("spec.nodeName=facts-1");
    let is_selected = |request: &kit::Request| request.parameter("fieldSelector").as_deref() == selector;
    assert!(seen.iter().all(is_selected), "{seen:?}");
    // Where lists are not streamed, that request is followed by an ordinary list and a watch.
    let expected: &[&str] = if api.streams_lists() { &["watch"] } else { &["watch", "list", "watch"] };
    let verbs: Vec<_> = seen.iter().map(|request| request.verb.as_str()).collect();
    assert_eq!(verbs, expected, "{seen:?}");
}

#[test]
fn namespaces_are_told_with_their_labels() {
    let Some(api) = ApiServer::shared() else { return };
    let credential = Credential::new("kit-admin", api.ca_pem());
    let mut follower = Follower::start(credential.connection("https://127.0.0.1:6443"), "facts-3");
    follower.wait_for_pods("an empty list", &[]);
    assert!(follower.index.namespace("facts-labels").is_none());
    api.create_namespace("facts-labels");
    follower.wait_until("the namespace", |index| index.namespace("facts-labels").is_some());
    for (label, expected) in
        [(json!("ambient"), Some("ambient")), (json!("none"), Some("none")), (Value::Null, None)]
    {
        let patch = json!({"metadata": {"labels": {"istio.io/dataplane-mode": label}}});
        api.admin().patch("/api/v1/namespaces/facts-labels", &patch);
        follower.wait_until("its label", |index| {
            let labels = &index.namespace("facts-labels").unwrap().metadata.labels;
            labels.get("istio.io/dataplane-mode").map(String::as_str) == expected
        });
    }
}

/// A refused request is not treated as an empty list.
#[test]
fn without_permission_nothing_is_told() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("facts-refused");
    let rules = json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]}]);
    let token = api.service_account("facts-refused", "agent", &rules);
    let credential = Credential::new(&token, api.ca_pem());
    let mut follower = Follower::start(credential.connection("https://127.0.0.1:6443"), "facts-4");
    follower.wait_until("the namespaces", |index| index.namespace("facts-refused").is_some());
    kit::until("lists of pods are refused again and again", || {
        api.refused("system:serviceaccount:facts-refused:agent").len() > 1
    });
    api.create_namespace("facts-refused-2");
    follower.wait_until("the next one", |index| index.namespace("facts-refused-2").is_some());
    assert_eq!((follower.lists(), follower.index.is_synced()), (0, false));
}
