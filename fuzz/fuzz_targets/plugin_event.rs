//! See `fuzz_targets::plugin_event`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::plugin_event(data));
