//! The container runtime's network configuration files, and our plugin's entry in them. Text in, text out; the caller
//! reads, chooses and writes files.
//!
//! A `.conflist` is a list of plugins that a runtime calls one after the other, a `.conf` a single one (CNI spec 1.0.0,
//! section 1). Our plugin works at the end of such a list. What is not our entry belongs to others: it keeps its order,
//! its unknown members and the text of its numbers. The printed form is the one in which Istio's agent writes, so that
//! taking turns with it makes no difference.

use crate::document::{Json, JsonError, JsonMembers, field_text, matching_fields};
use crate::version::CniVersion;

mod entry;
mod network;

pub use entry::{ConflistEntry, EntryError};
pub use network::{
    FileForm, Libcni, NetworkFile, UnusableConf, check_directory_plugin, check_standalone, read_network,
    unknown_version,
};

/// The name of a list that a single configuration became, as Istio has it. The configuration's own name stays in its
/// entry, where no runtime reads it.
const LIST_NAME: &str = "k8s-pod-network";

/// How deep an entry stands in a list: in the object, and in its `plugins`.
const ENTRY_LEVEL: usize = 2;

/// Why a file is left as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The file cannot be parsed as JSON.
    #[error("the file is not JSON: {0}")]
    Json(#[from] JsonError),
    /// The document is a list, a string or the like.
    #[error("the file does not hold a JSON object")]
    NotAnObject,
    /// Neither a single configuration nor a list.
    #[error("the file has neither `type`, the name of a plugin, nor `plugins`, a list of them")]
    NoPlugins,
    /// A single configuration and a list at once. The file's name would tell a runtime which of them counts; taking the
    /// wrong one would wrap up a working list as one plugin.
    #[error("the file has both `type` and `plugins`, so it can be a plugin or a list of them")]
    Both,
    /// `plugins` is no list.
    #[error("`plugins` is not a list")]
    PluginsNotAList,
    /// An entry is no object.
    #[error("`plugins[{0}]` is not an object")]
    EntryNotAnObject(
        /// The place in the list, from 0.
        usize,
    ),
    /// There is no plugin that gives pods a network, after which ours could work.
    #[error("the file has no plugin besides {}, which gives pods no network by itself", ConflistEntry::TYPE)]
    NothingToChain,
    /// With our list around it, the configuration could not be read back.
    #[error("the configuration is nested too deep to become part of a list")]
    TooDeep,
}

/// A file with our entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedConflist {
    /// The whole text.
    pub text: String,
    /// The file was a single configuration, and this is a list: its name has to end in `.conflist` now.
    pub converted: bool,
}

/// How our entry stands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryStatus {
    /// There is none.
    Absent,
    /// There is one, at the end, and it is what it should be.
    Current,
    /// There is one, at the end, and it says something else.
    Differs,
    /// There is one, and others come after it.
    NotLast,
    /// There are several.
    Repeated,
}

/// The file with our entry at the end of the chain. Other entries of our type are dropped. A single configuration
/// becomes a list with it, as Istio's agent makes it; see [`MergedConflist::converted`].
///
/// Doing it again gives the same text. What [`read_network`] reads before, it reads as a list after.
///
/// # Errors
/// See [`EditError`]. Never because of what foreign entries say.
pub fn merge_entry(existing: &[u8], entry: &ConflistEntry) -> Result<MergedConflist, EditError> {
    let (mut list, converted) = match ConfigFile::read(existing)? {
        ConfigFile::List(list) => (list, false),
        ConfigFile::Single(conf) => (convert_to_list(conf)?, true),
    };
    list.plugins.retain(is_foreign);
    if list.plugins.is_empty() {
        return Err(EditError::NothingToChain);
    }
    list.plugins.push(entry.as_json().clone());
    Ok(MergedConflist { text: list.into_json().to_go_text(), converted })
}

/// The file without entries of our type; none when it has none. A single configuration has none, whatever its type. The
/// list may be left empty, and is then of no use to a runtime.
///
/// # Errors
/// When the file cannot be read, or is neither configuration nor list.
pub fn without_entry(existing: &[u8]) -> Result<Option<String>, EditError> {
    let ConfigFile::List(mut list) = ConfigFile::read(existing)? else { return Ok(None) };
    let before = list.plugins.len();
    list.plugins.retain(is_foreign);
    Ok((list.plugins.len() < before).then(|| list.into_json().to_go_text()))
}

/// How our entry stands in the file. It is compared by what it says, not by how it is written; numbers by their text.
/// In a single configuration it is absent.
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

/// Whether `converted` without our entry is just what [`merge_entry`] makes of the single configuration `original`. Then
/// nobody has changed it since, and the original can be restored in its place. No when one of them cannot be read.
pub fn is_conversion_of(converted: &[u8], original: &[u8]) -> bool {
    let (Ok(ConfigFile::List(mut list)), Ok(ConfigFile::Single(conf))) =
        (ConfigFile::read(converted), ConfigFile::read(original))
    else {
        return false;
    };
    list.plugins.retain(is_foreign);
    convert_to_list(conf).is_ok_and(|expected| expected.into_json() == list.into_json())
}

/// The types of the plugins in a file, in their order, for messages that name them; empty when the file has none or
/// cannot be read. An entry without a type is left out.
pub fn plugin_types(content: &[u8]) -> Vec<String> {
    let document = Json::as_runtimes_read(content).unwrap_or(Json::Null);
    let entries = document.get("plugins").and_then(Json::as_list);
    let entries = entries.unwrap_or(std::slice::from_ref(&document));
    entries.iter().filter_map(|entry| field_text(entry.as_object()?, "type")).map(str::to_owned).collect()
}

/// Whether this type of plugin gives a pod no network: one of the reference plugins that modify what another one made, or
/// `loopback`.
pub fn is_auxiliary(plugin: &str) -> bool {
    ["bandwidth", "firewall", "loopback", "portmap", "sbr", "tuning", "vrf"].contains(&plugin)
}

/// The content of a file: a single plugin's configuration, or a list of plugins.
enum ConfigFile {
    Single(JsonMembers),
    List(PluginList),
}

/// A list of plugins, at least one.
struct PluginList {
    /// All but `plugins`.
    other: JsonMembers,
    /// All objects.
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

/// The list that Istio's agent makes of a single configuration, before our entry is in it.
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

/// The version that a converted configuration's list speaks. Runtimes tell it to every plugin, so it replaces the
/// configuration's own.
///
/// Istio always writes 0.3.1. That is right for what is older: lists came with 0.3.0, and before it results could not
/// be handed on. It writes it for 0.4.0 too, and so do we, to give the same file. 0.3.0 stays, because lists have it and a
/// plugin of that age need not speak 0.3.1. From 1.0.0 on the configuration's own
/// version stays: a plugin of that age need not speak 0.3.1 any more, and then no pod would start; and one of 1.1.0
/// would lose `STATUS`, `GC` and parts of its result. A version that we do not speak is replaced, since our plugin would
/// refuse every call of such a list.
fn list_version(conf: &JsonMembers) -> CniVersion {
    let own = matching_fields(conf, "cniVersion").find_map(Json::as_str).and_then(|text| text.parse().ok());
    own.filter(|version| *version == CniVersion::V0_3_0 || *version > CniVersion::V0_4_0)
        .unwrap_or(CniVersion::V0_3_1)
}

#[cfg(test)]
mod tests;
