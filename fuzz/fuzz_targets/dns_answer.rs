//! See `fuzz_targets::dns_answer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::dns_answer(data));
