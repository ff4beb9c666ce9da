//! Members that this process has added to each set, so that foreign changes can be distinguished from its own.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::SetName;

static ADDED: Mutex<BTreeMap<SetName, MemberSum>> = Mutex::new(BTreeMap::new());

/// Sum of a set's members, independent of their order. Removed members count negatively.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberSum {
    pub(crate) number: i64,
    /// Sum of the members' hashes.
    pub(crate) hashes: u64,
}

impl MemberSum {
    pub(crate) fn add(&mut self, ip: IpAddr) {
        self.number = self.number.saturating_add(1);
        self.hashes = self.hashes.wrapping_add(hash(ip));
    }

    fn remove(&mut self, ip: IpAddr) {
        self.number = self.number.saturating_sub(1);
        self.hashes = self.hashes.wrapping_sub(hash(ip));
    }
}

fn hash(ip: IpAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    ip.hash(&mut hasher);
    hasher.finish()
}

/// The sums, locked from before a request until its reply, so that no other thread changes or reads them meanwhile.
pub(crate) struct OwnMembers(MutexGuard<'static, BTreeMap<SetName, MemberSum>>);

impl OwnMembers {
    pub(crate) fn lock() -> Self {
        Self(ADDED.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the sum of added members, less removed ones.
    pub(crate) fn member_sum(&self, set: &SetName) -> MemberSum {
        self.0.get(set).copied().unwrap_or_default()
    }

    pub(crate) fn record_add(&mut self, set: &SetName, ip: IpAddr) {
        self.0.entry(set.clone()).or_default().add(ip);
    }

    pub(crate) fn record_remove(&mut self, set: &SetName, ip: IpAddr) {
        self.0.entry(set.clone()).or_default().remove(ip);
    }

    pub(crate) fn record_destroy(&mut self, set: &SetName) {
        let _ = self.0.remove(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_does_not_depend_on_the_order_and_shows_that_a_member_was_replaced() {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let sum = |added: &[u8], removed: &[u8]| {
            let mut sum = MemberSum::default();
            added.iter().for_each(|last| sum.add(ip(*last)));
            removed.iter().for_each(|last| sum.remove(ip(*last)));
            sum
        };
        assert_eq!(sum(&[1, 2, 3], &[]), sum(&[3, 1, 2], &[]));
        assert_eq!(sum(&[1, 2, 3], &[3]), sum(&[2, 1], &[]));
        assert_eq!(sum(&[], &[1]).number, -1);
        let (before, replaced) = (sum(&[1, 2], &[]), sum(&[1, 3], &[]));
        assert!(before.number == replaced.number && before != replaced);
    }
}
