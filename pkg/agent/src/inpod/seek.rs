//! Namespaces of pods that run already, and of pods whose namespace was replaced.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use inpod::{Found, Sought};
use model::Pod;
use planner::ambient::{Left, Standing};
use tracing::{debug, info};

use super::{InPodWay, captive::Captive, worker::Job};
use crate::{core::Core, pause};

/// Until the next search when a pod has none, at first, and when all have one.
const SOON: Duration = Duration::from_secs(1);
const REGULAR: Duration = Duration::from_secs(30);

impl InPodWay {
    pub(super) fn is_search_wanted(&self) -> bool {
        !self.searched || !self.captives.is_empty()
    }

    pub(super) fn search_if_due(&mut self, core: &Core) {
        if self.seeking || Instant::now() < self.next_search {
            return;
        }
        let mut sought: BTreeMap<String, Sought> = self
            .captives
            .iter()
            .filter(|(_, captive)| captive.waiting.is_empty() && !captive.ips.is_empty())
            .map(|(uid, captive)| (uid.clone(), sought(captive)))
            .collect();
        if !self.searched {
            sought.extend(suspects(core));
        }
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
        self.fruitless = 0;
    }

    /// Twice as long after each search that found not all.
    fn search_later(&mut self) {
        self.fruitless = self.fruitless.saturating_add(1);
        self.next_search = Instant::now() + pause::after(self.fruitless, SOON, REGULAR);
    }

    pub(super) fn found(&mut self, core: &Core, result: Result<BTreeMap<String, Found>, String>) {
        self.seeking = false;
        let found = match result {
            Ok(found) => found,
            Err(error) => {
                self.search_trouble =
                    Some(format!("cannot look for the network namespaces of running pods: {error}"));
                self.search_later();
                return;
            }
        };
        self.searched = true;
        self.search_trouble = None;
        for (uid, Found { netns, others, captured }) in found {
            if captured && !self.captives.contains_key(&uid) {
                self.left_meanwhile(core, &uid);
            }
            let Some(captive) = self.captives.get_mut(&uid).filter(|captive| captive.waiting.is_empty())
            else {
                continue;
            };
            if others > 0 {
                debug!(target: "ambient", "{}: its processes are in {} namespaces", captive.name, others + 1);
            }
            let before = captive.id();
            captive.adopted = captured;
            if captive.found(netns) && before.is_some() {
                info!(target: "ambient", "{} has another network namespace: it is captured again", captive.name);
                captive.container.clear();
                self.metrics.repaired("namespace");
            }
        }
        let lacking = self.captives.values().any(|captive| captive.netns.is_none());
        if lacking { self.search_later() } else { self.next_search = Instant::now() + REGULAR }
    }
}

/// Pods outside of the mesh that may have left it while no agent was here.
fn suspects(core: &Core) -> impl Iterator<Item = (String, Sought)> {
    let out = |pod: &&Pod| match core.standing(pod) {
        Standing::Out(Left::HostNetwork | Left::Terminated | Left::Sidecar) => false,
        Standing::Out(_) => !pod.status.ips().is_empty(),
        _ => false,
    };
    core.index.pods().filter(out).map(|pod| {
        let sought = Sought { uids: pod.runtime_uids(), ips: pod.status.ips(), known: None };
        (pod.metadata.uid.clone(), sought)
    })
}

fn sought(captive: &Captive) -> Sought {
    Sought { uids: captive.uids.clone(), ips: captive.ips.clone(), known: captive.id() }
}
