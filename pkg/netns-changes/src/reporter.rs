//! A thread that waits for changes.

use std::io;
use std::thread;
use std::time::Duration;

use crate::{Change, ChangeWatcher};

/// Changes within this time after a notification are reported together, which limits how often all namespaces together
/// wake the process.
const COALESCE: Duration = Duration::from_millis(20);
const STACK: usize = 256 * 1024;

/// A thread that reports the changes of a watcher's namespaces within 20 ms; those of a namespace that changes all the
/// time after a pause, which doubles up to 640 ms. The thread ends when this is dropped.
#[derive(Debug)]
pub struct ChangeReporter<K>(ChangeWatcher<K>);

impl<K: Clone + Send + 'static> ChangeReporter<K> {
    /// Starts the thread, without any watched namespace. `report` is called on it with every change; with an error,
    /// once, if no further changes can be reported.
    ///
    /// # Errors
    ///
    /// The process has no descriptor or no thread left.
    pub fn start(
        thread: &str,
        report: impl FnMut(io::Result<Change<K>>) + Send + 'static,
    ) -> io::Result<Self> {
        let watcher = ChangeWatcher::new()?;
        let reporter = Self(watcher.clone());
        let body = move || report_changes(&watcher, report);
        thread::Builder::new().name(thread.to_owned()).stack_size(STACK).spawn(body)?;
        Ok(reporter)
    }

    /// Returns the watcher, which watches namespaces until this is dropped.
    pub fn watcher(&self) -> ChangeWatcher<K> {
        self.0.clone()
    }
}

/// Reports changes until the watcher is closed.
fn report_changes<K: Clone>(watcher: &ChangeWatcher<K>, mut report: impl FnMut(io::Result<Change<K>>)) {
    loop {
        match watcher.wait_at_pace() {
            Ok(Some(changes)) => changes.into_iter().map(Ok).for_each(&mut report),
            Ok(None) => return,
            Err(error) => return report(Err(error)),
        }
        thread::sleep(COALESCE); // changes meanwhile are reported together
    }
}

impl<K> Drop for ChangeReporter<K> {
    fn drop(&mut self) {
        self.0.close();
    }
}
