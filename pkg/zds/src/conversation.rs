//! One ztunnel: hello, then a request at a time, each answered before the next.

use std::convert::Infallible;
use std::os::fd::{AsFd as _, OwnedFd};

use prost::Message as _;
use rustix::event::{EventfdFlags, eventfd};
use tracing::{debug, info, warn};

use crate::error::Ended;
use crate::hub::{ConnectionGuard, Hub};
use crate::message::{Ack, Answer, WorkloadResponse, ZdsHello};
use crate::packet;
use crate::plan::{Next, Request, Step};

/// What is kept of an error, in bytes: ztunnel's may be long, and stays in memory.
const MAX_ERROR: usize = 1024;

/// Serves a ztunnel until it goes, or does something that it should not.
pub(crate) fn converse(socket: &OwnedFd, hub: &Hub) -> Result<Infallible, Ended> {
    let user = socketfile::peer_user(socket).map_err(Ended::Peer)?;
    if user != 0 {
        return Err(Ended::NotRoot(user));
    }
    let version = hello(socket, hub)?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Ended::Event)?;
    let wake = event.try_clone().map_err(Ended::Wait)?;
    let guard = hub.join(version, socket, wake);
    info!(target: "zds", connection = guard.id(), version, "ztunnel connected");
    loop {
        match guard.next() {
            Next::Send(request) => ask(socket, hub, &guard, request)?,
            Next::Wait(until) => {
                packet::wait(socket, &event, until)?;
                packet::expect_silence(socket)?;
            }
        }
    }
}

/// The version that it speaks. A higher one than ours is fine: it has accepted ours by dialling.
fn hello(socket: &OwnedFd, hub: &Hub) -> Result<i32, Ended> {
    let limit = hub.deadlines().hello;
    let bytes = packet::receive(socket, limit)?.ok_or(Ended::NoHello(limit))?;
    let hello = ZdsHello::decode(&*bytes).map_err(Ended::Hello)?;
    if hello.version == 0 { Err(Ended::NoVersion) } else { Ok(hello.version) }
}

fn ask(socket: &OwnedFd, hub: &Hub, guard: &ConnectionGuard<'_>, request: Request) -> Result<(), Ended> {
    let (step, error) = exchange(socket, hub, request)?;
    let error = Some(error).filter(|error| !error.is_empty());
    match (&step, &error) {
        (_, None) => debug!(target: "zds", connection = guard.id(), %step, "ztunnel acknowledged"),
        (Step::SnapshotSent, Some(error)) => return Err(Ended::Snapshot(error.clone())),
        (_, Some(error)) => warn!(target: "zds", connection = guard.id(), %step, error, "ztunnel refused"),
    }
    guard.acknowledged(step, error.as_deref());
    Ok(())
}

/// Sends a request and waits for the answer: the error in it, empty when there was none.
fn exchange(socket: &OwnedFd, hub: &Hub, request: Request) -> Result<(Step, String), Ended> {
    let Request { step, bytes, netns } = request;
    if bytes.len() > packet::MAX_SENT {
        // It would close the connection, and all others would have to be told again, for ever.
        return Ok((step, format!("a message of {} bytes is longer than ztunnel reads", bytes.len())));
    }
    // An answer that is there already would be taken for the one to this request.
    packet::expect_silence(socket)?;
    let limit = hub.deadlines().answer;
    packet::send(socket, &bytes, netns.as_ref().map(|netns| netns.as_fd()), limit)?;
    drop(netns); // the pod may end while ztunnel thinks
    let bytes = packet::receive(socket, limit)?.ok_or(Ended::NoAnswer(limit))?;
    let answer = WorkloadResponse::decode(&*bytes).map_err(Ended::Answer)?;
    let Some(Answer::Ack(Ack { mut error })) = answer.payload else {
        return Err(Ended::NoAck);
    };
    error.truncate(error.floor_char_boundary(MAX_ERROR));
    Ok((step, error))
}
