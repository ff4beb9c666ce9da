//! The plugin's entry, from the latest valid template.

use cni_types::{ConflistEntry, EntryError};
use enrolment::selector::parse_enablement;

use crate::{Error, InstallerSettings};

/// An entry, and the text it was parsed from.
#[derive(Clone, Debug)]
pub(crate) struct CurrentEntry {
    /// The rendered template.
    pub(crate) text: String,
    /// Entry parsed from the text.
    pub(crate) entry: ConflistEntry,
}

/// Change of the template since it was last parsed.
#[derive(Debug)]
pub(crate) enum TemplateUpdate {
    /// Unchanged, or the first one.
    Same,
    /// Changed, and valid.
    New,
    /// Changed, and invalid: the last valid one stays in effect.
    Refused(EntryError),
}

/// The last valid entry, and the last invalid text, so that each is reported once.
#[derive(Debug, Default)]
pub(crate) struct EntryCache {
    /// Last valid entry.
    pub(crate) current: Option<CurrentEntry>,
    refused: Option<String>,
}

impl EntryCache {
    /// Parses the template again.
    ///
    /// # Errors
    /// The template is invalid, and no valid one preceded it.
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

/// Validates the selectors, which the plugin itself parses only when it decides on a pod.
fn check_selectors(entry: ConflistEntry) -> Result<ConflistEntry, EntryError> {
    parse_enablement(&entry.read_by_plugin()?).map_err(EntryError::Plugin)?;
    Ok(entry)
}
