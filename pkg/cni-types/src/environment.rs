//! Environment variables of a call: command and container.

use std::ffi::{OsStr, OsString};

use model::ContainerId;

use crate::{CniArgs, CniError, CniIfName, CniVersion, ErrorCode, NameError, NetnsPath, names};

model::word_enum! {
    /// Command of the runtime (`CNI_COMMAND`; CNI spec 1.1.0, section 2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum CniCommand {
        /// Attach a container, or modify the attachment of the previous plugins.
        Add = "ADD",
        /// Undo an `ADD`; may be repeated, and called without a netns.
        Del = "DEL",
        /// Verify an attachment; since 0.4.0.
        Check = "CHECK",
        /// Remove everything that belongs to none of the listed attachments; since 1.1.0.
        Gc = "GC",
        /// Report whether the plugin can serve `ADD`; since 1.1.0.
        Status = "STATUS",
        /// Report the supported versions.
        Version = "VERSION",
    }
}

impl CniCommand {
    /// Returns the command in `CNI_COMMAND`; `None` if it is unset or empty (a person runs the plugin by hand).
    ///
    /// # Errors
    /// Code 4 for any other text.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, CniError> {
        let Some(text) = nonempty_variable(&lookup, "CNI_COMMAND") else { return Ok(None) };
        let command = text.to_str().and_then(CniCommand::from_name);
        command.map(Some).ok_or_else(|| {
            let shown: String = text.to_string_lossy().chars().take(64).collect();
            invalid_environment(format!("CNI_COMMAND is {shown:?}, which is not a CNI command"))
        })
    }

    /// Returns the first version with the command.
    pub const fn minimum_version(self) -> CniVersion {
        match self {
            CniCommand::Add | CniCommand::Del => CniVersion::V0_1_0,
            CniCommand::Version => CniVersion::V0_2_0,
            CniCommand::Check => CniVersion::V0_4_0,
            CniCommand::Gc | CniCommand::Status => CniVersion::V1_1_0,
        }
    }

    /// Returns the variables that must be set and not empty, besides `CNI_COMMAND`: those that the specification requires, and
    /// `CNI_PATH` as in the reference plugins (Istio 1.20).
    pub const fn required_variables(self) -> &'static [&'static str] {
        match self {
            CniCommand::Add | CniCommand::Check => {
                &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]
            }
            CniCommand::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            CniCommand::Gc | CniCommand::Status => &["CNI_PATH"],
            CniCommand::Version => &[],
        }
    }
}

/// Validated `CNI_*` variables of one call. Those required by the command are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniEnvironment {
    /// `CNI_COMMAND`: command to execute.
    pub command: CniCommand,
    /// `CNI_CONTAINERID`: set at `ADD`, `DEL`, `CHECK`; an alphanumeric, then alphanumerics, `_`, `.` and `-`.
    pub container_id: Option<ContainerId>,
    /// `CNI_NETNS`: set at `ADD` and `CHECK`; optional at `DEL`.
    pub netns: Option<NetnsPath>,
    /// `CNI_IFNAME`: set at `ADD`, `DEL`, `CHECK`.
    pub ifname: Option<CniIfName>,
    /// `CNI_ARGS`, unparsed: see [`CniEnvironment::parse_args`]. Empty if unset.
    pub raw_args: String,
}

impl CniEnvironment {
    /// Reads the variables that the command uses. An empty variable counts as unset: runtimes always set all of them.
    ///
    /// # Errors
    /// Code 4: a required variable is missing (all missing ones are named), or one is invalid.
    pub fn parse(command: CniCommand, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, CniError> {
        let missing: Vec<&str> = command
            .required_variables()
            .iter()
            .copied()
            .filter(|name| nonempty_variable(&lookup, name).is_none())
            .collect();
        if !missing.is_empty() {
            return Err(invalid_environment(format!(
                "{command} needs variables that are not set: {}",
                missing.join(", ")
            )));
        }
        let container = matches!(command, CniCommand::Add | CniCommand::Del | CniCommand::Check);
        let of_container = |name: &str| if container { lookup(name) } else { None };
        Ok(CniEnvironment {
            command,
            container_id: parse_variable(&of_container, "CNI_CONTAINERID", as_text(names::container_id))?,
            netns: parse_variable(&of_container, "CNI_NETNS", NetnsPath::new)?,
            ifname: parse_variable(&of_container, "CNI_IFNAME", as_text(CniIfName::new))?,
            raw_args: parse_variable(&of_container, "CNI_ARGS", as_text(|args| Ok(args.to_owned())))?
                .unwrap_or_default(),
        })
    }

    /// Returns the parsed `CNI_ARGS`.
    ///
    /// # Errors
    /// Code 4, see [`CniArgs::parse`].
    pub fn parse_args(&self) -> Result<CniArgs, CniError> {
        CniArgs::parse(&self.raw_args)
    }
}

fn nonempty_variable(lookup: &impl Fn(&str) -> Option<OsString>, name: &str) -> Option<OsString> {
    lookup(name).filter(|value| !value.is_empty())
}

fn parse_variable<T>(
    lookup: &impl Fn(&str) -> Option<OsString>,
    name: &str,
    parse: impl Fn(&OsStr) -> Result<T, NameError>,
) -> Result<Option<T>, CniError> {
    nonempty_variable(lookup, name)
        .map(|value| parse(&value))
        .transpose()
        .map_err(|error| invalid_environment(format!("{name} {error}")))
}

fn as_text<T>(parse: impl Fn(&str) -> Result<T, NameError>) -> impl Fn(&OsStr) -> Result<T, NameError> {
    move |value| match value.to_str() {
        Some(text) => parse(text),
        None => Err(NameError::Form { text: names::excerpt(&value.to_string_lossy()), form: "UTF-8" }),
    }
}

pub(crate) fn invalid_environment(msg: String) -> CniError {
    CniError::new(ErrorCode::InvalidEnvironment, msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    const FULL: [(&str, &str); 5] = [
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", "/proc/1/ns/net"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", "IgnoreUnknown=1"),
    ];

    #[test]
    fn the_command_is_read_or_absent_or_refused() {
        let read = |text: &str| CniCommand::from_lookup(lookup(&[("CNI_COMMAND", text)]));
        for command in [
            CniCommand::Add,
            CniCommand::Del,
            CniCommand::Check,
            CniCommand::Gc,
            CniCommand::Status,
            CniCommand::Version,
        ] {
            assert_eq!(read(&command.to_string()), Ok(Some(command)));
        }
        assert_eq!(read(""), Ok(None));
        assert_eq!(CniCommand::from_lookup(|_| None), Ok(None));
        assert_eq!(read("add").unwrap_err().code, ErrorCode::InvalidEnvironment);
    }

    #[test]
    fn each_command_names_what_is_missing() {
        for (command, missing) in [
            (CniCommand::Add, "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_PATH"),
            (CniCommand::Check, "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_PATH"),
            (CniCommand::Del, "CNI_CONTAINERID, CNI_IFNAME, CNI_PATH"),
            (CniCommand::Gc, "CNI_PATH"),
            (CniCommand::Status, "CNI_PATH"),
        ] {
            let error = CniEnvironment::parse(command, |_| Some(OsString::new())).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidEnvironment);
            assert!(error.msg.ends_with(&format!(": {missing}")), "{}", error.msg);
        }
        assert!(CniEnvironment::parse(CniCommand::Version, |_| None).is_ok());
        let two = [("CNI_CONTAINERID", "abc"), ("CNI_PATH", "/x")];
        assert!(
            CniEnvironment::parse(CniCommand::Add, lookup(&two))
                .unwrap_err()
                .msg
                .ends_with(": CNI_NETNS, CNI_IFNAME")
        );
    }

    #[test]
    fn a_full_environment_is_typed() {
        let env = CniEnvironment::parse(CniCommand::Add, lookup(&FULL)).unwrap();
        assert_eq!(env.container_id.unwrap().as_str(), "abc");
        assert_eq!(env.netns.unwrap().to_string(), "/proc/1/ns/net");
        assert_eq!(env.raw_args, "IgnoreUnknown=1");
    }

    #[test]
    fn an_invalid_variable_is_named() {
        for (name, value) in
            [("CNI_CONTAINERID", "../x"), ("CNI_NETNS", "relative"), ("CNI_IFNAME", "sixteen-byte-ifn")]
        {
            let get = |key: &str| if key == name { Some(OsString::from(value)) } else { lookup(&FULL)(key) };
            let error = CniEnvironment::parse(CniCommand::Add, get).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidEnvironment);
            assert!(error.msg.starts_with(name), "{}", error.msg);
        }
    }
}
