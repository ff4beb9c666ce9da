//! The floor of every measurement: a program that does nothing.

fn main() {}
