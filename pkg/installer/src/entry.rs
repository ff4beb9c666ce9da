//! The plugin's entry, from the latest template that gave one.

use cni_types::{ConflistEntry, EntryError};
use enrolment::selector::parse_enablement;

use crate::{Error, InstallerSettings};

/// An entry, and the text it was read from.
#[derive(Clone, Debug)]
pub(crate) struct CurrentEntry {
    /// The rendered template.
    pub(crate) text: String,
    /// Entry that was read from the text.
    pub(crate) entry: ConflistEntry,
}

/// Change of the template since it was last read.
#[derive(Debug)]
pub(crate) enum TemplateUpdate {
    /// Nothing, or it is the first.
    Same,
    /// The template changed, and is good.
    New,
    /// The template changed, and cannot be used: the last good one stays.
    Refused(EntryError),
}

/// The last good entry, and the last text that was none, so that each is told about once.
#[derive(Debug, Default)]
pub(crate) struct EntryCache {
    /// The last good one.
    pub(crate) current: Option<CurrentEntry>,
    refused: Option<String>,
}

impl EntryCache {
    /// Reads the template again.
    ///
    /// # Errors
    /// It gives no entry, and there was no good one before.
    pub(crate) fn reload_template(&mut self, settings: &InstallerSettings) -> Result<TemplateUpdate, Error> {
        let text = settings.template.render()?;
        if self.current.as_ref().is_some_and(|current| current.text == text) {
            self.refused = None;
            return Ok(TemplateUpdate::Same);
        }
        match ConflistEntry::parse(&text).and_then(check_selectors) {
            Ok(entry) => {
                let entry = if settings.kubeconfig.is_none() { entry.without_kubeconfig() } else { entry };
                let defaults = settings.defaults.iter().cloned();
                let entry = defaults.fold(entry, |entry, (key, value)| entry.with_default(key, value));
                let first = self.current.replace(CurrentEntry { text, entry }).is_none();
                self.refused = None;
                Ok(if first { TemplateUpdate::Same } else { TemplateUpdate::New })
            }
            Err(_) if text.trim().is_empty() && self.current.is_none() => Err(Error::NoTemplate),
            Err(error) if self.current.is_none() => Err(Error::Template(error)),
            Err(_) if self.refused.as_ref() == Some(&text) => Ok(TemplateUpdate::Same),
            Err(error) => {
                self.refused = Some(text);
                Ok(TemplateUpdate::Refused(error))
            }
        }
    }
}

/// Checks what the plugin itself reads only where it decides on a pod.
fn check_selectors(entry: ConflistEntry) -> Result<ConflistEntry, EntryError> {
    parse_enablement(&entry.read_by_plugin()?).map_err(EntryError::Plugin)?;
    Ok(entry)
}
