//! Conversion of `tracing` events to records.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Debug;

use agent_protocol::{LogLevel, LogRecord};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use super::level::{DEFAULT_SCOPE, LIBRARY_SCOPE};
use super::{Logger, OutputLevel};

/// Libraries whose targets are single words, which must not be mistaken for scopes of ours.
const LIBRARIES: [&str; 5] = ["kube", "hyper", "rustls", "tower", "h2"];

/// Passes `tracing` events to a [`Logger`].
pub struct LogSubscriber(pub(super) Logger);

impl Subscriber for LogSubscriber {
    /// Caches the interest, so that a suppressed line costs one flag check; [`Logger::set_level`] rebuilds the cache.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && event_level(metadata)
                .is_some_and(|level| self.0.is_enabled(event_scope(metadata.target()), level))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.0.max_level() {
            OutputLevel::None | OutputLevel::Fatal => LevelFilter::OFF,
            OutputLevel::Error => LevelFilter::ERROR,
            OutputLevel::Warn => LevelFilter::WARN,
            OutputLevel::Info => LevelFilter::INFO,
            OutputLevel::Debug => LevelFilter::DEBUG,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(level) = event_level(metadata) else { return };
        let scope = event_scope(metadata.target());
        let mut fields = EventFields::default();
        event.record(&mut fields);
        if self.0.0.callers.contains(scope) {
            fields.labels.extend(caller_location(metadata).map(|caller| ("caller".to_owned(), caller)));
        }
        let EventFields { msg, labels } = fields;
        self.0.emit(&LogRecord { level, time: String::new(), scope: scope.to_owned(), msg, labels });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1) // spans are disabled
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns the level of an event; `None` for trace, which Istio does not have: libraries trace every byte.
fn event_level(metadata: &Metadata<'_>) -> Option<LogLevel> {
    match *metadata.level() {
        tracing::Level::ERROR => Some(LogLevel::Error),
        tracing::Level::WARN => Some(LogLevel::Warn),
        tracing::Level::INFO => Some(LogLevel::Info),
        tracing::Level::DEBUG => Some(LogLevel::Debug),
        tracing::Level::TRACE => None,
    }
}

/// Returns the scope of an event. Our crates name a scope as target; a module path is the default target, as libraries use.
pub(super) fn event_scope(target: &str) -> &str {
    if target.contains("::") || LIBRARIES.iter().any(|library| target.starts_with(library)) {
        LIBRARY_SCOPE
    } else if target == DEFAULT_SCOPE {
        ""
    } else {
        target
    }
}

/// Returns `file:line`, the file with at most two directories, so that the build machine's paths are not disclosed.
fn caller_location(metadata: &Metadata<'_>) -> Option<String> {
    let (file, line) = (metadata.file()?, metadata.line()?);
    let start = file.rmatch_indices('/').nth(2).map_or(0, |(at, _)| at + 1);
    Some(format!("{}:{line}", file.get(start..)?))
}

#[derive(Default)]
struct EventFields {
    msg: String,
    labels: BTreeMap<String, String>,
}

impl EventFields {
    fn add_field(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.msg = text;
        } else {
            self.labels.insert(field.name().to_owned(), text);
        }
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_field(field, value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.add_field(field, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add_field(field, format!("{value:?}"));
    }
}
