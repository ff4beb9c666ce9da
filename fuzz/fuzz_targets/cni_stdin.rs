//! See `fuzz_targets::cni_stdin`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::cni_stdin(data));
