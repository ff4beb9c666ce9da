//! See `fuzz_targets::log_post`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::log_post(data));
