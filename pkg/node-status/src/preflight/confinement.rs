//! Confinement of the agent by the kernel: security modules and user namespaces.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use report::{AppArmorProfile, Observed, SeLinuxContext};
use rustix::io::Errno;

/// Context of the process, by the first security module that has one.
const CONTEXT: &str = "/proc/self/attr/current";
/// Context by AppArmor, if the kernel has several security modules.
const APPARMOR_CONTEXT: &str = "/proc/self/attr/apparmor/current";
const USER_IDS: &str = "/proc/self/uid_map";
const OWN_NAMESPACE: &str = "/proc/self/ns/user";
/// Contains `1` if SELinux enforces its policy; in the mount namespace of a node or a container.
const ENFORCING: &str = "sys/fs/selinux/enforce";
/// Mapping of the initial user namespace: every ID to itself.
const ALL_IDS: [&str; 3] = ["0", "0", "4294967295"];

/// Returns the SELinux context of this process; `None`: it has none. `host_proc`: the mount of the node's /proc, if any.
pub(super) fn selinux_context(host_proc: &Path) -> Observed<Option<SeLinuxContext>> {
    let Some(domain) = read_context(CONTEXT)?.as_deref().and_then(selinux_domain) else { return Ok(None) };
    let places = [Path::new("/").join(ENFORCING), host_proc.join("1/root").join(ENFORCING)];
    let enforcing = places.iter().find_map(|place| Some(fs::read_to_string(place).ok()?.trim() == "1"));
    Ok(Some(SeLinuxContext { domain, enforcing }))
}

/// Returns the AppArmor profile of this process; `None`: it has none.
pub(super) fn apparmor_profile() -> Observed<Option<AppArmorProfile>> {
    let context = match read_context(APPARMOR_CONTEXT)? {
        Some(context) => Some(context),
        None => read_context(CONTEXT)?,
    };
    Ok(context.as_deref().and_then(parse_profile))
}

/// Returns a message if this process is in another user namespace than the node.
pub(super) fn own_user_namespace(host_proc: &Path) -> Observed<Vec<String>> {
    let map = fs::read_to_string(USER_IDS).map_err(|error| format!("cannot read {USER_IDS}: {error}"))?;
    let is_of_node = map.split_whitespace().eq(ALL_IDS)
        || identify_namespace(&host_proc.join("1/ns/user"))? == identify_namespace(OWN_NAMESPACE.as_ref())?;
    let message = "the agent is in a user namespace of its own".to_owned();
    Ok((!is_of_node).then_some(message).into_iter().collect())
}

fn identify_namespace(path: &Path) -> Observed<(u64, u64)> {
    let found = fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    found.map_err(|error| format!("user IDs are mapped, and {} cannot be read: {error}", path.display()))
}

/// Reads a context; `None`: the kernel has no such module, or the module has no context for the process.
fn read_context(file: &str) -> Observed<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim_end_matches(['\n', '\0']).to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
        Err(error) => Err(format!("cannot read {file}: {error}")),
    }
}

/// Returns the type in a context such as `system_u:system_r:container_t:s0:c1,c2`.
fn selinux_domain(context: &str) -> Option<String> {
    let mut parts = context.split(':').skip(2);
    let domain = parts.next().filter(|domain| !domain.is_empty())?;
    // An AppArmor profile may have colons, too, but no level.
    parts.next().filter(|level| level.starts_with('s')).map(|_| domain.to_owned())
}

/// Parses a profile such as `cri-containerd.apparmor.d (enforce)`.
fn parse_profile(context: &str) -> Option<AppArmorProfile> {
    let (name, mode) = context.strip_suffix(')')?.rsplit_once(" (")?;
    Some(AppArmorProfile { name: name.to_owned(), enforced: mode != "complain" && mode != "unconfined" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_both_modules_are_told_apart() {
        for (context, domain, profile) in [
            ("system_u:system_r:container_t:s0:c1,c2", Some("container_t"), None),
            ("system_u:system_r:spc_t:s0", Some("spc_t"), None),
            ("kernel", None, None),
            ("unconfined", None, None),
            ("cri-containerd.apparmor.d (enforce)", None, Some(("cri-containerd.apparmor.d", true))),
            (":ns://a b (complain)", None, Some((":ns://a b", false))),
            ("docker-default (kill)", None, Some(("docker-default", true))),
            ("", None, None),
        ] {
            assert_eq!(selinux_domain(context).as_deref(), domain, "{context}");
            let found = parse_profile(context);
            assert_eq!(
                found.as_ref().map(|found| (found.name.as_str(), found.enforced)),
                profile,
                "{context}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_no_context() {
        assert_eq!(read_context("/nowhere"), Ok(None));
        assert!(read_context("/proc").is_err());
    }
}
