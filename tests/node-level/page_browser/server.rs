//! A server of the page, with a state that the test can change.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use report::StateReport;

/// Answer of the server, and the requests that it received.
struct Shared {
    /// `None` means that it answers 503.
    state: Mutex<Option<StateReport>>,
    requests: Mutex<Vec<String>>,
}

/// A server that runs until the test program ends.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    pub(crate) fn start(state: StateReport) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { state: Mutex::new(Some(state)), requests: Mutex::default() });
        let theirs = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // One thread each: browsers open connections without using them.
                let shared = theirs.clone();
                thread::spawn(move || answer(&stream, &shared));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Shows another state from now on.
    pub(crate) fn show(&self, state: StateReport) {
        *self.shared.state.lock().unwrap() = Some(state);
    }

    /// Answers 503 from now on.
    pub(crate) fn fail(&self) {
        *self.shared.state.lock().unwrap() = None;
    }

    /// Request lines of all requests.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }
}

fn answer(mut stream: &TcpStream, shared: &Shared) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    lines.find(String::is_empty);
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    shared.requests.lock().unwrap().push(request);
    let (status, kind, body) = match path.strip_prefix("/debug/") {
        None => ("200 OK", "text/html", report::PAGE.to_owned()),
        Some(asked) => match shared.state.lock().unwrap().clone() {
            Some(state) => ("200 OK", "application/json", json(state, asked)),
            None => ("503 Service Unavailable", "text/plain", "the agent is ending\n".to_owned()),
        },
    };
    let kind = format!("Content-Type: {kind}; charset=utf-8\r\nCache-Control: no-store\r\nConnection: close");
    let head = format!("HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    // An error means that the browser has disconnected.
    let _ = stream.write_all((head + &body).as_bytes());
}

/// The document, or the explanation of a pod.
fn json(mut state: StateReport, asked: &str) -> String {
    state.fill_conclusions();
    match asked.strip_prefix("explain?pod=").and_then(|pod| pod.split_once('/')) {
        Some((namespace, name)) => serde_json::to_string(&report::explain_pod(&state, namespace, name)),
        None => serde_json::to_string(&state),
    }
    .unwrap()
}
