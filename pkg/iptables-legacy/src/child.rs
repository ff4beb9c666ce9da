//! A tool as a child process: input and output in memory files, so that nothing can block on a pipe, and a deadline for
//! the whole run. Only a tool that is started before its input is known reads from a pipe.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, memfd_create};

use hostfs::wait_for_child;
use netns::UserNamespace;

use crate::Error;

/// Path of this program.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Argument by which this program becomes a tool: see [`become_tool`].
const BECOME_TOOL: &str = "--as-tool-in-user-namespace";

/// Becomes a tool in a user namespace, if this process was started for that. To be called before there is a second
/// thread. Returns an error if that failed, and `None` if the process was started for another purpose.
pub fn become_tool(mut arguments: impl Iterator<Item = OsString>) -> Option<String> {
    arguments.next()?; // the program's name
    if arguments.next()? != BECOME_TOOL {
        return None;
    }
    let (Some(path), Some(tool)) = (arguments.next(), arguments.next()) else {
        return Some(format!("{BECOME_TOOL} needs a user namespace and a tool"));
    };
    if let Err(error) = UserNamespace::enter_permanently(Path::new(&path)) {
        return Some(error.to_string());
    }
    let error = Command::new(&tool).args(arguments).exec();
    Some(format!("cannot run {}: {error}", Path::new(&tool).display()))
}

/// Standard input of a tool.
#[derive(Clone, Copy)]
pub enum ToolInput<'a> {
    /// This text.
    Text(&'a str),
    /// Text that [`RunningTool::write_input`] will pass later.
    Later,
}

/// A running tool.
#[derive(Debug)]
pub struct RunningTool {
    tool: PathBuf,
    child: Child,
    stdout: File,
    stderr: File,
}

/// Exit status and output of a tool that has ended.
pub struct FinishedTool {
    /// The tool.
    pub tool: PathBuf,
    /// Exit status of the tool.
    pub status: ExitStatus,
    /// Standard output, with U+FFFD for what is not UTF-8.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
}

impl RunningTool {
    /// Starts `tool` with `input` as its standard input and nothing of our environment but `PATH`. The child
    /// lives in the calling thread's namespaces, but in the user namespace, if one is given. No thread can enter one, nor
    /// can a process with several threads. So this program is started once more, and becomes the tool in there.
    pub fn start(
        user_namespace: Option<&UserNamespace>,
        tool: &Path,
        arguments: &[String],
        env: &[(&str, &Path)],
        input: ToolInput<'_>,
    ) -> Result<RunningTool, Error> {
        let mut command = match user_namespace {
            None => Command::new(tool),
            Some(within) => {
                let mut command = Command::new(OWN_PROGRAM);
                command.arg(BECOME_TOOL).arg(within.path()).arg(tool);
                command
            }
        };
        command.args(arguments).env_clear().envs(env.iter().copied());
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        let spawned = RunningTool::spawn_command(tool, command, input);
        spawned.map_err(|source| Error::Run { tool: tool.to_owned(), source })
    }

    fn spawn_command(tool: &Path, mut command: Command, input: ToolInput<'_>) -> io::Result<RunningTool> {
        let stdin = match input {
            ToolInput::Text(text) => Stdio::from(memory_file_with("input", text)?),
            ToolInput::Later => Stdio::piped(),
        };
        let (stdout, stderr) = (memory_file("stdout")?, memory_file("stderr")?);
        command.stdin(stdin).stdout(stdout.try_clone()?).stderr(Stdio::from(stderr.try_clone()?));
        Ok(RunningTool { tool: tool.to_owned(), child: command.spawn()?, stdout, stderr })
    }

    /// Passes the input, which must fit into a pipe, to a tool that waits for it, and closes the pipe.
    pub fn write_input(&mut self, text: &str) -> Result<(), Error> {
        let written = self.child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(text.as_bytes()));
        match written {
            // The tool has already ended: its output, which is read when it is waited for, has the reason.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(|source| Error::Run { tool: self.tool.clone(), source }),
        }
    }

    /// Waits until `deadline`, then kills the tool. `bound` is the whole time limit, for the message.
    pub fn wait_for_exit(mut self, deadline: Instant, bound: Duration) -> Result<FinishedTool, Error> {
        let tool = self.tool.clone();
        let failed = |source| Error::Run { tool: tool.clone(), source };
        let status = wait_for_child(&mut self.child, deadline).map_err(failed)?;
        let status = status.ok_or_else(|| Error::TimedOut { tool: tool.clone(), after: bound })?;
        let stdout = read_contents(&mut self.stdout).map_err(failed)?;
        let stderr = read_contents(&mut self.stderr).map_err(failed)?;
        Ok(FinishedTool { tool, status, stdout, stderr })
    }
}

/// No child outlives its owner. Killing and waiting for a reaped child has no effect.
impl Drop for RunningTool {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl FinishedTool {
    /// Returns the tool's result if it succeeded, else the reason of the refusal (iptables: `include/xtables.h`,
    /// `enum xtables_exittype`).
    pub fn require_success(self) -> Result<FinishedTool, Error> {
        if self.status.success() {
            return Ok(self);
        }
        let meaning = match self.status.code() {
            Some(1) => "other problem (exit status 1)".to_owned(),
            Some(2) => "parameter problem (exit status 2)".to_owned(),
            Some(3) => "version problem (exit status 3)".to_owned(),
            Some(4) => "resource problem (exit status 4)".to_owned(),
            _ => self.status.to_string(),
        };
        Err(Error::Refused { tool: self.tool, meaning, stderr: last_characters(&self.stderr) })
    }
}

/// Returns the last 600 characters, on one line.
fn last_characters(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skip = line.chars().count().saturating_sub(600);
    line.chars().skip(skip).collect()
}

fn memory_file(name: &str) -> io::Result<File> {
    let fd: OwnedFd = memfd_create(name, MemfdFlags::CLOEXEC)?;
    Ok(File::from(fd))
}

fn memory_file_with(name: &str, text: &str) -> io::Result<File> {
    let mut file = memory_file(name)?;
    file.write_all(text.as_bytes())?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn read_contents(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}
