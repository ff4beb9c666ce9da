//! See `fuzz_targets::set_replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::set_replies(data));
