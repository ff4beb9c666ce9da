//! Transitions of a pod's life cycle: state changes and actions of each event. docs/in-pod-internals.md has them as a table.

use model::Reason;

use super::{AgentTime, BACKOFF, Lifecycle, OBSERVE, PodAction, PodEvent, RulesState, stability::Stability};

impl<N: Copy + PartialEq> Lifecycle<N> {
    /// Applies an event, and returns the resulting actions, in the order of execution.
    #[must_use]
    pub fn apply_event(&mut self, event: PodEvent<N>, now: AgentTime) -> Vec<PodAction> {
        match event {
            PodEvent::Added { netns, deadline } => {
                self.leaving = false;
                self.due = now;
                self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
                self.set_netns(netns);
                self.begin_capture().into_iter().chain(self.answer_served()).collect()
            }
            PodEvent::Joined { changed } => {
                if changed {
                    self.changed = Some(now);
                }
                let returns = std::mem::take(&mut self.leaving);
                if returns {
                    self.due = now; // only a failed release is delayed, not this one
                }
                if (changed || returns) && self.is_ruled() { self.begin_capture() } else { Vec::new() }
            }
            PodEvent::Opened(open) => {
                if std::mem::replace(&mut self.open, open) == open {
                    return Vec::new();
                }
                self.rules = RulesState::Absent; // existing rules have the other options
                if self.leaving { Vec::new() } else { self.begin_capture() }
            }
            PodEvent::Left(why) => self.leave_mesh(why.as_str(), now),
            PodEvent::LeftMeanwhile => {
                self.leaving = true;
                Vec::new()
            }
            PodEvent::Found { netns, captured } if !self.is_awaited() => {
                self.adopted = captured;
                let had_other = self.netns.is_some();
                if self.set_netns(netns) && had_other { vec![PodAction::Moved] } else { Vec::new() }
            }
            PodEvent::Found { .. } => Vec::new(), // the ADD takes precedence
            PodEvent::DiscoveryDone { there } => {
                self.empty = self.empty.or(Some(now)).filter(|_| !there);
                Vec::new()
            }
            PodEvent::Captured(netns, result) => {
                self.end_outdated_step(netns).unwrap_or_else(|| self.finish_capture(result, now))
            }
            PodEvent::Observed(netns, result) => {
                self.end_outdated_step(netns).unwrap_or_else(|| self.finish_observation(result, now))
            }
            PodEvent::Contested(netns, restored) => {
                self.end_outdated_step(netns).unwrap_or_else(|| self.continue_conflict(restored, now))
            }
            PodEvent::Changed(netns) => self.netns_changed(netns, now),
            PodEvent::Released(netns, result) => self.finish_release(netns, result, now),
            PodEvent::Accepted(netns) if self.netns == Some(netns) => {
                (self.served, self.announced, self.refused) = (true, false, None);
                self.announce_pod().into_iter().chain(self.answer_served()).collect()
            }
            PodEvent::Refused(netns, why) if self.netns == Some(netns) => {
                (self.served, self.announced, self.refused) = (false, false, Some(why.clone()));
                if self.is_awaited() { self.abandon_add(why, now) } else { Vec::new() }
            }
            PodEvent::Accepted(_) | PodEvent::Refused(..) => Vec::new(), // it has another namespace by now
            PodEvent::Expired(why) => self.abandon_add(why, now),
        }
    }

    /// Sets the pod's network namespace. Returns whether it has changed.
    fn set_netns(&mut self, netns: N) -> bool {
        if self.netns == Some(netns) {
            return false;
        }
        self.netns = Some(netns);
        self.rules = RulesState::Absent;
        (self.served, self.refused) = (false, None);
        self.announce = false;
        // Failures in the other namespace prove nothing about this one.
        self.record_success();
        (self.doubts, self.stability) = (0, Stability::default());
        (self.due, self.changing) = (AgentTime::ZERO, false);
        true
    }

    fn leave_mesh(&mut self, why: &str, now: AgentTime) -> Vec<PodAction> {
        if std::mem::replace(&mut self.leaving, true) {
            return Vec::new();
        }
        self.due = now;
        let mut actions = self.answer_add(Err(format!("it does not belong to the mesh: {why}").into()));
        // A namespace that was not found has none of our objects, unless a previous agent created them.
        if self.netns.is_none() && !self.marked {
            actions.push(PodAction::Forget(why.into()));
        }
        actions
    }

    fn finish_capture(&mut self, result: Result<bool, Reason>, now: AgentTime) -> Vec<PodAction> {
        match result {
            Ok(changed) => {
                // An earlier observation does not cover what was just applied.
                self.rules = if changed { RulesState::Applied } else { self.rules.max(RulesState::Applied) };
                self.record_success();
                [PodAction::Serve].into_iter().chain(self.answer_served()).collect()
            }
            Err(why) if self.is_awaited() => self.abandon_add(why, now),
            Err(why) => {
                self.record_failure(why, now);
                // Existing rules may have other options.
                self.observe = self.observe.min(self.due);
                Vec::new()
            }
        }
    }

    fn finish_observation(&mut self, result: Result<bool, Reason>, now: AgentTime) -> Vec<PodAction> {
        match result {
            Ok(repaired) => {
                self.rules = RulesState::Verified;
                self.doubts = 0;
                self.record_success();
                self.stability.record_observation(repaired, now);
                if let Some(recheck) = self.stability.recheck_delay() {
                    self.observe = self.observe.min(now + recheck);
                }
                self.announce_pod()
            }
            // Successful application does not end the doubt.
            Err(why) => {
                self.rules = RulesState::Absent;
                self.record_failure(why, now);
                self.stability.record_failure();
                self.doubts = self.doubts.saturating_add(1);
                self.due = self.due.max(now + BACKOFF.delay_after(self.doubts));
                Vec::new()
            }
        }
    }

    /// Schedules another observation of a pod whose writer is faster than an observation, at the rate of [`ChangePace`].
    ///
    /// [`ChangePace`]: retry::ChangePace
    fn continue_conflict(&mut self, restored: bool, now: AgentTime) -> Vec<PodAction> {
        self.rules = RulesState::Applied;
        self.record_success();
        if restored {
            self.doubts = 0;
            self.stability.record_conflict(now);
        } else {
            self.doubts = self.doubts.saturating_add(1);
            self.stability.record_failure();
        }
        self.due = self.pace.next_observation(now);
        (self.observe, self.changing) = (self.due, true);
        Vec::new()
    }

    /// Schedules an immediate observation of the pod's rules, or, if changes continue, one at the rate of [`ChangePace`]. After a
    /// failure, whose cause may have ended, the next attempt follows at that rate.
    ///
    /// [`ChangePace`]: retry::ChangePace
    fn netns_changed(&mut self, netns: N, now: AgentTime) -> Vec<PodAction> {
        if self.netns != Some(netns) || self.leaving || self.busy || (self.is_ruled() && self.changing) {
            return Vec::new();
        }
        if !self.is_ruled() {
            let mut pace = self.pace;
            let begins = pace.next_observation(now);
            if begins < self.due {
                (self.pace, self.due) = (pace, begins);
            }
            return Vec::new();
        }
        let begins = self.pace.next_observation(now).max(self.due);
        if begins > now {
            (self.observe, self.changing) = (self.observe.min(begins), true);
            return Vec::new();
        }
        (self.busy, self.observe) = (true, now + OBSERVE);
        vec![PodAction::Observe]
    }

    /// Returns the actions if the step that has ended is outdated: the pod is leaving, or its namespace or options have changed.
    fn end_outdated_step(&mut self, netns: N) -> Option<Vec<PodAction>> {
        self.busy = false;
        let again = std::mem::take(&mut self.again);
        if self.leaving {
            return Some(Vec::new()); // its release is the next action
        }
        (again || self.netns != Some(netns)).then(|| self.begin_capture())
    }

    fn finish_release(&mut self, netns: N, result: Result<(), Reason>, now: AgentTime) -> Vec<PodAction> {
        self.busy = false;
        self.again = false;
        // Some steps of a failed release may have succeeded.
        self.rules = RulesState::Absent;
        // If its namespace has changed, there may be rules in the new one, too.
        let is_released = result.is_ok() && self.netns == Some(netns);
        result.err().into_iter().for_each(|why| self.record_failure(why, now));
        match self.leaving {
            false => self.begin_capture(), // it joined again meanwhile
            true if is_released => vec![PodAction::Forget("it has left the mesh".into())],
            true => Vec::new(),
        }
    }

    fn begin_capture(&mut self) -> Vec<PodAction> {
        if self.netns.is_none() {
            return Vec::new();
        }
        if self.busy {
            self.again = true;
            return Vec::new();
        }
        self.busy = true;
        vec![PodAction::Capture]
    }

    fn answer_add(&mut self, result: Result<(), Reason>) -> Vec<PodAction> {
        self.deadline.take().map(|_| PodAction::Answer(result)).into_iter().collect()
    }

    fn answer_served(&mut self) -> Vec<PodAction> {
        let is_done = self.is_ruled() && (self.served || self.open);
        if is_done { self.answer_add(Ok(())) } else { Vec::new() }
    }

    fn announce_pod(&mut self) -> Vec<PodAction> {
        let is_certain = self.rules == RulesState::Verified && !self.is_unstable();
        let captured = is_certain && self.served && !self.leaving && !self.open;
        if captured && !std::mem::replace(&mut self.announce, true) {
            vec![PodAction::Announce]
        } else {
            Vec::new()
        }
    }

    /// Abandons a failed ADD: objects that it created end with its sandbox. The pod's rules stay, so that its traffic cannot bypass
    /// the mesh; if the pod runs nevertheless, it is found and captured like any running pod.
    fn abandon_add(&mut self, why: Reason, now: AgentTime) -> Vec<PodAction> {
        let mut actions = self.answer_add(Err(why.clone()));
        self.record_failure(why.clone(), now);
        if !self.served {
            actions.push(PodAction::Forget(why));
        }
        actions
    }

    fn record_failure(&mut self, why: Reason, now: AgentTime) {
        self.due = now + self.attempts.record_failure();
        self.problem = Some(why);
    }

    fn record_success(&mut self) {
        self.attempts.record_success();
        self.problem = None;
    }
}
