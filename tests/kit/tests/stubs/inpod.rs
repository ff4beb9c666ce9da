//! The kit's stub of an in-pod ztunnel does what tests of in-pod capture rely on. Its agent is written here, byte
//! by byte, and so are the rules in the pod: nothing of ours is involved.

mod agent;
mod capture;
mod conversation;
mod ends;
mod failures;
mod fixture;
mod strict;
