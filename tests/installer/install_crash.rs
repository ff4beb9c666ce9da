//! The daemon is killed at any moment, again and again. No reader ever meets half a file, and the next start makes
//! everything right.

mod anywhere;
mod conversion;
mod victim;
