//! The program with API servers and proxies that refuse everything.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A server that answers each request with 403, and records a line for each connection. Its list of agents is empty.
struct Refusing {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

const AGENTS: &str = "agents";
const NO_PODS: &str = r#"{"kind":"PodList","metadata":{},"items":[]}"#;

impl Refusing {
    fn start() -> Refusing {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
        let journal = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut head) = (stream.unwrap(), [0; 4096]);
                let length = stream.read(&mut head).unwrap_or_default();
                let line =
                    String::from_utf8_lossy(&head[..length]).lines().next().unwrap_or_default().to_owned();
                let is_known = line.contains(&format!("/namespaces/{AGENTS}/pods?"));
                let (status, body) = if is_known { ("200 OK", NO_PODS) } else { ("403 Forbidden", "") };
                let head =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", body.len());
                journal.lock().unwrap().push(line);
                let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
            }
        });
        Refusing { port, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Runs the program with only these environment variables, and a kubeconfig whose cluster has these fields.
fn millrace(words: &[&str], cluster: &str, variables: &[(&str, &str)]) -> Output {
    millrace_with(words, cluster, |command| {
        command.envs(variables.iter().copied());
    })
}

fn millrace_with(words: &[&str], cluster: &str, change: impl FnOnce(&mut Command)) -> Output {
    let home = tempfile::tempdir().unwrap();
    let text = format!(
        "current-context: t\ncontexts: [{{name: t, context: {{cluster: t}}}}]\nclusters: [{{name: t, cluster: {{{cluster}}}}}]\n"
    );
    std::fs::create_dir(home.path().join(".kube")).unwrap();
    std::fs::write(home.path().join(".kube/config"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(words).env_clear().env("HOME", home.path());
    change(&mut command);
    command.output().unwrap()
}

#[test]
fn the_proxy_is_the_one_that_kubectl_takes() {
    for (server, names_proxy, no_proxy, is_through) in [
        ("https://127.0.0.1:OWN", false, "", false),
        ("https://192.0.2.1:6443", false, "10.0.0.0/8,127.0.0.1,", true),
        ("https://192.0.2.1:6443", true, "127.0.0.0/8,192.0.2.0/24", true),
    ] {
        let (own, proxy) = (Refusing::start(), Refusing::start());
        let mut cluster = format!("server: \"{}\"", server.replace("OWN", &own.port.to_string()));
        let address = format!("127.0.0.1:{}", proxy.port);
        let mut variables = vec![("NO_PROXY", no_proxy)];
        if names_proxy {
            cluster = format!("{cluster}, proxy-url: \"http://{address}\"");
        } else {
            variables.push(("HTTPS_PROXY", &address));
        }
        let run = millrace(&["list"], &cluster, &variables);
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        let expected =
            if is_through { vec!["CONNECT 192.0.2.1:6443 HTTP/1.1".to_owned()] } else { Vec::new() };
        assert_eq!(
            (proxy.asked(), own.asked().len()),
            (expected, usize::from(!is_through)),
            "{server}: {run:?}"
        );
    }
}

/// The rest of its time suffices for one more check.
#[test]
fn a_check_that_waits_ends_with_a_check_when_its_time_is_over() {
    let server = Refusing::start();
    let cluster = format!("server: \"http://127.0.0.1:{}\"", server.port);
    let began = Instant::now();
    let run = millrace(&["check", "--wait", "500ms"], &cluster, &[]);
    assert_eq!((run.status.code(), server.asked().len()), (Some(2), 2), "{run:?}, {:?}", server.asked());
    assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    let server = Refusing::start();
    let cluster = format!("server: \"http://127.0.0.1:{}\"", server.port);
    let run = millrace(&["watch", "--for", "500ms"], &cluster, &[]);
    assert_eq!((run.status.code(), server.asked().len()), (Some(2), 2), "{run:?}, {:?}", server.asked());
    let run = millrace(&["watch", "--for", "1ms", "--agent-namespace", AGENTS], &cluster, &[]);
    let message = "millrace: no agent was found\n".as_bytes();
    assert_eq!((run.status.code(), run.stderr.as_slice()), (Some(2), message), "{run:?}");
}

#[test]
fn a_pod_is_missing_only_from_pods_that_can_be_read() {
    let server = Refusing::start();
    let cluster = format!("server: \"http://127.0.0.1:{}\"", server.port);
    let words = ["simulate", "label", "pod", "shop/web", "a=b", "--agent-namespace", AGENTS];
    let run = millrace(&words, &cluster, &[]);
    let (shown, errors) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8(run.stderr).unwrap());
    assert_eq!((run.status.code(), errors.as_str()), (Some(2), "millrace: no agent was found\n"));
    assert!(shown.contains("pods: cannot get pods"), "{shown}");
}

/// Nodes are only read to save reading pods.
#[test]
fn who_may_not_list_nodes_is_not_told_that_they_are_needed() {
    let server = Refusing::start();
    let cluster = format!("server: \"http://127.0.0.1:{}\"", server.port);
    let run = millrace(&["list", "-n", AGENTS, "--agent-namespace", AGENTS], &cluster, &[]);
    let errors = String::from_utf8(run.stderr).unwrap();
    let missing = "millrace: partial: nodes without an agent are not known: ";
    let missing: Vec<&str> = errors.lines().filter_map(|line| line.strip_prefix(missing)).collect();
    let kinds: Vec<_> = missing.iter().filter_map(|why| Some(why.split_once(':')?.0)).collect();
    assert_eq!((run.status.code(), kinds), (Some(2), vec!["namespaces"]), "{errors}");
}

/// As in `millrace watch | head` and `millrace list 2>&1 | head`.
#[test]
fn a_closed_pipe_ends_a_watch_and_changes_no_other_exit_status() {
    let server = Refusing::start();
    let cluster = format!("server: \"http://127.0.0.1:{}\"", server.port);
    let closed = || std::io::pipe().unwrap().1; // without its reader
    let words = ["watch", "--for", "5s", "--interval", "1s"];
    let run = millrace_with(&words, &cluster, |command| {
        command.stdout(closed());
    });
    assert_eq!((run.status.code(), server.asked().len()), (Some(0), 1), "{run:?}");
    let run = millrace_with(&["list"], &cluster, |command| {
        command.stderr(closed());
    });
    assert_eq!(run.status.code(), Some(2), "{run:?}");
}
