//! See `fuzz_targets::http_response`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::http_response(data));
