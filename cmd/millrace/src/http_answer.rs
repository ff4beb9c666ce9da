//! The body of an answer of the agent's debug endpoint, in HTTP/1.0 or 1.1, which ends with the connection.

/// A document of a node with thousands of pods has a few megabytes.
pub(crate) const MAX_DOCUMENT: u64 = 64 * 1024 * 1024;
/// Of a refusal, this much is shown.
const SHOWN: usize = 200;

/// Why an answer cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    /// Nothing came.
    #[error("the connection ended without an answer")]
    Nothing,
    /// It is no answer in HTTP.
    #[error("the answer is not HTTP")]
    NoHttp,
    /// The agent did not want to answer.
    #[error("the agent refused: HTTP status {status}: {body}")]
    Refused {
        /// HTTP's status.
        status: u16,
        /// The beginning of its answer.
        body: String,
    },
    /// It was cut off.
    #[error("the answer ends after {got} of {expected} bytes")]
    Cut {
        /// Bytes that came.
        got: usize,
        /// Bytes that were announced.
        expected: usize,
    },
    /// It does not end.
    #[error("the answer is longer than {MAX_DOCUMENT} bytes")]
    Long,
}

/// The body of a complete answer with status 200.
pub(crate) fn body_of(mut answer: Vec<u8>) -> Result<Vec<u8>, AnswerError> {
    if answer.is_empty() {
        return Err(AnswerError::Nothing);
    }
    if answer.len() as u64 > MAX_DOCUMENT {
        return Err(AnswerError::Long);
    }
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(AnswerError::NoHttp)?;
    let body = answer.split_off(end + 4);
    let head = String::from_utf8_lossy(&answer);
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    let status: u16 = status.and_then(|status| status.trim().parse().ok()).ok_or(AnswerError::NoHttp)?;
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = fields
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .filter_map(|(_, value)| value.trim().parse::<usize>().ok());
    match (status, lengths.next()) {
        (200, Some(expected)) if expected != body.len() => {
            Err(AnswerError::Cut { got: body.len(), expected })
        }
        (200, _) => Ok(body),
        _ => {
            let body = String::from_utf8_lossy(&body);
            Err(AnswerError::Refused {
                status,
                body: report::clean(body.trim()).chars().take(SHOWN).collect(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_answer_with_status_200_has_a_body() {
        for (answer, expected) in [
            ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", Ok("{}")),
            ("HTTP/1.1 200 OK\r\n\r\n{}", Ok("{}")),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n{}", Err(AnswerError::Cut { got: 2, expected: 5 })),
            (
                "HTTP/1.0 403 Forbidden\r\n\r\nroot\nonly\n",
                Err(AnswerError::Refused { status: 403, body: "root only".to_owned() }),
            ),
            ("HTTP/1.0 200 OK\r\n", Err(AnswerError::NoHttp)),
            ("SSH-2.0-x\r\n\r\n", Err(AnswerError::NoHttp)),
            ("", Err(AnswerError::Nothing)),
        ] {
            let body = body_of(answer.as_bytes().to_vec()).map(|body| String::from_utf8(body).unwrap());
            assert_eq!(body, expected.map(str::to_owned), "{answer:?}");
        }
    }
}
