//! Named network namespaces of the tests.

#[path = "../../../netns/tests/named/bind.rs"]
mod bind;

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use netns::Netns;

use bind::{bind_new_netns, unbind_netns};

/// A named network namespace whose `lo` is up; drop removes it.
pub(crate) struct Named(pub(crate) PathBuf, pub(crate) Netns);

impl Named {
    pub(crate) fn new(what: &str) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/run/netns/{what}-{}-{number}", std::process::id()));
        fs::create_dir_all("/run/netns").unwrap();
        let netns = bind_new_netns(&path);
        let named = Self(path, netns);
        named.sh("ip link set lo up");
        named
    }

    pub(crate) fn name(&self) -> &str {
        self.0.file_name().unwrap().to_str().unwrap()
    }

    /// Returns the output of a command, which must succeed.
    pub(crate) fn sh(&self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let (program, arguments) = words.split_first().unwrap();
        let output = self.1.run_in(|| Command::new(program).args(arguments).output()).unwrap().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        unbind_netns(&self.0);
    }
}
