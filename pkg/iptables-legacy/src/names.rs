//! Name lookups of the tools. The owner match looks up a user named `1337` in the C library before it parses the
//! number. On hosts whose users come from the network (LDAP, a cloud's login service) that query is sent from the pod's
//! namespace, where no server replies, and every pod start hangs.

use std::{fs, path::Path};

use netns::{BindMount, MountSandbox};

use crate::{XtablesLock, lock::HOST_LOCK};

const NSSWITCH: &str = "/etc/nsswitch.conf";
/// Sources that only read local files or query local daemons.
const LOCAL: [&str; 6] = ["files", "compat", "db", "altfiles", "extrausers", "systemd"];

/// Returns the private mounts that the tools need, if any: no name sources of the network; and, where `legacy` tables
/// are changed, another file in place of the host's lock, for versions before 1.8.6, which support no other path.
pub fn private_mounts(lock: &XtablesLock, legacy: bool) -> Option<MountSandbox> {
    let mut binds = Vec::new();
    if fs::read_to_string(NSSWITCH).is_ok_and(|conf| asks_the_network(&conf)) {
        binds.push(BindMount { source: "/dev/null".into(), target: NSSWITCH.into(), read_only: true });
    }
    if let (true, XtablesLock::Private(path), true) = (legacy, lock, Path::new(HOST_LOCK).exists()) {
        binds.push(BindMount { source: path.clone(), target: HOST_LOCK.into(), read_only: false });
    }
    (!binds.is_empty()).then_some(MountSandbox { binds })
}

/// Returns whether users or groups may be looked up in other than local sources.
fn asks_the_network(conf: &str) -> bool {
    conf.lines().any(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let (database, sources) = line.split_once(':').unwrap_or_default();
        let ours = matches!(database.trim(), "passwd" | "group" | "initgroups");
        let remote = |word: &str| !word.starts_with('[') && !word.ends_with(']') && !LOCAL.contains(&word);
        ours && sources.split_whitespace().any(remote)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_of_the_network_count() {
        for local in [
            "",
            "passwd: files systemd\ngroup: files [SUCCESS=merge] systemd\nhosts: files dns",
            "# passwd: ldap",
        ] {
            assert!(!asks_the_network(local), "{local:?}");
        }
        for remote in ["passwd: files oslogin", "group:\tcompat ldap # x", "passwd: sss files"] {
            assert!(asks_the_network(remote), "{remote:?}");
        }
    }
}
