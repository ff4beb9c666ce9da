//! An installation that something is in the way of: it is told in words, nothing is lost, nothing is worn out, and
//! it goes on by itself when that is gone.

mod conflists;
mod disks;
mod fault;
mod image;
mod inputs;
mod neighbours;
