//! What the plugin asks for.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use model::{Family, PodName};
use planner::node::Slot;

use crate::{
    ledger::Attachment,
    owner::{Known, Level, Owner, Reply},
};

/// Nobody waits as long for a pod.
const FORGOTTEN: Duration = Duration::from_secs(2);

impl Owner {
    /// Answers those who wait for a pod that is known now, and forgets those who have given up.
    pub(crate) fn answer_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for who in waiting.into_iter().filter(|who| who.since.elapsed() < FORGOTTEN) {
            match self.known(&who.name, &who.uid) {
                Some(known) => drop(who.reply.send(known)),
                None => self.waiting.push(who),
            }
        }
    }

    fn known(&self, name: &PodName, uid: &str) -> Option<Known> {
        let pod = self.index.pod(name).filter(|pod| uid.is_empty() || pod.has_runtime_uid(uid))?;
        let namespace = self.index.namespace(&name.namespace)?;
        Some((Box::new(pod.clone()), Some(namespace.clone())))
    }

    /// Enrols at once where everything stands ready, else with the next turn, which makes it so.
    pub(crate) fn enrol(
        &mut self,
        container: &str,
        attachment: Attachment,
        reply: Reply<Result<(), String>>,
    ) {
        self.is_dirty(Level::Members);
        if let Some(active) = self.ready_for(&attachment.ips) {
            let done = self.members.enrol(&attachment.ips, &attachment.uid, active, self.fallback);
            drop(reply.send(done.map_err(|error| error.to_string())));
        } else {
            self.is_dirty(Level::Whole);
            self.joining.push(reply);
        }
        self.ledger.added(container, attachment);
    }

    /// Notes the addresses of a pod outside of ambient mode. If an earlier pod is still captured by one of them, the next
    /// turn ends that, and is waited for.
    pub(crate) fn pass_by(
        &mut self,
        container: &str,
        attachment: Attachment,
        reply: Reply<Result<(), String>>,
    ) {
        let captured = |ip| self.verified.as_ref().is_some_and(|seen| seen.desired.members.contains_key(ip));
        if attachment.ips.iter().any(captured) {
            self.is_dirty(Level::Members);
            self.joining.push(reply);
        } else {
            drop(reply.send(Ok(())));
        }
        self.ledger.added(container, attachment);
    }

    /// Whether rules, sets and ways of these addresses' families were there when last looked: the active slot, then.
    fn ready_for(&self, ips: &[IpAddr]) -> Option<Option<Slot>> {
        let verified = self.verified.as_ref()?;
        let families = verified.desired.families();
        let all = ips.iter().all(|ip| families.contains(&Family::of(*ip)));
        // A ztunnel that serves one family only leaves the other held.
        let served = |ip: &IpAddr| verified.desired.active_for(Family::of(*ip)).is_some();
        let uniform = verified.desired.active.is_none() || ips.iter().all(served);
        (all && uniform && verified.desired.fallback == self.fallback).then_some(verified.desired.active)
    }

    pub(crate) fn release(&mut self, container: &str, told: Attachment) -> Result<(), String> {
        let gone = self.ledger.deleted(container, told);
        self.is_dirty(Level::Members);
        self.members.release(&gone.ips, &gone.uid).map(drop).map_err(|error| error.to_string())
    }

    pub(crate) fn check(&mut self, uid: &str, ips: &[IpAddr]) -> Result<(), String> {
        self.members.check(ips, uid)?;
        self.status.ready()
    }

    pub(crate) fn collect(&mut self, attachments: &BTreeSet<String>) -> Result<(), String> {
        for container in self.ledger.without(attachments) {
            self.release(&container, Attachment::default())?;
        }
        Ok(())
    }
}
