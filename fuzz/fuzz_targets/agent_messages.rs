//! See `fuzz_targets::agent_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::agent_messages(data));
