//! What fuzz targets feed; nobody else calls it.

use crate::exchange::{Batch, Exchange, ExchangeProgress};

/// One datagram as the answer to a request: how many replies are in it, and whether it is the end.
///
/// # Errors
/// Why it is no answer, or what the kernel refuses.
pub fn exchange(datagram: &[u8], sequence: u32) -> Result<(usize, bool), String> {
    let mut replies = 0;
    let step = Exchange::new(sequence).process_datagram(datagram, &mut |_| replies += 1);
    step.map(|step| (replies, step == ExchangeProgress::Ended)).map_err(|error| error.to_string())
}

/// One datagram as the answer to `count` changes that were sent together: what became of each.
pub fn batch(datagram: &[u8], sequence: u32, count: usize) -> Vec<Result<(), String>> {
    let mut batch = Batch::new(sequence, count);
    let read = batch.process_datagram(datagram);
    let outcomes = batch.outcomes.into_iter().map(|outcome| outcome.map_err(|error| error.to_string()));
    read.map(|_| outcomes.collect()).unwrap_or_default()
}
