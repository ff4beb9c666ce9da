//! Finding the host's tools.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use model::Family;

use crate::{
    Backend, Error,
    child::{RunningTool, ToolInput},
};

/// Where tools usually are, for callers without a `PATH`.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The directories that are searched.
#[derive(Clone, Debug)]
pub(crate) struct IptablesTools {
    path: OsString,
}

/// Task of a tool.
#[derive(Clone, Copy)]
pub(crate) enum ToolVerb {
    /// `iptables-restore`
    Restore,
    /// `iptables-save`
    Save,
    /// `iptables`
    Command,
}

impl ToolVerb {
    fn suffix(self) -> &'static str {
        match self {
            ToolVerb::Restore => "-restore",
            ToolVerb::Save => "-save",
            ToolVerb::Command => "",
        }
    }
}

impl IptablesTools {
    pub(crate) fn from_environment() -> IptablesTools {
        let path = env::var_os("PATH").filter(|path| !path.is_empty());
        IptablesTools { path: path.unwrap_or_else(|| USUAL_PATH.into()) }
    }

    /// The tool of `backend`: by its own name, or by the plain name when that is this backend's.
    pub(crate) fn find(&self, backend: Backend, family: Family, verb: ToolVerb) -> Result<PathBuf, Error> {
        let prefix = prefix(family);
        let suffix = verb.suffix();
        if let Some(tool) = self.search(&format!("{prefix}-{backend}{suffix}")) {
            return Ok(tool);
        }
        let plain = format!("{prefix}{suffix}");
        match self.search(&plain) {
            Some(tool) if backend_of(&tool)? == backend => Ok(tool),
            _ => Err(Error::NoTool { tool: plain, backend, path: self.path.to_string_lossy().into_owned() }),
        }
    }

    /// The backend of the host's plain `iptables-restore`, which is the operator's choice.
    pub(crate) fn default_backend(&self) -> Result<Backend, Error> {
        match self.search("iptables-restore") {
            Some(tool) => backend_of(&tool),
            None if self.search("iptables-nft-restore").is_some() => Ok(Backend::Nft),
            None if self.search("iptables-legacy-restore").is_some() => Ok(Backend::Legacy),
            None => Err(Error::NoIptables(self.path.to_string_lossy().into_owned())),
        }
    }

    fn search(&self, name: &str) -> Option<PathBuf> {
        env::split_paths(&self.path).map(|dir| dir.join(name)).find(|path| path.is_file())
    }
}

/// The backend that a blank network namespace gets: nf_tables where the kernel has them, else that of the host's tools.
///
/// # Errors
/// [`Error::NoIptables`]: neither is there.
pub fn available_backend() -> Result<Backend, Error> {
    match nftables::generation() {
        Ok(_) => Ok(Backend::Nft),
        Err(_) => IptablesTools::from_environment().default_backend(),
    }
}

fn prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Which backend a tool with a plain name is: by the program that its links lead to, else by asking it.
fn backend_of(tool: &Path) -> Result<Backend, Error> {
    let program = tool.canonicalize().map_err(|source| Error::Read { path: tool.to_owned(), source })?;
    match program.file_name().map(|name| name.to_string_lossy().into_owned()) {
        Some(name) if name.contains("nft") => Ok(Backend::Nft),
        Some(name) if name.contains("legacy") || name == "xtables-multi" => Ok(Backend::Legacy),
        _ => ask(tool),
    }
}

/// `iptables v1.8.9 (nf_tables)` or `iptables v1.6.1`.
fn ask(tool: &Path) -> Result<Backend, Error> {
    let bound = Duration::from_secs(5);
    let running = RunningTool::start(tool, &["--version".to_owned()], &[], ToolInput::Text(""))?;
    let answer = running.finish(Instant::now() + bound, bound)?.success()?;
    Ok(if answer.stdout.contains("nf_tables") { Backend::Nft } else { Backend::Legacy })
}
