//! Time advances when all tasks wait. That is valid here: both ends of every connection are in the test's runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::routing::any;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

/// Connections created by the test.
pub(crate) struct Queue(Mutex<mpsc::Receiver<io::Result<DuplexStream>>>);

impl Listener for Queue {
    type Stream = DuplexStream;

    async fn accept(&self) -> io::Result<(DuplexStream, ConnectionPeer)> {
        match self.0.lock().await.recv().await {
            Some(stream) => stream.map(|stream| (stream, ConnectionPeer::Socket)),
            None => std::future::pending().await,
        }
    }
}

pub(crate) struct Server {
    connect: mpsc::Sender<io::Result<DuplexStream>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    fn start(router: Router, most: usize) -> Server {
        Self::within(router, ConnectionLimits::with_maximum(most))
    }

    pub(crate) fn within(router: Router, limits: ConnectionLimits) -> Server {
        let (connect, queue) = mpsc::channel(100);
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let listener = Queue(Mutex::new(queue));
            serve(&listener, &router, limits, async { drop(stopped.await) }).await;
        });
        Server { connect, stop, task }
    }

    pub(crate) async fn client(&self) -> DuplexStream {
        let (ours, theirs) = duplex(1024);
        self.connect.send(Ok(theirs)).await.unwrap();
        ours
    }
}

fn hello() -> Router {
    Router::new().route("/", any(|| async { "hello" }))
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/// Reads until the answer to [`GET`] is complete.
async fn read_hello(client: &mut DuplexStream) {
    let mut text = Vec::new();
    while !text.ends_with(b"hello") {
        assert_ne!(client.read_buf(&mut text).await.unwrap(), 0, "{}", String::from_utf8_lossy(&text));
    }
}

/// Seconds until the server closes.
async fn until_closed(client: &mut DuplexStream) -> u64 {
    let start = Instant::now();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap_or_default();
    (start.elapsed() + Duration::from_millis(500)).as_secs()
}

#[tokio::test(start_paused = true)]
async fn those_who_say_nothing_or_stop_halfway_are_cut_off() {
    let server = Server::start(hello(), 8);
    let mut silent = server.client().await;
    assert_eq!(until_closed(&mut silent).await, HEAD.as_secs());
    let mut half = server.client().await;
    half.write_all(b"GET / HT").await.unwrap();
    assert_eq!(until_closed(&mut half).await, HEAD.as_secs());
    let mut idle = server.client().await;
    idle.write_all(GET).await.unwrap();
    read_hello(&mut idle).await;
    idle.write_all(GET).await.unwrap();
    read_hello(&mut idle).await;
    assert_eq!(until_closed(&mut idle).await, HEAD.as_secs());
}

#[tokio::test(start_paused = true)]
async fn one_who_sends_byte_by_byte_is_cut_off() {
    let server = Server::start(hello(), 8);
    let mut client = server.client().await;
    let start = Instant::now();
    while client.write_all(b"G").await.is_ok() {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(start.elapsed() <= HEAD + Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_who_asks_and_never_reads_is_cut_off() {
    let server = Server::start(hello(), 8);
    let mut client = server.client().await;
    let start = Instant::now();
    while client.write_all(GET).await.is_ok() {}
    let took = start.elapsed();
    assert!(took >= LIFETIME && took <= LIFETIME + GRACE + Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn one_who_takes_nothing_for_a_while_is_cut_off_and_one_who_is_slow_is_not() {
    let limits = ConnectionLimits { stall: Duration::from_secs(5), ..ConnectionLimits::with_maximum(8) };
    let server = Server::within(Router::new().route("/", any(|| async { vec![b'x'; 20 * 1024] })), limits);
    let mut stuck = server.client().await;
    let start = Instant::now();
    stuck.write_all(GET).await.unwrap();
    sleep(Duration::from_secs(4)).await;
    let mut piece = [0; 1024];
    stuck.read_exact(&mut piece).await.unwrap();
    while stuck.write_all(GET).await.is_ok() {}
    assert_eq!(start.elapsed().as_secs(), 9, "five seconds after it took the last");
    let mut slow = server.client().await;
    slow.write_all(GET).await.unwrap();
    for _ in 0..20 {
        sleep(Duration::from_secs(1)).await;
        slow.read_exact(&mut piece).await.unwrap();
    }
}

/// Both peers of a connection to this address, as an accepting socket reports them.
async fn accepted(address: &str) -> (ConnectionPeer, std::net::TcpStream) {
    let listener = TcpListener::bind(address).await.unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Listener::accept(&listener).await.unwrap().1, client)
}

#[tokio::test]
async fn who_connects_over_the_loopback_is_known() {
    let own = rustix::process::getuid().as_raw();
    for address in ["127.0.0.1:0", "127.9.9.9:0", "[::1]:0"] {
        let (peer, client) = accepted(address).await;
        let expected = ConnectionPeer::Local { address: client.local_addr().unwrap(), user: Some(own) };
        assert_eq!((peer, peer.is_root()), (expected, own == 0), "{address}");
    }
}

/// The kernel reports root as the owner of a closed socket.
#[tokio::test]
async fn who_has_closed_is_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let address = client.local_addr().unwrap();
    drop(client);
    let peer = Listener::accept(&listener).await.unwrap().1;
    assert_eq!(peer, ConnectionPeer::Local { address, user: None });
    assert!(!peer.is_root());
}

#[tokio::test(start_paused = true)]
async fn a_busy_connection_ends_after_a_request_and_not_within_one() {
    let server = Server::start(hello(), 8);
    let mut client = server.client().await;
    let start = Instant::now();
    let mut answers = 0;
    while client.write_all(GET).await.is_ok() {
        let mut text = vec![0; 1024];
        let length = client.read(&mut text).await.unwrap();
        if length == 0 {
            break;
        }
        assert!(text[..length].ends_with(b"hello"), "whole");
        answers += 1;
        sleep(Duration::from_secs(1)).await;
    }
    assert!(answers >= 29 && start.elapsed() <= LIFETIME + Duration::from_secs(2), "{answers}");
}

#[tokio::test(start_paused = true)]
async fn only_so_many_are_served_at_a_time_and_the_rest_in_turn() {
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&peak);
    let router = Router::new().route(
        "/",
        any(move || async move {
            counted.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_secs(1)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            "hello"
        }),
    );
    let server = Server::start(router, 4);
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let mut client = server.client().await;
        clients.spawn(async move {
            client.write_all(GET).await.unwrap();
            read_hello(&mut client).await;
        });
    }
    let start = Instant::now();
    assert_eq!(clients.join_all().await.len(), 20);
    assert_eq!((peak.load(Ordering::SeqCst), start.elapsed().as_secs()), (4, 5));
}

#[tokio::test(start_paused = true)]
async fn when_accepting_fails_it_is_tried_again_without_hurry() {
    let server = Server::start(hello(), 4);
    let start = Instant::now();
    server.connect.send(Err(ErrorKind::ConnectionAborted.into())).await.unwrap();
    server.connect.send(Err(io::Error::other("too many open files"))).await.unwrap();
    let mut client = server.client().await;
    client.write_all(GET).await.unwrap();
    read_hello(&mut client).await;
    assert_eq!(start.elapsed().as_secs(), PAUSE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_the_idle_and_lets_those_end_that_are_at_work() {
    let late = |seconds| {
        any(move || async move {
            sleep(Duration::from_secs(seconds)).await;
            "hello"
        })
    };
    let router = hello().route("/soon", late(3)).route("/never", late(1000));
    let Server { connect, stop, task } = Server::start(router, 8);
    let client = async |path: &str| {
        let (mut ours, theirs) = duplex(1024);
        connect.send(Ok(theirs)).await.unwrap();
        ours.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        ours
    };
    let (mut idle, mut soon, mut never) = (client("/").await, client("/soon").await, client("/never").await);
    read_hello(&mut idle).await;
    stop.send(()).unwrap();
    let start = Instant::now();
    assert_eq!(until_closed(&mut idle).await, 0);
    read_hello(&mut soon).await;
    assert_eq!(start.elapsed().as_secs(), 3);
    until_closed(&mut never).await;
    task.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), GRACE.as_secs());
}
