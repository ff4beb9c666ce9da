//! See `fuzz_targets::saved_rules`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::saved_rules(data));
