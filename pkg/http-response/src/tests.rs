use proptest::prelude::*;

use super::*;

const MAX_BODY: usize = 64 * 1024;

/// Returns the response in parts of `step` bytes.
struct Fake {
    answer: Vec<u8>,
    step: usize,
}

impl Read for Fake {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.step.min(buffer.len()).min(self.answer.len());
        for (to, from) in buffer.iter_mut().zip(self.answer.drain(..length)) {
            *to = from;
        }
        Ok(length)
    }
}

fn answer(text: &[u8], step: usize) -> Result<HttpResponse, HttpError> {
    receive::<MAX_BODY>(&mut Fake { answer: text.to_vec(), step })
}

#[test]
fn bodies_of_each_framing_are_read() {
    for text in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
        "HTTP/1.1 200\r\ncontent-length:5\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.0 200 OK\n\nhello",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
    ] {
        for step in [1, 3, 10_000] {
            assert_eq!(answer(text.as_bytes(), step).unwrap().body, b"hello", "{text}");
        }
    }
    assert_eq!(answer(b"HTTP/1.1 204 No\r\n\r\n", 9).unwrap().status, 204);
    assert_eq!(
        answer(b"HTTP/1.1 302 F\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", 9).unwrap().header("location"),
        Some("/x")
    );
}

#[test]
fn what_is_no_good_answer_is_refused() {
    for text in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 20x\r\n\r\n",
        "HTTP/1.1 101 S\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
    ] {
        assert!(matches!(answer(text.as_bytes(), 7), Err(HttpError::Malformed(_))), "{text}");
    }
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "a".repeat(MAX_HEAD));
    assert!(matches!(answer(endless.as_bytes(), 5000), Err(HttpError::Malformed(_))));
    let large = format!("HTTP/1.1 200 OK\r\n\r\n{}", "a".repeat(MAX_BODY + 1));
    assert!(matches!(answer(large.as_bytes(), 8000), Err(HttpError::Malformed(_))));
}

#[test]
fn an_answer_that_ends_early_is_a_broken_connection() {
    for text in
        ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"]
    {
        assert!(matches!(answer(text.as_bytes(), 7), Err(HttpError::Io(_))), "{text}");
    }
}

proptest! {
    #[test]
    fn no_answer_panics(text in "(HTTP/1.1 200 OK\r\n|Content-Length: [0-9]\r\n|Transfer-Encoding: chunked\r\n|\r\n|[0-9a-f]\r\n|\\PC){0,20}", step in 1usize..50) {
        let _ = answer(text.as_bytes(), step);
    }
}
