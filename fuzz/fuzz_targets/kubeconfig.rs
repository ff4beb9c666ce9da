//! See `fuzz_targets::kubeconfig`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::kubeconfig(data));
