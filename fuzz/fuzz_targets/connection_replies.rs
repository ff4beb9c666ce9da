//! See `fuzz_targets::connection_replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::connection_replies(data));
