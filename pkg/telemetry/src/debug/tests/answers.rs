use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::super::*;
use super::fake::*;

fn node() -> (Arc<Fake>, Router) {
    let fake = Arc::new(Fake { state: state(3), ..Fake::default() });
    let router = router(&fake);
    (fake, router)
}

#[tokio::test]
async fn every_part_of_the_state_has_a_path() {
    let (fake, router) = node();
    let whole = ask(&router, "GET /debug/state", "").await;
    let state: Value = serde_json::to_value(&*fake.state).unwrap();
    assert_eq!(whole.json(), state);
    assert!(
        whole.body.starts_with("{\n  \"schema\": \"millrace.state/v1\""),
        "for people: {}",
        &whole.body[..40]
    );
    let parts = [
        ("pods", &state["pods"]),
        ("ztunnel", &state["ztunnels"]),
        ("routes", &state["network"]["routes"]),
        ("rules", &state["network"]["rules"]),
        ("links", &state["network"]["links"]),
        ("ipsets", &state["network"]["ipsets"]),
        ("firewall", &state["network"]["firewall"]),
        ("sysctls", &state["network"]["sysctls"]),
        ("installation", &state["installation"]),
        ("plan", &state["plan"]),
        ("history", &state["history"]),
        ("config", &state["config"]),
    ];
    for (name, expected) in parts {
        for slash in ["", "/"] {
            let answer = ask(&router, &format!("GET /debug/{name}{slash}"), "").await;
            assert_eq!(answer.json(), *expected, "{name}{slash}");
        }
    }
    assert_eq!(state["network"]["routes"]["differences"].as_array().unwrap().len(), 2);
    assert_eq!(fake.asked.load(Ordering::SeqCst), 1 + 2 * parts.len(), "one observation for a request");
}

#[tokio::test]
async fn the_index_names_paths_that_answer() {
    let (_, router) = node();
    let index = ask(&router, "GET /debug", "").await.json();
    assert_eq!(index, ask(&router, "GET /debug/", "").await.json());
    let paths: Vec<&String> = index.as_object().unwrap().keys().collect();
    assert_eq!(paths.len(), 18);
    for path in paths {
        let path = path.replace("NAMESPACE/NAME", "shop/web").replace("NAMESPACE&pod=NAME", "shop");
        let path = path.replace("settings=JSON", "settings=%7B%22complete%22:true%7D");
        assert_eq!(ask(&router, &format!("GET {path}"), "").await.status, 200, "{path}");
    }
    for path in ["/debug/secrets", "/nothing", "/debug/state/x", "/scopez/", "/debug/pprof/"] {
        assert_eq!(ask(&router, &format!("GET {path}"), "").await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn the_page_is_the_same_for_every_state_and_takes_nothing_from_elsewhere() {
    let (_, router) = node();
    for path in ["/", "/index.html"] {
        let answer = ask(&router, &format!("GET {path}"), "").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, report::PAGE));
        assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
    }
    for path in ["/", "/debug/state", "/nothing", "/versionj"] {
        let answer = ask(&router, &format!("GET {path}"), "").await;
        let policy = answer.header("content-security-policy");
        for part in ["default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(policy.ends_with("frame-ancestors 'none'"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin");
    }
}

#[tokio::test]
async fn without_a_state_the_reason_is_told() {
    let (fake, router) = node();
    fake.broken.store(true, Ordering::SeqCst);
    for path in ["/debug/state", "/debug/pods", "/debug/explain?pod=a/b"] {
        let answer = ask(&router, &format!("GET {path}"), "").await;
        assert_eq!((answer.status, answer.body.as_str()), (503, "the owner does not answer\n"), "{path}");
        assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    }
    for path in ["/", "/debug", "/debug/log", "/versionj"] {
        assert_eq!(ask(&router, &format!("GET {path}"), "").await.status, 200, "{path} needs no state");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_come_is_given_up() {
    let fake = Arc::new(Fake { takes: Duration::from_secs(3600), ..Fake::default() });
    let start = tokio::time::Instant::now();
    let answer = ask(&router(&fake), "GET /debug/state", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (503, "there was no answer within 20 seconds\n"));
    assert_eq!((start.elapsed(), fake.now.load(Ordering::SeqCst)), (DEADLINE, 0));
}

#[tokio::test]
async fn a_pod_is_explained() {
    let (_, router) = node();
    for query in ["pod=shop/web-1", "pod=shop%2Fweb-1", "x=y&pod=shop/web-1"] {
        let answer = ask(&router, &format!("GET /debug/explain?{query}"), "").await;
        assert_eq!(answer.json(), json!({"pod": "shop/web-1"}));
    }
    let long = format!("pod=shop/{}", "x".repeat(254));
    for query in
        ["", "pod=", "pod=web", "pod=/web", "pod=shop/", "pod=a/b/c", "pod=Shop/web", "pod=a/b%0a", &long]
    {
        let answer = ask(&router, &format!("GET /debug/explain?{query}"), "").await;
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
    }
}

#[tokio::test]
async fn a_pod_is_proven_on_request_alone_and_never_over_tcp() {
    let (_, router) = node();
    let put = ask(&router, "PUT /debug/prove?pod=shop/web-1", "").await;
    assert_eq!((put.status, put.json()), (200, json!({"proven": "shop/web-1"})));
    assert_eq!(ask(&router, "PUT /debug/prove?pod=a/b/c", "").await.status, 400);
    assert_eq!(ask(&router, "GET /debug/prove?pod=shop/web-1", "").await.status, 405, "a browser's link");
    for peer in [root(), local("[::1]:1", Some(0)), None] {
        let answer = ask_as(peer, &router, "PUT /debug/prove?pod=shop/web-1", "host: localhost", "").await;
        assert_eq!(answer.status, 405, "{peer:?}");
    }
}

#[tokio::test]
async fn a_change_of_labels_or_settings_is_simulated() {
    let (_, router) = node();
    for (query, change) in [
        ("namespace=shop&labels=a=b,c-", "namespace shop, with a=b,c-"),
        ("namespace=shop&pod=web&labels=x.io%2Fa%3Db", "pod shop/web, with x.io/a=b"),
        ("settings=%7B%22variables%22:%7B%22A%22:%22b%22%7D%7D", "agents with other settings: A"),
    ] {
        let answer = ask(&router, &format!("GET /debug/simulate?{query}"), "").await;
        assert_eq!(answer.json()["problem"], change);
    }
    for query in [
        "",
        "settings=",
        "settings=[]",
        "labels=a=b",
        "namespace=shop",
        "namespace=shop&pod=&labels=a=b",
        "namespace=shop&labels=a+b",
    ] {
        let answer = ask(&router, &format!("GET /debug/simulate?{query}"), "").await;
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
    }
}

#[tokio::test]
async fn head_is_get_without_a_body_and_other_methods_are_refused() {
    let (_, router) = node();
    for path in ["/", "/debug/state", "/scopej/", "/debug/log"] {
        let get = ask(&router, &format!("GET {path}"), "").await;
        let head = ask(&router, &format!("HEAD {path}"), "").await;
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
        assert_eq!(head.header("content-length"), get.body.len().to_string(), "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        for path in ["/", "/debug/state", "/debug/explain?pod=a/b", "/versionj/"] {
            assert_eq!(ask(&router, &format!("{method} {path}"), "").await.status, 405, "{method} {path}");
        }
    }
    // Endpoints of ControlZ that we lack.
    for path in ["/homej/exit", "/signalj/SIGUSR1", "/memj/forcecollection"] {
        assert_eq!(ask(&router, &format!("PUT {path}"), "").await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn levels_are_shown_and_changed() {
    let (_, router) = node();
    let level = async |scope: &str| {
        ask(&router, &format!("GET /debug/log/{scope}"), "").await.json()["level"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let list = ask(&router, "GET /debug/log", "").await.json();
    assert_eq!(list["levels"], json!(["none", "fatal", "error", "warn", "info", "debug"]));
    assert_eq!(list["scopes"][0]["scope"], "ambient");
    assert_eq!(list["scopes"][0]["level"], "info");
    for (path, body) in [
        ("/debug/log?scope=install&level=debug", ""),
        ("/debug/log/?level=warn&scope=install", ""),
        ("/debug/log/install?level=error", ""),
        ("/debug/log/install/?level=warn", ""),
        ("/debug/log", r#"{"scope": "install", "level": "debug"}"#),
        ("/debug/log/install", r#"{"level": "none"}"#),
        ("/debug/log?scope=cni-agent&level=info", ""),
    ] {
        let answer = ask(&router, &format!("PUT {path}"), body).await.json();
        assert_eq!(answer["level"], level("install").await, "{path} {body}");
        assert!(format!("{path}{body}").contains(answer["level"].as_str().unwrap()), "{path} {body}");
    }
    assert_eq!(level("default").await, "info");
    let all = ask(&router, "PUT /debug/log?scope=all&level=error", "").await.json();
    assert!(all["scopes"].as_array().unwrap().iter().all(|scope| scope["level"] == "error"), "{all}");
}

#[tokio::test]
async fn mistakes_about_levels_are_told() {
    let (_, router) = node();
    let before = ask(&router, "GET /debug/log", "").await.body;
    for (line, body, why) in [
        ("PUT /debug/log?scope=nothing&level=debug", "", "unknown scope name: nothing (known: "),
        ("PUT /debug/log/nothing?level=debug", "", "unknown scope name: nothing"),
        ("GET /debug/log/nothing", "", "unknown scope name: nothing"),
        ("GET /debug/log/all", "", "unknown scope name: all"),
        ("PUT /debug/log?scope=cni&level=loud", "", "\"loud\" is not a level"),
        ("PUT /debug/log?scope=cni", "", "a scope and a level are required"),
        ("PUT /debug/log?level=debug", "", "a scope and a level are required"),
        ("PUT /debug/log", "{", "unable to decode request"),
        ("PUT /debug/log", r#"{"scope": 7}"#, "unable to decode request"),
        ("GET /scopej/nothing", "", "unknown scope name: nothing"),
        ("PUT /scopej/nothing", r#"{"output_level": "debug"}"#, "unknown scope name: nothing"),
        ("PUT /scopej/nothing", "{}", "unknown scope name: nothing"),
        ("PUT /scopej/cni", r#"{"output_level": "loud"}"#, "\"loud\" is not a level"),
        ("PUT /scopej/cni", "[", "unable to decode request"),
    ] {
        let answer = ask(&router, line, body).await;
        assert!(answer.status == 400 && answer.body.starts_with(why), "{line} {body}: {answer:?}");
    }
    let long = format!("{{\"scope\": \"{}\"}}", "x".repeat(MAX_BODY));
    assert_eq!(ask(&router, "PUT /debug/log", &long).await.status, 413);
    assert_eq!(ask(&router, "GET /debug/log", "").await.body, before);
}

#[tokio::test]
async fn controlz_clients_find_what_they_know() {
    let (_, router) = node();
    let scope = |level: &str| {
        json!({"name": "cni", "description": "log lines of the plugin", "output_level": level,
               "stack_trace_level": "none", "log_callers": false})
    };
    for path in ["/scopej/cni", "/scopej/cni/"] {
        assert_eq!(ask(&router, &format!("GET {path}"), "").await.json(), scope("info"));
    }
    let sent = r#"{"name":"cni","description":"","output_level":"debug","stack_trace_level":"error","log_callers":true}"#;
    let answer = ask(&router, "PUT /scopej/cni", sent).await;
    assert_eq!((answer.status, answer.body.as_str()), (202, ""));
    assert_eq!(ask(&router, "PUT /scopej/cni", r#"{"output_level": ""}"#).await.status, 202);
    for path in ["/scopej", "/scopej/"] {
        let list = ask(&router, &format!("GET {path}"), "").await;
        assert!(list.json().as_array().unwrap().contains(&scope("debug")), "{list:?}");
        assert!(list.body.starts_with("[{\"name\":\"ambient\","), "compact: {list:?}");
    }
    let version = json!({"version": "1.2.3", "revision": "abc", "golang_version": "", "status": "Clean", "tls_provider": "",
                         "tag": "v1.2.3", "date": "2026-01-02T03:04:05Z"});
    for path in ["/versionj", "/versionj/"] {
        assert_eq!(ask(&router, &format!("GET {path}"), "").await.json(), version);
    }
}

#[tokio::test]
async fn nothing_is_changed_over_tcp_whoever_asks() {
    let (_, router) = node();
    let at = |text: &str| Some(ConnectionPeer::Address(text.parse().unwrap()));
    let host = "host: 10.0.0.1:9876";
    let change = "PUT /debug/log?scope=all&level=none";
    let before = ask(&router, "GET /debug/log", "").await.body;
    let remote = [at("10.0.0.7:1"), at("[fd00::1]:1"), at("[::ffff:10.0.0.7]:1"), None];
    let local_ones =
        [root(), local("[::1]:1", Some(0)), local("127.0.0.1:1", Some(1)), local("127.0.0.1:1", None)];
    for peer in remote.into_iter().chain(local_ones) {
        for line in
            [change, "PUT /scopej/cni", "POST /debug/log", "DELETE /", "PATCH /debug/log/cni?level=none"]
        {
            let body = r#"{"output_level": "none"}"#;
            let answer = ask_as(peer, &router, line, host, body).await;
            assert_eq!((answer.status, answer.header("allow")), (405, "GET, HEAD"), "{line} {peer:?}");
            assert!(
                answer.body.contains("debug.sock") && answer.body.contains("install-cni log-level"),
                "{answer:?}"
            );
        }
    }
    assert_eq!(ask(&router, "GET /debug/log", "").await.body, before);
    for peer in remote.into_iter().chain([root()]) {
        for line in ["GET /debug/pods", "HEAD /", "GET /versionj"] {
            assert_eq!(ask_as(peer, &router, line, host, "").await.status, 200, "{line} {peer:?}");
        }
    }
    assert_eq!(ask(&router, change, "").await.status, 200, "over the Unix socket");
    assert_ne!(ask(&router, "GET /debug/log", "").await.body, before);
}

#[tokio::test]
async fn other_users_of_this_machine_read_nothing() {
    let (fake, router) = node();
    for peer in [local("127.0.0.1:1", Some(65534)), local("[::1]:1", Some(1)), local("127.0.0.1:1", None)] {
        for line in ["GET /", "GET /debug/state", "HEAD /debug/lines", "GET /versionj"] {
            let answer = ask_as(peer, &router, line, "host: localhost:9876", "").await;
            assert_eq!(answer.status, 403, "{line} {peer:?}");
        }
    }
    assert_eq!(fake.asked.load(Ordering::SeqCst), 0, "nobody was bothered");
}

#[tokio::test]
async fn a_change_of_a_level_is_logged_whatever_the_levels_are() {
    let (_, router) = node();
    let lines = async || ask(&router, "GET /debug/lines", "").await.body;
    for (scope, level) in [("all", "none"), ("install", "debug")] {
        let change = format!("PUT /debug/log?scope={scope}&level={level}");
        assert_eq!(ask(&router, &change, "").await.status, 200);
        let logged = format!("\twarn\tinstall\tlog level of {scope}: {level}, on request\n");
        assert!(lines().await.ends_with(&logged), "{}", lines().await);
    }
    assert_eq!(ask(&router, "PUT /debug/log?scope=install&level=loud", "").await.status, 400);
    assert!(!lines().await.contains("loud"), "what is refused changes nothing");
}

#[tokio::test]
async fn pages_of_other_sites_read_and_change_nothing() {
    let (fake, router) = node();
    for headers in ["host: evil.example:9876", "host: localhost\nhost: evil.example", "host: "] {
        for (line, status) in
            [("GET /debug/state", 403), ("GET /", 403), ("PUT /debug/log?scope=cni&level=debug", 405)]
        {
            let answer = ask_as(root(), &router, line, headers, "").await;
            assert_eq!(answer.status, status, "{line} {headers:?}");
        }
    }
    assert_eq!(ask_as(root(), &router, "GET http://evil.example/debug", "", "").await.status, 403);
    assert_eq!(fake.asked.load(Ordering::SeqCst), 0, "nobody was bothered");
    assert_eq!(ask_as(root(), &router, "GET /debug", "", "").await.status, 200, "HTTP/1.0 names no host");
}
