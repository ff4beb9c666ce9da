//! Pods that bypass the mesh by rules of their own, and those that could: counted, and reported once.

use std::{collections::BTreeMap, time::Instant};

use model::NetworkPrivilege;

use super::InPodWay;
use crate::core::Core;

impl InPodWay {
    /// What is known of all captives by now.
    pub(super) fn tell_bypasses(&self, core: &mut Core) {
        let (mut privileges, mut overruled) = (BTreeMap::<NetworkPrivilege, usize>::new(), 0);
        let now = Instant::now();
        for (uid, captive) in self.captives.iter().filter(|(_, captive)| !captive.leaving) {
            *privileges.entry(captive.privilege).or_default() += 1;
            core.notices.can_bypass(&captive.name, uid, captive.privilege);
            if captive.seen.is_none() {
                continue; // what was found before counts until it is looked at again
            }
            let found: Vec<&str> = captive.bypasses().collect();
            overruled += usize::from(!found.is_empty());
            core.notices.overruled(&captive.name, uid, &found.join("; "), now);
        }
        core.notices.forget_bypasses(|uid| self.captives.contains_key(uid));
        core.metrics.bypasses(&privileges, overruled);
    }
}
