//! Limits of bodies, with advancing time: both ends are in the test's runtime.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Frame, SizeHint};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tower_service::Service as _;

use super::receive::MAX_BODY;
use super::*;
use crate::logging::tests::parse_arguments;
use crate::metrics::render;

struct Desk {
    router: axum::Router,
    registry: Registry,
    directory: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let options = parse_arguments(&[&format!("--log_target={}", path.display())]);
        let logger = Logger::open(options.unwrap()).unwrap();
        let mut registry = Registry::default();
        let router = receive::build_router(logger, LogMetrics::register(&mut registry));
        Desk { router, registry, directory }
    }

    fn post(&self, body: Body) -> impl Future<Output = StatusCode> + use<> {
        let request = Request::post("/log").body(body).unwrap();
        let answer = self.router.clone().call(request);
        async { answer.await.unwrap_or_else(|never: Infallible| match never {}).status() }
    }

    fn results(&self) -> BTreeMap<String, u64> {
        let text = render(&self.registry);
        let counted = text.lines().filter_map(|line| {
            let (result, count) =
                line.strip_prefix("istio_cni_log_requests_total{result=\"")?.split_once("\"} ")?;
            Some((result.to_owned(), count.parse().unwrap()))
        });
        counted.filter(|(_, count)| *count > 0).collect()
    }
}

fn body(length: usize) -> Body {
    Body::new(Full::new(Bytes::from(vec![b' '; length])))
}

/// Frames, and then neither data nor the end. The number is the announced length.
struct Frames(std::vec::IntoIter<Result<Frame<Bytes>, &'static str>>, u64);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.next().map_or(Poll::Pending, |frame| Poll::Ready(Some(frame)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.1)
    }
}

fn frames<const N: usize>(announced: u64, frames: [Result<&[u8], &'static str>; N]) -> Body {
    let frames = frames.map(|frame| frame.map(|data| Frame::data(Bytes::copy_from_slice(data))));
    Body::new(Frames(Vec::from(frames).into_iter(), announced))
}

fn unfinished(length: usize) -> Body {
    let half = vec![b' '; length / 2];
    frames(100, [Ok(&half), Ok(&half)])
}

fn results(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(result, count)| ((*result).to_owned(), *count)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_given_up() {
    let desk = Desk::new();
    let start = Instant::now();
    assert_eq!(desk.post(unfinished(100)).await, StatusCode::REQUEST_TIMEOUT);
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    assert_eq!(desk.results(), results(&[("timeout", 1)]));
}

#[tokio::test(start_paused = true)]
async fn a_body_may_have_one_mebibyte() {
    let desk = Desk::new();
    assert_eq!(desk.post(body(MAX_BODY)).await, StatusCode::OK);
    assert_eq!(desk.post(body(MAX_BODY + 1)).await, StatusCode::PAYLOAD_TOO_LARGE);
    // No memory is reserved for an announcement.
    assert_eq!(desk.post(frames(u64::MAX, [Err("gone")])).await, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(desk.results(), results(&[("malformed", 1), ("too_large", 2)]));
}

/// Each would take the memory of a string, a multiple of its size in the body.
#[tokio::test(start_paused = true)]
async fn a_body_of_very_many_lines_is_too_large() {
    let desk = Desk::new();
    let list = |line: &str, count: usize| Body::from(format!("[{}]", vec![line; count].join(",")));
    let usual = r#""{\"level\":\"debug\",\"msg\":\"m\"}""#;
    assert_eq!(desk.post(list(usual, 16_384)).await, StatusCode::OK);
    assert_eq!(desk.post(list(usual, 16_385)).await, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(desk.post(list(r#""""#, 300_000)).await, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(desk.post(list(r#""\\""#, 170_000)).await, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(desk.results(), results(&[("ok", 1), ("too_large", 3)]));
}

/// Memory is reserved for received bytes, and released when the request ends, however it ends.
#[tokio::test(start_paused = true)]
async fn all_bodies_together_are_bounded() {
    let desk = Desk::new();
    let full: Vec<_> = (0..2).map(|_| tokio::spawn(desk.post(unfinished(MAX_BODY)))).collect();
    tokio::task::yield_now().await;
    assert_eq!(desk.post(body(1)).await, StatusCode::SERVICE_UNAVAILABLE);
    full[0].abort();
    tokio::task::yield_now().await;
    assert_eq!(desk.post(Body::from("[]")).await, StatusCode::OK);
    tokio::time::sleep(Duration::from_secs(11)).await;
    for _ in 0..10 {
        assert_eq!(desk.post(body(MAX_BODY)).await, StatusCode::OK);
    }
    assert_eq!(desk.results(), results(&[("busy", 1), ("malformed", 10), ("ok", 1), ("timeout", 1)]));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_is_malformed_and_prints_nothing() {
    let desk = Desk::new();
    desk.post(frames(3, [Ok(b"[]"), Err("reset")])).await;
    assert_eq!(desk.results(), results(&[("malformed", 1)]));
    assert_eq!(std::fs::read_to_string(desk.directory.path().join("log")).unwrap(), "");
}
