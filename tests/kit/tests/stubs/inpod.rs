//! The kit's stub of an in-pod ztunnel behaves as the tests of in-pod capture require. Its agent is implemented here, byte by
//! byte, and so are the rules in the pod: no code of ours is involved.

mod agent;
mod capture;
mod conversation;
mod ends;
mod failures;
mod fixture;
mod strict;
