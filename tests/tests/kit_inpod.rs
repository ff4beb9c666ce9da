//! The kit's stub of an in-pod ztunnel does what tests of in-pod capture rely on. Its agent is written here, byte
//! by byte, and so are the rules in the pod: nothing of ours is involved.

#[path = "kit_inpod/agent.rs"]
mod agent;
#[path = "kit_inpod/capture.rs"]
mod capture;
#[path = "kit_inpod/conversation.rs"]
mod conversation;
#[path = "kit_inpod/ends.rs"]
mod ends;
#[path = "kit_inpod/failures.rs"]
mod failures;
#[path = "kit_inpod/lab.rs"]
mod lab;
#[path = "kit_inpod/strict.rs"]
mod strict;
