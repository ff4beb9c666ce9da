//! See `fuzz_targets::pod_object`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::pod_object(data));
