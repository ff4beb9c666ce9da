//! Changes of the firewall, and what is begun of them while other steps are done.

use std::{
    iter,
    os::fd::AsFd as _,
    thread::{self, JoinHandle},
};

use firewall::{Backend, FamilyChanges, Firewall, WaitingRestore};
use journal::JournalSection;
use netns::Netns;
use node_plan::{NetnsPlace, Operation, ZtunnelSlot};
use rules::ChainSet;

use crate::{Error, NodePath};

/// Restores of a plan that [`NodePath::begin_restores`] has begun. When dropped, those that may not be done yet end without having
/// changed anything. The others are waited for.
#[derive(Debug, Default)]
pub struct PendingRestores(Vec<(NetnsPlace, RestoreThread)>);

/// A thread that starts tools, or does all of a restore.
#[derive(Debug)]
struct RestoreThread(Option<JoinHandle<RestoreProgress>>);

/// How far a restore is.
#[derive(Debug)]
enum RestoreProgress {
    /// The tools wait for their text.
    Loaded(Vec<WaitingRestore>),
    /// The restore was done, or refused.
    Done(Result<(), Error>),
}

impl RestoreThread {
    /// A thread is of the network namespace of the one that makes it. Without one, the step does all of it.
    fn start(work: impl FnOnce() -> RestoreProgress + Send + 'static) -> RestoreThread {
        RestoreThread(thread::Builder::new().name("restore".to_owned()).spawn(work).ok())
    }

    fn join_thread(mut self) -> RestoreProgress {
        let finished = self.0.take().and_then(|thread| thread.join().ok());
        finished.unwrap_or_else(|| RestoreProgress::Loaded(Vec::new()))
    }
}

/// No tool outlives the plan that it was started for.
impl Drop for RestoreThread {
    fn drop(&mut self) {
        drop(self.0.take().map(JoinHandle::join));
    }
}

impl PendingRestores {
    fn take_restore(&mut self, place: NetnsPlace) -> RestoreProgress {
        let found = self.0.iter().position(|(other, _)| *other == place);
        let restoring = found.map(|index| self.0.swap_remove(index).1);
        restoring.map_or_else(|| RestoreProgress::Loaded(Vec::new()), RestoreThread::join_thread)
    }
}

impl NodePath {
    /// Begins what can be begun of a plan's restores, on threads of their own, for tools take longer to start and to end
    /// than all other steps: one that may be done ahead is done, of any other the tools are started. What cannot be
    /// begun is left to its step, which then says why.
    #[must_use]
    pub fn begin_restores(&mut self, steps: &[Operation]) -> PendingRestores {
        let begun = steps.iter().filter_map(|step| match step {
            Operation::Firewall { place, changes, ahead, .. } => {
                let changes = FamilyChanges::from(changes.clone());
                let backend = self.firewall_of(*place).ok()?.as_ref()?.backend();
                self.note_chains(*place, &changes, backend).ok()?;
                Some((*place, self.begin_restore(*place, changes, *ahead)?))
            }
            _ => None,
        });
        PendingRestores(begun.collect())
    }

    fn firewall_of(&mut self, place: NetnsPlace) -> Result<&mut Option<Firewall>, Error> {
        match place {
            NetnsPlace::Node => Ok(&mut self.firewall),
            NetnsPlace::Ztunnel(slot) => Ok(&mut self.located_ztunnel(slot)?.firewall),
        }
    }

    /// Notes which built-in chains there are in the tables of these changes, where it is not noted yet.
    fn note_chains(
        &mut self,
        place: NetnsPlace,
        changes: &FamilyChanges,
        backend: Backend,
    ) -> Result<(), Error> {
        if backend != Backend::Nft {
            return Ok(()); // a legacy table that was used once stays until its namespace ends
        }
        let section = JournalSection::Chains(self.section_owner(place)?);
        let journal = self.journal.clone();
        let tables = changes.changed_tables();
        self.run_at(place, || journal.note_chains(section, &tables))
    }

    /// Removes the built-in chains that were not there before our rules and that are unused. This restores the earlier
    /// state as far as we can.
    pub(crate) fn remove_chains(&mut self, place: NetnsPlace) -> Result<(), Error> {
        let section = JournalSection::Chains(self.section_owner(place)?);
        let journal = self.journal.clone();
        self.run_at(place, || journal.remove_chains(section))
    }

    /// Takes our rules out of the tables of the backend that is not in use, where a run that used it has left them: on
    /// the node, and in the namespaces of the observed slots; tells what. Those of the other should be in place by then.
    ///
    /// # Errors
    /// As [`Firewall::remove_elsewhere`].
    pub fn remove_elsewhere(&mut self) -> Result<Vec<String>, Error> {
        let slots = ZtunnelSlot::BOTH.into_iter().filter(|slot| slot.select_from(&self.slots).is_some());
        let places: Vec<NetnsPlace> =
            iter::once(NetnsPlace::Node).chain(slots.map(NetnsPlace::Ztunnel)).collect();
        let mut removed = Vec::new();
        for place in places {
            let Some(firewall) = self.firewall_of(place)?.clone() else { continue };
            let removed_here = self.run_at(place, || firewall.remove_elsewhere(ChainSet::NODE))?;
            removed.extend(removed_here.into_iter().map(|what| format!("{place}: {what}")));
        }
        Ok(removed)
    }

    fn begin_restore(
        &mut self,
        place: NetnsPlace,
        changes: FamilyChanges,
        ahead: bool,
    ) -> Option<RestoreThread> {
        match place {
            NetnsPlace::Node => {
                let firewall = self.firewall.clone()?;
                Some(RestoreThread::start(move || run_restore(&firewall, &changes, ahead)))
            }
            NetnsPlace::Ztunnel(slot) => {
                let located = self.located_ztunnel(slot).ok()?;
                let firewall = located.firewall.clone()?;
                let netns = Netns::from_fd(located.netns.as_fd().try_clone_to_owned().ok()?).ok()?;
                let inside = move || netns.run_in(|| run_restore(&firewall, &changes, ahead));
                Some(RestoreThread::start(move || {
                    inside().unwrap_or_else(|error| RestoreProgress::Done(Err(error.into())))
                }))
            }
        }
    }

    /// Ends the restore of a place, by the backend that the observation chose; without one it looks itself.
    pub(crate) fn finish_restore(
        &mut self,
        place: NetnsPlace,
        changes: &FamilyChanges,
        begun: &mut PendingRestores,
    ) -> Result<(), Error> {
        let waiting = match begun.take_restore(place) {
            RestoreProgress::Done(done) => return done,
            RestoreProgress::Loaded(waiting) => waiting,
        };
        let options = self.options.clone();
        let opened = self.firewall_of(place)?.take();
        let opened = match opened {
            Some(opened) => opened,
            None => self.run_at(place, || Firewall::open(&options))?.0,
        };
        self.note_chains(place, changes, opened.backend())?;
        self.run_at(place, || opened.apply(changes, waiting).map(drop))
    }
}

/// Does all of a restore that is `ahead`; of another, starts the tools.
fn run_restore(firewall: &Firewall, changes: &FamilyChanges, ahead: bool) -> RestoreProgress {
    if ahead {
        return RestoreProgress::Done(firewall.apply(changes, Vec::new()).map(drop).map_err(Error::from));
    }
    let start = |family| firewall.start_restore(family).ok().flatten();
    RestoreProgress::Loaded(changes.changed_families().filter_map(start).collect())
}
