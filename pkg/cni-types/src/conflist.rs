//! Network configuration files of container runtimes, and our plugin's entry in them. Text in, text out; the caller reads, selects
//! and writes files.
//!
//! A `.conflist` is a list of plugins that a runtime calls one after the other, a `.conf` a single one (CNI spec 1.0.0, section 1).
//! Our plugin works at the end of such a list. Everything but our entry is foreign: its order, unknown members and the text of
//! numbers are preserved. The output format is that of Istio's agent, so that alternating between the two makes no difference.

use crate::document::{Json, JsonError, JsonMembers, field_text, matching_fields};
use crate::version::CniVersion;

mod entry;
mod network;

pub use entry::{ConflistEntry, EntryError};
pub use network::{
    FileForm, Libcni, NetworkFile, UnusableConf, check_directory_plugin, is_standalone, read_network,
    unknown_version,
};

/// Name of a list converted from a single configuration, as in Istio. The configuration's own name stays in its entry, where no
/// runtime reads it.
const LIST_NAME: &str = "k8s-pod-network";

/// Nesting depth of an entry in a list: in the object, and in its `plugins`.
const ENTRY_LEVEL: usize = 2;

/// Reason why a file is not edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The file cannot be parsed as JSON.
    #[error("the file is not JSON: {0}")]
    Json(#[from] JsonError),
    /// The document is not an object.
    #[error("the file does not hold a JSON object")]
    NotAnObject,
    /// Neither a single configuration nor a list.
    #[error("the file has neither `type`, the name of a plugin, nor `plugins`, a list of them")]
    NoPlugins,
    /// Both a single configuration and a list. The file's name would decide which of them a runtime uses; the wrong choice would
    /// wrap a working list as one plugin.
    #[error("the file has both `type` and `plugins`, so it can be a plugin or a list of them")]
    Both,
    /// `plugins` is not a list.
    #[error("`plugins` is not a list")]
    PluginsNotAList,
    /// An entry is not an object.
    #[error("`plugins[{0}]` is not an object")]
    EntryNotAnObject(
        /// Index in the list, from 0.
        usize,
    ),
    /// No plugin gives pods a network, after which ours could be chained.
    #[error("the file has no plugin besides {}, which gives pods no network by itself", ConflistEntry::TYPE)]
    NothingToChain,
    /// As an element of our list, the configuration would be nested too deep to be parsed again.
    #[error("the configuration is nested too deep to become part of a list")]
    TooDeep,
}

/// State of our entry in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryStatus {
    /// No entry.
    Absent,
    /// One entry, at the end, equal to the desired one.
    Current,
    /// One entry, at the end, different from the desired one.
    Differs,
    /// One entry, followed by others.
    NotLast,
    /// Several entries.
    Repeated,
}

/// Returns the file with our entry at the end of the chain. Other entries of our type are dropped. A single configuration is
/// converted to a list with it, as by Istio's agent: its name has to end in `.conflist` then.
///
/// Idempotent. A file that [`read_network`] accepts before is accepted as a list afterwards.
///
/// # Errors
/// See [`EditError`]. Never because of the content of foreign entries.
pub fn merge_entry(existing: &[u8], entry: &ConflistEntry) -> Result<String, EditError> {
    let mut list = match ConfigFile::read(existing)? {
        ConfigFile::List(list) => list,
        ConfigFile::Single(conf) => convert_to_list(conf)?,
    };
    list.plugins.retain(is_foreign);
    if list.plugins.is_empty() {
        return Err(EditError::NothingToChain);
    }
    list.plugins.push(entry.as_json().clone());
    Ok(list.into_json().to_go_text())
}

/// Returns the file without entries of our type; `None` if it has none. A single configuration has none, whatever its type. The
/// resulting list may be empty, and is then unusable for a runtime.
///
/// # Errors
/// The file cannot be parsed, or is neither configuration nor list.
pub fn without_entry(existing: &[u8]) -> Result<Option<String>, EditError> {
    let ConfigFile::List(mut list) = ConfigFile::read(existing)? else { return Ok(None) };
    let before = list.plugins.len();
    list.plugins.retain(is_foreign);
    Ok((list.plugins.len() < before).then(|| list.into_json().to_go_text()))
}

/// Returns the state of our entry in the file. Compared by value, not by formatting; numbers by their text. In a single
/// configuration it is absent.
///
/// # Errors
/// As for [`merge_entry`].
pub fn entry_status(existing: &[u8], entry: &ConflistEntry) -> Result<EntryStatus, EditError> {
    let ConfigFile::List(list) = ConfigFile::read(existing)? else { return Ok(EntryStatus::Absent) };
    let foreign = list.plugins.iter().filter(|plugin| is_foreign(plugin)).count();
    if foreign == 0 {
        return Err(EditError::NothingToChain);
    }
    let last = list.plugins.last().filter(|plugin| !is_foreign(plugin));
    Ok(match (list.plugins.len() - foreign, last) {
        (0, _) => EntryStatus::Absent,
        (1, None) => EntryStatus::NotLast,
        (1, Some(ours)) if ours == entry.as_json() => EntryStatus::Current,
        (1, Some(_)) => EntryStatus::Differs,
        _ => EntryStatus::Repeated,
    })
}

/// Whether `converted` without our entry is exactly the result of [`merge_entry`] for the single configuration `original`. Then it
/// is unmodified, and the original can be restored in its place. False if one of them cannot be parsed.
pub fn is_converted_from(converted: &[u8], original: &[u8]) -> bool {
    let (Ok(ConfigFile::List(mut list)), Ok(ConfigFile::Single(conf))) =
        (ConfigFile::read(converted), ConfigFile::read(original))
    else {
        return false;
    };
    list.plugins.retain(is_foreign);
    convert_to_list(conf).is_ok_and(|expected| expected.into_json() == list.into_json())
}

/// Returns the types of the plugins in a file, in their order, for messages; empty if the file has none or cannot be parsed.
/// Entries without a type are skipped.
pub fn plugin_types(content: &[u8]) -> Vec<String> {
    let document = Json::as_runtimes_read(content).unwrap_or(Json::Null);
    let entries = document.get("plugins").and_then(Json::as_list);
    let entries = entries.unwrap_or(std::slice::from_ref(&document));
    entries.iter().filter_map(|entry| field_text(entry.as_object()?, "type")).map(str::to_owned).collect()
}

/// Whether plugins of this type give pods no network: the reference plugins that modify the result of another one, and `loopback`.
pub fn is_auxiliary(plugin: &str) -> bool {
    ["bandwidth", "firewall", "loopback", "portmap", "sbr", "tuning", "vrf"].contains(&plugin)
}

/// Content of a file: a single plugin's configuration, or a list of plugins.
enum ConfigFile {
    Single(JsonMembers),
    List(PluginList),
}

/// A list of plugins, at least one.
struct PluginList {
    /// All members but `plugins`.
    other: JsonMembers,
    /// Plugins, all of them objects.
    plugins: Vec<Json>,
}

impl ConfigFile {
    fn read(text: &[u8]) -> Result<ConfigFile, EditError> {
        let Json::Object(mut members) = Json::parse(text)? else { return Err(EditError::NotAnObject) };
        let single = field_text(&members, "type").is_some();
        match members.remove("plugins") {
            Some(Json::List(_)) if single => Err(EditError::Both),
            Some(Json::List(plugins)) => Ok(ConfigFile::List(PluginList::new(members, plugins)?)),
            None if single => Ok(ConfigFile::Single(members)),
            Some(option) if single => {
                members.insert("plugins".to_owned(), option);
                Ok(ConfigFile::Single(members))
            }
            None => Err(EditError::NoPlugins),
            Some(_) => Err(EditError::PluginsNotAList),
        }
    }
}

impl PluginList {
    fn new(other: JsonMembers, plugins: Vec<Json>) -> Result<PluginList, EditError> {
        if plugins.is_empty() {
            return Err(EditError::NothingToChain);
        }
        match plugins.iter().position(|plugin| plugin.as_object().is_none()) {
            Some(at) => Err(EditError::EntryNotAnObject(at)),
            None => Ok(PluginList { other, plugins }),
        }
    }

    fn into_json(self) -> Json {
        let mut members = self.other;
        members.insert("plugins".to_owned(), Json::List(self.plugins));
        Json::Object(members)
    }
}

fn is_foreign(plugin: &Json) -> bool {
    plugin.as_object().and_then(|members| field_text(members, "type")) != Some(ConflistEntry::TYPE)
}

/// Converts a single configuration to a list as Istio's agent does, without our entry.
fn convert_to_list(mut conf: JsonMembers) -> Result<PluginList, EditError> {
    let version = list_version(&conf);
    conf.retain(|key, _| !key.eq_ignore_ascii_case("cniVersion"));
    if conf.values().map(Json::nesting_depth).max().unwrap_or(0) + ENTRY_LEVEL >= Json::MAX_DEPTH {
        return Err(EditError::TooDeep);
    }
    let member = |key: &str, text: &str| (key.to_owned(), Json::String(text.to_owned()));
    let other = JsonMembers::from([member("name", LIST_NAME), member("cniVersion", version.as_str())]);
    Ok(PluginList { other, plugins: vec![Json::Object(conf)] })
}

/// Returns the version of a converted configuration's list. Runtimes pass it to every plugin, so it replaces the configuration's
/// own.
///
/// Istio always writes 0.3.1. That is right for older versions: lists were introduced in 0.3.0, and before it results could not be
/// passed on. It writes it for 0.4.0 too, and so do we, to produce an equal file. 0.3.0 is kept, because it supports lists and a
/// plugin of that age may not support 0.3.1. From 1.0.0 on the configuration's own version is kept: a plugin of that age need not
/// support 0.3.1 any more, and then no pod would start; and one of 1.1.0 would lose `STATUS`, `GC` and parts of its result. An
/// unsupported version is replaced, since our plugin would reject every call of such a list.
fn list_version(conf: &JsonMembers) -> CniVersion {
    let own = matching_fields(conf, "cniVersion").find_map(Json::as_str).and_then(|text| text.parse().ok());
    own.filter(|version| *version == CniVersion::V0_3_0 || *version > CniVersion::V0_4_0)
        .unwrap_or(CniVersion::V0_3_1)
}

#[cfg(test)]
mod tests;
