//! Attribution of network namespaces to pods, by witnesses that neither a pod nor its author can forge.
//!
//! Every component that searches for a pod's network namespace uses this crate: netns discovery of in-pod capture,
//! the records of ADDs, repair in place, the reconciler of sidecar rules, and reports on pods. Nothing here observes
//! anything: callers pass what the runtime recorded, what the node's network shows, and the namespaces of processes.
//!
//! A wrong attribution gives one pod's traffic the identity of another, so nothing is guessed: a namespace that cannot
//! be attributed is left unchanged and reported. docs/security.md has the ranks of witnesses, and what each of them
//! rests on.

mod choose;
mod pods;
mod process;
mod records;

pub use choose::{
    Ambiguity, AmbiguityStreak, Candidate, Identity, NodePath, Witness, choose_by_address, choose_netns,
    combine_paths,
};
pub use pods::{KnownPods, PodIds, ProcessOwner};
pub use process::names_a_pod;
pub use records::{belongs_to, newest_by_pod};
