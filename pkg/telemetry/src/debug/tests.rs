//! Answers, one by one, and clients who misbehave. Where time is paused it runs ahead when all tasks wait; both ends of
//! every connection are in the test's runtime.

mod answers;
mod clients;
mod fake;
