//! An installation that something is in the way of: it is told in words, nothing is lost, nothing is worn out, and
//! it goes on by itself when that is gone.

#[path = "install_faults/conflists.rs"]
mod conflists;
#[path = "install_faults/disks.rs"]
mod disks;
#[path = "install_faults/fault.rs"]
mod fault;
#[path = "install_faults/image.rs"]
mod image;
#[path = "install_faults/inputs.rs"]
mod inputs;
#[path = "install_faults/neighbours.rs"]
mod neighbours;
