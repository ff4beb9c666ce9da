//! Pods that bypass the mesh by rules of their own, and pods that could: counted, and each reported once.

use std::{collections::BTreeMap, time::Instant};

use model::NetworkPrivilege;

use super::InPodCapture;
use agent::{AgentState, ChangedPods, RulesPlace, join_reasons};

impl InPodCapture {
    /// Counts bypassing pods, and reports new ones. `only`: no other pods changed.
    pub(crate) fn report_bypasses(&self, state: &mut AgentState, only: Option<&ChangedPods>) {
        let (mut privileges, mut overruled) = (BTreeMap::<NetworkPrivilege, usize>::new(), 0);
        let (mut outside, mut ambiguous, mut excepted) = (0, 0, 0);
        let now = Instant::now();
        for (uid, enrolled_pod) in
            self.enrolled.iter().filter(|(_, enrolled_pod)| !enrolled_pod.lifecycle.is_leaving())
        {
            *privileges.entry(enrolled_pod.privilege).or_default() += 1;
            ambiguous += usize::from(enrolled_pod.ambiguity.is_some());
            excepted += usize::from(enrolled_pod.options.has_exceptions());
            overruled += usize::from(enrolled_pod.overruling_rules().next().is_some());
            outside += enrolled_pod
                .observed_rules
                .iter()
                .map(|rules| rules.bypassing_connections().count)
                .sum::<usize>();
            if only.is_some_and(|changed| !changed.pods.contains_key(uid)) {
                continue;
            }
            state.notices.refused_exceptions(&enrolled_pod.name, uid, &enrolled_pod.refused_exceptions);
            state.notices.can_bypass(&enrolled_pod.name, uid, enrolled_pod.privilege);
            if enrolled_pod.observed_rules.is_none() {
                continue; // the last result remains valid until the next observation
            }
            let what = join_reasons(enrolled_pod.overruling_rules());
            state.notices.report_overruled(&enrolled_pod.name, uid, (RulesPlace::Pod, &what), now);
        }
        if only.is_none() {
            state.notices.forget_bypasses(|uid| self.enrolled.contains_key(uid));
        }
        state.metrics.set_bypasses(&privileges, overruled, outside);
        state.metrics.set_ambiguous_pods(ambiguous);
        state.metrics.set_excepted_pods(excepted);
    }
}
