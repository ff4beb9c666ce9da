//! Entry points for fuzz targets only.

use crate::exchange::{Batch, Exchange, ExchangeProgress};

/// Parses one datagram as the reply to a request. Returns the number of replies in it, and whether the exchange has
/// ended.
///
/// # Errors
/// The datagram is no reply, or is the kernel's refusal.
pub fn exchange(datagram: &[u8], sequence: u32) -> Result<(usize, bool), String> {
    let mut replies = 0;
    let step = Exchange::new(sequence).process_datagram(datagram, &mut |_| replies += 1);
    step.map(|step| (replies, step == ExchangeProgress::Ended)).map_err(|error| error.to_string())
}

/// Parses one datagram as the reply to `count` changes that were sent together. Returns the outcome of each.
pub fn batch(datagram: &[u8], sequence: u32, count: usize) -> Vec<Result<(), String>> {
    let mut batch = Batch::new(sequence, count);
    let read = batch.process_datagram(datagram);
    let outcomes = batch.outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.to_string()));
    read.map(|_| outcomes.collect()).unwrap_or_default()
}
