//! The kit's stub of ztunnel and what watches traffic do what tests of the ambient node rely on. The rules that
//! bring traffic to the stub are made by hand here: nothing of ours is involved.

#[path = "kit_ztunnel/lab.rs"]
mod lab;
#[path = "kit_ztunnel/live.rs"]
mod live;
#[path = "kit_ztunnel/objects.rs"]
mod objects;
#[path = "kit_ztunnel/relay.rs"]
mod relay;
#[path = "kit_ztunnel/watch.rs"]
mod watch;
