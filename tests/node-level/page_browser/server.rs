//! A server of the page of a state that the test can change.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use report::StateReport;

/// What it answers with, and what it was asked.
struct Shared {
    /// None: it answers 503.
    state: Mutex<Option<StateReport>>,
    requests: Mutex<Vec<String>>,
}

/// It serves until the test program ends.
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
                // One thread each: browsers open connections that they do not use.
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

    /// First lines of all requests.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }
}

fn answer(mut stream: &TcpStream, shared: &Shared) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    lines.find(String::is_empty);
    shared.requests.lock().unwrap().push(request);
    let state = shared.state.lock().unwrap().clone();
    let (status, body) = match state {
        Some(state) => ("200 OK", report::page(&state)),
        None => ("503 Service Unavailable", String::new()),
    };
    let kind = "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nConnection: close";
    let head = format!("HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    // A browser that has gone is none of the server's business.
    let _ = stream.write_all((head + &body).as_bytes());
}
