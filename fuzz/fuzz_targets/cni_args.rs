//! See `fuzz_targets::cni_args`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::cni_args(data));
