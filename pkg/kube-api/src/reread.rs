//! Values of files that are read again at each use.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use tracing::warn;

/// Maximum size, larger than any token or certificate bundle, in bytes.
const MAX: u64 = 1 << 20;

/// A value stored in a file. Files of a service account are replaced during use. Reading one costs less than the request that needs
/// it, and it is parsed only if its content has changed.
#[derive(Debug)]
pub(crate) struct ReloadedFile<T> {
    path: PathBuf,
    parse: fn(&[u8]) -> Result<T, String>,
    last: Mutex<LastRead<T>>,
}

#[derive(Debug)]
struct LastRead<T> {
    value: T,
    content: Vec<u8>,
    /// Error of the last read, reported once.
    problem: Option<String>,
}

impl<T: Clone> ReloadedFile<T> {
    /// Reads the file.
    ///
    /// # Errors
    /// The file does not exist, or its content is invalid, as text.
    pub(crate) fn new(path: &Path, parse: fn(&[u8]) -> Result<T, String>) -> Result<Self, String> {
        let content = read_file(path)?;
        let value = parse_content(path, &content, parse)?;
        let last = Mutex::new(LastRead { value, content, problem: None });
        Ok(Self { path: path.to_owned(), parse, last })
    }

    /// Returns the current value of the file, or the last valid one if it cannot be read.
    pub(crate) fn current_value(&self) -> T {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match self.read_changed(&last.content) {
            Ok(None) => last.problem = None,
            Ok(Some((value, content))) => *last = LastRead { value, content, problem: None },
            Err(why) if last.problem.as_ref() == Some(&why) => {}
            Err(why) => {
                warn!(target: "install", error = why, "cannot reload a credential file; using the last contents");
                last.problem = Some(why);
            }
        }
        last.value.clone()
    }

    /// Reads the file; `None`: unchanged.
    fn read_changed(&self, known: &[u8]) -> Result<Option<(T, Vec<u8>)>, String> {
        let content = read_file(&self.path)?;
        if content == known {
            return Ok(None);
        }
        Ok(Some((parse_content(&self.path, &content, self.parse)?, content)))
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let read = File::open(path).and_then(|file| match file.metadata()?.is_file() {
        true => file.take(MAX + 1).read_to_end(&mut content),
        false => Err(io::Error::other("it is not a regular file")),
    });
    match read {
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        Ok(bytes) if bytes as u64 > MAX => Err(format!("{} has more than {MAX} bytes", path.display())),
        Ok(_) => Ok(content),
    }
}

fn parse_content<T>(path: &Path, content: &[u8], parse: fn(&[u8]) -> Result<T, String>) -> Result<T, String> {
    parse(content).map_err(|why| format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn parse(text: &[u8]) -> Result<String, String> {
        match String::from_utf8_lossy(text) {
            text if text.is_empty() => Err("it is empty".to_owned()),
            text => Ok(text.into_owned()),
        }
    }

    #[test]
    fn what_counts_is_what_the_file_says_now_or_said_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let missing = ReloadedFile::new(&path, parse).unwrap_err();
        assert_eq!(
            missing,
            format!("cannot read {}: No such file or directory (os error 2)", path.display())
        );
        fs::write(&path, "one").unwrap();
        let file = ReloadedFile::new(&path, parse).unwrap();
        assert_eq!(file.current_value(), "one");
        fs::write(&path, "two").unwrap();
        assert_eq!(file.current_value(), "two", "within a tick of the file system's clock");
        fs::write(&path, "").unwrap();
        assert_eq!(file.current_value(), "two");
        fs::remove_file(&path).unwrap();
        assert_eq!(file.current_value(), "two");
        fs::write(&path, "three").unwrap();
        assert_eq!(file.current_value(), "three");
    }
}
