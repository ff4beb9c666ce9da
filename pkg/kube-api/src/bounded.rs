//! Response bodies: limited to the size that their reader may hold in memory, and for watches with a minimum duration and a maximum
//! silence.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::time::{Instant, Sleep, sleep};

use crate::{pieces::MAX_OBJECT, transport::BoxError};

/// Minimum duration of a watch: its end is delayed to this time after its start, which bounds the request rate to a server or proxy
/// that ends each watch immediately.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum time without data on a watch, after which it ends: one whose connection hangs would otherwise count as working for five
/// minutes. The API server sends a bookmark about once a minute, except for resources that have not changed since its start, so
/// silence is no error: whether the server answers is seen when the next watch starts.
const SILENCE: Duration = Duration::from_secs(95);
/// Maximum size of an error response, in bytes.
pub(crate) const MAX_ERROR: usize = 64 * 1024;

/// Part of a body whose size is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyBound {
    /// No limit: the reader splits the body into pieces of limited size.
    Pieces,
    /// Each line: that of a watch, which is read line by line.
    Line,
    /// The whole body, in bytes.
    Document(usize),
}

impl BodyBound {
    /// Returns the limit for the response to a request. `chosen`: by the reader of the body.
    pub(crate) fn for_request(query: Option<&str>, chosen: Option<BodyBound>) -> BodyBound {
        let is_watch = query.unwrap_or_default().split('&').any(|option| option == "watch=true");
        chosen.unwrap_or(if is_watch { BodyBound::Line } else { BodyBound::Document(MAX_OBJECT) })
    }

    /// Returns the limit for a response with this status: an error is read as a whole, except where its reader limits it.
    fn for_status(self, is_success: bool) -> BodyBound {
        if is_success || self == BodyBound::Pieces { self } else { BodyBound::Document(MAX_ERROR) }
    }
}

/// Counter of the bytes held in memory.
#[derive(Debug)]
struct HeldBytes {
    bound: BodyBound,
    held: usize,
}

impl HeldBytes {
    fn add_bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        match self.bound {
            BodyBound::Pieces => {}
            BodyBound::Line => {
                for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                    self.held = self.held.saturating_add(line.len());
                    if self.held > MAX_OBJECT {
                        return Err(format!("a line of the watch has more than {MAX_OBJECT} bytes"));
                    }
                    if line.ends_with(b"\n") {
                        self.held = 0;
                    }
                }
            }
            BodyBound::Document(most) => {
                self.held = self.held.saturating_add(bytes.len());
                if self.held > most {
                    return Err(format!("the response has more than {most} bytes"));
                }
            }
        }
        Ok(())
    }
}

/// A body that ends with an error beyond its limit.
pub(crate) struct BoundedBody<B = Incoming> {
    body: B,
    held: HeldBytes,
    /// Timer before whose expiry a watch does not end.
    shortest: Option<Pin<Box<Sleep>>>,
    /// Timer at whose expiry a silent watch ends.
    silence: Option<Pin<Box<Sleep>>>,
    /// End of the body once it is reached, with the error unless it was regular.
    end: Option<Option<BoxError>>,
}

impl<B> BoundedBody<B> {
    pub(crate) fn new(body: B, bound: BodyBound, is_success: bool) -> BoundedBody<B> {
        let bound = bound.for_status(is_success);
        let timer = |after| (bound == BodyBound::Line).then(|| Box::pin(sleep(after)));
        let (shortest, silence) = (timer(SHORTEST), timer(SILENCE));
        BoundedBody { body, held: HeldBytes { bound, held: 0 }, shortest, silence, end: None }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for BoundedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.end.is_none() {
            let end = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    match frame.data_ref().map_or(Ok(()), |bytes| this.held.add_bytes(bytes)) {
                        Ok(()) => {
                            if let Some(silence) = &mut this.silence {
                                silence.as_mut().reset(Instant::now() + SILENCE);
                            }
                            return Poll::Ready(Some(Ok(frame)));
                        }
                        Err(why) => Some(why.into()),
                    }
                }
                Poll::Ready(Some(Err(error))) => Some(error.into()),
                Poll::Ready(None) => None,
                Poll::Pending => {
                    let Some(silence) = &mut this.silence else { return Poll::Pending };
                    ready!(silence.as_mut().poll(context));
                    None
                }
            };
            this.end = Some(end);
        }
        if let Some(shortest) = &mut this.shortest {
            ready!(shortest.as_mut().poll(context));
        }
        this.shortest = None;
        Poll::Ready(this.end.as_mut().and_then(Option::take).map(Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(bound: BodyBound, chunks: &[usize], line: usize) -> bool {
        let mut held = HeldBytes { bound, held: 0 };
        let mut sent = 0;
        chunks.iter().all(|size| {
            let bytes: Vec<u8> =
                (sent..sent + size).map(|at| if at % line == line - 1 { b'\n' } else { b'x' }).collect();
            sent += size;
            held.add_bytes(&bytes).is_ok()
        })
    }

    /// A body with a line after each of these pauses, in seconds, and then nothing.
    struct SlowBody(Vec<u64>, Option<Pin<Box<Sleep>>>);

    impl Body for SlowBody {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            let Some(pause) = self.0.first().copied() else { return Poll::Pending };
            let timer = self.1.get_or_insert_with(|| Box::pin(sleep(Duration::from_secs(pause))));
            ready!(timer.as_mut().poll(context));
            (self.1, _) = (None, self.0.remove(0));
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"\n")))))
        }
    }

    #[test]
    fn a_watch_that_is_silent_ends_and_one_with_bookmarks_goes_on() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (begin, mut lines) = (Instant::now(), 0);
            let mut watch = BoundedBody::new(SlowBody(vec![60, 62, 90, 96], None), BodyBound::Line, true);
            while let Some(line) =
                std::future::poll_fn(|context| Pin::new(&mut watch).poll_frame(context)).await
            {
                lines += u32::from(line.unwrap().is_data());
            }
            assert_eq!((lines, begin.elapsed().as_secs()), (3, 60 + 62 + 90 + SILENCE.as_secs()));
            let mut list = BoundedBody::new(SlowBody(Vec::new(), None), BodyBound::Pieces, true);
            let next = std::future::poll_fn(|context| Pin::new(&mut list).poll_frame(context));
            assert!(tokio::time::timeout(SILENCE * 2, next).await.is_err(), "its reader has its own limit");
        });
    }

    #[test]
    fn lines_of_a_watch_are_bounded_however_they_come_and_their_number_is_not() {
        let max = MAX_OBJECT;
        for (chunks, line, expected) in [
            (vec![max], max, true),
            (vec![max + 1], max + 1, false),
            (vec![max, 1], max + 1, false),
            (vec![max, max, max], max, true),
            (vec![max / 2, max / 2, max, 10], max, true),
            (vec![5; 1000], 3, true),
            (vec![2 * max + 10], max / 2, true),
            (vec![max / 3; 4], usize::MAX, false),
            (vec![max / 3; 3], usize::MAX, true),
        ] {
            assert_eq!(fits(BodyBound::Line, &chunks, line), expected, "{chunks:?} {line}");
        }
    }

    #[test]
    fn what_is_read_as_a_whole_is_bounded_as_a_whole() {
        for (chunks, expected) in [(vec![100], true), (vec![60, 40], true), (vec![60, 41], false)] {
            assert_eq!(fits(BodyBound::Document(100), &chunks, 3), expected, "{chunks:?}");
            assert!(fits(BodyBound::Pieces, &chunks, 3));
        }
    }

    #[test]
    fn the_bound_follows_from_the_request_and_the_status() {
        let pieces = Some(BodyBound::Pieces);
        let whole = BodyBound::Document(MAX_OBJECT);
        for (query, chosen, bound, of_error) in [
            (None, None, whole, BodyBound::Document(MAX_ERROR)),
            (Some("limit=500"), None, whole, BodyBound::Document(MAX_ERROR)),
            (Some("a=b&watch=true&c=d"), None, BodyBound::Line, BodyBound::Document(MAX_ERROR)),
            (Some("a=b"), pieces, BodyBound::Pieces, BodyBound::Pieces),
        ] {
            let seen = BodyBound::for_request(query, chosen);
            assert_eq!((seen.for_status(true), seen.for_status(false)), (bound, of_error), "{query:?}");
        }
    }
}
