//! What a fuzzer feeds: one function per kind of text or message that reaches us from outside, which takes any bytes and panics
//! when a promise is broken. Called by `fuzz/fuzz_targets` (cargo-fuzz, nightly) and by this crate's own short test
//! (`cargo test -p fuzz-targets`). No I/O.

mod annotations;
mod cni;
mod conflist;
mod kubeconfig;
mod saved_rules;
mod set_replies;

pub use annotations::annotations;
pub use cni::{cni_args, cni_stdin};
pub use conflist::conflist;
pub use kubeconfig::kubeconfig;
pub use saved_rules::saved_rules;
pub use set_replies::set_replies;
