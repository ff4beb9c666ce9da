//! The log socket as used by the plugin, and its file.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

mod socket;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use agent_protocol::{LogLevel, LogRecord};
use flags::{FlagStyle, ParseOutcome};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use telemetry::local::{RootServer, SocketError};
use telemetry::log_server::{self, LogMetrics};
use telemetry::logging::{LogOptions, Logger, OutputLevel};
use telemetry::metrics::render;
use tokio::sync::oneshot;

struct Server {
    directory: tempfile::TempDir,
    logger: Logger,
    registry: Arc<Registry>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Options of a program with these arguments.
fn parse_arguments(arguments: &[&str]) -> LogOptions {
    let (style, arguments) = (FlagStyle::default(), arguments.iter().map(Into::into));
    match flags::parse(flags::LOGGING, style, arguments, |_| None).unwrap() {
        ParseOutcome::Run(values) => LogOptions::parse(&values).unwrap(),
        ParseOutcome::Help => panic!("help"),
    }
}

impl Server {
    fn start() -> Server {
        Self::at_level("default:info")
    }

    /// A server that prints JSON to `log`.
    fn at_level(level: &str) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let target = format!("--log_target={}", log.display());
        let level = format!("--log_output_level={level}");
        let logger = Logger::open(parse_arguments(&[&target, "--log_as_json", &level])).unwrap();
        let server = RootServer::bind(&directory.path().join("log.sock")).unwrap();
        let mut registry = Registry::default();
        let metrics = LogMetrics::register(&mut registry);
        let (stop, stopped) = oneshot::channel::<()>();
        let printer = logger.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let serve = log_server::serve_log_lines(server, printer, metrics, async { drop(stopped.await) });
            runtime.block_on(serve).unwrap();
        });
        Server { directory, logger, registry: Arc::new(registry), stop: Some(stop), thread: Some(thread) }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("log.sock")
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// The whole response to a request on a connection of its own.
    fn request(&self, method_and_path: &str, body: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(&request(method_and_path, body)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn post(&self, body: &[u8]) -> String {
        let answer = self.request("POST /log", body);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "", "{answer}");
        head.lines().next().unwrap().to_owned()
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.directory.path().join("log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Messages.
    fn told(&self) -> Vec<String> {
        self.lines().iter().map(|line| line["msg"].as_str().unwrap().to_owned()).collect()
    }

    fn counted(&self, sample: &str) -> u64 {
        let text = render(&self.registry);
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {sample} in {text}")).parse().unwrap()
    }

    fn requests(&self, result: &str) -> u64 {
        self.counted(&format!("istio_cni_log_requests_total{{result=\"{result}\"}}"))
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

fn request(method_and_path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method_and_path} HTTP/1.1\r\nHost: unix\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn record(level: LogLevel, msg: &str) -> LogRecord {
    LogRecord {
        level,
        time: "2026-11-21T09:32:06.536815Z".to_owned(),
        scope: String::new(),
        msg: msg.to_owned(),
        labels: [("pod", "shop/web"), ("container", "0123")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
    }
}

const OK: &str = "HTTP/1.1 200 OK";

#[test]
fn the_plugins_lines_are_printed_with_all_they_say() {
    let server = Server::start();
    let mut scoped = record(LogLevel::Error, "  failed\n");
    scoped.scope = "repair".to_owned();
    let sent = [
        record(LogLevel::Info, "one"),
        record(LogLevel::Debug, "silent"),
        record(LogLevel::Warn, "two"),
        scoped,
    ];
    assert_eq!(server.post(agent_protocol::post_body(&sent).as_bytes()), OK);
    let mut lines = server.lines();
    for line in &mut lines {
        let time = line.as_object_mut().unwrap().remove("time").unwrap();
        assert!(time.as_str().unwrap() > "2020", "{time}: the agent's own");
    }
    let line = |level: &str, msg: &str| {
        json!({"level": level, "scope": "cni", "msg": msg, "pod": "shop/web", "container": "0123",
            "plugin_time": "2026-11-21T09:32:06.536815Z"})
    };
    let mut last = line("error", "failed");
    last["plugin_scope"] = json!("repair");
    assert_eq!(lines, [line("info", "one"), line("warn", "two"), last]);
    for (level, count) in [("debug", 1), ("info", 1), ("warn", 1), ("error", 1)] {
        assert_eq!(server.counted(&format!("istio_cni_log_records_total{{level=\"{level}\"}}")), count);
    }
    assert_eq!(server.requests("ok"), 1);
}

#[test]
fn the_level_of_the_scope_decides() {
    let server = Server::at_level("default:none,cni:debug");
    server.post(agent_protocol::post_body(&[record(LogLevel::Debug, "seen")]).as_bytes());
    server.logger.set_level("cni", OutputLevel::Error);
    server.post(agent_protocol::post_body(&[record(LogLevel::Warn, "unseen")]).as_bytes());
    assert_eq!(server.told(), ["seen"]);
}

/// As Istio's plugin sends them, whatever the level: unknown lines are dropped, others are not.
#[test]
fn one_bad_line_spoils_no_other() {
    let server = Server::at_level("debug");
    let strings = [
        r#"{"level":"info","time":"t","msg":"good","caller":"x.go:1","n":5}"#,
        "no JSON",
        r#"{"level":"fatal","msg":"m"}"#,
        r#"{"level":"info"}"#,
        r#"{"level":"info","msg":"also good"}"#,
    ];
    assert_eq!(server.post(&serde_json::to_vec(&strings).unwrap()), OK);
    let (lines, told) = (server.lines(), server.told());
    assert_eq!((lines.len(), told[0].as_str(), told[4].as_str()), (5, "good", "also good"));
    assert_eq!((&lines[0]["caller"], &lines[0]["n"]), (&json!("x.go:1"), &json!("5")));
    assert_eq!(lines[4].get("plugin_time"), None);
    for (line, reason) in lines[1..4].iter().zip(["expected", "\"fatal\" is not a level", "it has no msg"]) {
        assert_eq!((&line["level"], &line["scope"]), (&json!("debug"), &json!("cni")));
        assert!(line["msg"].as_str().unwrap().contains(reason), "{line}");
    }
    assert_eq!(server.counted("istio_cni_log_records_total{level=\"info\"}"), 2);
}

#[test]
fn garbage_is_answered_and_told() {
    let server = Server::start();
    let bodies = [&b""[..], b"garbage", b"{}", b"[1]", b"[\"x\"", b"\0\xff\xfe", &[b'['; 100_000]];
    for body in bodies {
        assert_eq!(server.post(body), OK);
    }
    assert_eq!((server.requests("malformed"), server.lines().len()), (7, 7));
    assert!(server.told().iter().all(|msg| msg.starts_with("a request to the log socket is not a list")));
    let mut stream = server.connect();
    stream.write_all(b"\x16\x03\x01 what is this\r\n\r\n").unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    assert_eq!(server.post(b"[]"), OK);
}

#[test]
fn any_method_will_do_and_other_paths_are_not_there() {
    let server = Server::start();
    let body = agent_protocol::post_body(&[record(LogLevel::Info, "told")]);
    for (request, status) in [
        ("PUT /log", "200 OK"),
        ("GET /log", "200 OK"),
        ("POST /", "404 Not Found"),
        ("POST /log/", "404 Not Found"),
        ("POST /logs", "404 Not Found"),
    ] {
        let answer = server.request(request, body.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
    }
    assert_eq!(server.told(), ["told", "told"]);
}

#[test]
fn two_mebibytes_are_refused_in_words_that_arrive() {
    let server = Server::start();
    let body = vec![b' '; 2 << 20];
    assert_eq!(server.post(&body), "HTTP/1.1 413 Payload Too Large");
    // Without a Content-Length.
    let mut stream = server.connect();
    stream.write_all(b"POST /log HTTP/1.1\r\nHost: unix\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    for part in body.chunks(1 << 16) {
        stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).unwrap();
        stream.write_all(&[part, b"\r\n"].concat()).unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!((&status, server.requests("too_large")), (b"HTTP/1.1 413", 2));
    assert_eq!(server.post(b"[]"), OK);
}

#[test]
fn requests_that_stop_halfway_block_nobody() {
    let server = Server::start();
    let whole = request("POST /log", agent_protocol::post_body(&[record(LogLevel::Info, "m")]).as_bytes());
    let half: Vec<_> = (1..32)
        .map(|number| {
            let mut stream = server.connect();
            stream.write_all(&whole[..whole.len() * (number % 3) / 3]).unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    for _ in 0..20 {
        assert_eq!(server.post(b"[]"), OK);
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // The rest may still be sent.
    for (number, mut stream) in (1..32).zip(half) {
        stream.write_all(&whole[whole.len() * (number % 3) / 3..]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(OK), "{answer}");
    }
    assert_eq!(server.lines().len(), 31);
}

#[test]
fn two_hundred_clients_at_once_are_served_and_their_lines_stay_together() {
    let server = Server::start();
    thread::scope(|scope| {
        for client in 0..200 {
            let server = &server;
            scope.spawn(move || {
                let records: Vec<_> =
                    (0..5).map(|line| record(LogLevel::Info, &format!("{client} {line}"))).collect();
                assert_eq!(server.post(agent_protocol::post_body(&records).as_bytes()), OK);
            });
        }
        scope.spawn(|| {
            let mut own = record(LogLevel::Info, "own");
            own.scope = "install".to_owned();
            (0..1000).for_each(|_| server.logger.emit(&own));
        });
    });
    let told: Vec<String> = server.told().into_iter().filter(|msg| msg != "own").collect();
    assert_eq!((told.len(), server.lines().len(), server.requests("ok")), (1000, 2000, 200));
    let all = server.told();
    let mut clients = BTreeSet::new();
    for (at, msg) in all.iter().enumerate().filter(|(_, msg)| msg.ends_with(" 0")) {
        let client = msg.split(' ').next().unwrap();
        let expected: Vec<String> = (0..5).map(|line| format!("{client} {line}")).collect();
        assert_eq!(all[at..at + 5], expected, "nobody's line is between them");
        clients.insert(client);
    }
    assert_eq!(clients.len(), 200);
}
