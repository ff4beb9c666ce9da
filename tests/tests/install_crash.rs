//! The daemon is killed at any moment, again and again. No reader ever meets half a file, and the next start makes
//! everything right.

#[path = "install_crash/anywhere.rs"]
mod anywhere;
#[path = "install_crash/conversion.rs"]
mod conversion;
#[path = "install_crash/victim.rs"]
mod victim;
