//! An epoll instance whose sources are identified by numbers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

pub(crate) use rustix::event::epoll::EventFlags;

/// Watches sources, level-triggered.
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Changes the events of a source from `known` to `wanted`. A source without events is removed, so that an error that no caller
    /// handles does not make the loop spin.
    pub(crate) fn change(
        &self,
        source: impl AsFd,
        key: u64,
        known: &mut EventFlags,
        wanted: EventFlags,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        match (known.is_empty(), wanted.is_empty()) {
            _ if *known == wanted => {}
            (true, _) => epoll::add(&self.0, source, data, wanted)?,
            (false, true) => epoll::delete(&self.0, source)?,
            (false, false) => epoll::modify(&self.0, source, data, wanted)?,
        }
        *known = wanted;
        Ok(())
    }

    /// Adds a source for input permanently.
    pub(crate) fn add(&self, source: impl AsFd, key: u64) -> io::Result<()> {
        self.change(source, key, &mut EventFlags::empty(), EventFlags::IN)
    }

    /// Waits for events and returns them by key; none if `until` is reached first.
    pub(crate) fn wait(&self, until: Option<Instant>) -> io::Result<Vec<(u64, EventFlags)>> {
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut events = Vec::with_capacity(256);
        match epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.iter().map(|event: &epoll::Event| (event.data.u64(), event.flags)).collect())
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
