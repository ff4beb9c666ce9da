//! Parsing of CNI configuration files as container runtimes do. containerd and CRI-O use libcni, whose versions differ;
//! docs/install-cni.md has their rules as a table. A test of `installer` compares them with the runtimes' own libraries.

use super::ConflistEntry;
use crate::document::{Json, JsonError, JsonMembers, field_text, matching_fields};
use crate::version::{CniVersion, UnknownVersion};

/// Kind of file that a runtime reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileForm {
    /// `.conf` or `.json`: a single plugin.
    Conf,
    /// `.conflist`: a list of plugins.
    Conflist,
}

impl FileForm {
    /// Extensions of single configurations.
    pub const SINGLE: [&str; 2] = ["conf", "json"];

    /// Returns the form denoted by a file name's extension; `None` for any other, which no runtime reads.
    pub fn from_file_name(file_name: &str) -> Option<FileForm> {
        match file_name.rsplit_once('.')?.1 {
            "conflist" => Some(FileForm::Conflist),
            extension => Self::SINGLE.contains(&extension).then_some(FileForm::Conf),
        }
    }
}

model::word_enum! {
    /// A version of containernetworking/cni whose rules for network configurations differ from the previous one's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Libcni {
        /// Up to 1.1.2: containerd up to 1.7.
        V1_1 = "libcni 1.1",
        /// 1.2: containerd 2.0.
        V1_2 = "libcni 1.2",
        /// 1.3: containerd 2.1, CRI-O 1.34.
        V1_3 = "libcni 1.3",
    }
}

/// A network configuration as parsed by a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkFile {
    /// Number of plugins in the file itself; 0 if all of them are in the plugin directory.
    pub plugins: usize,
    /// Directory beside the file whose `.conf` files libcni 1.3 appends to the plugins: the network's name, as written in the file.
    pub plugin_directory: Option<String>,
}

/// Reason why a runtime does not load a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableConf {
    /// The file cannot be parsed as JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] JsonError),
    /// The document is not an object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// A member is missing, or empty where that is equivalent.
    #[error("`{path}` is missing or empty")]
    Missing {
        /// Path of the member.
        path: String,
    },
    /// A member is of the wrong type.
    #[error("`{path}` is not {expected}")]
    Wrong {
        /// Path of the member.
        path: String,
        /// Expected type, with its article.
        expected: &'static str,
    },
    /// A number exceeds float64, as which Go decodes untyped numbers.
    #[error("the number {0} is out of range")]
    Number(
        /// Number, truncated to 64 characters.
        String,
    ),
    /// The plugin directory, or a file in it, cannot be read.
    #[error("its plugin directory is unusable: {0}")]
    PluginDirectory(
        /// Cause as text.
        String,
    ),
}

/// Parses a file as a runtime with that version of libcni does, or returns why it does not load it. Invalid UTF-8 is accepted, as
/// by runtimes, although [`merge_entry`](super::merge_entry) refuses to edit such a file.
///
/// # Errors
/// The first reason.
pub fn read_network(form: FileForm, content: &[u8], libcni: Libcni) -> Result<NetworkFile, UnusableConf> {
    let document = Json::as_runtimes_read(content)?;
    let members = document.as_object().ok_or(UnusableConf::NotAnObject)?;
    let network = match form {
        FileForm::Conf => {
            check_plugin(members, "", libcni)?;
            NetworkFile { plugins: 1, plugin_directory: None }
        }
        FileForm::Conflist => read_list(members, libcni)?,
    };
    check_numbers(&document)?;
    Ok(network)
}

/// Returns the version with which runtimes call the plugins of a list, if ours does not support it: with our entry, containerd
/// would start no pod, and CRI-O would skip the list. With `cniVersions`, runtimes select a version that they know.
pub fn unknown_version(list: &[u8]) -> Option<UnknownVersion> {
    let document = Json::as_runtimes_read(list).ok()?;
    document.get("plugins").filter(|_| document.get("cniVersions").is_none())?;
    document.get("cniVersion")?.as_str()?.parse::<CniVersion>().err()
}

/// Checks whether a runtime accepts a file of a network's plugin directory ([`NetworkFile::plugin_directory`]). One that it rejects
/// makes the whole network unusable.
///
/// # Errors
/// The first reason.
pub fn check_directory_plugin(content: &[u8]) -> Result<(), UnusableConf> {
    let document = Json::as_runtimes_read(content)?;
    check_plugin(document.as_object().ok_or(UnusableConf::NotAnObject)?, "", Libcni::V1_3)
}

/// Whether a file has our plugin alone, as written in standalone mode. Comparing the content is left to the caller.
pub fn is_standalone(content: &[u8]) -> bool {
    let document = Json::as_runtimes_read(content).unwrap_or(Json::Null);
    document.as_object().and_then(|members| field_text(members, "type")) == Some(ConflistEntry::TYPE)
}

/// Checks that a list with this entry is still loaded, by every version.
pub(super) fn entry_is_usable(entry: &Json) -> Result<(), UnusableConf> {
    check_plugin(entry.as_object().ok_or(UnusableConf::NotAnObject)?, "", Libcni::V1_3)?;
    check_numbers(entry)
}

/// Parses a list. Its own members are matched by their exact keys and must not be null; those of its plugins are decoded into a
/// struct, as by [`plugin`]. A list without `cniVersion` is loaded.
fn read_list(members: &JsonMembers, libcni: Libcni) -> Result<NetworkFile, UnusableConf> {
    let name = members.get("name").ok_or_else(|| missing_member("name"))?;
    let name = name.as_str().ok_or_else(|| wrong_type("name", "a string"))?;
    if members.get("cniVersion").is_some_and(|version| version.as_str().is_none()) {
        return Err(wrong_type("cniVersion", "a string"));
    }
    let inline_only = match libcni {
        Libcni::V1_1 => {
            if members.get("disableCheck").is_some_and(|disable| !matches!(disable, Json::Bool(_))) {
                return Err(wrong_type("disableCheck", "a boolean"));
            }
            true
        }
        Libcni::V1_2 | Libcni::V1_3 => {
            check_versions(members)?;
            read_flag(members, "disableCheck")?;
            read_flag(members, "disableGC")?;
            libcni < Libcni::V1_3 || read_flag(members, "loadOnlyInlinedPlugins")?
        }
    };
    let plugins = match members.get("plugins") {
        None if !inline_only => 0,
        plugins => inline_plugins(plugins.ok_or_else(|| missing_member("plugins"))?, libcni)?,
    };
    Ok(NetworkFile { plugins, plugin_directory: (!inline_only).then(|| name.to_owned()) })
}

fn inline_plugins(plugins: &Json, libcni: Libcni) -> Result<usize, UnusableConf> {
    let plugins = plugins.as_list().ok_or_else(|| wrong_type("plugins", "a list"))?;
    if plugins.is_empty() {
        return Err(missing_member("plugins"));
    }
    for (at, entry) in plugins.iter().enumerate() {
        let path = format!("plugins[{at}]");
        check_plugin(
            entry.as_object().ok_or_else(|| wrong_type(&path, "an object"))?,
            &format!("{path}."),
            libcni,
        )?;
    }
    Ok(plugins.len())
}

/// Parses a boolean that may be a string as well, since libcni 1.2.
fn read_flag(members: &JsonMembers, key: &str) -> Result<bool, UnusableConf> {
    match members.get(key) {
        None => Ok(false),
        Some(Json::Bool(value)) => Ok(*value),
        Some(Json::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Json::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(wrong_type(key, "a boolean")),
    }
}

/// Checks `cniVersions`, and `cniVersion` if that list exists: every version must consist of numbers.
fn check_versions(members: &JsonMembers) -> Result<(), UnusableConf> {
    let Some(versions) = members.get("cniVersions") else { return Ok(()) };
    let versions = versions.as_list().ok_or_else(|| wrong_type("cniVersions", "a list"))?;
    for (at, version) in versions.iter().enumerate() {
        if !version.as_str().is_some_and(is_version) {
            return Err(wrong_type(&format!("cniVersions[{at}]"), "a version"));
        }
    }
    match members.get("cniVersion").and_then(Json::as_str) {
        Some(version) if !is_version(version) => Err(wrong_type("cniVersion", "a version")),
        _ => Ok(()),
    }
}

/// Whether the text has at most three numbers, with or without a sign; an empty text counts as 0.1.0.
fn is_version(text: &str) -> bool {
    let is_number = |part: &str| part.parse::<i64>().is_ok();
    text.is_empty() || (text.split('.').count() <= 3 && text.split('.').all(is_number))
}

fn wrong_type(path: &str, expected: &'static str) -> UnusableConf {
    UnusableConf::Wrong { path: path.to_owned(), expected }
}

fn missing_member(path: &str) -> UnusableConf {
    UnusableConf::Missing { path: path.to_owned() }
}

/// Types of a plugin's members that libcni decodes. Null is valid for all.
enum MemberShape {
    Text,
    Flag,
    /// A list whose elements all have one type.
    List(&'static MemberShape),
    /// An object whose members all have one type.
    Map(&'static MemberShape),
    /// An object whose listed members have these types.
    Struct(&'static [(&'static str, MemberShape)]),
    /// An object with any members.
    Object,
}

/// libcni's `types.NetConf`, common to all versions.
const PLUGIN: &[(&str, MemberShape)] = &[
    ("cniVersion", MemberShape::Text),
    ("name", MemberShape::Text),
    ("type", MemberShape::Text),
    ("capabilities", MemberShape::Map(&MemberShape::Flag)),
    ("ipam", MemberShape::Struct(&[("type", MemberShape::Text)])),
    ("dns", MemberShape::Struct(DNS)),
    ("prevResult", MemberShape::Object),
];

/// Member added in libcni 1.2.
const ATTACHMENTS: &[(&str, MemberShape)] = &[(
    "cni.dev/valid-attachments",
    MemberShape::List(&MemberShape::Struct(&[
        ("containerID", MemberShape::Text),
        ("ifname", MemberShape::Text),
    ])),
)];

const TEXTS: MemberShape = MemberShape::List(&MemberShape::Text);

const DNS: &[(&str, MemberShape)] =
    &[("nameservers", TEXTS), ("domain", MemberShape::Text), ("search", TEXTS), ("options", TEXTS)];

fn check_plugin(members: &JsonMembers, prefix: &str, libcni: Libcni) -> Result<(), UnusableConf> {
    check_members(members, PLUGIN, prefix)?;
    if libcni >= Libcni::V1_2 {
        check_members(members, ATTACHMENTS, prefix)?;
    }
    field_text(members, "type").map(drop).ok_or_else(|| missing_member(&format!("{prefix}type")))
}

fn check_members(
    members: &JsonMembers,
    shapes: &[(&str, MemberShape)],
    prefix: &str,
) -> Result<(), UnusableConf> {
    for (key, shape) in shapes {
        for value in matching_fields(members, key) {
            check_shape(value, shape, &format!("{prefix}{key}"))?;
        }
    }
    Ok(())
}

fn check_shape(value: &Json, shape: &MemberShape, path: &str) -> Result<(), UnusableConf> {
    let expected = match (value, shape) {
        (Json::Null, _) | (Json::String(_), MemberShape::Text) | (Json::Bool(_), MemberShape::Flag) => {
            return Ok(());
        }
        (Json::List(list), MemberShape::List(shape)) => {
            let mut places = list.iter().enumerate();
            return places.try_for_each(|(at, item)| check_shape(item, shape, &format!("{path}[{at}]")));
        }
        (Json::Object(members), MemberShape::Map(shape)) => {
            return members
                .iter()
                .try_for_each(|(key, value)| check_shape(value, shape, &format!("{path}.{key}")));
        }
        (Json::Object(members), MemberShape::Struct(shapes)) => {
            return check_members(members, shapes, &format!("{path}."));
        }
        (Json::Object(_), MemberShape::Object) => return check_numbers(value),
        (_, MemberShape::Text) => "a string",
        (_, MemberShape::Flag) => "a boolean",
        (_, MemberShape::List(MemberShape::Text)) => "a list of strings",
        (_, MemberShape::List(_)) => "a list of objects",
        (_, MemberShape::Map(_) | MemberShape::Struct(_) | MemberShape::Object) => "an object",
    };
    Err(wrong_type(path, expected))
}

fn check_numbers(value: &Json) -> Result<(), UnusableConf> {
    match value {
        Json::Number(text) if !text.parse().is_ok_and(f64::is_finite) => {
            Err(UnusableConf::Number(text.chars().take(64).collect()))
        }
        Json::List(list) => list.iter().try_for_each(check_numbers),
        Json::Object(members) => members.values().try_for_each(check_numbers),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => Ok(()),
    }
}
