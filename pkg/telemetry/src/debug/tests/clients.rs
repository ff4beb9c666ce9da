use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::super::*;
use super::fake::*;
use crate::connections::{GRACE, LIFETIME, tests::Server};

/// A state of more than a megabyte, and few connections.
fn crowd(takes: Duration) -> (Arc<Fake>, Server) {
    let fake = Arc::new(Fake { state: state(300), takes, ..Fake::default() });
    let server = Server::within(router(&fake), LIMITS);
    (fake, server)
}

async fn send(client: &mut DuplexStream, request: &str) {
    client.write_all(format!("{request}\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
}

/// Status and body of one answer.
async fn read(client: &mut DuplexStream) -> (u16, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    client.read_exact(&mut body).await.unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

async fn answers_quickly(server: &Server) {
    let mut client = server.client().await;
    send(&mut client, "GET /debug/state HTTP/1.1").await;
    let (status, body) = timeout(Duration::from_secs(1), read(&mut client)).await.expect("a place is free");
    assert_eq!((status, body.len() > 1024 * 1024), (200, true), "{}", body.len());
}

#[tokio::test(start_paused = true)]
async fn those_who_ask_and_never_read_are_cut_off_in_seconds() {
    let (_, server) = crowd(Duration::ZERO);
    let mut stuck = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut client = server.client().await;
        send(&mut client, "GET /debug/state HTTP/1.1").await;
        stuck.push(client);
    }
    sleep(LIMITS.stall + Duration::from_secs(1)).await;
    answers_quickly(&server).await;
    for mut client in stuck {
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert!(rest.starts_with(b"HTTP/1.1 200 OK\r\n") && rest.len() <= 2048, "{}", rest.len());
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_keep_what_they_do_not_use_give_way_in_seconds() {
    let (_, server) = crowd(Duration::ZERO);
    let mut idle = Vec::new();
    for number in 0..MAX_CONNECTIONS {
        let mut client = server.client().await;
        if number % 2 == 0 {
            send(&mut client, "GET /debug/routes HTTP/1.1").await;
            read(&mut client).await;
        }
        idle.push(client);
    }
    sleep(LIMITS.head + Duration::from_millis(500)).await;
    answers_quickly(&server).await;
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn those_who_read_byte_by_byte_are_cut_off_as_well() {
    let (_, server) = crowd(Duration::ZERO);
    let mut client = server.client().await;
    send(&mut client, "GET /debug/state HTTP/1.1").await;
    let start = Instant::now();
    while client.read_u8().await.is_ok() {
        sleep(Duration::from_millis(900)).await;
        if start.elapsed() > LIFETIME + GRACE + Duration::from_secs(1) {
            break;
        }
    }
    answers_quickly(&server).await;
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() <= 1024, "only what lay there: {}", rest.len());
}

#[tokio::test(start_paused = true)]
async fn one_who_asks_for_much_at_once_gets_it_in_turn() {
    let (fake, server) = crowd(Duration::from_millis(10));
    let mut client = server.client().await;
    let requests = "GET /debug/pods HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(9);
    client.write_all(requests.as_bytes()).await.unwrap();
    send(&mut client, "GET /debug/routes HTTP/1.1").await;
    for _ in 0..9 {
        let (status, body) = read(&mut client).await;
        assert_eq!((status, body.first()), (200, Some(&b'[')));
    }
    let (status, body) = read(&mut client).await;
    assert_eq!((status, body.first()), (200, Some(&b'{')));
    assert_eq!((fake.asked.load(Ordering::SeqCst), fake.most.load(Ordering::SeqCst)), (10, 1));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_requests_are_answered_a_few_at_a_time() {
    let (fake, server) = crowd(Duration::from_millis(10));
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let mut client = server.client().await;
        clients.spawn(async move {
            for _ in 0..20 {
                send(&mut client, "GET /debug/routes HTTP/1.1").await;
                assert_eq!(read(&mut client).await.0, 200);
            }
        });
    }
    assert_eq!(clients.join_all().await.len(), 50);
    assert_eq!(fake.asked.load(Ordering::SeqCst), 1000);
    assert_eq!(fake.most.load(Ordering::SeqCst), MAX_CONNECTIONS);
}

#[tokio::test(start_paused = true)]
async fn one_who_leaves_is_not_worked_for() {
    let (fake, server) = crowd(Duration::from_secs(15));
    let mut client = server.client().await;
    send(&mut client, "GET /debug/state HTTP/1.1").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.now.load(Ordering::SeqCst), 1);
    drop(client);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.now.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn garbage_is_refused_and_harms_nobody() {
    let (fake, server) = crowd(Duration::ZERO);
    let long = format!("GET /debug/pods HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET /debug/pods HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    let path = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    for request in [
        "\0\x01\x02\r\n\r\n",
        "GET\r\n\r\n",
        "GET /debug/pods HTTP/9.9\r\n\r\n",
        "GET /debug/pods HTTP/1.1\r\nHost localhost\r\n\r\n",
        "GET /debug/pods HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "PUT /debug/log HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03",
        &long,
        &many,
        &path,
    ] {
        let mut client = server.client().await;
        // The server may close before everything is sent.
        let _ = client.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{request:.60}: {answer}");
    }
    assert_eq!(fake.asked.load(Ordering::SeqCst), 0);
    answers_quickly(&server).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let (_, server) = crowd(Duration::ZERO);
    let mut client = server.client().await;
    let start = Instant::now();
    send(&mut client, "PUT /debug/log HTTP/1.1\r\nContent-Length: 10").await;
    let (status, _) = read(&mut client).await;
    assert_eq!((status, start.elapsed().as_secs()), (503, DEADLINE.as_secs()));
}
