//! A log file that is moved aside when it is long: `name-2023-11-21T12-00-00.000.log` beside `name.log`, as the library
//! does that Istio uses (lumberjack).

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::output::Output;
use super::rfc3339;

/// Nobody else reads the rotated log unless the operator says so.
const FILE_MODE: u32 = 0o600;
/// The form of a time in a backup's name. Written so, text order is order in time.
const STAMP: &str = "0000-00-00T00-00-00.000";

/// When to rotate, and what to keep.
#[derive(Debug)]
pub(super) struct Rotation {
    pub(super) path: PathBuf,
    pub(super) max_bytes: u64,
    pub(super) max_age: Option<Duration>,
    pub(super) max_backups: Option<usize>,
}

pub(super) struct RotatingFile {
    rotation: Rotation,
    output: Output,
    size: u64,
}

impl RotatingFile {
    pub(super) fn open(rotation: Rotation, now: SystemTime) -> io::Result<RotatingFile> {
        let directory = rotation.directory();
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let output = Output::append(&rotation.path, FILE_MODE)?;
        let size = output.len()?;
        rotation.clean(now);
        Ok(RotatingFile { rotation, output, size })
    }

    /// Whether the line was written. When moving the file aside fails, it just grows: lines are worth more than a limit.
    pub(super) fn write(&mut self, line: &[u8], now: SystemTime) -> bool {
        let length = line.len() as u64;
        if self.size > 0 && self.size.saturating_add(length) > self.rotation.max_bytes {
            let _ = self.rotate(now);
        }
        let written = self.output.write(line);
        self.size = self.size.saturating_add(length);
        written
    }

    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        match fs::rename(&self.rotation.path, self.rotation.free_name(now)) {
            // Somebody else took it away, or a former attempt got only this far.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            result => result?,
        }
        self.output = Output::append(&self.rotation.path, FILE_MODE)?;
        self.size = self.output.len()?;
        self.rotation.clean(now);
        Ok(())
    }
}

impl Rotation {
    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        }
    }

    /// What stands before and after the time in a backup's name.
    fn affixes(&self) -> (String, String) {
        let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let extension = self.path.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
        (text(self.path.file_stem()) + "-", extension.unwrap_or_default())
    }

    /// A name that no backup has: two rotations may fall into one millisecond.
    fn free_name(&self, now: SystemTime) -> PathBuf {
        let (before, after) = self.affixes();
        let name = |ahead| {
            let time = now + Duration::from_millis(ahead);
            self.directory().join(format!("{before}{}{after}", stamp(time)))
        };
        (0..1000).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(0))
    }

    /// Removes backups that are too many or too old. What cannot be read or removed stays until the next time.
    fn clean(&self, now: SystemTime) {
        let (before, after) = self.affixes();
        let mut backups: Vec<(String, PathBuf)> = fs::read_dir(self.directory())
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name();
                let time = name.to_str()?.strip_prefix(&before)?.strip_suffix(&after)?;
                is_stamp(time).then(|| (time.to_owned(), entry.path()))
            })
            .collect();
        backups.sort_unstable_by(|a, b| b.cmp(a)); // newest first
        let oldest = self.max_age.and_then(|age| now.checked_sub(age)).map(stamp).unwrap_or_default();
        let most = self.max_backups.unwrap_or(usize::MAX);
        for (index, (time, path)) in backups.iter().enumerate() {
            if index >= most || *time < oldest {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn stamp(time: SystemTime) -> String {
    rfc3339(time).chars().take(STAMP.len()).map(|c| if c == ':' { '-' } else { c }).collect()
}

fn is_stamp(text: &str) -> bool {
    let fits = |(c, form): (u8, u8)| if form == b'0' { c.is_ascii_digit() } else { c == form };
    text.len() == STAMP.len() && text.bytes().zip(STAMP.bytes()).all(fits)
}
