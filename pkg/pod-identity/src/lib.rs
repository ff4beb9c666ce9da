//! Whose network namespace is it? The answer for a pod, from witnesses that neither a pod nor its author can make.
//!
//! Everything that looks for a pod's network namespace asks here: netns discovery of in-pod redirection, the records of
//! ADDs, repair in place, the reconciler of sidecar rules, and reports on pods. Nothing here observes anything: the
//! callers hand in what the runtime recorded, what the node's network shows, and which processes are where.
//!
//! A wrong answer gives one pod's traffic the identity of another, so nothing is guessed: a namespace that cannot be
//! attributed is left alone and reported. docs/security.md has the ranks of witnesses, and what each of them rests on.

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
