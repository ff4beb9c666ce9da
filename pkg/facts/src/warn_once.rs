//! Troubles, told once.

use std::fmt;

use tracing::{info, warn};

/// Logs a trouble when it is new, and its end.
#[derive(Debug, Default)]
pub(crate) struct WarnOnce(Option<String>);

impl WarnOnce {
    /// Something does not work.
    pub(crate) fn warn(&mut self, trouble: &dyn fmt::Display) {
        let trouble = trouble.to_string();
        if self.0.as_ref() != Some(&trouble) {
            warn!(target: "ambient", "{trouble}");
            self.0 = Some(trouble);
        }
    }

    /// It works again, which is `news`.
    pub(crate) fn forget(&mut self, news: fmt::Arguments<'_>) {
        if self.0.take().is_some() {
            info!(target: "ambient", "{news}");
        }
    }
}
