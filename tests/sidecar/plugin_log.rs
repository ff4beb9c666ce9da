//! Destinations of the plugin's log lines: one POST to the agent's socket, else stderr and a file of limited size.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::iter;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, listen, socket_with};
use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, PluginFixture, V4, bare_pod, tables};

/// An agent's log socket that sends `answer` on every connection, and keeps the requests.
struct Agent {
    socket: PathBuf,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    fn start(fixture: &PluginFixture, answer: impl Fn(UnixStream) + Send + Sync + 'static) -> Self {
        let socket = fixture.node.run_dir().join("log.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (journal, answer) = (Arc::clone(&requests), Arc::new(answer));
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let (journal, answer) = (Arc::clone(&journal), Arc::clone(&answer));
                thread::spawn(move || {
                    journal.lock().unwrap().push(request(&mut stream));
                    answer(stream);
                });
            }
        });
        Self { socket, requests }
    }

    fn saying(fixture: &PluginFixture, answer: &'static [u8]) -> Self {
        Self::start(fixture, move |mut stream| drop(stream.write_all(answer)))
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Head and body, by `Content-Length`.
fn request(stream: &mut UnixStream) -> String {
    let mut text = String::new();
    let mut part = [0; 4096];
    loop {
        let length = stream.read(&mut part).unwrap();
        text.push_str(str::from_utf8(&part[..length]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let wanted = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        if length == 0 || body.len() >= wanted.parse().unwrap() {
            return text;
        }
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn add<'s>(fixture: &'s PluginFixture, pod: &kit::Netns, socket: &Path) -> Call<'s> {
    fixture.call("ADD", pod).with("log_uds_address", json!(socket))
}

/// Repeats a call until the agent answers in time, for which the plugin waits 100 ms; returns the number of calls.
fn run_until_taken(call: &Call<'_>, log: Option<&Path>) -> usize {
    let mut calls = 0;
    kit::until("the agent takes a line in time", || {
        if let Some(log) = log {
            drop(fs::remove_file(log)); // of a call before
        }
        calls += 1;
        let outcome = call.run();
        outcome.ok();
        outcome.0.stderr.is_empty() // what the agent has need not be said twice
    });
    calls
}

#[test]
fn all_lines_of_a_call_go_to_the_agent_in_one_post() {
    let fixture = PluginFixture::new();
    let agent = Agent::saying(&fixture, OK);
    let pod = bare_pod(V4);
    let calls = run_until_taken(&add(&fixture, &pod, &agent.socket), None);
    kit::until("each call sends one request", || agent.requests().len() == calls);
    let requests = agent.requests();
    let (head, body) = requests[0].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /log HTTP/1.1\r\n"), "{head}");
    assert!(head.lines().any(|line| line == "Content-Type: application/json"), "{head}");
    let strings: Vec<String> = serde_json::from_str(body).expect("a list of strings");
    let records = lines(&strings.concat());
    assert!(strings.iter().all(|line| line.ends_with('\n')), "{strings:?}");
    let last = records.last().unwrap();
    let text = |key: &str| last[key].as_str().unwrap_or_else(|| panic!("no {key}: {last}"));
    assert_eq!((text("level"), text("pod"), text("if")), ("info", "shop/web", "eth0"));
    assert_eq!(
        (text("container"), text("command"), text("decision")),
        ("0123456789abcdef", "ADD", "sidecar")
    );
    assert!(text("msg").starts_with("redirected to its sidecar"), "{last}");
    let time = text("time");
    assert!(time.len() == "2026-11-21T09:31:16.425736Z".len() && time.ends_with('Z'), "{time}");
    assert_eq!(last.get("scope"), None, "the default scope is not written");
}

#[test]
fn an_error_is_logged_too() {
    let fixture =
        PluginFixture::answering(|_| kit::FakeReply::Json(404, json!({"message": "pods \"web\" not found"})));
    let agent = Agent::saying(&fixture, OK);
    let pod = bare_pod(V4);
    let error =
        add(&fixture, &pod, &agent.socket).kubernetes("api_timeout_seconds", json!(1)).run().refused();
    let requests = kit::until("its line arrives", || Some(agent.requests()).filter(|all| !all.is_empty()));
    let body = requests[0].split_once("\r\n\r\n").unwrap().1;
    let strings: Vec<String> = serde_json::from_str(body).unwrap();
    let record = lines(&strings.concat()).pop().unwrap();
    assert_eq!((&record["level"], requests.len()), (&json!("error"), 1));
    assert_eq!(record["msg"], json!(format!("ADD failed: {}", error.msg)));
}

/// The minimum duration of three calls, which succeed and have their lines on stderr. The machine may be busy; a delay by the log
/// would affect each of them.
fn best_of_three(call: &Call<'_>, what: &str) -> Duration {
    let times = (0..3).map(|_| {
        let outcome = call.run();
        outcome.ok();
        let records = lines(&outcome.0.stderr_text());
        assert!(records.iter().any(|record| record["pod"] == "shop/web"), "{what}: {outcome}");
        outcome.wall()
    });
    times.min().unwrap_or_default()
}

#[test]
fn an_agent_that_is_away_or_refuses_or_is_silent_delays_nobody() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let usual = best_of_three(&add(&fixture, &pod, Path::new("/nonexistent/log.sock")), "nowhere");
    let at = |name: &str| fixture.node.run_dir().join(name);
    fs::write(at("file"), "").unwrap();
    drop(UnixListener::bind(at("refusing")).unwrap());
    let _silent = UnixListener::bind(at("silent")).unwrap();
    let long = "x".repeat(200);
    let sockets = [at("missing"), at("file"), at("refusing"), at("silent"), "/".into(), at(&long)];
    for socket in sockets {
        let what = socket.display().to_string();
        let took = best_of_three(&add(&fixture, &pod, &socket), &what);
        assert!(took < usual * 2 + Duration::from_millis(300), "{what}: {took:?}, usually {usual:?}");
    }
}

/// Connects until the listener's backlog is full, which is shortened first: std's may be as long as the limit of open files.
fn fill_backlog(listener: &UnixListener, socket: &Path) -> Vec<OwnedFd> {
    listen(listener, 1).unwrap();
    let address = SocketAddrUnix::new(socket).unwrap();
    let connected = iter::from_fn(|| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&client, &address) {
            Ok(()) => Some(client),
            Err(Errno::AGAIN) => None,
            Err(error) => panic!("{error}"),
        }
    });
    connected.collect()
}

/// A process that is stopped, or busy forever, accepts no connections: the kernel blocks connecting clients.
#[test]
fn an_agent_that_no_longer_accepts_delays_nobody() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let usual = best_of_three(&add(&fixture, &pod, Path::new("/nonexistent/log.sock")), "nowhere");
    let socket = fixture.node.run_dir().join("log.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let _waiting = fill_backlog(&listener, &socket);
    let took = best_of_three(&add(&fixture, &pod, &socket), "full backlog");
    assert!(took < usual * 2 + Duration::from_secs(1), "{took:?}, usually {usual:?}");
}

#[test]
fn an_agent_that_answers_nonsense_or_drips_delays_nobody() {
    for answer in [&b"garbage garbage garbage"[..], b"HTTP/1.1 500 No\r\n\r\n", b"", b"\0\0\0\0"] {
        let fixture = PluginFixture::new();
        let agent = Agent::saying(&fixture, answer);
        best_of_three(&add(&fixture, &bare_pod(V4), &agent.socket), &String::from_utf8_lossy(answer));
        kit::until("a request for each call", || agent.requests().len() == 3);
    }
    let fixture = PluginFixture::new();
    let agent = Agent::start(&fixture, |mut stream| {
        for byte in OK {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(90)); // the delay of this slow server
        }
    });
    let pod = bare_pod(V4);
    let usual = best_of_three(&add(&fixture, &pod, Path::new("/nonexistent/log.sock")), "nowhere");
    let took = best_of_three(&add(&fixture, &pod, &agent.socket), "drip");
    // Twelve bytes would take longer.
    assert!(took < usual + Duration::from_millis(900), "{took:?}, usually {usual:?}");
}

#[test]
fn the_log_file_gets_what_the_agent_does_not() {
    let fixture = PluginFixture::new();
    let (agent, pod, log) =
        (Agent::saying(&fixture, OK), bare_pod(V4), fixture.node.log_dir().join("cni.log"));
    run_until_taken(&add(&fixture, &pod, &agent.socket).with("log_file", json!(log)), Some(&log));
    assert!(!log.exists(), "the agent has it");
    let away = || add(&fixture, &pod, Path::new("/nonexistent/log.sock")).with("log_file", json!(log));
    let outcome = away().run();
    outcome.ok();
    assert_eq!(fs::read_to_string(&log).unwrap(), outcome.0.stderr_text(), "both");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    away().run().ok();
    assert_eq!(lines(&fs::read_to_string(&log).unwrap()).len(), 2, "it is appended to");
    fixture.call("ADD", &pod).with("log_file", json!(log)).run().ok();
    assert_eq!(lines(&fs::read_to_string(&log).unwrap()).len(), 3, "also without any agent");
}

#[test]
fn the_log_file_is_moved_aside_at_ten_mebibytes() {
    let fixture = PluginFixture::new();
    let (pod, log) = (bare_pod(V4), fixture.node.log_dir().join("cni.log"));
    let aside = fixture.node.log_dir().join("cni.log.1");
    let call = || fixture.call("ADD", &pod).with("log_file", json!(log));
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    const LIMIT: u64 = 10 << 20;
    File::create(&log).unwrap().set_len(LIMIT - 1).unwrap();
    call().run().ok();
    assert!(size(&log) >= LIMIT && !aside.exists());
    fs::write(&aside, "an older one").unwrap();
    call().run().ok();
    assert!(size(&log) < 4096 && size(&aside) >= LIMIT, "{} and {}", size(&log), size(&aside));
    assert_eq!(fs::read_dir(fixture.node.log_dir()).unwrap().count(), 2);
}

#[test]
fn a_log_file_that_cannot_be_written_stops_no_pod() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    for (file, why) in [
        (fixture.node.log_dir(), "Is a directory (os error 21)"),
        ("/nonexistent/x.log".into(), "No such file or directory (os error 2)"),
        ("/dev/full".into(), "No space left on device (os error 28)"),
    ] {
        let outcome = fixture.call("ADD", &pod).with("log_file", json!(file)).run();
        outcome.ok();
        let stderr = outcome.0.stderr_text();
        let (record, complaint) = stderr.split_once('\n').unwrap();
        assert_eq!(lines(record)[0]["pod"], "shop/web", "{stderr}");
        assert_eq!(complaint, format!("istio-cni: cannot write log_file: {why}\n"));
    }
}

#[test]
fn the_level_filters() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let at = |level: &str, annotations: &Value| {
        let call = fixture.call("ADD", &pod).with("log_level", json!(level)).annotations(annotations);
        let outcome = call.run();
        outcome.ok();
        lines(&outcome.0.stderr_text()).len()
    };
    let plain = || json!({"note": "plain"});
    for (level, expected) in [("debug", 1), ("info", 1), ("nonsense", 1), ("", 1), ("warn", 0), ("error", 0)]
    {
        assert_eq!(at(level, &plain()), expected, "{level:?}");
    }
    let agent = Agent::saying(&fixture, OK);
    add(&fixture, &pod, &agent.socket).with("log_level", json!("error")).run().ok();
    assert_eq!(agent.requests(), Vec::<String>::new(), "nothing to say, nothing to send");
}

#[test]
fn values_of_a_hostile_runtime_stay_inside_their_line() {
    let fixture = PluginFixture::answering(|_| {
        kit::FakeReply::Json(403, json!({"message": "no\r\n{\"level\":\"info\",\"msg\":\"forged\"}\r\n"}))
    });
    let pod = bare_pod(V4);
    let outcome = fixture.call("ADD", &pod).kubernetes("api_timeout_seconds", json!(1)).run();
    assert_eq!(outcome.refused().code, 11);
    let records = lines(&outcome.0.stderr_text());
    assert!(
        records.iter().all(|record| record["msg"] != "forged" && record["pod"] == "shop/web"),
        "{outcome}"
    );
    assert!(
        !outcome.stdout().contains("secret-of-the-plugin") && !outcome.0.stderr_text().contains("secret-of")
    );
    assert_eq!(tables(&pod), "");
}
