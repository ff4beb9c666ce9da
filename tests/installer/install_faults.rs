//! An obstructed installation: the fault is reported, nothing is lost, no loop spins, and the installation continues by itself when
//! the fault ends.

mod conflists;
mod disks;
mod fault;
mod image;
mod inputs;
mod neighbours;
