//! End of an exchange: `NLMSG_ERROR` (which is also the acknowledgement) and `NLMSG_DONE`.

use crate::parse::{Attributes, ReceivedMessage};
use crate::{Errno, Error, MESSAGE_HEADER, Malformed, MessageFlags};

use super::{NLMSG_DONE, NLMSG_ERROR};

/// `NLMSGERR_ATTR_MSG`: the reason as text.
const REASON: u16 = 1;

/// Returns the outcome of an exchange from its last message: success, or the refusal with its reason.
pub(super) fn message_outcome(message: &ReceivedMessage<'_>) -> Result<(), Error> {
    let code = match message.payload.split_first_chunk::<4>() {
        Some((code, _)) => i32::from_ne_bytes(*code),
        None if message.kind == NLMSG_DONE => 0, // old kernels end some dumps without a code
        None => return Err(Malformed("acknowledgement without its code").into()),
    };
    if code >= 0 {
        return Ok(()); // DONE may carry a positive remainder of the dump's state
    }
    Err(Error::Kernel { errno: decode_errno(code)?, message: refusal_reason(message) })
}

fn decode_errno(code: i32) -> Result<Errno, Malformed> {
    u16::try_from(code.unsigned_abs()).map(Errno).map_err(|_| Malformed("error number out of range"))
}

/// Returns the message after the code, the request's header and, unless capped, the request.
fn refusal_reason(message: &ReceivedMessage<'_>) -> Option<String> {
    if !message.flags.contains(MessageFlags::ACK_ATTRIBUTES) {
        return None;
    }
    let behind_code = message.payload.get(4..)?;
    let attributes = match message.kind {
        NLMSG_ERROR => behind_code.get(echo_length(behind_code, message.flags)?..)?,
        _ => behind_code,
    };
    let reason = Attributes::new(attributes).find(REASON)?.read_str().ok()?;
    (!reason.is_empty()).then(|| reason.to_owned())
}

/// Returns how many bytes of the request the acknowledgement echoes.
fn echo_length(echo: &[u8], flags: MessageFlags) -> Option<usize> {
    if flags.contains(MessageFlags::CAPPED) {
        return Some(MESSAGE_HEADER);
    }
    let (length, _) = echo.split_first_chunk::<4>()?;
    usize::try_from(u32::from_ne_bytes(*length)).ok().map(crate::align_length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(flags: MessageFlags, echoed: usize, reason: &[u8]) -> Vec<u8> {
        let mut payload = (-22_i32).to_ne_bytes().to_vec();
        payload.extend_from_slice(&u32::try_from(MESSAGE_HEADER + echoed).unwrap().to_ne_bytes());
        payload.extend_from_slice(&[0; 12]);
        if !flags.contains(MessageFlags::CAPPED) {
            payload.resize(payload.len() + crate::align_length(echoed), 0xee);
        }
        payload.extend_from_slice(&u16::try_from(4 + reason.len()).unwrap().to_ne_bytes());
        payload.extend_from_slice(&REASON.to_ne_bytes());
        payload.extend_from_slice(reason);
        payload
    }

    fn message(kind: u16, flags: MessageFlags, payload: &[u8]) -> ReceivedMessage<'_> {
        ReceivedMessage { kind, flags, sequence: 1, payload }
    }

    #[test]
    fn the_reason_is_found_behind_a_whole_and_a_capped_echo() {
        for flags in [MessageFlags::ACK_ATTRIBUTES, MessageFlags::ACK_ATTRIBUTES | MessageFlags::CAPPED] {
            let payload = refusal(flags, 29, b"Nexthop has invalid gateway\0");
            let error = message_outcome(&message(NLMSG_ERROR, flags, &payload)).unwrap_err();
            assert_eq!(error.to_string(), "kernel: Nexthop has invalid gateway (EINVAL)");
        }
    }

    #[test]
    fn an_end_without_error_is_success() {
        for (kind, code) in [(NLMSG_ERROR, 0_i32), (NLMSG_DONE, 0), (NLMSG_DONE, 7)] {
            assert!(message_outcome(&message(kind, MessageFlags::NONE, &code.to_ne_bytes())).is_ok());
        }
        assert!(message_outcome(&message(NLMSG_DONE, MessageFlags::NONE, &[])).is_ok());
        assert!(matches!(
            message_outcome(&message(NLMSG_ERROR, MessageFlags::NONE, &[])),
            Err(Error::Malformed(_))
        ));
    }

    proptest! {
        #[test]
        fn arbitrary_ends_never_panic(
            done: bool, flags: u16, code in prop_oneof![-5000..5000_i32, any::<i32>()],
            behind in prop::collection::vec(any::<u8>(), 0..80), length in 0..84_usize,
        ) {
            let mut payload = [code.to_ne_bytes().as_slice(), &behind].concat();
            payload.truncate(length);
            let kind = if done { NLMSG_DONE } else { NLMSG_ERROR };
            let _ = message_outcome(&message(kind, MessageFlags(flags), &payload)).map_err(|error| error.to_string());
        }
    }
}
