//! The kit's stub of ztunnel and what watches traffic do what tests of the ambient node rely on. The rules that
//! bring traffic to the stub are made by hand here: nothing of ours is involved.

mod fixture;
mod live;
mod objects;
mod relay;
mod watch;
