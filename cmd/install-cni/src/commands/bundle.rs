//! `bundle`: an archive with everything needed to diagnose a fault away from the node.

mod content;

use std::{io, process::ExitCode, time::SystemTime};

use anyhow::{Context as _, Result};
use bundle::Archive;

use super::{command_flags, invocation::CommandInvocation};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let now = SystemTime::now();
    let time = agent_protocol::rfc3339(now);
    let file = call.values.flag_text(&command_flags::FILE);
    let to_terminal = console::check_terminal(file)?;
    let state = node_status::obtain_report(&call.settings)?;
    let name = archive_name(&state.node.name, &time);
    let file = match file {
        "" if to_terminal => Some(format!("{name}.tar.gz")),
        "-" | "" => None,
        file => Some(file.to_owned()),
    };
    let files = content::archive_files(&state, &call.settings, &time);
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let archive = pack_archive(&name, &files, seconds).context("cannot make the archive")?;
    console::write_archive(file.as_deref(), &archive)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of the archive and of the directory in it.
fn archive_name(node: &str, time: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let node: String = node.chars().filter(is_plain).take(40).collect();
    let stamp: String = time.chars().filter(char::is_ascii_alphanumeric).take(15).collect();
    if node.is_empty() { format!("install-cni-{stamp}") } else { format!("install-cni-{node}-{stamp}") }
}

fn pack_archive(directory: &str, files: &[(String, String)], time: u64) -> io::Result<Vec<u8>> {
    let mut archive = Archive::new(directory, time);
    for (name, text) in files {
        archive.add_file(name, text)?;
    }
    archive.finish()
}
