//! Actions of users other than root on the agent's sockets and ports from the node's network namespace, where an agent with
//! hostNetwork has its loopback; and those of a misbehaving plugin as root.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::{Daemon, Netns, Node, Pod, SetOnDrop};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH};

/// Port of the debug state, and of probes.
const DEBUG: u16 = 9876;
const HEALTH: u16 = 8000;
const NOBODY: u32 = 65534;

/// Changes the thread's user permanently; the thread ends soon.
fn become_nobody() {
    rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(NOBODY)).unwrap();
}

/// Runs `act` as another user.
fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        become_nobody();
        act()
    };
    thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

/// Sends a request, and reads the whole response.
fn exchange(mut stream: impl Read + Write, request: &str, body: &str) -> io::Result<String> {
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Status and body of a request over the node's loopback, by root.
fn request(netns: &Netns, port: u16, line: &str) -> (u16, String) {
    request_as(netns, port, line, || ())
}

/// As [`request`], by another user.
fn request_of_nobody(netns: &Netns, port: u16, line: &str) -> (u16, String) {
    request_as(netns, port, line, become_nobody)
}

fn request_as(netns: &Netns, port: u16, line: &str, become_user: impl FnOnce() + Send) -> (u16, String) {
    netns.run(|| {
        become_user();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let answer = exchange(stream, line, "").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    })
}

fn levels(netns: &Netns) -> String {
    request(netns, DEBUG, "GET /debug/log").1
}

#[test]
fn another_user_of_the_node_reads_no_state() {
    if !kit::has_other_users() {
        return kit::skip("no other users");
    }
    let fixture = Ambient::new(&[]);
    let netns = std::sync::Arc::clone(fixture.node.netns());
    for line in ["GET /debug/state", "GET /", "GET /versionj", "GET /debug/lines"] {
        assert_eq!(request(&netns, DEBUG, line).0, 200, "root: {line}");
        let (status, body) = request_of_nobody(&netns, DEBUG, line);
        assert_eq!(status, 403, "{line}: {body}");
    }
}

/// Becomes user 0 in the node's network namespace, as in a container with hostNetwork that dropped every capability.
fn drop_capabilities() {
    let none = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).unwrap();
}

#[test]
fn root_of_a_container_with_host_network_changes_no_level_over_tcp() {
    let mut fixture = Ambient::new(&[]);
    let netns = std::sync::Arc::clone(fixture.node.netns());
    let before = levels(&netns);
    for become_user in [drop_capabilities, become_nobody, || ()] {
        for line in [
            "PUT /debug/log?scope=all&level=none",
            "POST /debug/log?scope=all&level=none",
            "PUT /debug/log/ambient?level=none",
            "PUT /scopej/ambient",
        ] {
            let (status, why) = request_as(&netns, DEBUG, line, become_user);
            let expected = "over TCP nothing is changed: run install-cni log-level or install-cni prove in the agent's container \
                            (kubectl exec), or send the request to the agent's Unix socket debug.sock as root\n";
            assert_eq!((status, why.as_str()), (405, expected), "{line}");
        }
    }
    assert_eq!(levels(&netns), before);
    assert!(!fixture.daemon().log().contains("log level of"), "{}", fixture.daemon().log());
    let changed = fixture.container.exec(&["log-level", "ambient:debug,cni:warn"]);
    let shown = String::from_utf8_lossy(&changed.stdout).into_owned();
    assert!(changed.status.success(), "over the Unix socket root may: {changed:?}");
    assert!(shown.lines().any(|line| line.starts_with("ambient    debug ")), "{shown}");
    assert_ne!(levels(&netns), before);
    assert!(
        fixture.daemon().logged("log level of ambient: debug, on request", "") == 1,
        "{}",
        fixture.daemon().log()
    );
    let wrong = fixture.container.exec(&["log-level", "nothing:debug"]);
    let why = String::from_utf8_lossy(&wrong.stderr).into_owned();
    let scopes = "ambient, cni, cni-agent, cni-plugin, default, install, kube, repair, zds";
    let refusal = format!("HTTP status 400: unknown scope name: nothing (known: {scopes})");
    let expected = format!("install-cni: the agent refused: {refusal}\n");
    assert_eq!((wrong.status.code(), why), (Some(2), expected));
}

const CLOSED: &str = "debug port closed; the debug state is served on the Unix socket only";

/// The port would be one of the node, which every container with hostNetwork reaches.
#[test]
fn on_the_nodes_network_the_debug_port_is_closed_unless_it_is_asked_for() {
    let mut fixture = Ambient::stopped(kit::NodeOptions::default(), &[]);
    fixture.arguments.clear();
    fixture.start();
    let netns = std::sync::Arc::clone(fixture.node.netns());
    let connected = netns.run(|| TcpStream::connect((Ipv4Addr::LOCALHOST, DEBUG)));
    assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert!(fixture.daemon().logged(CLOSED, "socket=") == 1, "{}", fixture.daemon().log());
    let state = fixture.container.exec(&["state", "-o", "json"]);
    let state: Value = serde_json::from_slice(&state.stdout).unwrap();
    assert_eq!(state["observation"]["observer"], "agent", "the commands use the Unix socket: {state}");
}

#[test]
fn another_user_learns_from_probes_neither_paths_nor_addresses() {
    let mut fixture = Ambient::stopped(kit::NodeOptions::default(), &[]);
    let netns = std::sync::Arc::clone(fixture.node.netns());
    fs::remove_file(fixture.node.net_d().join("10-kit.conflist")).unwrap();
    fixture.daemon = Some(fixture.container.start());
    let missing = "no network configuration in /host/etc/cni/net.d yet\n";
    fixture.daemon().wait_for("it lacks a network", |daemon| {
        daemon.get(HEALTH, "/readyz") == Some((503, missing.to_owned()))
    });
    if kit::has_other_users() {
        let told = request_of_nobody(&netns, HEALTH, "GET /readyz");
        assert_eq!(told, (503, "NotInstalled\n".to_owned()));
    }
    // The kubelet's probes, and requests of any other machine.
    let (outside, node) = (fixture.node.outside(), fixture.node.ip(false));
    let told = outside.run(|| {
        let stream = TcpStream::connect((node, HEALTH)).unwrap();
        exchange(stream, "GET /readyz", "").unwrap()
    });
    assert!(told.starts_with("HTTP/1.1 503 ") && told.ends_with("\r\n\r\nNotInstalled\n"), "{told}");
}

/// Makes the directories of a socket accessible to all users, as the node's directories are on real nodes.
fn open_the_way(node: &Node) {
    let set = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    set(node.dir());
    set(&node.run_dir());
}

fn lines(pod: &str, count: usize) -> String {
    let line = |number: usize| {
        let record =
            json!({"level": "info", "msg": format!("forged {number} {}", "x".repeat(150)), "pod": pod});
        record.to_string()
    };
    Value::from((0..count).map(line).collect::<Vec<_>>()).to_string()
}

#[test]
fn another_user_writes_nothing_into_the_log() {
    if !kit::has_other_users() {
        return kit::skip("no other users");
    }
    let mut fixture = Ambient::new(&[]);
    open_the_way(&fixture.node);
    let socket = fixture.node.run_dir().join("log.sock");
    let forge = || as_nobody(|| exchange(UnixStream::connect(&socket)?, "POST /log", &lines("mesh/a", 3)));
    assert_eq!(forge().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    // An operator, or a tool, that makes it accessible to all users.
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    for _ in 0..100 {
        let told = forge();
        assert!(told.as_ref().map_or(true, String::is_empty), "{told:?}");
    }
    let log = fixture.daemon().log();
    assert!(!log.contains("forged"), "{log}");
    let refusals = fixture.daemon().logged("rejected a connection to a socket for root only", "");
    assert!(refusals <= 5, "the refusals fill the log themselves: {log}");
}

/// A plugin that posts as many lines as it can, until drop.
struct Flood {
    over: AtomicBool,
    sent: AtomicUsize,
}

impl Flood {
    fn run(&self, socket: &Path, pod: impl Fn(usize) -> String) {
        while !self.over.load(Ordering::Relaxed) {
            let body = lines(&pod(self.sent()), 500);
            let answer =
                exchange(UnixStream::connect(socket).unwrap(), "POST /log", &body).unwrap_or_default();
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 200 "), "{answer}");
            self.sent.fetch_add(body.len(), Ordering::Relaxed);
        }
    }

    fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Runs an action during a flood of at least `least` bytes, of which most are dropped. Returns the growth of the log, and the
/// duration in seconds.
fn during_flood(
    fixture: &mut Ambient,
    pod: impl Fn(usize) -> String + Send,
    least: usize,
    act: impl FnOnce(&mut Ambient),
) -> (usize, usize) {
    let socket = fixture.node.run_dir().join("log.sock");
    let flood = Flood { over: AtomicBool::new(false), sent: AtomicUsize::new(0) };
    let (before, began) = (fixture.daemon().log().len(), Instant::now());
    thread::scope(|scope| {
        let ends = SetOnDrop(&flood.over);
        scope.spawn(|| flood.run(&socket, pod));
        fixture.within(Duration::from_secs(120), "the flood came", |fixture| {
            flood.sent() > least && dropped(fixture.daemon()) > 20_000.0
        });
        act(fixture);
        drop(ends);
    });
    (fixture.daemon().log().len() - before, usize::try_from(began.elapsed().as_secs()).unwrap() + 1)
}

fn dropped(daemon: &Daemon) -> f64 {
    daemon.metric("istio_cni_log_records_dropped_total").unwrap_or_default()
}

#[test]
fn a_plugin_that_goes_mad_fills_no_disk_and_silences_no_other() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let mut plugin = fixture.plugin();
    plugin["log_uds_address"] = json!(fixture.node.run_dir().join("log.sock"));
    let conflist = fixture.node.conflist(&[plugin]);
    let mut peers = Vec::new();
    let has_line = |daemon: &Daemon, pod: &str| {
        let lines = kit::log_lines(&daemon.log());
        lines.iter().any(|line| line.scope == "cni" && line.field("pod") == Some(pod))
    };
    // A line has 100 ms to reach the agent: on a busy machine, all of one pod may be late.
    let start_another = |fixture: &mut Ambient| {
        fixture.within(Duration::from_secs(60), "another's line", |fixture| {
            let name = format!("sane-{}", peers.len());
            peers.push(fixture.add(Pod::new(MESH, &name), &conflist).unwrap());
            let pod = format!("{MESH}/{name}");
            kit::found_within(Duration::from_secs(2), || has_line(fixture.daemon(), &pod)).is_some()
        });
    };
    let (grown, seconds) = during_flood(&mut fixture, |_| "mesh/mad".to_owned(), 8_000_000, start_another);
    assert!(grown < 512 * 1024 + seconds * 32 * 1024, "{grown} bytes in {seconds} s");
    fixture.daemon().wait_for("the rest is told of", |daemon| daemon.log().contains(" lines ("));
    drop((peers, ztunnel));
}

/// Invented names cost no memory and little disk space.
#[test]
fn a_plugin_that_makes_up_pods_is_bounded_as_well() {
    let mut fixture = Ambient::new(&[]);
    let name = |number: usize| format!("mesh/mad-{number}");
    let (grown, seconds) = during_flood(&mut fixture, name, 20_000_000, |_| ());
    assert!(grown < 6 * 1024 * 1024 + seconds * 256 * 1024, "{grown} bytes in {seconds} s");
}
