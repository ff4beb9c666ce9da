//! What a file says, read again whenever it was touched.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use hostfs::FileFingerprint;
use tracing::warn;

/// Larger than any token or bundle of certificates, in bytes.
const MAX: usize = 1 << 20;

/// A value that a file holds. Files of a service account are replaced while we use them.
#[derive(Debug)]
pub(crate) struct ReloadedFile<T> {
    path: PathBuf,
    parse: fn(&[u8]) -> Result<T, String>,
    last: Mutex<LastRead<T>>,
}

#[derive(Debug)]
struct LastRead<T> {
    value: T,
    /// Of the file, if a later touch would show in it.
    settled: Option<FileFingerprint>,
    /// Why it could not be read since; told once.
    trouble: Option<String>,
}

impl<T: Clone> ReloadedFile<T> {
    /// Reads it.
    ///
    /// # Errors
    /// In words: there is no such file, or nothing good in it.
    pub(crate) fn new(path: &Path, parse: fn(&[u8]) -> Result<T, String>) -> Result<Self, String> {
        let settled = hostfs::settled_fingerprint(path);
        let last = Mutex::new(LastRead { value: read(path, parse)?, settled, trouble: None });
        Ok(Self { path: path.to_owned(), parse, last })
    }

    /// Returns the current value of the file, or the last one if the file cannot be read.
    pub(crate) fn now(&self) -> T {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = hostfs::settled_fingerprint(&self.path);
        if settled.is_none() || settled != last.settled {
            match read(&self.path, self.parse) {
                Ok(value) => *last = LastRead { value, settled, trouble: None },
                Err(why) if last.trouble.as_ref() == Some(&why) => {}
                Err(why) => {
                    warn!(target: "api", error = why, "cannot reload a credential file; using the last contents");
                    last.trouble = Some(why);
                }
            }
        }
        last.value.clone()
    }
}

fn read<T>(path: &Path, parse: fn(&[u8]) -> Result<T, String>) -> Result<T, String> {
    let text = hostfs::read(path, MAX).map_err(|error| error.to_string())?;
    parse(&text).map_err(|why| format!("{}: {why}", path.display()))
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
        assert!(missing.contains("token") && missing.contains("No such file"), "{missing}");
        fs::write(&path, "one").unwrap();
        let file = ReloadedFile::new(&path, parse).unwrap();
        assert_eq!(file.now(), "one");
        fs::write(&path, "two").unwrap();
        assert_eq!(file.now(), "two", "within a tick of the file system's clock");
        fs::write(&path, "").unwrap();
        assert_eq!(file.now(), "two");
        fs::remove_file(&path).unwrap();
        assert_eq!(file.now(), "two");
        fs::write(&path, "three").unwrap();
        assert_eq!(file.now(), "three");
    }
}
