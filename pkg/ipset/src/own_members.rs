//! How many members this process has added to each set, so that changes of others can be told from its own.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::SetName;

static ADDED: Mutex<BTreeMap<SetName, i64>> = Mutex::new(BTreeMap::new());

/// The numbers, which nobody else changes or reads meanwhile: they are held from before a request until it is answered.
pub(crate) struct OwnMembers(MutexGuard<'static, BTreeMap<SetName, i64>>);

impl OwnMembers {
    pub(crate) fn lock() -> Self {
        Self(ADDED.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns how many more were added than removed.
    pub(crate) fn number(&self, set: &SetName) -> i64 {
        self.0.get(set).copied().unwrap_or_default()
    }

    pub(crate) fn added(&mut self, set: &SetName, members: usize) {
        let members = i64::try_from(members).unwrap_or(i64::MAX);
        let number = self.0.entry(set.clone()).or_default();
        *number = number.saturating_add(members);
    }

    pub(crate) fn removed(&mut self, set: &SetName) {
        let number = self.0.entry(set.clone()).or_default();
        *number = number.saturating_sub(1);
    }

    pub(crate) fn destroyed(&mut self, set: &SetName) {
        let _ = self.0.remove(set);
    }
}
