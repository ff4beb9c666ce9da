//! Check that a plugin can be executed.

use std::{
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::Error;

/// A plugin that does not respond within this time would not respond to a runtime either.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum size of the plugin's output, in bytes.
const MAX_OUTPUT: u64 = 64 * 1024;

/// Runs the plugin with `CNI_COMMAND=VERSION` and nothing else in its environment.
///
/// # Errors
/// The plugin cannot be executed, fails, does not end within five seconds, or does not respond as a CNI plugin.
pub(crate) fn check_plugin(path: &Path) -> Result<(), Error> {
    query_version(path).map_err(|why| Error::Broken { path: path.to_owned(), why })
}

fn query_version(path: &Path) -> Result<(), String> {
    let mut command = Command::new(path);
    command.env_clear().env("CNI_COMMAND", "VERSION");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let status = match hostfs::wait_for_child(&mut child, Instant::now() + LIMIT) {
        Ok(Some(status)) => status,
        unfinished => {
            drop((child.kill(), child.wait()));
            return Err(unfinished.map_or_else(
                |error| format!("cannot wait for it: {error}"),
                |_| format!("no answer within {} s", LIMIT.as_secs()),
            ));
        }
    };
    let output = read_answer(&mut child);
    let output = output.map_err(|error| format!("its answer cannot be read: {error}"))?;
    if !status.success() {
        return Err(format!("it ended with {status}: {}", output.trim()));
    }
    if !output.contains("supportedVersions") {
        return Err(format!("it answers {:?} to VERSION", output.trim()));
    }
    Ok(())
}

/// Reads the output of a child that has ended, without blocking: a grandchild may hold the pipe open forever.
fn read_answer(child: &mut Child) -> Result<String, std::io::Error> {
    let Some(output) = child.stdout.take() else { return Ok(String::new()) };
    rustix::io::ioctl_fionbio(&output, true)?;
    let mut bytes = Vec::new();
    match output.take(MAX_OUTPUT).read_to_end(&mut bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}
