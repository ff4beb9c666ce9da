//! How much freed memory the C library's allocator keeps.

use std::ffi::c_int;

/// glibc's numbers for `mallopt(3)`.
const M_TRIM_THRESHOLD: c_int = -1;
const M_ARENA_MAX: c_int = -8;
/// glibc's own first value. Once set it stays: else each large block that is freed raises it, up to 64 MiB, and what a look
/// at 250 pods took for a moment is kept for ever.
const TRIM_ABOVE: c_int = 128 << 10;
/// Places to take memory from. Each keeps its own rest, and the daemon's threads seldom work at the same time.
const ARENAS: c_int = 2;

#[expect(unsafe_code, reason = "neither std nor rustix sets the allocator's limits")]
mod c {
    // SAFETY: the signature is that of mallopt in glibc, which std links for this target; it takes any numbers, looks at no
    // memory of ours, and holds the allocator's lock.
    unsafe extern "C" {
        pub(super) safe fn mallopt(param: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
    }
}

/// For a process that lives long, before it has threads. What is refused stays as it was.
pub(crate) fn keep_little() {
    let _ = c::mallopt(M_TRIM_THRESHOLD, TRIM_ABOVE);
    let _ = c::mallopt(M_ARENA_MAX, ARENAS);
}
