//! Privileges of a pod's containers in its network namespace, according to their security contexts.

use serde::{Deserialize, Deserializer};

use crate::pod::null_is_empty;

crate::word_enum! {
    /// Privilege of a pod's most privileged container in the pod's network namespace. Each variant includes the previous ones.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum NetworkPrivilege {
        /// All containers drop `NET_RAW`.
        #[default]
        None = "none",
        /// Default of the container runtime, if nothing is specified: `NET_RAW` for containerd and Docker, none for CRI-O.
        RuntimeDefault = "runtime-default",
        /// `NET_RAW` is requested: raw sockets, and marks on sockets since Linux 5.17.
        NetRaw = "net-raw",
        /// `NET_ADMIN`: firewall rules, routes, links.
        NetAdmin = "net-admin",
        /// All capabilities, on the node as well.
        Privileged = "privileged",
    }
}

/// `securityContext.capabilities` of a container: which of the relevant ones are added or dropped. Other content is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    #[serde(deserialize_with = "null_is_empty")]
    add: CapabilityList,
    #[serde(deserialize_with = "read_dropped_capabilities")]
    drop: CapabilityList,
}

/// A list of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<String>")]
struct CapabilityList {
    all: bool,
    net_admin: bool,
    net_raw: bool,
}

impl Capabilities {
    /// Returns the privilege of a container that is not privileged: `ALL` is applied first, then added capabilities, then dropped
    /// ones, as in containerd and CRI-O.
    pub fn network_privilege(self) -> NetworkPrivilege {
        let Capabilities { add, drop } = self;
        let all = add.all && !drop.all;
        match () {
            () if (all || add.net_admin) && !drop.net_admin => NetworkPrivilege::NetAdmin,
            () if drop.net_raw => NetworkPrivilege::None,
            () if all || add.net_raw => NetworkPrivilege::NetRaw,
            () if drop.all => NetworkPrivilege::None,
            () => NetworkPrivilege::RuntimeDefault,
        }
    }
}

/// Reads the dropped capabilities, except for names with the kernel's prefix, which containerd does not know.
fn read_dropped_capabilities<'de, D: Deserializer<'de>>(names: D) -> Result<CapabilityList, D::Error> {
    let mut names: Vec<String> = null_is_empty(names)?;
    names.retain(|name| !name.to_ascii_uppercase().starts_with("CAP_"));
    Ok(names.into())
}

impl From<Vec<String>> for CapabilityList {
    fn from(names: Vec<String>) -> CapabilityList {
        let mut few = CapabilityList::default();
        for name in names {
            // Runtimes accept names in any case, and some with the kernel's prefix.
            let name = name.to_ascii_uppercase();
            match name.strip_prefix("CAP_").unwrap_or(&name) {
                "ALL" => few.all = true,
                "NET_ADMIN" => few.net_admin = true,
                "NET_RAW" => few.net_raw = true,
                _ => {}
            }
        }
        few
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pod;

    #[test]
    fn the_strongest_container_decides() {
        use NetworkPrivilege::{NetAdmin, NetRaw, None, Privileged, RuntimeDefault};
        let cases = [
            (r"[]", None),
            (r"[{}]", RuntimeDefault),
            (r#"[{"securityContext":{"capabilities":{"drop":["ALL"]}}}]"#, None),
            (r#"[{"securityContext":{"capabilities":{"drop":["NET_RAW"],"add":null}}}]"#, None),
            (r#"[{"securityContext":{"capabilities":{"drop":["CAP_NET_RAW"]}}}]"#, RuntimeDefault),
            (
                r#"[{"securityContext":{"capabilities":{"add":["NET_ADMIN"],"drop":["CAP_NET_ADMIN"]}}}]"#,
                NetAdmin,
            ),
            (r#"[{"securityContext":{"capabilities":{"drop":["ALL"],"add":["NET_BIND_SERVICE"]}}}]"#, None),
            (r#"[{"securityContext":{"capabilities":{"drop":["ALL"],"add":["net_raw"]}}}]"#, NetRaw),
            (r#"[{"securityContext":{"capabilities":{"drop":["ALL"],"add":["CAP_NET_ADMIN"]}}}]"#, NetAdmin),
            (r#"[{"securityContext":{"capabilities":{"add":["ALL"]}}}]"#, NetAdmin),
            (r#"[{"securityContext":{"capabilities":{"add":["ALL"],"drop":["NET_ADMIN"]}}}]"#, NetRaw),
            (r#"[{"securityContext":{"capabilities":null,"privileged":true}}]"#, Privileged),
            (r#"[{"securityContext":null}]"#, RuntimeDefault),
        ];
        for (containers, expected) in cases {
            for list in ["containers", "initContainers", "ephemeralContainers"] {
                let text = format!(r#"{{"spec":{{"{list}":{containers}}}}}"#);
                let pod: Pod = serde_json::from_str(&text).unwrap();
                assert_eq!(pod.network_privilege(), expected, "{text}");
            }
        }
        let two =
            r#"{"spec":{"containers":[{"securityContext":{"privileged":true}}],"initContainers":[{}]}}"#;
        assert_eq!(serde_json::from_str::<Pod>(two).unwrap().network_privilege(), Privileged);
    }
}
