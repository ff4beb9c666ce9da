//! History of changes in a file on the node, which is kept across restarts and can be read without an agent.

use std::{
    collections::VecDeque,
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use report::ChangeRecord;
use retry::LastError;
use tracing::warn;

/// Maximum size of the file, in bytes. When it is reached, the newest entries of half that size are kept.
const LIMIT: usize = 512 * 1024;
/// Maximum length of each text in an entry, in characters: cause, description and error are truncated.
const LONGEST_TEXT: usize = 1000;
const MODE: u32 = 0o600;

/// History file: one line of JSON for each change, oldest first.
#[derive(Debug)]
pub(crate) struct HistoryFile {
    path: PathBuf,
    size: usize,
    error: LastError,
}

/// Returns the changes in such a file, oldest first; empty if there is no file. A repeated change is represented by its last line.
/// Invalid lines, such as the last one of a killed agent, are skipped.
///
/// # Errors
/// The file is too long to be one of ours, or cannot be read.
pub fn read_history(path: &Path) -> Result<Vec<ChangeRecord>, hostfs::Error> {
    let bytes = match hostfs::read(path, LIMIT) {
        Err(error) if error.is_missing() => return Ok(Vec::new()),
        other => other?,
    };
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    Ok(lines.fold(Vec::new(), merge_line))
}

fn merge_line(mut changes: Vec<ChangeRecord>, line: ChangeRecord) -> Vec<ChangeRecord> {
    let is_earlier = |known: &ChangeRecord| {
        let first = known.first_started_at.as_ref().unwrap_or(&known.started_at);
        line.first_started_at.as_ref() == Some(first) && line.repeats_change(known)
    };
    let earlier = line.first_started_at.as_ref().and_then(|_| changes.iter().rposition(is_earlier));
    earlier.map(|at| changes.remove(at));
    changes.push(line);
    changes
}

impl HistoryFile {
    /// Opens the file, and returns its changes. A file that cannot be read is replaced.
    pub(crate) fn open(path: &Path) -> (HistoryFile, VecDeque<ChangeRecord>) {
        let mut file = HistoryFile { path: path.to_owned(), size: 0, error: LastError::default() };
        let changes = VecDeque::from(read_history(path).unwrap_or_else(|error| {
            file.log_error(&error);
            Vec::new()
        }));
        // Terminates a truncated line, and removes foreign content.
        if path.exists() {
            let written = file.replace_file(&changes);
            file.note_written(written);
        }
        (file, changes)
    }

    /// Appends the newest change. On failure, which is logged, the file lacks it until the next one, which writes all anew.
    pub(crate) fn append_newest(&mut self, all: &VecDeque<ChangeRecord>) {
        let Some(newest) = all.back() else { return };
        let line = encode_line(newest);
        let written = if self.size + line.len() > LIMIT {
            self.replace_file(all)
        } else {
            self.write_line(line.as_bytes())
        };
        self.note_written(written);
    }

    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).mode(MODE).open(&self.path)?;
        file.write_all(line)?;
        self.size += line.len();
        Ok(())
    }

    /// Writes a new file with the newest changes.
    fn replace_file(&mut self, all: &VecDeque<ChangeRecord>) -> io::Result<()> {
        let mut lines = VecDeque::new();
        let mut size = 0;
        for line in all.iter().rev().map(encode_line) {
            size += line.len();
            if size > LIMIT / 2 {
                break;
            }
            lines.push_front(line);
        }
        let content = lines.into_iter().collect::<String>();
        let _ = hostfs::write(&self.path, content.as_bytes(), MODE).map_err(io::Error::other)?;
        self.size = content.len();
        Ok(())
    }

    fn note_written(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) => drop(self.error.clear()),
            Err(error) => {
                self.size = LIMIT; // it may end with half a line, for lack of space
                self.log_error(&error);
            }
        }
    }

    fn log_error(&mut self, error: &dyn std::fmt::Display) {
        if self.error.replace(error) {
            let path = self.path.display();
            warn!(target: "ambient", %path, %error, "the history of changes is not kept on the node");
        }
    }
}

/// Returns the line of an entry, with texts truncated: other components' errors may have any length.
fn encode_line(change: &ChangeRecord) -> String {
    let cut = |text: &str| text.chars().take(LONGEST_TEXT).collect::<String>();
    let change = ChangeRecord {
        cause: cut(&change.cause),
        action: cut(&change.action),
        error: change.error.as_deref().map(cut),
        ..change.clone()
    };
    let mut line = serde_json::to_string(&change).unwrap_or_default(); // strings and numbers always serialise
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(what: &str) -> ChangeRecord {
        ChangeRecord {
            action: what.to_owned(),
            started_at: "2026-01-01T00:00:00Z".to_owned(),
            ..ChangeRecord::default()
        }
    }

    fn all(changes: &[ChangeRecord]) -> VecDeque<ChangeRecord> {
        changes.iter().cloned().collect()
    }

    #[test]
    fn the_next_agent_goes_on_where_the_last_one_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        assert_eq!(read_history(&path).unwrap(), []);
        let (mut file, changes) = HistoryFile::open(&path);
        assert_eq!(changes, []);
        assert!(!path.exists(), "nothing was changed yet");
        let changes = [change("one"), change("two"), change("three\nwith a line break")];
        file.append_newest(&all(&changes[..1]));
        file.append_newest(&all(&changes[..2]));
        drop(file);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"at\":\"2026").unwrap();
        let (mut file, found) = HistoryFile::open(&path);
        assert_eq!(found, &changes[..2]);
        file.append_newest(&all(&changes));
        assert_eq!(read_history(&path).unwrap(), changes);
    }

    #[test]
    fn the_file_is_bounded_whatever_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let (mut file, _) = HistoryFile::open(&path);
        let long = ChangeRecord { error: Some("\u{1}".repeat(100_000)), ..change("x") };
        let mut last = VecDeque::new();
        for number in 0..500 {
            last.push_back(ChangeRecord { cause: number.to_string(), ..long.clone() });
            file.append_newest(&last);
            assert!(std::fs::metadata(&path).unwrap().len() <= LIMIT as u64);
        }
        let found = read_history(&path).unwrap();
        assert_eq!(found.last().unwrap().cause, "499");
        assert!(found.len() > 30, "{}", found.len());
    }

    #[test]
    fn a_file_that_is_not_ours_or_cannot_be_had_stops_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        std::fs::write(&path, vec![b'x'; LIMIT + 1]).unwrap();
        let (mut file, found) = HistoryFile::open(&path);
        assert_eq!(found, []);
        file.append_newest(&all(&[change("one")]));
        assert_eq!(read_history(&path).unwrap(), [change("one")]);
        let path = directory.path().join("nowhere/history");
        let (mut file, _) = HistoryFile::open(&path);
        file.append_newest(&all(&[change("one")]));
        std::fs::create_dir(directory.path().join("nowhere")).unwrap();
        file.append_newest(&all(&[change("one"), change("two")]));
        assert_eq!(read_history(&path).unwrap(), [change("one"), change("two")]);
    }
}
