//! The client with real servers on 127.0.0.1: TLS, tokens, certificates, retries, and errors.

#![expect(clippy::unwrap_used, reason = "a test: a panic is its failure")]

#[path = "get/stub.rs"]
mod stub;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use apiclient::{ApiClient, Error, FailureReason, Freshness, Resolver, RetryDecision, RetryPolicy};
use serde::Deserialize;
use stub::{Dir, Stub, Tls, answer, json};

const POD: [&str; 6] = ["api", "v1", "namespaces", "default", "pods", "web-0"];

#[derive(Debug, Deserialize, PartialEq)]
struct Pod {
    kind: String,
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Times that a slow machine does not reach, except for those of an error that is final in the end.
fn policy() -> RetryPolicy {
    RetryPolicy {
        deadline: millis(10_000),
        per_try: millis(5000),
        backoff: millis(5),
        backoff_max: millis(40),
        not_found_grace: millis(1000),
        unauthorized_grace: millis(1000),
    }
}

fn get(dir: &Dir) -> Result<Pod, Error> {
    let grace = policy().deadline;
    let policy = RetryPolicy { not_found_grace: grace, unauthorized_grace: grace, ..policy() };
    get_with(&ApiClient::new(dir.kubeconfig()), &policy)
}

fn get_with(client: &ApiClient, policy: &RetryPolicy) -> Result<Pod, Error> {
    client.get_interruptible(&POD, Freshness::Newest, policy, &|delay| {
        sleep(delay);
        RetryDecision::Try
    })
}

fn pod() -> Vec<u8> {
    json(200, r#"{"kind":"Pod","metadata":{"name":"web-0"}}"#)
}

fn has_header(request: &str, header: &str) -> bool {
    request.lines().any(|line| line == header)
}

/// Returns the error, which must not contain the token.
fn failure(dir: &Dir) -> Error {
    failure_with(dir, &policy())
}

fn failure_with(dir: &Dir, policy: &RetryPolicy) -> Error {
    let error = get_with(&ApiClient::new(dir.kubeconfig()), policy).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    assert_eq!(error.asked, "GET pods default/web-0");
    error
}

#[test]
fn a_pod_is_read_with_a_token_over_tls() {
    let tls = Tls::new();
    let stub = Stub::tls(tls.server(&["127.0.0.1"]), |request, _| {
        assert!(request.starts_with("GET /api/v1/namespaces/default/pods/web-0 HTTP/1.1\r\n"), "{request}");
        assert!(has_header(request, "Authorization: Bearer s3cret"), "{request}");
        pod()
    });
    let dir = Dir::new(&stub.url("127.0.0.1"), &tls.ca_line(), "token: \"s3cret\\n\"");
    assert_eq!(get(&dir).unwrap(), Pod { kind: "Pod".to_owned() });
    assert_eq!(stub.requests(), 1);
}

#[test]
fn a_client_certificate_is_shown_to_the_server() {
    let tls = Tls::new();
    let stub = Stub::tls(tls.server_with_client_auth(), |request, _| {
        assert!(!request.lines().any(|line| line.starts_with("Authorization:")), "{request}");
        pod()
    });
    let dir = Dir::new(
        &stub.url("127.0.0.1"),
        &tls.ca_line(),
        "client-certificate: client.crt, client-key: client.key",
    );
    let (certificate, key) = tls.client();
    dir.write("client.crt", &certificate);
    dir.write("client.key", &key);
    assert!(get(&dir).is_ok());

    let (certificate, key) = Tls::new().client();
    dir.write("client.crt", &certificate);
    dir.write("client.key", &key);
    let error = failure(&dir);
    assert!(matches!(error.reason, FailureReason::Unauthorized(_)), "{error}");
}

#[test]
fn basic_authentication_and_plain_http_work() {
    let stub = Stub::plain(|request, _| {
        assert!(has_header(request, "Authorization: Basic dTpzM2NyZXQ="), "{request}");
        pod()
    });
    let dir = Dir::new(&stub.url("127.0.0.1"), "x: y", "username: u, password: s3cret");
    assert!(get(&dir).is_ok());
}

#[test]
fn trust_is_the_authoritys_and_nobody_elses() {
    let tls = Tls::new();
    let good = Stub::tls(tls.server(&["127.0.0.1"]), |_, _| pod());
    let wrong = Dir::new(&good.url("127.0.0.1"), &Tls::new().ca_line(), "token: s3cret");
    let start = Instant::now();
    let error = failure(&wrong);
    assert!(matches!(error.reason, FailureReason::Untrusted(_)), "{error}");
    assert!(error.tries > 1 && start.elapsed() < millis(5000), "{error}");
    assert_eq!(good.requests(), 0, "no token goes to a server that is not trusted");

    let insecure = Dir::new(&good.url("127.0.0.1"), "insecure-skip-tls-verify: true", "token: s3cret");
    assert!(get(&insecure).is_ok());

    let expired = Stub::tls(tls.expired_server(), |_, _| pod());
    let error = failure(&Dir::new(&expired.url("127.0.0.1"), &tls.ca_line(), "token: s3cret"));
    assert!(matches!(&error.reason, FailureReason::Untrusted(why) if why.contains("xpired")), "{error}");

    let named = Stub::tls(tls.server(&["kubernetes.default"]), |_, _| pod());
    let cluster = format!("{}, tls-server-name: kubernetes.default", tls.ca_line());
    assert!(matches!(
        failure(&Dir::new(&named.url("127.0.0.1"), &tls.ca_line(), "token: s3cret")).reason,
        FailureReason::Untrusted(_)
    ));
    assert!(get(&Dir::new(&named.url("127.0.0.1"), &cluster, "token: s3cret")).is_ok());
}

#[test]
fn a_certificate_that_cannot_be_read_spoils_no_bundle() {
    let tls = Tls::new();
    let stub = Stub::tls(tls.server(&["127.0.0.1"]), |_, _| pod());
    let dir = Dir::new(&stub.url("127.0.0.1"), "certificate-authority: ca.crt", "token: s3cret");
    let unreadable = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    dir.write("ca.crt", &format!("{unreadable}{}", tls.ca_pem()));
    assert!(get(&dir).is_ok());
    dir.write("ca.crt", unreadable);
    assert!(matches!(failure(&dir).reason, FailureReason::Config(_)));
}

#[test]
fn a_fips_build_offers_no_cipher_suite_that_is_not_approved() {
    let tls = Tls::new();
    let stub = Stub::tls(tls.chacha20_server(), |_, _| pod());
    let dir = Dir::new(&stub.url("127.0.0.1"), &tls.ca_line(), "token: s3cret");
    if !cfg!(feature = "fips") {
        assert!(get(&dir).is_ok(), "the server works");
        return;
    }
    let why = "the TLS handshake failed: received fatal alert: HandshakeFailure";
    assert_eq!(failure(&dir).reason, FailureReason::Unreachable(why.to_owned()));
    assert_eq!(stub.requests(), 0);
}

#[test]
fn an_authority_that_rotates_is_read_again() {
    let tls = Tls::new();
    let stub = Stub::tls(tls.server(&["127.0.0.1"]), |_, _| pod());
    let dir = Dir::new(&stub.url("127.0.0.1"), "certificate-authority: ca.crt", "token: s3cret");
    dir.write("ca.crt", &Tls::new().ca_pem());
    let (path, pem) = (dir.path("ca.crt"), tls.ca_pem());
    let writer = std::thread::spawn(move || {
        sleep(millis(80)); // a client that refuses the server's certificate sends no request
        stub::replace(&path, &pem);
    });
    assert!(get(&dir).is_ok());
    writer.join().unwrap();
}

#[test]
fn a_hostname_is_looked_up_and_checked() {
    let tls = Tls::new();
    let stub = Stub::tls(tls.server(&["api.example"]), |request, _| {
        assert!(request.lines().any(|line| line.starts_with("Host: api.example:")), "{request}");
        pod()
    });
    let dir = Dir::new(&stub.url("api.example"), &tls.ca_line(), "token: s3cret");
    dir.write("hosts", "127.0.0.1 api.example\n");
    dir.write("resolv.conf", "nameserver 127.0.0.1\n");
    let resolver = Resolver { hosts: dir.path("hosts"), resolv_conf: dir.path("resolv.conf"), port: 1 };
    let client = ApiClient::new(dir.kubeconfig()).with_resolver(resolver);
    assert!(get_with(&client, &policy()).is_ok());

    dir.write("hosts", "\n");
    let error = get_with(&client, &RetryPolicy { deadline: millis(100), ..policy() }).unwrap_err();
    let (FailureReason::Unreachable(during) | FailureReason::TimedOut(during)) = &error.reason else {
        panic!("{error}")
    };
    assert!(during.starts_with("looking up its name"), "{error}");
}

#[test]
fn a_token_that_rotates_is_read_again_after_a_401() {
    let tls = Tls::new();
    let stub = Stub::tls(tls.server(&["127.0.0.1"]), |request, _| {
        match has_header(request, "Authorization: Bearer new") {
            true => pod(),
            false => json(401, r#"{"message":"Unauthorized"}"#),
        }
    });
    let dir = Dir::new(&stub.url("127.0.0.1"), &tls.ca_line(), "tokenFile: token");
    dir.write("token", "s3cret-old\n");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while stub.requests() == 0 {
                assert!(start.elapsed() < millis(20_000), "no request");
                sleep(millis(1)); // between two polls
            }
            stub::replace(&dir.path("token"), "new\n");
        });
        assert!(get(&dir).is_ok());
    });
    assert!(stub.requests() > 1);

    dir.write("token", "s3cret-old\n");
    let error = failure(&dir);
    assert!(
        matches!(error.reason, FailureReason::Unauthorized(_)) && error.elapsed < millis(5000),
        "{error}"
    );
}

#[test]
fn a_last_try_that_is_cut_short_does_not_hide_what_the_others_were_told() {
    let tls = Tls::new();
    let stub = Stub::tls(tls.server(&["127.0.0.1"]), |_, number| match number {
        0 | 1 => json(401, r#"{"message":"Unauthorized"}"#),
        _ => {
            sleep(millis(4000)); // longer than the remaining time
            pod()
        }
    });
    let dir = Dir::new(&stub.url("127.0.0.1"), &tls.ca_line(), "token: s3cret");
    let policy = RetryPolicy {
        deadline: millis(3000),
        per_try: millis(5000),
        unauthorized_grace: millis(5000),
        ..policy()
    };
    let error = get_with(&ApiClient::new(dir.kubeconfig()), &policy).unwrap_err();
    assert!(error.tries >= 3 && matches!(error.reason, FailureReason::Unauthorized(_)), "{error}");
}

#[test]
fn a_404_is_retried_within_its_grace() {
    let stub = Stub::plain(|_, number| if number < 3 { json(404, r#"{"message":"no"}"#) } else { pod() });
    assert!(get(&Dir::new(&stub.url("127.0.0.1"), "x: y", "")).is_ok());
    assert_eq!(stub.requests(), 4);

    let never = Stub::plain(|_, _| json(404, r#"{"message":"pods \"web-0\" not found"}"#));
    let error = failure(&Dir::new(&never.url("127.0.0.1"), "x: y", "token: s3cret"));
    assert_eq!(error.reason, FailureReason::NotFound("pods \"web-0\" not found".to_owned()));
    assert!(error.tries > 1 && error.elapsed < millis(5000), "{error}");
}

#[test]
fn overload_is_retried_and_retry_after_heeded() {
    let stub = Stub::plain(|_, number| match number {
        0 => answer("503 Service Unavailable", "Content-Length: 0\r\n", b""),
        1 => answer("429 Too Many Requests", "Retry-After: 1\r\nContent-Length: 0\r\n", b""),
        _ => pod(),
    });
    let start = Instant::now();
    assert!(get(&Dir::new(&stub.url("127.0.0.1"), "x: y", "")).is_ok());
    assert!(start.elapsed() >= millis(1000));

    let busy =
        Stub::plain(|_, _| answer("429 Too Many Requests", "Retry-After: 60\r\nContent-Length: 0\r\n", b""));
    let error = failure(&Dir::new(&busy.url("127.0.0.1"), "x: y", "token: s3cret"));
    assert!(matches!(error.reason, FailureReason::Server { status: 429, .. }) && error.tries == 1, "{error}");
    assert!(error.elapsed < millis(5000));
}

#[test]
fn what_will_not_get_better_is_not_retried() {
    let large = format!("{{\"kind\":\"{}\"}}", "a".repeat(apiclient::MAX_BODY));
    for (name, bytes, part) in [
        (
            "redirect",
            answer("302 Found", "Location: https://evil/\r\nContent-Length: 0\r\n", b""),
            "https://evil/",
        ),
        ("garbage", b"SSH-2.0-OpenSSH_9\r\n".to_vec(), "HTTP"),
        ("no json", json(200, "<html>"), "no JSON"),
        ("shape", json(200, r#"{"kind":["s3cret"]}"#), "another shape"),
        ("large", json(200, &large), "larger than"),
        ("bad", json(400, r#"{"message":"bad s3cret request"}"#), "400: bad [hidden] request"),
    ] {
        let stub = Stub::plain(move |_, _| bytes.clone());
        let error = failure(&Dir::new(&stub.url("127.0.0.1"), "x: y", "token: s3cret"));
        assert!(error.to_string().contains(part), "{name}: {error}");
        assert_eq!((error.tries, stub.requests()), (1, 1), "{name}");
    }
}

#[test]
fn a_chunked_answer_is_read() {
    let stub = Stub::plain(|_, _| {
        answer("200 OK", "Transfer-Encoding: chunked\r\n", b"8\r\n{\"kind\":\r\n6\r\n\"Pod\"}\r\n0\r\n\r\n")
    });
    assert!(get(&Dir::new(&stub.url("127.0.0.1"), "x: y", "")).is_ok());
}

#[test]
fn a_refused_connection_is_retried_until_the_deadline() {
    let port = Stub::closed_port();
    let dir =
        Dir::new(&format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify: true", "token: s3cret");
    let error = failure_with(&dir, &RetryPolicy { deadline: millis(1500), ..policy() });
    assert!(matches!(error.reason, FailureReason::Unreachable(_)), "{error}");
    assert!(error.tries > 3, "{error}");
    assert!(error.elapsed > millis(1000) && error.elapsed < millis(8000), "{error}");
}

#[test]
fn a_server_that_hangs_or_drips_costs_no_more_than_the_deadline() {
    let hanging = Stub::raw(|stream| {
        sleep(millis(10_000));
        drop(stream);
    });
    let dripping = Stub::raw(|mut stream| {
        for byte in b"HTTP/1.1 200 OK\r\n".iter().chain(std::iter::repeat_n(&b'a', 1000)) {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            sleep(millis(20));
        }
    });
    for (stub, scheme) in [(&hanging, "https"), (&hanging, "http"), (&dripping, "http")] {
        let dir = Dir::new(
            &format!("{scheme}://127.0.0.1:{}", stub.port),
            "insecure-skip-tls-verify: true",
            "token: s3cret",
        );
        let start = Instant::now();
        let policy = RetryPolicy { deadline: millis(3000), per_try: millis(400), ..policy() };
        let error = failure_with(&dir, &policy);
        assert!(matches!(error.reason, FailureReason::TimedOut(_)), "{error}");
        assert!(error.tries >= 3, "each try ends by itself: {error}");
        assert!(start.elapsed() < millis(8000), "{error}");
    }
}

#[test]
fn a_connection_that_breaks_is_retried() {
    let stub = Stub::plain(|_, number| match number {
        0 => Vec::new(),
        1 => answer("200 OK", "Content-Length: 100\r\n", b"{\"kind\""),
        _ => pod(),
    });
    assert!(get(&Dir::new(&stub.url("127.0.0.1"), "x: y", "")).is_ok());
    assert_eq!(stub.requests(), 3);
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_named_and_nothing_else_tried() {
    let dir = Dir::new("https://127.0.0.1:1", "x: y", "token: s3cret");
    let unusable = |path: PathBuf, why: &str| {
        FailureReason::Config(format!("cannot use the file {}: {why}", path.display()))
    };
    let missing = "cluster.certificate-authority is missing or empty";
    assert_eq!(failure(&dir).reason, unusable(dir.kubeconfig(), missing));
    for text in ["", "a: [", "kind: Config\n"] {
        dir.write("kubeconfig", text);
        let error = failure(&dir);
        assert!(matches!(error.reason, FailureReason::Config(_)) && error.tries == 1, "{error}");
        assert!(error.to_string().contains(&*dir.kubeconfig().to_string_lossy()), "{error}");
    }
    fs::remove_file(dir.kubeconfig()).unwrap();
    let missing = "No such file or directory (os error 2)";
    assert_eq!(failure(&dir).reason, unusable(dir.kubeconfig(), missing));
    let dir = Dir::new("https://127.0.0.1:1", "insecure-skip-tls-verify: true", "tokenFile: token");
    assert_eq!(failure(&dir).reason, unusable(dir.path("token"), missing));
    dir.write("token", "two\nlines");
    assert!(matches!(failure(&dir).reason, FailureReason::Config(_)));
}
