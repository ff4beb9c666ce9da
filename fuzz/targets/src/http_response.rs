//! What an API server, or whoever answers in its place, sends.

use std::io::{self, Read};

use apiclient::{MAX_BODY, fuzzing};

/// Any bytes are an answer with a status and a body within the bound, or an error of one readable sentence, in whatever
/// pieces they come.
///
/// # Panics
/// When one of these does not hold.
pub fn http_response(data: &[u8]) {
    let whole = fuzzing::http_response(&mut &*data);
    match &whole {
        Ok((status, body)) => {
            assert!((200..=599).contains(status), "{status}");
            assert!(body.len() <= MAX_BODY.min(data.len()), "{} of {}", body.len(), data.len());
        }
        Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error:?}"),
    }
    // Small ones also byte by byte.
    let sizes = if data.len() < 2048 { &[1, 7, 512][..] } else { &[997][..] };
    for size in sizes {
        let again = fuzzing::http_response(&mut Pieces { rest: data, size: *size });
        assert_eq!(again, whole, "in pieces of {size} bytes");
    }
}

/// Bytes of which each read gives a few.
struct Pieces<'a> {
    rest: &'a [u8],
    size: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.size.min(buffer.len());
        let (mut piece, rest) = self.rest.split_at_checked(most).unwrap_or((self.rest, &[]));
        self.rest = rest;
        piece.read(buffer)
    }
}
