//! The program with API servers and proxies that refuse almost everything.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A server that answers requests with 403, and records a line for each connection.
struct Refusing {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

const AGENTS: &str = "agents";
const NO_PODS: &str = r#"{"kind":"PodList","metadata":{},"items":[]}"#;

/// Status and body for a request line; `None`: 403.
type Answer = fn(&str) -> Option<(&'static str, &'static str)>;

/// An empty list of agents.
fn agents_only(line: &str) -> Option<(&'static str, &'static str)> {
    line.contains(&format!("/namespaces/{AGENTS}/pods?")).then_some(("200 OK", NO_PODS))
}

/// One node, on which a pod never ends.
fn endless_check(line: &str) -> Option<(&'static str, &'static str)> {
    match line.split([' ', '?', '-']).take(2).collect::<Vec<_>>()[..] {
        ["GET", "/api/v1/nodes"] => Some(("200 OK", r#"{"items":[{"metadata":{"name":"n1"}}]}"#)),
        ["POST", "/api/v1/namespaces/mesh/pods"] => Some(("201 Created", "{}")),
        ["GET" | "DELETE", "/api/v1/namespaces/mesh/pods/millrace"] => Some(("200 OK", "{}")),
        _ => None,
    }
}

/// One node, on which the creation of a pod is not confirmed in time.
fn slow_creation(line: &str) -> Option<(&'static str, &'static str)> {
    if line.starts_with("POST ") { Some(("504 Gateway Timeout", "")) } else { endless_check(line) }
}

/// Returns a request, whose body has been received, too: closing the connection before would reset it.
fn read_request(stream: &mut impl std::io::Read) -> String {
    let (mut request, mut part) = (String::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut part).unwrap_or_default();
        request.push_str(&String::from_utf8_lossy(&part[..length]));
        let Some((head, body)) = request.split_once("\r\n\r\n").filter(|_| length > 0) else {
            return request;
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0_usize) {
            return request;
        }
    }
}

impl Refusing {
    fn start() -> Refusing {
        Refusing::answering(agents_only)
    }

    fn answering(answer: Answer) -> Refusing {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
        let journal = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let line = read_request(&mut stream).lines().next().unwrap_or_default().to_owned();
                let (status, body) = answer(&line).unwrap_or(("403 Forbidden", ""));
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

    fn count_requests(&self, verb: &str) -> usize {
        self.asked().iter().filter(|line| line.starts_with(verb)).count()
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
    let mut command = millrace_command(home.path(), words, cluster);
    change(&mut command);
    command.output().unwrap()
}

fn millrace_command(home: &Path, words: &[&str], cluster: &str) -> Command {
    let text = format!(
        "current-context: t\ncontexts: [{{name: t, context: {{cluster: t}}}}]\nclusters: [{{name: t, cluster: {{{cluster}}}}}]\n"
    );
    std::fs::create_dir(home.join(".kube")).unwrap();
    std::fs::write(home.join(".kube/config"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(words).env_clear().env("HOME", home);
    command
}

/// Writes the manifests of an agent to a file in the directory.
fn write_agent(directory: &Path) -> String {
    let file = directory.join("agent.yaml");
    let spec = "{template: {spec: {containers: [{name: install-cni, image: i}]}}}";
    std::fs::write(&file, format!("kind: DaemonSet\nmetadata: {{namespace: mesh}}\nspec: {spec}\n")).unwrap();
    file.to_str().unwrap().to_owned()
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
    for words in [["check", "--wait", "500ms"], ["watch", "--for", "500ms"]] {
        // Not each time: something else may stop it for longer.
        let has_checked_twice = (0..5).any(|_| {
            let server = Refusing::start();
            let began = Instant::now();
            let run = millrace(&words, &format!("server: \"http://127.0.0.1:{}\"", server.port), &[]);
            assert_eq!(run.status.code(), Some(2), "{run:?}");
            server.asked().len() == 2 && began.elapsed() >= Duration::from_millis(500)
        });
        assert!(has_checked_twice, "{words:?}");
    }
    let server = Refusing::start();
    let cluster = format!("server: \"http://127.0.0.1:{}\"", server.port);
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

/// The pod may exist: another attempt would fail because it does.
#[test]
fn a_pod_whose_creation_is_not_confirmed_is_deleted_and_not_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let server = Refusing::answering(slow_creation);
    let cluster = format!("server: \"http://127.0.0.1:{}\"", server.port);
    let file = write_agent(directory.path());
    let run = millrace(&["check", "--pre", "-f", file.as_str()], &cluster, &[]);
    assert_eq!([server.count_requests("POST "), server.count_requests("DELETE ")], [1, 1], "{run:?}");
    assert_eq!(run.status.code(), Some(2), "{run:?}");
}

/// As by a build server whose job is cancelled.
#[test]
fn a_command_that_is_terminated_deletes_its_pods() {
    let directory = tempfile::tempdir().unwrap();
    let server = Refusing::answering(endless_check);
    let cluster = format!("server: \"http://127.0.0.1:{}\"", server.port);
    let file = write_agent(directory.path());
    let words = ["check", "--pre", "-f", file.as_str()];
    let mut run = millrace_command(directory.path(), &words, &cluster).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.count_requests("GET /api/v1/namespaces/mesh/pods/millrace-check-") == 0 {
        assert!(Instant::now() < deadline, "no pod: {:?}", server.asked());
        thread::yield_now();
    }
    assert!(Command::new("kill").arg(run.id().to_string()).status().unwrap().success());
    assert_eq!((run.wait().unwrap().code(), server.count_requests("DELETE ")), (Some(2), 1));
}

#[test]
fn a_server_that_is_unavailable_is_named_at_once() {
    const MESSAGE: &str = r#"{"kind":"Status","message":"no backend","code":503}"#;
    let server = Refusing::answering(|_| Some(("503 Service Unavailable", MESSAGE)));
    let url = format!("http://127.0.0.1:{}", server.port);
    let run = millrace(&["list"], &format!("server: \"{url}\""), &[]);
    let why = "cannot get the agents' pods: no backend (503)";
    let message = format!("millrace: cannot find agents through {url}/: {why}\n");
    assert_eq!((run.status.code(), server.asked().len()), (Some(2), 1), "{:?}", server.asked());
    assert_eq!(String::from_utf8(run.stderr).unwrap(), message);
}

/// As in a container that has no certificates, with `kubectl proxy` or without verification.
#[test]
fn the_systems_authorities_are_needed_only_to_verify() {
    let directory = tempfile::tempdir().unwrap();
    let none = directory.path().join("none.pem");
    std::fs::write(&none, "").unwrap();
    for cluster in [
        "server: \"http://127.0.0.1:PORT\"",
        "server: \"https://127.0.0.1:PORT\", insecure-skip-tls-verify: true",
    ] {
        let server = Refusing::start();
        let cluster = cluster.replace("PORT", &server.port.to_string());
        let run = millrace(&["list"], &cluster, &[("SSL_CERT_FILE", none.to_str().unwrap())]);
        assert_eq!((run.status.code(), server.asked().len()), (Some(2), 1), "{cluster}: {run:?}");
    }
}

/// A credential program of the kubeconfig inherits the standard input, which may be the manifests.
#[test]
fn manifests_are_read_before_the_kubeconfig_is_used() {
    let run = millrace(&["check", "--pre", "-f", "/nowhere"], "", &[]);
    let why = "millrace: cannot read /nowhere: No such file or directory (os error 2)\n";
    assert_eq!((run.status.code(), String::from_utf8(run.stderr).unwrap().as_str()), (Some(2), why));
}
