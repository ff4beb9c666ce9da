//! What people and the control plane learn of the pods: annotations and numbers.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use model::{Family, Pod};
use planner::{
    ambient::{AMBIENT_REDIRECTION, Standing, standing},
    node::{Desired, Observed},
};

use crate::{owner::Owner, settings::Mark};

/// The value of a pod that is captured.
const ENABLED: &str = "enabled";
/// After this time a mark that the API does not show is told again.
const AGAIN: Duration = Duration::from_secs(20);

impl Owner {
    /// Marks pods by what the kernel showed just now, and counts them.
    pub(crate) fn told_apart(&mut self, desired: &Desired, observed: &Observed) {
        let (mut enrolled, mut pending) = (0, 0);
        let mut refused: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut marks = Vec::new();
        for pod in self.index.pods() {
            let captured =
                match standing(pod, self.index.namespace(&pod.metadata.namespace), &self.settings.policy) {
                    Standing::Member { ips, .. } => is_captured(&ips, &pod.metadata.uid, desired, observed),
                    Standing::Pending(_) => {
                        pending += 1;
                        continue; // nothing may be said of it yet
                    }
                    Standing::Out(reason) => {
                        if reason.refused() {
                            *refused.entry(reason.code()).or_default() += 1;
                        }
                        false
                    }
                };
            enrolled += usize::from(captured);
            marks.extend(mark(pod, captured));
        }
        self.metrics.pods(enrolled, pending);
        self.metrics.refused(&refused);
        for family in Family::BOTH {
            self.metrics.set_size(family, observed.sets.get(&family).map_or(0, BTreeMap::len));
        }
        self.tell_marks(marks);
    }

    /// Tells marks that the API does not show, each once, and again when it still does not.
    fn tell_marks(&mut self, marks: Vec<Mark>) {
        let wanted: BTreeMap<&str, bool> =
            marks.iter().map(|mark| (mark.uid.as_str(), mark.captured)).collect();
        self.told.retain(|uid, (captured, _)| wanted.get(uid.as_str()) == Some(captured));
        for mark in marks {
            let told = self.told.get(&mark.uid).is_some_and(|(_, when)| when.elapsed() < AGAIN);
            if !told {
                self.told.insert(mark.uid.clone(), (mark.captured, Instant::now()));
                (self.tell)(mark);
            }
        }
    }

    /// Marks every pod as not captured: nothing of us will be left.
    pub fn unmark_all(&self) {
        self.index.pods().filter_map(|pod| mark(pod, false)).for_each(|mark| (self.tell)(mark));
    }
}

fn is_captured(ips: &[IpAddr], uid: &str, desired: &Desired, observed: &Observed) -> bool {
    ips.iter().all(|ip| {
        let in_set = observed.sets.get(&Family::of(*ip)).is_some_and(|members| members.contains_key(ip));
        in_set && desired.members.get(ip).is_some_and(|owner| owner == uid)
    })
}

/// None if the annotation says so already.
fn mark(pod: &Pod, captured: bool) -> Option<Mark> {
    let shown = pod.metadata.annotations.get(AMBIENT_REDIRECTION).is_some_and(|value| value == ENABLED);
    (shown != captured).then(|| Mark { pod: pod.name(), uid: pod.metadata.uid.clone(), captured })
}
