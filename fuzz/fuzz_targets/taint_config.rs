//! See `fuzz_targets::taint_config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::taint_config(data));
