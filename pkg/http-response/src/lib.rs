//! Parser of the response to one `GET` over HTTP/1.0 or 1.1 (RFC 9112).
//!
//! Called by `apiclient`, and by clients of an agent's debug state. The crate must not open a connection or send a request. The
//! plugin links it: it has no dependency of its own.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read};

/// Maximum total size of status line and headers, and of the data between chunks, in bytes.
const MAX_HEAD: usize = 32 * 1024;
/// Maximum number of 1xx responses before the final one.
const MAX_INTERIM: usize = 4;

/// A complete response.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// Status code, from 200 to 599.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The decoded body.
    pub body: Vec<u8>,
}

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The connection failed, or ended before the response was complete.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The response is not HTTP/1.0 or 1.1, or too large.
    #[error("{0}")]
    Malformed(String),
}

impl HttpResponse {
    /// Returns the value of the first header with that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        header_values(&self.headers, name).next()
    }
}

/// Receives the response to a request with `Connection: close`, with a body of at most `MAX_BODY` bytes.
///
/// # Errors
/// See [`HttpError`].
pub fn receive<const MAX_BODY: usize>(stream: &mut impl Read) -> Result<HttpResponse, HttpError> {
    let mut incoming = ResponseReader::<MAX_BODY, _>::new(stream);
    for _ in 0..=MAX_INTERIM {
        let status = parse_status(&incoming.read_line()?)?;
        let headers = read_headers(&mut incoming)?;
        match status {
            // Switching protocols was not requested.
            101 => return Err(malformed_response("it answered 101")),
            100..=199 => {}
            _ => {
                let body = read_body(&mut incoming, status, &headers)?;
                return Ok(HttpResponse { status, headers, body });
            }
        }
    }
    Err(malformed_response("too many interim answers"))
}

/// Parses `HTTP/1.x NNN reason` (RFC 9112, section 4).
fn parse_status(line: &str) -> Result<u16, HttpError> {
    let code = line
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| line.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3));
    code.filter(|code| code.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|code| code.parse().ok())
        .filter(|code| (100..=599).contains(code))
        .ok_or_else(|| malformed_response("it does not speak HTTP/1.1"))
}

fn read_headers<const MAX_BODY: usize>(
    incoming: &mut ResponseReader<'_, MAX_BODY, impl Read>,
) -> Result<Vec<(String, String)>, HttpError> {
    let mut headers = Vec::new();
    loop {
        let line = incoming.read_line()?;
        if line.is_empty() {
            return Ok(headers);
        }
        match line.split_once(':') {
            Some((name, value)) if !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic()) => {
                headers.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
            }
            _ => return Err(malformed_response("a header is malformed")),
        }
    }
}

fn header_values<'a>(headers: &'a [(String, String)], name: &str) -> impl Iterator<Item = &'a str> {
    headers.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// Reads the body (RFC 9112, section 6.3). A message with both a length and a coding is rejected, as are contradictory lengths.
fn read_body<const MAX_BODY: usize>(
    incoming: &mut ResponseReader<'_, MAX_BODY, impl Read>,
    status: u16,
    headers: &[(String, String)],
) -> Result<Vec<u8>, HttpError> {
    if header_values(headers, "Content-Encoding").any(|coding| !coding.eq_ignore_ascii_case("identity")) {
        return Err(malformed_response("the body is encoded, which was not asked for"));
    }
    let codings: Vec<&str> = header_values(headers, "Transfer-Encoding").collect();
    let mut lengths: Vec<&str> = header_values(headers, "Content-Length").collect();
    lengths.dedup();
    if matches!(status, 204 | 304) {
        return Ok(Vec::new());
    }
    match (codings.as_slice(), lengths.as_slice()) {
        ([], []) => incoming.read_to_end(),
        ([], [length]) => incoming.read_exactly(content_length::<MAX_BODY>(length)?),
        ([coding], []) if coding.eq_ignore_ascii_case("chunked") => read_chunks(incoming),
        _ => Err(malformed_response("the length of the body is unclear")),
    }
}

fn content_length<const MAX_BODY: usize>(text: &str) -> Result<usize, HttpError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(length) if digits && length <= MAX_BODY => Ok(length),
        _ if digits => Err(too_large::<MAX_BODY>()),
        _ => Err(malformed_response("Content-Length is not a number")),
    }
}

/// Reads a chunked body (RFC 9112, section 7.1); extensions and trailers are skipped.
fn read_chunks<const MAX_BODY: usize>(
    incoming: &mut ResponseReader<'_, MAX_BODY, impl Read>,
) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    loop {
        let line = incoming.read_line()?;
        let size = line.split(';').next().unwrap_or_default().trim_end_matches([' ', '\t']);
        if size.is_empty() || !size.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(malformed_response("a chunk has no size"));
        }
        let size = usize::from_str_radix(size, 16).map_err(|_| too_large::<MAX_BODY>())?;
        if size == 0 {
            read_headers(incoming)?;
            return Ok(body);
        }
        if size > MAX_BODY - body.len() {
            return Err(too_large::<MAX_BODY>());
        }
        body.append(&mut incoming.read_exactly(size)?);
        if !incoming.read_line()?.is_empty() {
            return Err(malformed_response("a chunk is longer than its size"));
        }
    }
}

/// Reader of a response.
struct ResponseReader<'s, const MAX_BODY: usize, S> {
    stream: BufReader<&'s mut S>,
    /// Number of bytes left for lines.
    head_left: usize,
}

impl<'s, const MAX_BODY: usize, S: Read> ResponseReader<'s, MAX_BODY, S> {
    fn new(stream: &'s mut S) -> Self {
        ResponseReader { stream: BufReader::new(stream), head_left: MAX_HEAD }
    }

    /// Reads a line without its end, which is CRLF or, leniently, LF.
    fn read_line(&mut self) -> Result<String, HttpError> {
        let mut line = Vec::new();
        let limit = self.head_left as u64 + 1;
        self.stream.by_ref().take(limit).read_until(b'\n', &mut line)?;
        if line.len() > self.head_left {
            return Err(malformed_response("the head of the answer is too large"));
        }
        self.head_left -= line.len();
        if line.pop() != Some(b'\n') {
            return Err(unexpected_end());
        }
        line.pop_if(|last| *last == b'\r');
        String::from_utf8(line).map_err(|_| malformed_response("a header is not text"))
    }

    fn read_exactly(&mut self, length: usize) -> Result<Vec<u8>, HttpError> {
        let bytes = self.read_up_to(length)?;
        if bytes.len() == length { Ok(bytes) } else { Err(unexpected_end()) }
    }

    /// Reads until the end of the connection.
    fn read_to_end(&mut self) -> Result<Vec<u8>, HttpError> {
        let bytes = self.read_up_to(MAX_BODY.saturating_add(1))?;
        if bytes.len() > MAX_BODY { Err(too_large::<MAX_BODY>()) } else { Ok(bytes) }
    }

    fn read_up_to(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.stream.by_ref().take(limit as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

fn malformed_response(what: &str) -> HttpError {
    HttpError::Malformed(what.to_owned())
}

fn too_large<const MAX_BODY: usize>() -> HttpError {
    HttpError::Malformed(format!("the body is larger than {MAX_BODY} bytes"))
}

fn unexpected_end() -> HttpError {
    HttpError::Io(io::Error::new(
        ErrorKind::UnexpectedEof,
        "the connection ended in the middle of the answer",
    ))
}

#[cfg(test)]
mod tests;
