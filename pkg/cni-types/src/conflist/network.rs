//! Whether a runtime takes a file as a network. Kubelet, containerd and CRI-O read them with libcni, whose rules these
//! are (`ConfListFromFile`, `ConfFromFile` and `ConfListFromConf` of containernetworking/cni 1.1); a file that it
//! does not take is passed over for the next one.

use super::ConflistEntry;
use crate::document::{Json, JsonError, JsonMembers, field_text, fields};

/// The two kinds of file that a runtime looks at and Istio's agent too; it leaves `.json` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileForm {
    /// `.conf`: a single plugin.
    Conf,
    /// `.conflist`: a list of plugins.
    Conflist,
}

impl FileForm {
    /// The form that a name denotes by what stands after its last dot; none when it is another.
    #[must_use]
    pub fn of(file_name: &str) -> Option<FileForm> {
        match file_name.rsplit_once('.')?.1 {
            "conf" => Some(FileForm::Conf),
            "conflist" => Some(FileForm::Conflist),
            _ => None,
        }
    }
}

/// Why a runtime does not take a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableConf {
    /// It cannot be read.
    #[error("it is not JSON: {0}")]
    Json(#[from] JsonError),
    /// The document is a list, a string or the like.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// A member is missing, or empty where that counts the same.
    #[error("`{path}` is missing or empty")]
    Missing {
        /// The member's path.
        path: String,
    },
    /// A member is of the wrong type.
    #[error("`{path}` is not {wanted}")]
    Wrong {
        /// The member's path.
        path: String,
        /// What it should be, with its article.
        wanted: &'static str,
    },
    /// A number beyond a float64, into which Go decodes every number that has no type.
    #[error("the number {0} is out of range")]
    Number(
        /// The number, shortened to 64 characters.
        String,
    ),
    /// Standalone mode: the file is for another plugin.
    #[error("its `type` is {found:?} instead of {:?}", ConflistEntry::TYPE)]
    NotOurs {
        /// The type it has.
        found: String,
    },
}

/// Whether a runtime takes a file of that form as a network. Bytes that are no UTF-8 do not matter to it, although
/// [`merged`](super::merged) refuses to edit such a file.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_network(form: FileForm, content: &[u8]) -> Result<(), UnusableConf> {
    let document = Json::as_runtimes_read(content)?;
    let members = document.as_object().ok_or(UnusableConf::NotAnObject)?;
    match form {
        FileForm::Conf => plugin(members, "")?,
        FileForm::Conflist => list(members)?,
    }
    numbers(&document)
}

/// Whether a file holds our plugin alone, as standalone mode writes it. Whether it is still the same text is for the
/// caller to compare.
///
/// # Errors
/// When it is no JSON object, or its `type` is another one.
pub fn check_standalone(content: &[u8]) -> Result<(), UnusableConf> {
    let document = Json::as_runtimes_read(content)?;
    let members = document.as_object().ok_or(UnusableConf::NotAnObject)?;
    match field_text(members, "type") {
        Some(ConflistEntry::TYPE) => Ok(()),
        Some(other) => Err(UnusableConf::NotOurs { found: other.to_owned() }),
        None => Err(UnusableConf::Missing { path: "type".to_owned() }),
    }
}

/// Whether a list with this entry is still taken.
pub(super) fn entry_is_usable(entry: &Json) -> Result<(), UnusableConf> {
    plugin(entry.as_object().ok_or(UnusableConf::NotAnObject)?, "")?;
    numbers(entry)
}

/// A list's own members are looked up by their exact keys and must not be null; those of its plugins are decoded into a
/// struct, as [`plugin`] has it. A list without `cniVersion` is taken.
fn list(members: &JsonMembers) -> Result<(), UnusableConf> {
    let name = members.get("name").ok_or_else(|| missing("name"))?;
    let wrong = |path: &str, wanted| UnusableConf::Wrong { path: path.to_owned(), wanted };
    name.as_str().ok_or_else(|| wrong("name", "a string"))?;
    if members.get("cniVersion").is_some_and(|version| version.as_str().is_none()) {
        return Err(wrong("cniVersion", "a string"));
    }
    if members.get("disableCheck").is_some_and(|disable| !matches!(disable, Json::Bool(_))) {
        return Err(wrong("disableCheck", "a boolean"));
    }
    let plugins = members.get("plugins").ok_or_else(|| missing("plugins"))?;
    let plugins = plugins.as_list().ok_or_else(|| wrong("plugins", "a list"))?;
    if plugins.is_empty() {
        return Err(missing("plugins"));
    }
    for (at, entry) in plugins.iter().enumerate() {
        let path = format!("plugins[{at}]");
        plugin(entry.as_object().ok_or_else(|| wrong(&path, "an object"))?, &format!("{path}."))?;
    }
    Ok(())
}

fn missing(path: &str) -> UnusableConf {
    UnusableConf::Missing { path: path.to_owned() }
}

/// The shapes of a plugin's members that libcni decodes. Null fits all.
enum MemberShape {
    Text,
    Flag,
    Texts,
    /// An object whose members all have one shape.
    Map(&'static MemberShape),
    /// An object; its members that are named here have these shapes.
    Struct(&'static [(&'static str, MemberShape)]),
}

/// libcni's `types.NetConf`.
const PLUGIN: &[(&str, MemberShape)] = &[
    ("cniVersion", MemberShape::Text),
    ("name", MemberShape::Text),
    ("type", MemberShape::Text),
    ("capabilities", MemberShape::Map(&MemberShape::Flag)),
    ("ipam", MemberShape::Struct(&[("type", MemberShape::Text)])),
    ("dns", MemberShape::Struct(DNS)),
    ("prevResult", MemberShape::Struct(&[])),
];

const DNS: &[(&str, MemberShape)] = &[
    ("nameservers", MemberShape::Texts),
    ("domain", MemberShape::Text),
    ("search", MemberShape::Texts),
    ("options", MemberShape::Texts),
];

fn plugin(members: &JsonMembers, prefix: &str) -> Result<(), UnusableConf> {
    shaped(members, PLUGIN, prefix)?;
    field_text(members, "type").map(drop).ok_or_else(|| missing(&format!("{prefix}type")))
}

fn shaped(members: &JsonMembers, shapes: &[(&str, MemberShape)], prefix: &str) -> Result<(), UnusableConf> {
    for (key, shape) in shapes {
        for value in fields(members, key) {
            fits(value, shape, &format!("{prefix}{key}"))?;
        }
    }
    Ok(())
}

fn fits(value: &Json, shape: &MemberShape, path: &str) -> Result<(), UnusableConf> {
    let wanted = match (value, shape) {
        (Json::Null, _) | (Json::String(_), MemberShape::Text) | (Json::Bool(_), MemberShape::Flag) => {
            return Ok(());
        }
        (Json::List(list), MemberShape::Texts) => {
            let mut places = list.iter().enumerate();
            return places
                .try_for_each(|(at, text)| fits(text, &MemberShape::Text, &format!("{path}[{at}]")));
        }
        (Json::Object(members), MemberShape::Map(shape)) => {
            return members.iter().try_for_each(|(key, value)| fits(value, shape, &format!("{path}.{key}")));
        }
        (Json::Object(members), MemberShape::Struct(shapes)) => {
            return shaped(members, shapes, &format!("{path}."));
        }
        (_, MemberShape::Text) => "a string",
        (_, MemberShape::Flag) => "a boolean",
        (_, MemberShape::Texts) => "a list of strings",
        (_, MemberShape::Map(_) | MemberShape::Struct(_)) => "an object",
    };
    Err(UnusableConf::Wrong { path: path.to_owned(), wanted })
}

fn numbers(value: &Json) -> Result<(), UnusableConf> {
    match value {
        Json::Number(text) if !text.parse().is_ok_and(f64::is_finite) => {
            Err(UnusableConf::Number(text.chars().take(64).collect()))
        }
        Json::List(list) => list.iter().try_for_each(numbers),
        Json::Object(members) => members.values().try_for_each(numbers),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => Ok(()),
    }
}
