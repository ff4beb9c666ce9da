//! Restores of the firewall, and what is begun of them while other steps are done.

use std::{
    os::fd::AsFd as _,
    thread::{self, JoinHandle},
};

use model::Family;
use netfilter::{Firewall, Waiting};
use netns::Netns;
use planner::node::{Operation, Place};

use crate::{Error, NodePath};

type Texts = Vec<(Family, String)>;

/// What was begun of a plan's restores, by [`NodePath::begin`]. Dropped, those that may not be done yet end and have
/// changed nothing; the others are waited for.
#[derive(Debug, Default)]
pub struct Begun(Vec<(Place, Restoring)>);

/// A thread that starts tools, or does all of a restore.
#[derive(Debug)]
struct Restoring(Option<JoinHandle<Progress>>);

/// How far a restore is.
#[derive(Debug)]
enum Progress {
    /// The tools wait for their text.
    Loaded(Vec<Waiting>),
    /// It was done, or refused.
    Done(Result<(), Error>),
}

impl Restoring {
    /// A thread is of the network namespace of the one that makes it. Without one, the step does all of it.
    fn start(work: impl FnOnce() -> Progress + Send + 'static) -> Restoring {
        Restoring(thread::Builder::new().name("restore".to_owned()).spawn(work).ok())
    }

    fn finish(mut self) -> Progress {
        let finished = self.0.take().and_then(|thread| thread.join().ok());
        finished.unwrap_or_else(|| Progress::Loaded(Vec::new()))
    }
}

/// No tool outlives the plan that it was started for.
impl Drop for Restoring {
    fn drop(&mut self) {
        drop(self.0.take().map(JoinHandle::join));
    }
}

impl Begun {
    fn take(&mut self, place: Place) -> Progress {
        let found = self.0.iter().position(|(other, _)| *other == place);
        let restoring = found.map(|index| self.0.swap_remove(index).1);
        restoring.map_or_else(|| Progress::Loaded(Vec::new()), Restoring::finish)
    }
}

impl NodePath {
    /// Begins what can be begun of a plan's restores, on threads of their own, for tools take longer to start and to end
    /// than all other steps: one that may be done ahead is done, of any other the tools are started. What cannot be
    /// begun is left to its step, which then says why.
    #[must_use]
    pub fn begin(&mut self, steps: &[Operation]) -> Begun {
        let begun = steps.iter().filter_map(|step| match step {
            Operation::Firewall { place, texts, ahead, .. } => {
                Some((*place, self.begin_restore(*place, texts.clone(), *ahead)?))
            }
            _ => None,
        });
        Begun(begun.collect())
    }

    fn begin_restore(&mut self, place: Place, texts: Texts, ahead: bool) -> Option<Restoring> {
        let work = move |firewall: &Firewall| {
            if ahead {
                Progress::Done(firewall.restore(&texts, Vec::new()).map_err(Error::from))
            } else {
                let started = texts.iter().filter_map(|(family, _)| firewall.start_restore(*family).ok());
                Progress::Loaded(started.collect())
            }
        };
        match place {
            Place::Node => {
                let firewall = self.firewall.clone()?;
                Some(Restoring::start(move || work(&firewall)))
            }
            Place::Ztunnel(slot) => {
                let located = self.ztunnel(slot).ok()?;
                let firewall = located.firewall.clone()?;
                let netns = Netns::from_fd(located.netns.as_fd().try_clone_to_owned().ok()?).ok()?;
                let inside = move || netns.run_in(|| work(&firewall));
                Some(Restoring::start(move || {
                    inside().unwrap_or_else(|error| Progress::Done(Err(error.into())))
                }))
            }
        }
    }

    /// Ends the restore of a place, by the backend that the observation chose; without one it looks itself.
    pub(crate) fn restore(
        &mut self,
        place: Place,
        texts: &[(Family, String)],
        begun: &mut Begun,
    ) -> Result<(), Error> {
        let waiting = match begun.take(place) {
            Progress::Done(done) => return done,
            Progress::Loaded(waiting) => waiting,
        };
        let options = self.options.clone();
        let act = |firewall: Option<Firewall>| {
            let opened = firewall.map_or_else(|| Firewall::open(&options).map(|(opened, _)| opened), Ok)?;
            opened.restore(texts, waiting)
        };
        match place {
            Place::Node => Ok(act(self.firewall.take())?),
            Place::Ztunnel(slot) => {
                let located = self.ztunnel(slot)?;
                let firewall = located.firewall.take();
                Ok(located.netns.run_in(|| act(firewall))??)
            }
        }
    }
}
