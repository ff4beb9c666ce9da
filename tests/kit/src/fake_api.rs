//! API servers that misbehave: slow, silent, redirecting, failing, sending invalid data.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;
use socket2::SockRef;

use crate::api::{Auth, kubeconfig};
use crate::client::Client;
use crate::netns::Netns;
use crate::pki::Pki;

/// Reply of a fake API server to a request.
#[derive(Debug, Clone)]
pub enum FakeReply {
    /// This status and this JSON.
    Json(u16, Value),
    /// Status 307 and this location.
    Redirect(String),
    /// Exactly these bytes, HTTP or not; then the end of the connection.
    Raw(Vec<u8>),
    /// These bytes one at a time, with this pause after each.
    Trickle(Vec<u8>, Duration),
    /// A reply after a delay.
    Late(Duration, Box<FakeReply>),
    /// The reply to a watch: headers immediately, then the events that this closure waits for, then the end.
    Watch(FakeEvents),
    /// No reply until the client gives up.
    Hang,
    /// Closes the connection.
    Close,
}

/// Returns the events of a watch when they occur.
#[derive(Clone)]
pub struct FakeEvents(pub Arc<dyn Fn() -> Vec<Value> + Send + Sync>);

impl std::fmt::Debug for FakeEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeEvents")
    }
}

/// A request that a fake API server received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeRequest {
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Header lines as sent.
    pub headers: Vec<String>,
}

/// A TLS server with a certificate that clients of the cluster trust. It closes its port on drop.
#[derive(Debug)]
pub struct FakeApi {
    listener: TcpListener,
    address: SocketAddr,
    requests: Arc<Mutex<Vec<FakeRequest>>>,
}

type Handler = Arc<dyn Fn(&FakeRequest) -> FakeReply + Send + Sync>;

impl FakeApi {
    /// Listens at `address` in `netns` and answers every request with the reply of `handler`.
    #[must_use]
    pub fn start(
        netns: &Netns,
        address: SocketAddr,
        handler: impl Fn(&FakeRequest) -> FakeReply + Send + Sync + 'static,
    ) -> Self {
        let config = Pki::shared().server(&[address.ip()]).server_config();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (handler, journal): (Handler, _) = (Arc::new(handler), Arc::clone(&requests));
        let listener = listen(netns, address, move |stream| {
            // Tests make clients give up on purpose.
            let _ = serve(stream, &config, &handler, &journal);
        });
        Self { address: listener.local_addr().expect("a bound socket"), listener, requests }
    }

    /// Listens, accepts, sends these bytes, if any, in place of a TLS handshake, and then nothing more.
    #[must_use]
    pub fn without_tls(netns: &Netns, address: SocketAddr, bytes: Vec<u8>) -> Self {
        let listener = listen(netns, address, move |mut stream| {
            let _ = stream.write_all(&bytes).and_then(|()| wait_for_end(&mut stream));
        });
        let address = listener.local_addr().expect("a bound socket");
        Self { address, listener, requests: Arc::default() }
    }

    /// URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// A kubeconfig for this server.
    #[must_use]
    pub fn kubeconfig(&self, auth: &Auth) -> String {
        kubeconfig(&self.url(), auth)
    }

    /// A client of this server; it connects from the namespace of the calling thread.
    #[must_use]
    pub fn client(&self, auth: &Auth) -> Client {
        Client::new(&self.url(), auth)
    }

    /// All requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<FakeRequest> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        // Wakes the accepting thread, which then ends.
        let _ = SockRef::from(&self.listener).shutdown(std::net::Shutdown::Both);
    }
}

/// Accepts connections in `netns`, each in a thread of its own.
fn listen(
    netns: &Netns,
    address: SocketAddr,
    serve: impl Fn(TcpStream) + Send + Sync + 'static,
) -> TcpListener {
    // A socket belongs to the namespace in which it was created, whichever thread uses it.
    let listener = netns
        .run(|| TcpListener::bind(address).unwrap_or_else(|e| panic!("cannot listen at {address}: {e}")));
    let accepting = listener.try_clone().expect("a socket can be shared");
    let serve = Arc::new(serve);
    thread::spawn(move || {
        while let Ok((stream, _)) = accepting.accept() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    listener
}

fn serve(
    stream: TcpStream,
    config: &Arc<ServerConfig>,
    handler: &Handler,
    journal: &Mutex<Vec<FakeRequest>>,
) -> io::Result<()> {
    let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let request = read_request(&mut stream)?;
    journal.lock().unwrap().push(request.clone());
    reply(&mut stream, handler(&request))?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn read_request(stream: &mut impl Read) -> io::Result<FakeRequest> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let headers = lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
    Ok(FakeRequest { method, path, headers: headers.collect::<io::Result<_>>()? })
}

fn reply(stream: &mut (impl Read + Write), reply: FakeReply) -> io::Result<()> {
    match reply {
        FakeReply::Json(status, body) => {
            let body = body.to_string();
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
                 connection: close\r\n\r\n{body}"
            )
        }
        FakeReply::Redirect(to) => {
            write!(
                stream,
                "HTTP/1.1 307 Elsewhere\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
        }
        FakeReply::Raw(bytes) => stream.write_all(&bytes),
        FakeReply::Trickle(bytes, pause) => bytes.chunks(1).try_for_each(|byte| {
            stream.write_all(byte)?;
            stream.flush()?;
            thread::sleep(pause);
            Ok(())
        }),
        FakeReply::Late(pause, later) => {
            thread::sleep(pause);
            self::reply(stream, *later)
        }
        FakeReply::Watch(events) => {
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")?;
            stream.flush()?;
            (events.0)().iter().try_for_each(|event| writeln!(stream, "{event}"))
        }
        FakeReply::Hang => wait_for_end(stream),
        FakeReply::Close => Ok(()),
    }
}

/// Reads until the client closes.
fn wait_for_end(stream: &mut impl Read) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(drop)
}
