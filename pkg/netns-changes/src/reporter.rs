//! A thread that waits for changes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use retry::LastError;

use crate::{Change, ChangeWatcher};

/// Changes within this time after a notification are reported together, which limits how often all namespaces together
/// wake the process.
const COALESCE: Duration = Duration::from_millis(20);
const STACK: usize = 256 * 1024;

/// Function that is called with every change, on the thread.
type ChangeSink<K> = Arc<dyn Fn(Change<K>) + Send + Sync>;

/// A thread that reports the changes of a watcher's namespaces within 20 ms; those of a namespace that changes all the
/// time after a pause, which doubles up to 640 ms. The thread ends when this is dropped.
pub struct ChangeReporter<K> {
    watcher: ChangeWatcher<K>,
    name: &'static str,
    report: ChangeSink<K>,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// Last reason why the thread did not run.
    last: LastError,
}

impl<K: Clone + Send + 'static> ChangeReporter<K> {
    /// Creates a reporter without any watched namespace. `report` is called with every change on the thread, which
    /// [`ChangeReporter::ensure_running`] starts.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn new(name: &'static str, report: impl Fn(Change<K>) + Send + Sync + 'static) -> io::Result<Self> {
        let (watcher, last) = (ChangeWatcher::new()?, LastError::default());
        Ok(Self { watcher, name, report: Arc::new(report), thread: None, last })
    }

    /// Starts the thread if it has ended, or could not be started before. Changes meanwhile are reported by it. Returns
    /// why the thread did not run, or could not be started now; `None`: it runs, or the reason is the previous one.
    pub fn ensure_running(&mut self) -> Option<io::Error> {
        if self.is_running() {
            self.last.clear();
            return None;
        }
        let ended = self.thread.take().map(|thread| match thread.join() {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => io::Error::other("the thread has ended"),
        });
        let (watcher, report) = (self.watcher.clone(), Arc::clone(&self.report));
        let body = move || report_changes(&watcher, &*report);
        let error = match thread::Builder::new().name(self.name.to_owned()).stack_size(STACK).spawn(body) {
            Ok(thread) => {
                self.thread = Some(thread);
                ended
            }
            Err(error) => Some(error),
        };
        error.filter(|error| self.last.replace(error))
    }
}

impl<K> ChangeReporter<K> {
    /// Returns whether the thread runs: otherwise changes are not reported.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns the watcher, which watches namespaces until this is dropped.
    pub fn watcher(&self) -> ChangeWatcher<K> {
        self.watcher.clone()
    }
}

/// Reports changes until the watcher is closed. Begins with all namespaces: an earlier thread may have read changes
/// that it did not report.
fn report_changes<K: Clone>(watcher: &ChangeWatcher<K>, report: &dyn Fn(Change<K>)) -> io::Result<()> {
    watcher.presume_changes().into_iter().for_each(report);
    while let Some(changes) = watcher.wait_at_pace()? {
        changes.into_iter().for_each(report);
        thread::sleep(COALESCE); // changes meanwhile are reported together
    }
    Ok(())
}

impl<K> Drop for ChangeReporter<K> {
    fn drop(&mut self) {
        self.watcher.close();
    }
}

impl<K> fmt::Debug for ChangeReporter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeReporter").field("name", &self.name).finish_non_exhaustive()
    }
}
