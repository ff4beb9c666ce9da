//! Responses of an API server or an agent.

use std::io::{self, Read};

/// Small, so that a short input can exceed it.
const MAX_BODY: usize = 512;

/// Any bytes are a response with a status and a body within the limit, or an error of one readable sentence, in whatever pieces
/// they arrive.
///
/// # Panics
/// If one of these does not hold.
pub fn http_response(data: &[u8]) {
    let whole = receive(&mut &*data);
    match &whole {
        Ok((status, body)) => {
            assert!((200..=599).contains(status), "{status}");
            assert!(body.len() <= MAX_BODY.min(data.len()), "{} of {}", body.len(), data.len());
        }
        Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error:?}"),
    }
    // Short ones also byte by byte.
    let sizes = if data.len() < 2048 { &[1, 7, 512][..] } else { &[997][..] };
    for size in sizes {
        let again = receive(&mut Pieces { rest: data, size: *size });
        assert_eq!(again, whole, "in pieces of {size} bytes");
    }
}

/// Status and body, or the error.
fn receive(stream: &mut impl Read) -> Result<(u16, Vec<u8>), String> {
    let response = http_response::receive::<MAX_BODY>(stream).map_err(|error| error.to_string())?;
    Ok((response.status, response.body))
}

/// Bytes that are read in pieces.
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
