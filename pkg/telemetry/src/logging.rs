//! Log lines in Istio's format, controlled by Istio's flags.
//!
//! Sources are `tracing` events, whose target is the scope, and the plugin ([`Logger::emit`]). Spans are ignored.

mod format;
mod level;
mod options;
mod output;
mod scopes;
mod subscriber;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use agent_protocol::{LogLevel, LogRecord};
use tracing::callsite::rebuild_interest_cache;

pub(crate) use level::ALL_SCOPES;
pub use level::OutputLevel;
use level::{DEFAULT_SCOPE, ScopeLevels};
use options::CallerScopes;
pub use options::LogOptions;
use output::LogOutput;
pub use scopes::LogScope;
pub use subscriber::LogSubscriber;

/// Opens the outputs and makes the logger the process-wide `tracing` subscriber.
///
/// # Errors
/// An output cannot be opened, or the process has a subscriber already.
pub fn install(options: LogOptions) -> io::Result<Logger> {
    let logger = Logger::open(options)?;
    let installed = tracing::subscriber::set_global_default(logger.subscriber());
    installed.map_err(|_| io::Error::other("logging is set up already"))?;
    Ok(logger)
}

/// Writer of log lines. Cheap to clone; clones share one state.
#[derive(Clone)]
pub struct Logger(Arc<LoggerInner>);

struct LoggerInner {
    levels: RwLock<ScopeLevels>,
    callers: CallerScopes,
    json: bool,
    targets: Mutex<Vec<LogOutput>>,
    recent: Mutex<RecentLines>,
    clock: fn() -> SystemTime,
}

/// Size of the most recent lines that are kept for collection, in bytes.
const MAX_RECENT: usize = 256 * 1024;

/// The most recent lines.
#[derive(Default)]
struct RecentLines {
    lines: VecDeque<String>,
    bytes: usize,
}

impl RecentLines {
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > MAX_RECENT
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }
}

impl Logger {
    /// Opens the outputs. Events arrive through [`Logger::subscriber`].
    ///
    /// # Errors
    /// An output cannot be opened.
    pub fn open(options: LogOptions) -> io::Result<Logger> {
        Self::with_clock(options, SystemTime::now)
    }

    fn with_clock(options: LogOptions, clock: fn() -> SystemTime) -> io::Result<Logger> {
        let mut targets = Vec::new();
        for name in &options.targets {
            let output = LogOutput::open(name).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot open the log {name}: {error}"))
            });
            targets.push(output?);
        }
        Ok(Logger(Arc::new(LoggerInner {
            levels: RwLock::new(options.levels),
            callers: options.callers,
            json: options.json,
            targets: Mutex::new(targets),
            recent: Mutex::default(),
            clock,
        })))
    }

    /// Returns the subscriber that passes `tracing` events to this logger.
    pub fn subscriber(&self) -> LogSubscriber {
        LogSubscriber(self.clone())
    }

    /// Writes the record, if its scope's level permits. One without a time gets the current one.
    pub fn emit(&self, record: &LogRecord) {
        if self.is_enabled(&record.scope, record.level) {
            self.write_record(&mut self.lock_targets(), record);
        }
    }

    /// Writes several records as [`Logger::emit`], contiguously. The iterator runs with the lock held, and must not log itself.
    pub(crate) fn emit_all(&self, records: impl Iterator<Item = LogRecord>) {
        let mut targets = self.lock_targets();
        for record in records.filter(|record| self.is_enabled(&record.scope, record.level)) {
            self.write_record(&mut targets, &record);
        }
    }

    /// Returns the level of a scope: its own, else that of `default`.
    pub fn scope_level(&self, scope: &str) -> OutputLevel {
        self.0.levels.read().unwrap_or_else(PoisonError::into_inner).scope_level(scope)
    }

    /// Sets the level of a scope, from the next event on; `default` applies to all scopes without their own level, `all` to every
    /// scope.
    pub fn set_level(&self, scope: &str, level: OutputLevel) {
        self.0.levels.write().unwrap_or_else(PoisonError::into_inner).set_level(scope, level);
        // After the lock is released: this calls the subscriber for every event in the program.
        rebuild_interest_cache();
    }

    /// Returns the levels of `default` and of all scopes that have their own.
    pub fn scope_levels(&self) -> BTreeMap<String, OutputLevel> {
        self.0.levels.read().unwrap_or_else(PoisonError::into_inner).all_levels()
    }

    /// Returns the most recent lines as they were written, the newest last; at most 256 KiB.
    pub fn recent_lines(&self) -> String {
        let recent = self.0.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.lines.iter().map(String::as_str).collect()
    }

    fn is_enabled(&self, scope: &str, level: LogLevel) -> bool {
        self.scope_level(scope).passes(level)
    }

    /// Returns the most verbose level of all scopes.
    fn max_level(&self) -> OutputLevel {
        self.0.levels.read().unwrap_or_else(PoisonError::into_inner).max_level()
    }

    fn lock_targets(&self) -> MutexGuard<'_, Vec<LogOutput>> {
        self.0.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_record(&self, targets: &mut [LogOutput], record: &LogRecord) {
        let mut record = record.clone();
        if record.scope == DEFAULT_SCOPE {
            record.scope.clear(); // it is not printed
        }
        if record.time.is_empty() {
            record.time = agent_protocol::rfc3339((self.0.clock)());
        }
        let line = if self.0.json { record.to_line() } else { format::text_line(&record) };
        for target in targets {
            target.write_line(line.as_bytes()); // a full disk or a missing reader of one output must not affect the others
        }
        self.0.recent.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}
