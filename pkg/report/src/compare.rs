//! Comparison of desired and observed state.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

/// Desired state, observed state, and the differences between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Comparison<T> {
    /// Desired objects.
    pub desired: Vec<T>,
    /// Objects in the kernel; `None`: the kernel could not be queried, see `observation.unobserved`.
    pub observed: Option<Vec<T>>,
    /// Differences between the two; empty as well if the kernel could not be queried.
    pub differences: Vec<StateDifference>,
}

/// One difference from the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateDifference {
    /// Kind of the difference: `missing`, `unexpected` or `changed`.
    pub kind: DifferenceKind,
    /// IP family concerned, 4 or 6; `None`: both, or neither in particular.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<u8>,
    /// Object that differs, in the notation of the kernel's own tools where they have one.
    pub object: String,
}

impl StateDifference {
    /// Whether the difference matters for packets of this family, 4 or 6.
    pub fn concerns_family(&self, family: u8) -> bool {
        self.family.is_none_or(|of| of == family)
    }
}

model::word_enum! {
    /// Kind of a difference.
    #[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum DifferenceKind {
        /// The object is desired, and missing.
        Missing = "missing",
        /// The object is ours, and not desired.
        Unexpected = "unexpected",
        /// The object differs from the desired form.
        #[default]
        #[serde(other)]
        Changed = "changed",
    }
}

impl fmt::Display for StateDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.object)
    }
}

/// An object that may concern one IP family only.
pub trait OfFamily {
    /// Returns 4 or 6; `None`: both, or none in particular.
    fn family(&self) -> Option<u8> {
        None
    }
}

impl<T: Ord + OfFamily + fmt::Display> Comparison<T> {
    /// Compares two lists as sets; each list keeps its order.
    pub fn compare_sets(desired: Vec<T>, observed: Vec<T>) -> Comparison<T> {
        let (want, have): (BTreeSet<&T>, BTreeSet<&T>) =
            (desired.iter().collect(), observed.iter().collect());
        let to_difference =
            |kind| move |what: &&T| StateDifference { kind, family: what.family(), object: what.to_string() };
        let missing = want.difference(&have).map(to_difference(DifferenceKind::Missing));
        let unexpected = have.difference(&want).map(to_difference(DifferenceKind::Unexpected));
        let differences = missing.chain(unexpected).collect();
        Comparison { desired, observed: Some(observed), differences }
    }
}

impl<T> Comparison<T> {
    /// Whether objects are desired, and the kernel could not be queried for them.
    pub(crate) fn lacks_observation(&self) -> bool {
        self.observed.is_none() && !self.desired.is_empty()
    }

    /// Returns a comparison for a kernel that could not be queried.
    pub fn without_observation(desired: Vec<T>) -> Comparison<T> {
        Comparison { desired, observed: None, differences: Vec::new() }
    }
}
