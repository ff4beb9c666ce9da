//! The kit's API servers, real and fake.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use kit::{ApiServer, Auth, FakeApi, FakeReply, Node, NodeOptions, Pod, StoredPod};
use serde_json::json;

#[test]
fn a_pod_can_be_created_changed_read_and_deleted() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("round-trip");
    let created = api.create_pod(&ApiServer::pod("round-trip", "web"));
    let path = "/api/v1/namespaces/round-trip/pods/web";
    api.admin().patch_status(
        path,
        &json!({"podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}], "phase": "Running"}),
    );
    let read = api.admin().get(path);
    assert_eq!(read["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(read["status"]["podIP"], "10.1.2.3");
    assert_eq!(Pod::from_object(&read).uid, created["metadata"]["uid"].as_str().unwrap());
    api.admin().delete(path);
    assert_eq!(api.admin().request("GET", path, None).status, 404);
}

#[test]
fn tokens_of_service_accounts_may_do_what_their_rules_say_until_they_expire() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("accounts");
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]);
    let token = api.service_account("accounts", "agent", &rules);
    let client = api.client(&Auth::Token(token));
    let pods = "/api/v1/namespaces/accounts/pods";
    assert_eq!(client.request("GET", pods, None).status, 200);
    assert_eq!(client.request("GET", "/api/v1/nodes", None).status, 403);

    let uid = api.admin().get("/api/v1/namespaces/accounts/serviceaccounts/agent")["metadata"]["uid"].clone();
    let expired = SystemTime::now() - Duration::from_secs(600);
    let token = api.mint_token("accounts", "agent", uid.as_str().unwrap(), expired);
    assert_eq!(api.client(&Auth::Token(token)).request("GET", pods, None).status, 401);
}

#[test]
fn a_client_certificate_names_user_and_group() {
    let Some(api) = ApiServer::shared() else { return };
    let admin = Auth::ClientCert { user: "root".into(), group: "system:masters".into() };
    assert_eq!(api.client(&admin).request("GET", "/api/v1/nodes", None).status, 200);
    let nobody = Auth::ClientCert { user: "nobody".into(), group: "nobodies".into() };
    assert_eq!(api.client(&nobody).request("GET", "/api/v1/nodes", None).status, 403);
}

#[test]
fn the_audit_log_counts_requests() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("counted");
    let path = "/api/v1/namespaces/counted/pods";
    for _ in 0..3 {
        api.admin().get(path);
    }
    api.client(&Auth::Token("wrong".into())).request("GET", path, None);
    let requests = api.requests_to_pods("kit");
    let here: Vec<_> = requests.iter().filter(|request| request.uri == path).collect();
    assert_eq!(here.iter().filter(|request| request.user == "admin").count(), 3);
    assert_eq!(here.len(), 4, "the refused one counts: {here:?}");
}

#[test]
fn nodes_and_pods_reach_the_api_server_in_both_families() {
    let Some(api) = ApiServer::shared() else { return };
    let nodes = [Node::new(NodeOptions::default()), Node::new(NodeOptions::default())];
    for node in &nodes {
        let pod = node.pod(Pod::new("default", "in-cluster"), &[]);
        for netns in [node.netns(), &pod.netns] {
            for url in [api.url(), api.url_v6()] {
                let address: SocketAddr = url.strip_prefix("https://").unwrap().parse().unwrap();
                let connected =
                    netns.run(|| std::net::TcpStream::connect_timeout(&address, Duration::from_secs(20)));
                assert!(connected.is_ok(), "{url} from {}: {connected:?}", netns.name());
            }
        }
    }
}

#[test]
fn a_kubeconfig_says_who_and_where() {
    let Some(api) = ApiServer::shared() else { return };
    let insecure = "    insecure-skip-tls-verify: true";
    let text = api.kubeconfig(&Auth::Token("secret".into()));
    for line in ["    server: https://10.96.0.1:6443", "    token: \"secret\""] {
        assert!(kit::has_line(&text, line), "{line}: {text}");
    }
    assert!(!kit::has_line(&text, insecure), "{text}");
    assert!(kit::has_line(&api.kubeconfig(&Auth::Insecure("secret".into())), insecure));
}

#[test]
fn fake_servers_misbehave_as_told() {
    let node = Node::new(NodeOptions::default());
    let at = |port| SocketAddr::from((node.outside_ip(false), port));
    let fake = FakeApi::start(node.outside(), at(6443), |request| match request.path.as_str() {
        "/late" => {
            FakeReply::Late(Duration::from_millis(300), Box::new(FakeReply::Json(200, json!({"late": true}))))
        }
        "/redirect" => FakeReply::Redirect("https://192.0.2.1/".into()),
        "/raw" => FakeReply::Raw(b"this is not HTTP".to_vec()),
        "/hang" => FakeReply::Hang,
        _ => FakeReply::Json(500, json!({"message": "broken"})),
    });
    let client = fake.client(&Auth::Token("t".into()));
    let impatient = client.clone().within(Duration::from_secs(1));
    node.netns().run(|| {
        let answer = client.request("GET", "/x", None);
        assert_eq!((answer.status, &answer.body["message"]), (500, &json!("broken")));
        let started = Instant::now();
        assert_eq!(client.request("GET", "/late", None).body, json!({"late": true}));
        assert!(started.elapsed() >= Duration::from_millis(300));
        client.try_request("GET", "/raw", None).unwrap_err();
        kit::until("the request that gets no reply has arrived", || {
            impatient.try_request("GET", "/hang", None).unwrap_err();
            fake.requests().iter().any(|request| request.path == "/hang")
        });
        assert_eq!(client.request("GET", "/redirect", None).status, 307);
    });
    let requests = fake.requests();
    for path in ["/x", "/late", "/raw", "/redirect"] {
        assert_eq!(requests.iter().filter(|request| request.path == path).count(), 1, "{path}");
    }
    assert!(requests[0].headers.iter().any(|line| line.eq_ignore_ascii_case("authorization: bearer t")));

    let silent = FakeApi::without_tls(node.outside(), at(6444), Vec::new());
    let client = silent.client(&Auth::Anonymous).within(Duration::from_millis(300));
    node.netns().run(|| client.try_request("GET", "/x", None).unwrap_err());
}

#[test]
fn requests_are_known_by_their_parameters_and_segments() {
    let list = "/api/v1/pods?watch=true&sendInitialEvents=true&fieldSelector=spec.nodeName%3Da%2Cb&resourceVersion=12";
    assert_eq!(kit::parameter(list, "fieldSelector").as_deref(), Some("spec.nodeName=a,b"));
    assert_eq!(kit::parameter(list, "resourceVersion").as_deref(), Some("12"), "not 1, nor 2");
    assert_eq!((kit::parameter(list, "Selector"), kit::parameter("/api/v1/watch", "watch")), (None, None));
    assert!(kit::is_watch(list) && kit::is_streaming_list(list) && kit::is_watch("watch=true"));
    assert!(!kit::is_watch("watch=false") && !kit::is_streaming_list("watch=true"));
    let named = "/api/v1/namespaces/a/pods/pods-1?x=/nodes/";
    assert!(kit::has_segment(named, "pods") && kit::has_segment(list, "pods"));
    assert!(!kit::has_segment(named, "pod") && !kit::has_segment(named, "nodes"));
}

#[test]
fn a_pod_put_into_the_store_is_one_of_the_api_server() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("stored");
    let name = "a".repeat(200);
    let pod = |name: &str, app| StoredPod {
        namespace: "stored",
        name: name.to_owned(),
        node: "node-1".to_owned(),
        app,
    };
    api.store_pods([pod(&name, Some("web")), pod("plain", None)]);
    let stored = api.admin().get(&format!("/api/v1/namespaces/stored/pods/{name}"));
    let metadata = &stored["metadata"];
    assert_eq!((&metadata["name"], &metadata["labels"]), (&json!(name), &json!({"app": "web"})));
    assert_eq!(metadata["creationTimestamp"], "2026-01-01T00:00:00Z");
    let container = &stored["spec"]["containers"][0];
    assert_eq!((&container["name"], &container["image"]), (&json!("app"), &json!("app")));
    assert_eq!(stored["spec"]["nodeName"], "node-1");
    assert_eq!(stored["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    let plain = api.admin().get("/api/v1/namespaces/stored/pods/plain");
    assert_eq!(plain["metadata"]["labels"], json!(null));
}
