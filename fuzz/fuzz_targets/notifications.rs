//! See `fuzz_targets::notifications`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::notifications(data));
