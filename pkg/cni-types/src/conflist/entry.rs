//! Conflist entry that makes a runtime call our plugin.

use super::network::{UnusableConf, entry_is_usable};
use super::{ENTRY_LEVEL, EditError};
use crate::document::{Json, JsonError, JsonMembers, field_text};
use crate::{CniError, CniVersion, NetConf};

/// Reason why a template is refused. An entry that our plugin or the runtime rejects would keep every pod of the node from
/// starting, so it must not be written to a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The template cannot be parsed as JSON.
    #[error("the plugin's configuration is not JSON: {0}")]
    Json(#[from] JsonError),
    /// The template is not an object.
    #[error("the plugin's configuration is not a JSON object")]
    NotAnObject,
    /// The template has another plugin type, or none.
    #[error("the plugin's configuration needs the `type` {:?}, and has {}", ConflistEntry::TYPE, kind_text(.0.as_deref()))]
    Type(
        /// Type, if any.
        Option<String>,
    ),
    /// The plugin would reject it. The message names the member.
    #[error("the plugin's configuration is refused: {0}")]
    Plugin(CniError),
    /// The runtime would reject the whole file because of it.
    #[error("the plugin's configuration is refused: {0}")]
    Runtime(UnusableConf),
    /// In a file it would be nested too deep to be parsed again.
    #[error("{}", EditError::TooDeep)]
    TooDeep,
}

fn kind_text(kind: Option<&str>) -> String {
    kind.map_or_else(|| "none".to_owned(), |kind| format!("{kind:?}"))
}

/// Our plugin's entry: an object of type [`ConflistEntry::TYPE`] without `cniVersion`, which a list has for all its plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflistEntry(Json);

impl ConflistEntry {
    /// Type of our entry, the name of the plugin's binary.
    pub const TYPE: &str = "istio-cni";

    /// Parses the template after substitution of its placeholders, and drops `cniVersion`.
    ///
    /// # Errors
    /// The template is not a JSON object of our type, or is rejected by the plugin ([`NetConf::parse`], with a name and a version
    /// where it has none) or the runtime.
    pub fn parse(template: &str) -> Result<ConflistEntry, EntryError> {
        let Json::Object(mut members) = Json::parse(template.as_bytes())? else {
            return Err(EntryError::NotAnObject);
        };
        let kind = field_text(&members, "type");
        if kind != Some(ConflistEntry::TYPE) {
            return Err(EntryError::Type(kind.map(str::to_owned)));
        }
        read_by_plugin(&members)?;
        members.retain(|key, _| !key.eq_ignore_ascii_case("cniVersion"));
        let entry = Json::Object(members);
        entry_is_usable(&entry).map_err(EntryError::Runtime)?;
        if entry.nesting_depth() + ENTRY_LEVEL > Json::MAX_DEPTH {
            return Err(EntryError::TooDeep);
        }
        Ok(ConflistEntry(entry))
    }

    /// Returns the entry without `kubernetes.kubeconfig`, so that the plugin queries only the agent.
    #[must_use]
    pub fn without_kubeconfig(mut self) -> ConflistEntry {
        if let Json::Object(members) = &mut self.0 {
            let parts = members.iter_mut().filter(|(key, _)| key.eq_ignore_ascii_case("kubernetes"));
            for (_, part) in parts {
                if let Json::Object(kubernetes) = part {
                    kubernetes.retain(|key, _| !key.eq_ignore_ascii_case("kubeconfig"));
                }
            }
        }
        self
    }

    /// Adds a member that the template lacks. An existing member is kept.
    #[must_use]
    pub fn with_default(mut self, key: &str, value: Json) -> ConflistEntry {
        if let Json::Object(members) = &mut self.0
            && !members.keys().any(|name| name.eq_ignore_ascii_case(key))
        {
            members.insert(key.to_owned(), value);
        }
        self
    }

    /// Returns the namespaces whose pods the plugin skips.
    pub fn excluded_namespaces(&self) -> Vec<String> {
        self.read_by_plugin().map(|conf| conf.kubernetes.exclude_namespaces).unwrap_or_default()
    }

    /// Returns the entry as parsed by the plugin.
    ///
    /// # Errors
    /// The plugin would reject the entry, which [`ConflistEntry::parse`] has ruled out for the text of the template.
    pub fn read_by_plugin(&self) -> Result<NetConf, EntryError> {
        let Json::Object(members) = &self.0 else { return Err(EntryError::NotAnObject) };
        read_by_plugin(members)
    }

    /// Returns the entry as written to a file.
    pub fn as_json(&self) -> &Json {
        &self.0
    }
}

/// Parses the members as the plugin does for a runtime's call.
fn read_by_plugin(members: &JsonMembers) -> Result<NetConf, EntryError> {
    let mut handed = members.clone();
    for (key, default) in [("name", ConflistEntry::TYPE), ("cniVersion", CniVersion::V0_3_1.as_str())] {
        if !handed.keys().any(|name| name.eq_ignore_ascii_case(key)) {
            handed.insert(key.to_owned(), Json::String(default.to_owned()));
        }
    }
    let text = Json::Object(handed).to_go_text();
    NetConf::parse(text.as_bytes()).map_err(EntryError::Plugin)
}
