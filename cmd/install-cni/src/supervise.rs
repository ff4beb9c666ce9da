//! Supervision of threads and tasks: a panic is logged, and the thread or task is restarted, or the process ends. None ends
//! silently.

use std::{
    any::Any,
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use futures_util::FutureExt as _;
use retry::{Attempts, Backoff};
use telemetry::logging::{self, LogOptions, Logger};
use tokio::{
    runtime::{self, Runtime},
    sync::mpsc::{self, Receiver, Sender},
    time::{Instant, sleep},
};
use tracing::error;

use crate::shutdown::TerminationSignals;

/// First and last delay before a restart; doubled each time, reset after a run longer than the last.
const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(60);

const BACKOFF: Backoff = Backoff::new(FIRST, LAST);

/// Returns the delay before a restart of a task that ran for this time.
fn restart_delay(attempts: &mut Attempts, ran: Duration) -> Duration {
    if ran > LAST {
        attempts.record_success();
    }
    attempts.record_failure()
}

/// Future of a task that borrows the state it keeps across restarts.
pub(crate) type TaskFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Starts the runtime, the handlers of termination signals, and the log.
///
/// # Errors
/// One of them cannot be started, or the build has no provider for TLS that it promises.
pub(crate) fn start_process(log: LogOptions) -> Result<(Runtime, TerminationSignals, Logger), anyhow::Error> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    // First of all: the kernel drops a SIGTERM for which the first process of a container has no handler.
    let signals = {
        let _entered = runtime.enter();
        TerminationSignals::listen()?
    };
    let logger = logging::install(log).context("cannot set up logging")?;
    log_panics();
    kube_api::confirm_tls_provider()?;
    Ok((runtime, signals, logger))
}

/// Logs panics like everything else, instead of printing them to stderr in another format.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current().name().unwrap_or("without a name").to_owned();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        error!(target: "install", thread, at = place, error = panic_message(panic.payload()), "defect: a thread panicked");
    }));
}

/// Returns the message of a panic.
fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("no panic message").to_owned()
}

/// Waits for a task; an error is the message of its panic.
async fn catch_panic(task: impl Future<Output = ()>) -> Result<(), String> {
    AssertUnwindSafe(task).catch_unwind().await.map_err(|payload| panic_message(&*payload))
}

/// Runs a task until it ends. After a panic it is restarted after a delay, with the state that it `keeps`.
pub(crate) async fn restart_on_panic<K>(
    name: &str,
    mut keeps: K,
    mut run: impl for<'a> FnMut(&'a mut K) -> TaskFuture<'a>,
) {
    let mut attempts = BACKOFF.start_attempts();
    loop {
        let began = Instant::now();
        // A panic can interrupt the task anywhere; the state it keeps consists of queues and handles, none of which can be left
        // inconsistent.
        let Err(why) = catch_panic(run(&mut keeps)).await else { return };
        let delay = restart_delay(&mut attempts, began.elapsed());
        error!(target: "install", task = %name, error = why, pause_s = delay.as_secs(), "task panicked; restarting");
        sleep(delay).await;
    }
}

/// Reports the panic of tasks and threads that the process cannot do without, and that cannot be restarted.
#[derive(Clone)]
pub(crate) struct VitalTasks(Sender<String>);

impl VitalTasks {
    pub(crate) fn new() -> (VitalTasks, Receiver<String>) {
        let (sender, receiver) = mpsc::channel(1);
        (VitalTasks(sender), receiver)
    }

    /// Runs a vital task.
    pub(crate) async fn watch_task(self, name: &'static str, task: impl Future<Output = ()>) {
        if let Err(why) = catch_panic(task).await {
            self.end_process(format!("{name} panicked: {why}")).await;
        }
    }

    /// Ends the process, for this reason.
    pub(crate) async fn end_process(&self, why: String) {
        drop(self.0.send(why).await); // the receiver may be dropped during shutdown
    }

    /// Runs the body of a vital thread.
    pub(crate) fn watch_thread(self, name: &'static str, body: impl FnOnce()) {
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(body)) {
            let why = panic_message(&*payload);
            drop(self.0.blocking_send(format!("{name} panicked: {why}"))); // as above
        }
    }
}

/// Like [`restart_on_panic`], for a function that blocks its own thread, and returns only on an error.
pub(crate) fn restart_thread_on_panic(name: &str, mut run: impl FnMut()) {
    let mut attempts = BACKOFF.start_attempts();
    loop {
        let began = std::time::Instant::now();
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(&mut run)) {
            error!(target: "install", task = %name, error = panic_message(&*payload), "task panicked");
        }
        thread::sleep(restart_delay(&mut attempts, began.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_begins_again_with_what_it_keeps_until_it_ends() {
        let (tell, told) = mpsc::channel(8);
        for number in 0..5 {
            tell.send(number).await.unwrap();
        }
        drop(tell);
        let (say, mut said) = mpsc::channel(8);
        let began = Instant::now();
        restart_on_panic("the task", told, |told| {
            let say = say.clone();
            Box::pin(async move {
                while let Some(number) = told.recv().await {
                    assert!(number != 1 && number != 3, "as it should");
                    say.send(number).await.unwrap();
                }
            })
        })
        .await;
        drop(say);
        let mut seen = Vec::new();
        while let Some(number) = said.recv().await {
            seen.push(number);
        }
        assert_eq!(seen, [0, 2, 4]);
        assert!(began.elapsed() >= Duration::from_secs(3)); // one second, and two
    }

    #[tokio::test]
    async fn a_vital_task_that_panics_is_told_of_and_one_that_ends_is_not() {
        let (vital, mut told) = VitalTasks::new();
        vital.clone().watch_task("one", async {}).await;
        vital.clone().watch_task("another", async { panic!("as it {}", "should") }).await;
        assert_eq!(told.recv().await.unwrap(), "another panicked: as it should");
        vital.clone().watch_thread("a thread that ends", || {});
        thread::spawn(|| vital.watch_thread("a thread", || panic!("as it should"))).join().unwrap();
        assert_eq!(told.recv().await.unwrap(), "a thread panicked: as it should");
        assert!(told.recv().await.is_none());
    }
}
