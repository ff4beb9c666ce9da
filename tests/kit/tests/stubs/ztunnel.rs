//! The kit's stub of ztunnel and its packet counters behave as the tests of the ambient node require. The rules that redirect
//! traffic to the stub are created by hand here: no code of ours is involved.

mod fixture;
mod live;
mod objects;
mod relay;
mod watch;
