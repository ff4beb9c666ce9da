//! Conversation with one ztunnel: hello, then one request at a time, each answered before the next.

use std::convert::Infallible;
use std::os::fd::{AsFd as _, OwnedFd};

use prost::Message as _;
use rustix::event::{EventfdFlags, eventfd};
use tracing::{debug, warn};

use crate::error::ConversationEnd;
use crate::hub::{ConnectionGuard, Hub};
use crate::message::{Ack, ResponsePayload, WorkloadResponse, ZdsHello};
use crate::notices::Notice;
use crate::packet;
use crate::peer::PeerStanding;
use crate::place_guard::HeldPlace;
use crate::places::Progress;
use crate::plan::{NextAction, RequestStep, ZdsRequest};

/// Length to which an error is truncated, in bytes: ztunnel's may be long, and stays in memory.
const MAX_ERROR: usize = 1024;

/// Serves a ztunnel until it disconnects or violates the protocol.
pub(crate) fn serve_ztunnel(
    socket: &OwnedFd,
    hub: &Hub,
    place: &HeldPlace,
) -> Result<Infallible, ConversationEnd> {
    let user = socketfile::peer_user(socket).map_err(ConversationEnd::Peer)?;
    if user != 0 {
        return Err(ConversationEnd::NotRoot(user));
    }
    let version = receive_hello(socket, hub, place)?;
    place.record_progress(Progress::Greeted);
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(ConversationEnd::Event)?;
    let wake = event.try_clone().map_err(ConversationEnd::Wait)?;
    let guard = hub.add_connection(version, place.netns.clone(), wake);
    guard.log_connected(version);
    loop {
        match guard.next_action() {
            NextAction::Send(request) => {
                if complete_request(socket, hub, &guard, request)? {
                    place.record_progress(Progress::Synced);
                }
            }
            NextAction::Wait(until) => {
                packet::wait_for_activity(socket, &event, until)?;
                packet::expect_silence(socket)?;
            }
        }
    }
}

/// Returns the version that ztunnel speaks. A higher one than ours is accepted: ztunnel has accepted ours by
/// connecting.
fn receive_hello(socket: &OwnedFd, hub: &Hub, place: &HeldPlace) -> Result<i32, ConversationEnd> {
    let deadlines = hub.deadlines();
    let limit = if place.has_unknown_peer() { deadlines.unknown_peer_hello } else { deadlines.hello };
    let bytes = packet::receive(socket, limit)?.ok_or(ConversationEnd::NoHello(limit))?;
    let hello = ZdsHello::decode(&*bytes).map_err(ConversationEnd::Hello)?;
    if hello.version == 0 { Err(ConversationEnd::NoVersion) } else { Ok(hello.version) }
}

/// Completes a request. Returns whether ztunnel acknowledged its snapshot by that.
fn complete_request(
    socket: &OwnedFd,
    hub: &Hub,
    guard: &ConnectionGuard<'_>,
    request: ZdsRequest,
) -> Result<bool, ConversationEnd> {
    let (step, error) = exchange_messages(socket, hub, request)?;
    let error = Some(error).filter(|error| !error.is_empty());
    match (&step, &error) {
        (_, None) => debug!(target: "zds", connection = guard.id, %step, "ztunnel acknowledged"),
        (RequestStep::SnapshotSent, Some(error)) => return Err(ConversationEnd::Snapshot(error.clone())),
        (_, Some(error)) => {
            if hub.may_log(Notice::Refusal, guard.peer_standing() == PeerStanding::Unknown) {
                warn!(target: "zds", connection = guard.id, %step, error, "ztunnel refused");
            }
        }
    }
    let is_synced = matches!(step, RequestStep::SnapshotSent);
    guard.record_answer(step, error.as_deref());
    Ok(is_synced)
}

/// Sends a request and waits for the answer. Returns the error in it, empty if there was none.
fn exchange_messages(
    socket: &OwnedFd,
    hub: &Hub,
    request: ZdsRequest,
) -> Result<(RequestStep, String), ConversationEnd> {
    let ZdsRequest { step, bytes, netns } = request;
    if bytes.len() > packet::MAX_SENT {
        // Sending it would close the connection, and ztunnel would be sent all other workloads again, forever.
        return Ok((step, format!("a message of {} bytes is longer than ztunnel reads", bytes.len())));
    }
    // An answer that has already arrived would be attributed to this request.
    packet::expect_silence(socket)?;
    let limit = hub.deadlines().answer;
    packet::send(socket, &bytes, netns.as_ref().map(|netns| netns.as_fd()), limit)?;
    drop(netns); // the pod may end while ztunnel processes the request
    let bytes = packet::receive(socket, limit)?.ok_or(ConversationEnd::NoAnswer(limit))?;
    let answer = WorkloadResponse::decode(&*bytes).map_err(ConversationEnd::Answer)?;
    let Some(ResponsePayload::Ack(Ack { mut error })) = answer.payload else {
        return Err(ConversationEnd::NoAck);
    };
    error.truncate(error.floor_char_boundary(MAX_ERROR));
    Ok((step, error))
}
