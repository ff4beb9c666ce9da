//! Health and metrics as clients see them, over the loopback.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use axum::Router;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use telemetry::http::{self, HealthCheck, MAX_CONNECTIONS, health_router, metrics_router};
use tokio::sync::oneshot;

#[derive(Default)]
struct State {
    live: Mutex<Option<&'static str>>,
    ready: Mutex<Option<&'static str>>,
}

impl HealthCheck for State {
    fn check_liveness(&self) -> Result<(), model::Reason> {
        self.live.lock().unwrap().map_or(Ok(()), |reason| Err(reason.into()))
    }

    fn check_readiness(&self) -> Result<(), model::Reason> {
        self.ready.lock().unwrap().map_or(Ok(()), |reason| Err(reason.into()))
    }

    fn unready_reason(&self) -> &'static str {
        self.ready.lock().unwrap().map_or("", |_| "NotInstalled")
    }
}

struct Server {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(router: Router) -> Server {
        let listener = http::bind((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(http::serve(listener, router, async { drop(stopped.await) })).unwrap();
        });
        Server { port, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> Client {
        Client::to((Ipv4Addr::LOCALHOST, self.port).into())
    }

    fn get(&self, path: &str) -> Answer {
        self.connect().ask("GET", path, "")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Client(BufReader<TcpStream>);

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Client {
    fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(BufReader::new(stream))
    }

    fn ask(&mut self, method: &str, path: &str, headers: &str) -> Answer {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "{head:?}");
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; if method == "HEAD" { 0 } else { length.unwrap().parse().unwrap() }];
        self.0.read_exact(&mut body).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head, body: String::from_utf8(body).unwrap() }
    }
}

fn health() -> (Arc<State>, Server) {
    let state = Arc::new(State::default());
    let server = Server::start(health_router(Arc::clone(&state) as Arc<dyn HealthCheck>));
    (state, server)
}

#[test]
fn health_is_what_the_daemon_says() {
    let (state, server) = health();
    let both = || {
        let (live, ready) = (server.get("/healthz"), server.get("/readyz"));
        (live.status, live.body, ready.status, ready.body)
    };
    let ok = || "ok\n".to_owned();
    assert_eq!(both(), (200, ok(), 200, ok()));
    *state.ready.lock().unwrap() = Some("no CNI configuration yet");
    assert_eq!(both(), (200, ok(), 503, "no CNI configuration yet\n".to_owned()));
    *state.live.lock().unwrap() = Some("stuck");
    *state.ready.lock().unwrap() = None;
    assert_eq!(both(), (503, "stuck\n".to_owned(), 200, ok()));
    assert_eq!(server.get("/metrics").status, 404);
}

#[test]
fn any_method_will_do_and_a_connection_serves_many_requests() {
    let (_, server) = health();
    let mut client = server.connect();
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let answer = client.ask(method, "/readyz", "Content-Length: 0\r\n");
        assert_eq!(answer.status, 200, "{method}");
    }
    let mut rest = String::new();
    let last = client.ask("GET", "/healthz", "Connection: close\r\n");
    assert_eq!((last.status, client.0.read_to_string(&mut rest).unwrap()), (200, 0));
}

#[test]
fn ipv4_and_ipv6_reach_one_socket() {
    let (_, server) = health();
    for address in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        assert_eq!(Client::to(SocketAddr::new(address, server.port)).ask("GET", "/healthz", "").status, 200);
    }
    let taken = http::bind((Ipv6Addr::UNSPECIFIED, server.port).into()).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn a_port_can_be_taken_again_at_once() {
    let (_, server) = health();
    let port = server.port;
    let mut client = server.connect();
    client.ask("GET", "/healthz", "");
    drop(server); // it closes first, so the kernel keeps the connection in TIME_WAIT
    drop(client);
    http::bind((Ipv6Addr::UNSPECIFIED, port).into()).unwrap();
}

#[test]
fn metrics_come_as_open_metrics() {
    let mut registry = Registry::default();
    let counter: Counter = Counter::default();
    registry.register("installs", "Installations", counter.clone());
    let server = Server::start(metrics_router(Arc::new(registry)));
    counter.inc();
    let answer = server.get("/metrics");
    let content_type = "\r\ncontent-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(answer.head.contains(content_type), "{answer:?}");
    let text = "# HELP installs Installations.\n# TYPE installs counter\ninstalls_total 1\n# EOF\n";
    assert_eq!(answer.body, text);
    assert_eq!(server.get("/").status, 404);
}

#[test]
fn slow_and_silent_clients_block_nobody() {
    let (_, server) = health();
    let slow: Vec<_> = (1..MAX_CONNECTIONS)
        .map(|number| {
            let mut client = server.connect();
            let part: &[u8] = if number % 2 == 0 { b"GET /readyz HT" } else { b"" };
            client.0.get_mut().write_all(part).unwrap();
            client
        })
        .collect();
    let start = Instant::now();
    for _ in 0..20 {
        assert_eq!(server.get("/readyz").status, 200);
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(slow);
}

/// A kubelet that gets no answer from `/healthz` kills the agent.
#[test]
fn clients_that_hold_every_place_starve_no_probe() {
    let (_, server) = health();
    let attackers: Vec<_> = (0..4 * MAX_CONNECTIONS)
        .map(|number| {
            let mut client = server.connect();
            let part: &[u8] = if number % 2 == 0 { b"GET /healthz HT" } else { b"" };
            let _ = client.0.get_mut().write_all(part); // its connection may have been closed already
            client
        })
        .collect();
    let mut took: Vec<_> = (0..20)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(server.get("/healthz").status, 200);
            start.elapsed()
        })
        .collect();
    // Something else may stop this process once or twice.
    took.sort_unstable();
    assert!(took[17] < Duration::from_secs(1), "{took:?}");
    drop(attackers);
}

#[test]
fn garbage_and_heads_without_end_are_refused() {
    let (_, server) = health();
    let long = format!("GET /readyz HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET /readyz HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for request in [b"\0\x01\x02\r\n\r\n".to_vec(), long.into_bytes(), many.into_bytes()] {
        let mut client = server.connect();
        // The server may close before everything is sent.
        let _ = client.0.get_mut().write_all(&request);
        let mut answer = String::new();
        let _ = client.0.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(server.get("/readyz").status, 200);
}
