//! Baseline of every measurement: a program that does nothing.

fn main() {}
