//! See `fuzz_targets::zds_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::zds_messages(data));
