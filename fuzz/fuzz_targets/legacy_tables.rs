//! See `fuzz_targets::legacy_tables`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::legacy_tables(data));
