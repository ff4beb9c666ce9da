use std::{
    fs,
    io::Read as _,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::PathBuf,
};

use super::*;

/// A directory for this test.
fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("install-cni-{name}-{}", std::process::id()));
    drop(fs::remove_dir_all(&path));
    fs::create_dir_all(&path).unwrap();
    path
}

/// Answers one request with these bytes, and returns the request.
fn serve_once(socket: &Path, answer: Vec<u8>) -> thread::JoinHandle<String> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            asked.extend(byte);
        }
        stream.write_all(&answer).unwrap();
        drop(stream.shutdown(Shutdown::Both));
        String::from_utf8(asked).unwrap()
    })
}

fn answered(name: &str, answer: &[u8]) -> Result<Vec<u8>, FetchError> {
    let socket = directory(name).join("debug.sock");
    let server = serve_once(&socket, answer.to_vec());
    let got = fetch(&socket, "/debug/state", LIMIT);
    assert!(server.join().unwrap().starts_with("GET /debug/state HTTP/1.0\r\n"));
    got
}

#[test]
fn answers_are_told_from_what_is_none() {
    let ok = |head: &str, body: &str| format!("HTTP/1.0 200 OK\r\n{head}\r\n{body}").into_bytes();
    assert_eq!(answered("plain", &ok("Content-Type: x\r\n", "{}")).unwrap(), b"{}");
    assert_eq!(answered("sized", &ok("content-length: 2\r\n", "{}")).unwrap(), b"{}");
    let short = answered("short", &ok("Content-Length: 3\r\n", "{}"));
    assert!(matches!(short, Err(FetchError::Exchange(_))), "{short:?}");
    assert!(matches!(answered("nothing", b""), Err(FetchError::Exchange(_))));
    assert!(matches!(answered("other", b"SSH-2.0\r\n\r\n"), Err(FetchError::Malformed(_))));
    let busy = answered("busy", b"HTTP/1.1 503 Busy\r\n\r\ntoo \x1bmany\n").unwrap_err().to_string();
    assert_eq!(busy, "the agent refused: HTTP status 503: too \\u{1b}many");
}

#[test]
fn nobody_and_a_deaf_agent_are_not_the_same() {
    let directory = directory("deaf");
    let socket = directory.join("debug.sock");
    let nobody = |socket: &Path| matches!(fetch(socket, "/", LIMIT), Err(FetchError::NoAgent { .. }));
    assert!(nobody(&socket), "no such file");
    let listener = UnixListener::bind(&socket).unwrap(); // the kernel accepts connections, and no one answers
    let late = fetch(&socket, "/", Duration::from_millis(50));
    assert!(matches!(late, Err(FetchError::Late(_))), "{late:?}");
    // A child of another test has a copy of the descriptor until its exec.
    UnixStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both).unwrap();
    assert!(nobody(&socket), "left behind");
}
