//! Loading of a kubeconfig and the files that it names, repeated at each attempt, because they rotate.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::{ConfigError, Kubeconfig, MAX_FILE};

/// Reads all files.
pub(crate) fn load_kubeconfig(path: &Path) -> Result<Kubeconfig, ConfigError> {
    let bytes = read_file(path)?;
    let file = |why: String| ConfigError::File { path: path.to_owned(), why };
    let text = str::from_utf8(&bytes).map_err(|_| file("it is not UTF-8".to_owned()))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    Kubeconfig::parse(text, directory, &read_file).map_err(|error| match error {
        ConfigError::File { .. } => error,
        error => file(error.to_string()),
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let fail = |why: String| ConfigError::File { path: path.to_owned(), why };
    let mut bytes = Vec::new();
    let limit = MAX_FILE as u64 + 1;
    // Checked before opening: opening a FIFO would wait for its writer.
    if !fs::metadata(path).map_err(|error| fail(error.to_string()))?.is_file() {
        return Err(fail("it is not a regular file".to_owned()));
    }
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| fail(error.to_string()))?;
    match bytes.len() {
        0 => Err(fail("it is empty".to_owned())),
        len if len > MAX_FILE => Err(fail(format!("it is larger than {MAX_FILE} bytes"))),
        _ => Ok(bytes),
    }
}
