//! See `fuzz_targets::route_replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::route_replies(data));
