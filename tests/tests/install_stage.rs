//! What tests of the installation share: a node with a network, a container for it, and a look at what it left there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use kit::{Container, Daemon, Node, NodeOptions};
use serde_json::Value;

/// A network that no serializer would write like this, so that "to the byte" says something.
pub(crate) const NETWORK: &str = "{\"plugins\": [{ \"type\":\"bridge\",\n\t\"mtu\" : 1500 }],\n   \"name\":\"kit\", \
                                  \"cniVersion\" :\"1.0.0\"}";
/// The same network as a single configuration.
pub(crate) const SINGLE: &str =
    "{\"type\":\"bridge\",\n\t\"name\": \"kit\",   \"cniVersion\":\"0.4.0\", \"mtu\":1500}\n";
/// The file of [`Stage::new`]'s network.
pub(crate) const FILE: &str = "10-kit.conflist";
/// The kubeconfig's name as Istio has it.
pub(crate) const KUBECONFIG: &str = "ZZZ-istio-cni-kubeconfig";
/// A program that a runtime would take for a plugin: small and quick to copy.
pub(crate) const PLUGIN: &str =
    "#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}'\n";

/// A node, and a container on it whose image has only [`PLUGIN`].
pub(crate) struct Stage {
    pub(crate) container: Container,
    pub(crate) node: Node,
}

/// Mode and content of every file of a directory; of a symlink, where it leads; of a directory, nothing.
pub(crate) type Files = BTreeMap<String, (u32, Vec<u8>)>;

impl Stage {
    /// A node that has the network [`NETWORK`].
    pub(crate) fn new(env: &[(&str, &str)]) -> Self {
        let stage = Self::bare(env);
        stage.write(FILE, NETWORK);
        stage
    }

    /// A node that has no network yet.
    pub(crate) fn bare(env: &[(&str, &str)]) -> Self {
        let node = Node::new(NodeOptions::default());
        let container = Container::new(&node);
        let container = env.iter().fold(container, |container, (key, value)| container.with_env(key, value));
        let stage = Self { container, node };
        fs::remove_file(stage.container.source_dir().join("istio-iptables")).unwrap();
        stage.set_image_plugin(PLUGIN, 0o755);
        stage
    }

    /// The same with further variables, for the next daemon.
    pub(crate) fn again(self, env: &[(&str, &str)]) -> Self {
        let Self { container, node } = self;
        Self { container: env.iter().fold(container, |made, (key, value)| made.with_env(key, value)), node }
    }

    /// Replaces the plugin that the image brings.
    pub(crate) fn set_image_plugin(&self, text: &str, mode: u32) {
        replace(&self.container.source_dir().join("istio-cni"), text, mode);
    }

    /// Starts the daemon, and waits until it is ready.
    pub(crate) fn start_ready(&self) -> Daemon {
        let mut daemon = self.container.start();
        daemon.wait_until_ready();
        daemon
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.container.net_d().join(name)
    }

    /// Replaces a file of the directory of networks whole.
    pub(crate) fn write(&self, name: &str, text: &str) {
        replace(&self.path(name), text, 0o644);
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.path(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path(name)).is_ok()
    }

    pub(crate) fn files(&self) -> Files {
        files(&self.container.net_d())
    }

    /// The types of a list's plugins, in their order; none while the file is no list.
    pub(crate) fn types(&self, name: &str) -> Vec<String> {
        let list: Value = fs::read(self.path(name))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let plugins = list["plugins"].as_array().into_iter().flatten();
        plugins.map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Our entry, which must be the last of the list.
    pub(crate) fn entry(&self, name: &str) -> Value {
        let list: Value = serde_json::from_str(&self.read(name)).unwrap();
        let entry = list["plugins"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(entry["type"], "istio-cni", "{list}");
        entry
    }
}

/// Writes a file beside, and puts it in place by one rename, as a careful program does.
pub(crate) fn replace(path: &Path, text: &str, mode: u32) {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, text).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(beside, path).unwrap();
}

/// See [`Files`].
pub(crate) fn files(directory: &Path) -> Files {
    let look = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let (path, meta) = (entry.path(), entry.metadata().unwrap());
        let content = match (meta.is_symlink(), meta.is_file()) {
            (true, _) => fs::read_link(path).unwrap().into_os_string().into_encoded_bytes(),
            (_, true) => fs::read(path).unwrap(),
            _ => Vec::new(),
        };
        (entry.file_name().into_string().unwrap(), (meta.permissions().mode() & 0o7777, content))
    };
    fs::read_dir(directory).unwrap().map(look).collect()
}

/// Sample of the counter of installations.
pub(crate) fn installs(result: &str) -> String {
    format!("istio_cni_installs_total{{result=\"{result}\"}}")
}
