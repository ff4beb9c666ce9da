//! Limits of one input: CPU time and memory, of the thread that processes it.
#![allow(unsafe_code, reason = "an allocator that counts cannot be written without")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// For an input of 64 KiB in a debug build.
const TIME: Duration = Duration::from_secs(2);
/// For any input.
const MEMORY: usize = 4 << 20;
/// In addition for each byte of it. A name of four letters in an annotation becomes several rules.
const MEMORY_PER_BYTE: usize = 1024;

struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn taken(bytes: usize) {
    // A thread that ends has no counters any more, and none are read.
    let _ = HELD.try_with(|held| {
        held.set(held.get().saturating_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn given_back(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(bytes)));
}

// SAFETY: the system's allocator does everything; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(size.saturating_sub(layout.size()));
        given_back(layout.size().saturating_sub(size));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs a target on an input, and asserts that it stays within the limits.
pub(crate) fn within_limits(run: fn(&[u8]), input: &[u8]) {
    let (began, held) = (processor_time(), HELD.get());
    PEAK.set(held);
    run(input);
    let (took, most) = (processor_time() - began, PEAK.get() - held);
    assert!(took < TIME, "it took {took:?} of the processor for {} bytes", input.len());
    let bound = MEMORY + MEMORY_PER_BYTE * input.len();
    assert!(most < bound, "it took {most} bytes of memory for {}, bound {bound}", input.len());
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[test]
fn what_is_allocated_is_counted() {
    let peak = |run: fn(&[u8])| {
        let held = HELD.get();
        PEAK.set(held);
        run(b"");
        PEAK.get() - held
    };
    assert!(peak(|_| drop(vec![1_u8; 1 << 20])) >= 1 << 20);
    assert!(peak(|_| {}) < 1 << 10);
}
