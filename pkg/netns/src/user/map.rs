//! Mapping of a user namespace's users to the node's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::UserNamespace;

impl UserNamespace {
    /// Returns the user and the group on the node to which these of the namespace are mapped; `None`: it does not map
    /// them, or no process below `proc` is in it.
    pub fn owner_on_node(&self, proc: &Path, uid: u32, gid: u32) -> Option<(u32, u32)> {
        let process = self.find_process(proc)?;
        let on_node = |map: &str, id| translate_id(&fs::read_to_string(process.join(map)).ok()?, id);
        Some((on_node("uid_map", uid)?, on_node("gid_map", gid)?))
    }

    /// Returns any process in this namespace, which determines the mapping.
    fn find_process(&self, proc: &Path) -> Option<PathBuf> {
        let own = rustix::fs::fstat(&self.fd).ok()?;
        let is_own = |found: fs::Metadata| (found.dev(), found.ino()) == (own.st_dev, own.st_ino);
        let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let entries = fs::read_dir(proc).ok()?.filter_map(Result::ok);
        let processes = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_process));
        let mut paths = processes.map(|entry| entry.path());
        paths.find(|process| fs::metadata(process.join("ns/user")).is_ok_and(is_own))
    }
}

/// Translates an ID. A line has the first ID inside, the first outside, and the number of IDs (`user_namespaces(7)`).
fn translate_id(map: &str, id: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let (inside, outside, count) = (next()?, next()?, next()?);
        let offset = id.checked_sub(inside).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    })
}

#[cfg(test)]
mod tests {
    use super::translate_id;

    #[test]
    fn a_number_is_translated_by_the_line_that_has_it() {
        let map = "         0     100000      65536\n     70000        500          1\n";
        for (inside, outside) in [
            (0, Some(100_000)),
            (1337, Some(101_337)),
            (65_535, Some(165_535)),
            (65_536, None),
            (70_000, Some(500)),
        ] {
            assert_eq!(translate_id(map, inside), outside, "{inside}");
        }
        assert_eq!(translate_id("0 4294967295 2", 1), None, "no such user");
        assert_eq!(translate_id("", 0), None);
        assert_eq!(translate_id("a b c", 0), None);
    }
}
