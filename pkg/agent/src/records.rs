//! The plugin's records of ADDs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use wire::{FAILED, MAX_RECORD, PodRecord};

/// After this time no runtime retries a pod whose ADD failed.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
/// No node has more pods. A directory with more files is not read completely.
const MOST: usize = 2000;

/// All records of a directory; what cannot be read is skipped, and so are records of failures older than a day.
#[must_use]
pub fn read(directory: &Path) -> Vec<PodRecord> {
    let read = |path: PathBuf| serde_json::from_slice(&hostfs::read(&path, MAX_RECORD).ok()?).ok();
    files(directory).filter(|(_, is_stale)| !is_stale).filter_map(|(path, _)| read(path)).collect()
}

/// Removes the records of failures that are older than a day.
pub fn prune(directory: &Path) {
    for (path, _) in files(directory).filter(|(_, is_stale)| *is_stale) {
        drop(fs::remove_file(path)); // the next pass tries again
    }
}

/// The files of the directory, and whether each is a record of a failure so old that the pod is not retried any more.
fn files(directory: &Path) -> impl Iterator<Item = (PathBuf, bool)> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok).take(MOST);
    entries.map(|entry| {
        let is_failure = entry.file_name().to_string_lossy().starts_with(FAILED);
        let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = modified.and_then(|then| SystemTime::now().duration_since(then).ok());
        (entry.path(), is_failure && age.is_some_and(|age| age > FORGOTTEN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the wall clock, which is all that outlives a boot: a record of a time that has not come yet is a new one.
    #[test]
    fn old_failures_are_forgotten_and_those_of_the_future_are_not() {
        let directory = std::env::temp_dir().join(format!("records-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let day = Duration::from_secs(24 * 3600);
        let now = SystemTime::now();
        for (name, time) in [
            ("failed_a_old", now - 2 * day),
            ("failed_a_new", now - day / 2),
            ("failed_a_future", now + 400 * day),
            ("done", now - 400 * day),
        ] {
            let record = PodRecord { name: name.to_owned(), ..PodRecord::default() };
            fs::write(directory.join(name), serde_json::to_string(&record).unwrap()).unwrap();
            fs::File::options().write(true).open(directory.join(name)).unwrap().set_modified(time).unwrap();
        }
        let mut names: Vec<String> = read(&directory).into_iter().map(|record| record.name).collect();
        names.sort();
        assert_eq!(names, ["done", "failed_a_future", "failed_a_new"]);
        let old = directory.join("failed_a_old");
        assert!(old.exists(), "reading deletes nothing");
        prune(&directory);
        assert!(!old.exists() && fs::read_dir(&directory).unwrap().count() == 3);
        fs::remove_dir_all(directory).unwrap();
    }
}
