//! Search for the host's tools.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use model::Family;

use crate::{
    Error,
    child::{RunningTool, ToolInput},
};

/// Usual directories of tools, for callers without a `PATH`.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

model::word_enum! {
    /// Implementation of iptables.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ToolKind {
        /// iptables commands on the kernel's nf_tables.
        Nft = "nft",
        /// iptables commands on the kernel's ip_tables.
        Legacy = "legacy",
    }
}

/// The directories to search.
#[derive(Clone, Debug)]
pub struct IptablesTools {
    path: OsString,
}

model::word_enum! {
    /// Task of a tool.
    #[derive(Clone, Copy, Debug)]
    pub enum ToolVerb {
        /// `iptables-restore`
        Restore = "restore",
        /// `iptables-save`
        Save = "save",
    }
}

impl IptablesTools {
    /// Uses the directories of `PATH`, or the usual ones without it.
    pub fn from_environment() -> IptablesTools {
        let path = env::var_os("PATH").filter(|path| !path.is_empty());
        IptablesTools { path: path.unwrap_or_else(|| USUAL_PATH.into()) }
    }

    /// Returns the tool of this kind: by its specific name, or by the plain name if that is of this kind.
    ///
    /// # Errors
    /// There is none, or the kind of a plain name could not be determined.
    pub fn find_tool(&self, kind: ToolKind, family: Family, verb: ToolVerb) -> Result<PathBuf, Error> {
        let prefix = name_prefix(family);
        if let Some(tool) = self.search_path(&format!("{prefix}-{kind}-{verb}")) {
            return Ok(tool);
        }
        let plain = format!("{prefix}-{verb}");
        match self.search_path(&plain) {
            Some(tool) if detect_kind(&tool)? == kind => Ok(tool),
            _ => Err(Error::NoTool {
                tool: plain,
                backend: kind,
                path: self.path.to_string_lossy().into_owned(),
            }),
        }
    }

    /// Returns the kind of the host's plain `iptables-restore`, which is the operator's choice.
    ///
    /// # Errors
    /// There is no such tool, or its kind could not be determined.
    pub fn default_kind(&self) -> Result<ToolKind, Error> {
        match self.search_path("iptables-restore") {
            Some(tool) => detect_kind(&tool),
            None if self.search_path("iptables-nft-restore").is_some() => Ok(ToolKind::Nft),
            None if self.search_path("iptables-legacy-restore").is_some() => Ok(ToolKind::Legacy),
            None => Err(Error::NoIptables(self.path.to_string_lossy().into_owned())),
        }
    }

    fn search_path(&self, name: &str) -> Option<PathBuf> {
        env::split_paths(&self.path).map(|dir| dir.join(name)).find(|path| path.is_file())
    }
}

fn name_prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Returns the kind of a tool with a plain name: by the program behind its symbolic links, else by its version output.
fn detect_kind(tool: &Path) -> Result<ToolKind, Error> {
    let program = tool.canonicalize().map_err(|source| Error::Read { path: tool.to_owned(), source })?;
    match program.file_name().map(|name| name.to_string_lossy().into_owned()) {
        Some(name) if name.contains("nft") => Ok(ToolKind::Nft),
        Some(name) if name.contains("legacy") || name == "xtables-multi" => Ok(ToolKind::Legacy),
        _ => query_kind(tool),
    }
}

/// Parses `iptables v1.8.9 (nf_tables)` or `iptables v1.6.1`.
fn query_kind(tool: &Path) -> Result<ToolKind, Error> {
    let bound = Duration::from_secs(5);
    let running = RunningTool::start(None, tool, &["--version".to_owned()], &[], ToolInput::Text(""))?;
    let answer = running.wait_for_exit(Instant::now() + bound, bound)?.require_success()?;
    Ok(if answer.stdout.contains("nf_tables") { ToolKind::Nft } else { ToolKind::Legacy })
}
