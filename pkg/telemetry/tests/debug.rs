//! The debug state over real sockets.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flags::{FlagStyle, ParseOutcome};
use report::{NodeSimulation, SimulatedChange, StateReport};
use serde_json::{Value, json};
use telemetry::debug::{self, BuildInfo, InspectionFuture, MAX_CONNECTIONS, StateInspector, debug_router};
use telemetry::http;
use telemetry::local::RootServer;
use telemetry::logging::{LogOptions, Logger};
use tokio::runtime::Builder;

/// In the environment of one test's child.
const SECRET_NAME: &str = "MILLRACE_TEST_TOKEN";
const SECRET: &str = "hunter2-hunter2";

struct Node(Arc<StateReport>);

impl StateInspector for Node {
    fn observe_state(self: Arc<Self>) -> InspectionFuture<Arc<StateReport>> {
        Box::pin(async move { Ok(Arc::clone(&self.0)) })
    }

    fn explain_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<Value> {
        Box::pin(async move { Ok(json!({"namespace": namespace, "name": name})) })
    }

    fn prove_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<Value> {
        Box::pin(async move { Ok(json!({"namespace": namespace, "name": name})) })
    }

    fn simulate_change(self: Arc<Self>, _: SimulatedChange) -> InspectionFuture<NodeSimulation> {
        Box::pin(async { Ok(NodeSimulation::default()) })
    }
}

fn router(size: usize) -> axum::Router {
    let style = FlagStyle::default();
    let values = flags::parse(flags::LOGGING, style, ["--log_target=/dev/null".into()], |_| None);
    let Ok(ParseOutcome::Run(values)) = values else { panic!("{values:?}") };
    let logger = Logger::open(LogOptions::parse(&values).unwrap()).unwrap();
    let build = BuildInfo {
        version: "1",
        revision: "unknown",
        golang_version: "",
        status: "unknown",
        tag: "unknown",
        date: "unknown",
        tls_provider: "ring".to_owned(),
    };
    let mut state = StateReport { schema: report::SCHEMA.to_owned(), ..StateReport::default() };
    state.network.foreign = vec!["x".repeat(size)];
    debug_router(Arc::new(Node(Arc::new(state))), logger, build)
}

/// Serves on a thread of its own as long as the process runs.
fn on_thread(run: impl AsyncFnOnce() + Send + 'static) {
    thread::spawn(|| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run());
    });
}

fn serve(size: usize) -> u16 {
    let listener = http::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let port = listener.local_addr().unwrap().port();
    on_thread(async move || debug::serve(listener, router(size), std::future::pending()).await.unwrap());
    port
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Status and body of one request, which ends the connection.
fn ask(mut stream: impl Read + Write, line: &str, host: &str) -> (u16, String) {
    let request = format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn level(port: u16) -> String {
    let (_, body) = ask(connect(port), "GET /debug/log/cni", "localhost");
    serde_json::from_str::<Value>(&body).unwrap()["level"].as_str().unwrap().to_owned()
}

#[test]
fn this_machine_reads_over_tcp_and_changes_nothing() {
    let port = serve(10);
    let own = format!("127.0.0.1:{port}");
    let (status, body) = ask(connect(port), "GET /debug/state", &own);
    let state: StateReport = serde_json::from_str(&body).unwrap();
    assert_eq!((status, state.schema.as_str()), (200, report::SCHEMA));
    assert_eq!(level(port), "info");
    let (status, why) = ask(connect(port), "PUT /debug/log?scope=cni&level=debug", &own);
    assert_eq!(status, 405, "{why}");
    assert_eq!(ask(connect(port), "GET /debug/state", "evil.example").0, 403);
    assert_eq!(level(port), "info");
}

#[test]
fn root_reads_and_changes_over_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("debug.sock");
    let server = RootServer::bind(&path).unwrap();
    on_thread(async move || {
        server.run(router(10), MAX_CONNECTIONS, std::future::pending()).await.unwrap();
    });
    let ask = |line: &str| ask(UnixStream::connect(&path).unwrap(), line, "agent");
    assert_eq!(ask("PUT /scopej/cni").0, 202, "nobody says which level");
    assert_eq!(ask("PUT /debug/log?scope=cni&level=debug").0, 200);
    let scope: Value = serde_json::from_str(&ask("GET /scopej/cni").1).unwrap();
    assert_eq!(scope["output_level"], "debug");
    let explained: Value = serde_json::from_str(&ask("GET /debug/explain?pod=shop/web").1).unwrap();
    assert_eq!(explained, json!({"namespace": "shop", "name": "web"}));
}

#[test]
fn those_who_never_read_leave_room_for_a_thousand_requests() {
    let port = serve(16 * 1024 * 1024); // more than the kernel's buffers take
    let stuck: Vec<TcpStream> = (2..MAX_CONNECTIONS)
        .map(|_| {
            let mut stream = connect(port);
            stream.write_all(b"GET /debug/state HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..250 {
                    assert_eq!(ask(connect(port), "GET /debug/routes", "localhost").0, 200);
                }
            });
        }
    });
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop(stuck);
}

/// The environment of a process with threads cannot be changed, so a child has the secret.
#[test]
fn secrets_of_the_environment_and_the_command_line_appear_nowhere() {
    if std::env::var(SECRET_NAME).is_err() {
        let name = "secrets_of_the_environment_and_the_command_line_appear_nowhere";
        let mut child = Command::new(std::env::current_exe().unwrap());
        // The test program treats further words as filters.
        child.args(["--exact", name, "--nocapture", "eyJhbGciOi.hunter2-hunter2"]).env(SECRET_NAME, SECRET);
        child.env("HTTP_PROXY", format!("http://user:{SECRET}@proxy:3128"));
        let done = child.output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        let has_run = text.lines().any(|line| line.starts_with("test result: ok. 1 passed;"));
        assert!(done.status.success() && has_run, "{text}");
        return;
    }
    let port = serve(10);
    let get = |path: &str| ask(connect(port), &format!("GET {path}"), "localhost");
    let index: Value = serde_json::from_str(&get("/debug").1).unwrap();
    let listed = index
        .as_object()
        .unwrap()
        .keys()
        .map(|path| path.replace("NAMESPACE/NAME", "a/b").replace("NAMESPACE&pod=NAME", "a"))
        .map(|path| {
            let settings = "settings=%7B%22variables%22:%7B%22AMBIENT_IPV6%22:%22false%22%7D%7D";
            path.replace("settings=JSON", settings)
        });
    let others = ["/", "/scopej/", "/versionj/"];
    for path in listed.chain(others.map(str::to_owned)) {
        let (status, body) = get(&path);
        assert!(status == 200 && !body.contains(SECRET), "{path}: {body}");
    }
}
