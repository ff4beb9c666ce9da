//! API servers that are unavailable, slow, silent, broken or malicious.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kit::{FakeApi, FakeReply, NodeOptions, istio};
use serde_json::{Value, json};

use super::Cluster;
use crate::fixtures::plugin::{PluginFixture, Refusal, V4, bare_pod, injected, tables, token, undetermined};

/// Runs ADD with a timeout of a second for the API server: it fails sooner than the longest time for one request, of five seconds.
fn refused_in_time(fixture: &PluginFixture) -> Refusal {
    let pod = bare_pod(V4);
    let outcome = fixture.call("ADD", &pod).kubernetes("api_timeout_seconds", json!(1)).run();
    let error = outcome.refused();
    assert!(outcome.wall() < Duration::from_secs(5), "{:?}: {error:?}", outcome.wall());
    assert_eq!((error.code, tables(&pod).as_str()), (11, ""), "{error:?}");
    assert!(error.msg.contains("cannot determine whether pod shop/web belongs to the mesh"), "{error:?}");
    error
}

fn ok(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

#[test]
fn a_pod_that_is_missing_is_waited_for_a_little() {
    let Some(cluster) = Cluster::start("trouble-missing", NodeOptions::default()) else { return };
    let pod = bare_pod(V4);
    let outcome = cluster.add(&pod, "ghost").run();
    let error = outcome.refused();
    assert_eq!(error.code, 11);
    let expected = "cannot determine whether pod trouble-missing/ghost belongs to the mesh: the node agent is unavailable (nothing is \
                    listening on /var/run/istio-cni/agent.sock), and cannot GET pods trouble-missing/ghost at the API server \
                    https://10.96.0.1:6443: it has no such object (404): pods \"ghost\" not found";
    assert_eq!(error.cause(), expected);
    // Other errors are retried for thirty seconds.
    assert!(outcome.wall() < Duration::from_secs(15), "{:?}", outcome.wall());
    assert!(cluster.asked().len() > 1, "a server's cache may be behind");
    // A pod that is created meanwhile is found; a slow machine creates it too late, but not each time.
    let is_found = ["late-1", "late-2", "late-3"].iter().any(|name| {
        std::thread::scope(|scope| {
            let add = scope.spawn(|| cluster.add(&pod, name).run());
            let request = format!("/api/v1/namespaces/trouble-missing/pods/{name}");
            kit::until("it has asked", || !cluster.api.requests_with(&request).is_empty());
            cluster.create(name, |pod| pod);
            add.join().unwrap().0.status.success()
        })
    });
    assert!(is_found && kit::plugin_rules::is_redirected(&pod, "iptables-save"));
}

#[test]
fn a_server_that_does_not_answer_in_time_holds_nobody_longer() {
    let drip =
        |request: &kit::FakeRequest| FakeReply::Trickle(ok(&injected(request)), Duration::from_millis(50));
    let late = |request: &kit::FakeRequest| {
        FakeReply::Late(Duration::from_secs(3), Box::new(FakeReply::Json(200, injected(request))))
    };
    let endless = |_: &kit::FakeRequest| {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        FakeReply::Trickle([head, b"1\r\n \r\n".repeat(1000)].concat(), Duration::from_millis(20))
    };
    for fixture in [
        PluginFixture::answering(drip),
        PluginFixture::answering(late),
        PluginFixture::answering(endless),
        PluginFixture::answering(|_| FakeReply::Hang),
    ] {
        let address = fixture.node.outside_ip(false);
        let cause = format!("{address}:6443: no answer in time, waiting for the exchange");
        assert_eq!(refused_in_time(&fixture).cause(), undetermined(&cause));
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_told_from_one_that_refuses() {
    let fixture = PluginFixture::new();
    let base = fixture.api.kubeconfig(&token());
    let at = |port: u16| base.replace(":6443", &format!(":{port}"));
    let address = |port| SocketAddr::from((fixture.node.outside_ip(false), port));
    let _silent = FakeApi::without_tls(fixture.node.outside(), address(7001), Vec::new());
    let _plain = FakeApi::without_tls(
        fixture.node.outside(),
        address(7002),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    );
    fixture.node.outside().sh("iptables -A INPUT -p tcp --dport 7003 -j DROP");
    let tls = "the TLS handshake";
    for (port, why) in [
        (7000, "no connection: connecting failed: Connection refused (os error 111)".to_owned()),
        (7001, format!("no answer in time, waiting for {tls}")),
        (7002, format!("no connection: {tls} failed: received corrupt message of type InvalidContentType")),
        (7003, "no answer in time, waiting for connecting".to_owned()),
    ] {
        istio::write_file(&fixture.node, "kubeconfig", &at(port));
        let error = refused_in_time(&fixture);
        assert_eq!(error.cause(), undetermined(&format!("{}: {why}", address(port))));
    }
    let unroutable = base.replace(&fixture.node.outside_ip(false).to_string(), "192.0.2.1");
    istio::write_file(&fixture.node, "kubeconfig", &unroutable);
    fixture.node.netns().sh("ip route add unreachable 192.0.2.1");
    let why = "no connection: connecting failed: No route to host (os error 113)";
    assert_eq!(refused_in_time(&fixture).cause(), undetermined(&format!("192.0.2.1:6443: {why}")));
    let name = base.replace(&fixture.node.outside_ip(false).to_string(), "api.invalid");
    istio::write_file(&fixture.node, "kubeconfig", &name);
    refused_in_time(&fixture);
}

#[test]
fn a_server_that_recovers_is_asked_again() {
    let count = AtomicUsize::new(0);
    let fixture = PluginFixture::answering(move |request| match count.fetch_add(1, Ordering::Relaxed) {
        0 => FakeReply::Json(503, json!({"message": "starting"})),
        1 => FakeReply::Json(500, json!({"message": "broken"})),
        2 => FakeReply::Close,
        3 => FakeReply::Json(429, json!({"message": "slowly"})),
        _ => FakeReply::Json(200, injected(request)),
    });
    let pod = bare_pod(V4);
    fixture.call("ADD", &pod).run().ok();
    assert!(kit::plugin_rules::is_redirected(&pod, "iptables-save"));
    assert_eq!(fixture.api.requests().len(), 5);
}

#[test]
fn a_server_that_stays_broken_is_quoted() {
    let fixture =
        PluginFixture::answering(|_| FakeReply::Json(503, json!({"message": "etcd has no leader"})));
    let pod = bare_pod(V4);
    let error = fixture.call("ADD", &pod).kubernetes("api_timeout_seconds", json!(4)).run().refused();
    let cause = format!("{}:6443: it answered 503: etcd has no leader", fixture.node.outside_ip(false));
    assert_eq!(error.cause(), undetermined(&cause));
    assert!(fixture.api.requests().len() > 2, "tried again and again");
}

#[test]
fn redirects_are_not_followed() {
    let fixture = PluginFixture::answering(|_| FakeReply::Redirect("https://10.10.0.1:7443/api".into()));
    let address = SocketAddr::from((fixture.node.outside_ip(false), 7443));
    let elsewhere =
        FakeApi::start(fixture.node.outside(), address, |request| FakeReply::Json(200, injected(request)));
    let error = refused_in_time(&fixture);
    let why = "it redirects (307) to \"https://10.10.0.1:7443/api\", which is not followed";
    assert_eq!(error.cause(), undetermined(&format!("{}:6443: {why}", fixture.node.outside_ip(false))));
    assert_eq!((fixture.api.requests().len(), elsewhere.requests().len()), (1, 0));
}

#[test]
fn answers_that_are_no_pod_are_refused() {
    let huge = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
    for reply in [
        FakeReply::Raw(b"this is not HTTP\r\n\r\n".to_vec()),
        FakeReply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{\"a\":".to_vec()),
        FakeReply::Raw(huge.into_bytes()),
        FakeReply::Raw([b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 100_000]].concat()),
        FakeReply::Raw(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}".to_vec(),
        ),
        FakeReply::Raw([b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'['; 1_000_000]].concat()),
        FakeReply::Json(200, json!([])),
        FakeReply::Json(200, json!({})),
        FakeReply::Json(200, json!({"kind": "Status", "status": "Success"})),
        FakeReply::Json(200, istio::injected_pod("shop", "other")),
        FakeReply::Json(200, istio::injected_pod("other", "web")),
        FakeReply::Json(200, json!({"metadata": {"annotations": 7}})),
        FakeReply::Json(200, json!({"spec": {"containers": [{"name": []}]}})),
        FakeReply::Json(204, json!({})),
        FakeReply::Json(418, json!({"message": "teapot"})),
    ] {
        let shown = format!("{reply:.80?}");
        let fixture = PluginFixture::answering(move |_| reply.clone());
        let error = refused_in_time(&fixture);
        assert!(error.msg.len() < 1000, "{shown}: {} bytes", error.msg.len());
    }
}

#[test]
fn the_credential_goes_only_where_it_belongs() {
    let fixture = PluginFixture::new();
    fixture.call("ADD", &bare_pod(V4)).run().ok();
    let requests = fixture.api.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (requests[0].method.as_str(), requests[0].path.as_str()),
        ("GET", "/api/v1/namespaces/shop/pods/web")
    );
    let header = |name: &str| {
        let prefix = format!("{name}: ");
        requests[0].headers.iter().find_map(|line| line.strip_prefix(&prefix)).unwrap().to_owned()
    };
    assert_eq!(header("Authorization"), "Bearer secret-of-the-plugin");
    assert_eq!(header("User-Agent"), "istio-cni");
}
