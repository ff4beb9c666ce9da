//! See `fuzz_targets::nft_replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::nft_replies(data));
