//! Namespaces of pods that run already, and of pods whose namespace was replaced.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use inpod::{Found, Sought};
use tracing::{debug, info, warn};

use super::{InPodWay, captive::Captive, worker::Job};

/// Between two searches while a pod has none, and while all have one.
const SOON: Duration = Duration::from_secs(1);
const REGULAR: Duration = Duration::from_secs(30);

impl InPodWay {
    pub(super) fn is_search_wanted(&self) -> bool {
        !self.searched || !self.captives.is_empty()
    }

    pub(super) fn search_if_due(&mut self) {
        if self.seeking || Instant::now() < self.next_search {
            return;
        }
        let sought: BTreeMap<String, Sought> = self
            .captives
            .iter()
            .filter(|(_, captive)| captive.waiting.is_empty() && !captive.ips.is_empty())
            .map(|(uid, captive)| (uid.clone(), sought(captive)))
            .collect();
        if sought.is_empty() {
            self.searched = true;
            self.next_search = Instant::now() + REGULAR;
            return;
        }
        self.seeking = true;
        self.workers.send(Job::Search(sought), !self.searched);
    }

    /// A pod that has no namespace, or lost it, is looked for now.
    pub(super) fn search_soon(&mut self) {
        self.next_search = self.next_search.min(Instant::now());
    }

    pub(super) fn found(&mut self, result: Result<BTreeMap<String, Found>, String>) {
        self.seeking = false;
        let found = match result {
            Ok(found) => found,
            Err(error) => {
                warn!(target: "ambient", "cannot look for the namespaces of running pods: {error}");
                self.next_search = Instant::now() + SOON;
                return;
            }
        };
        self.searched = true;
        for (uid, Found { netns, others }) in found {
            let Some(captive) = self.captives.get_mut(&uid).filter(|captive| captive.waiting.is_empty())
            else {
                continue;
            };
            if others > 0 {
                debug!(target: "ambient", "{}: its processes are in {} namespaces", captive.name, others + 1);
            }
            let before = captive.id();
            if captive.found(netns) && before.is_some() {
                info!(target: "ambient", "{} has another network namespace: it is captured again", captive.name);
                captive.container.clear();
                self.metrics.repaired("namespace");
            }
        }
        let lacking = self.captives.values().any(|captive| captive.netns.is_none());
        self.next_search = Instant::now() + if lacking { SOON } else { REGULAR };
    }
}

fn sought(captive: &Captive) -> Sought {
    Sought { uids: captive.uids.clone(), ips: captive.ips.clone(), known: captive.id() }
}
