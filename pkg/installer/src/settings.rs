//! What to install, and where.

use std::{fs, path::PathBuf};

use cni_types::Json;

use crate::{Error, KubeconfigSettings, entry::EntryCache};

/// Everything that the installer needs to know; its paths are the container's.
#[derive(Clone, Debug)]
pub struct InstallerSettings {
    /// Every regular file in here is installed; the plugin `istio-cni` must be among them.
    pub source: PathBuf,
    /// Where to; those that are missing or cannot be written are left out, but one must remain.
    pub targets: Vec<PathBuf>,
    /// The directory of network configurations.
    pub conf_dir: PathBuf,
    /// How our entry gets to the runtime.
    pub chaining: Chaining,
    /// The plugin's entry.
    pub template: EntryTemplate,
    /// Members of the entry for a template that does not have them.
    pub defaults: Vec<(&'static str, Json)>,
    /// The plugin's credential; `None`: it gets none, and depends on the agent.
    pub kubeconfig: Option<KubeconfigSettings>,
    /// Where the kubeconfig is, also one that is not desired any more.
    pub kubeconfig_path: PathBuf,
    /// Where one may be that was written under other settings. It is removed once no entry can name it.
    pub former_kubeconfigs: Vec<PathBuf>,
    /// Name of the file of [`Chaining::Own`], also of one that is not desired any more.
    pub own_name: String,
    /// Permission bits of files of our own, which are [`Chaining::Own`]'s and [`Chaining::Standalone`]'s; `None`: those of the
    /// primary network, and 0644.
    pub own_mode: Option<u32>,
    /// Whether the container runtime calls the plugins that a pod's network had at its ADD until the pod ends, also after our entry
    /// is gone. Then the plugin stays on the node.
    pub keeps_plugin: bool,
}

/// How our entry gets to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chaining {
    /// As the last plugin in the runtime's default network.
    Primary {
        /// File of that network; `None`: the first that a runtime would take, and wait until there is one.
        name: Option<String>,
    },
    /// In a network of our own: a complete copy of the primary network with our entry at its end, in a file that sorts
    /// before the primary's, which stays as it is.
    Own {
        /// File of the primary network; `None`: the first that a runtime would take if ours was not there.
        primary: Option<String>,
    },
    /// As a network of its own file, for whoever calls it by name, such as Multus.
    Standalone {
        /// The file's name.
        name: String,
    },
}

/// Where the plugin's entry comes from; what is first here wins.
#[derive(Clone, Debug, Default)]
pub struct EntryTemplate {
    /// The latest value from the cluster.
    pub live: Option<String>,
    /// A file, if it exists.
    pub file: Option<PathBuf>,
    /// A text.
    pub text: String,
    /// Placeholders and their values: plain substitution, in this order, as Istio does.
    pub variables: Vec<(&'static str, String)>,
}

/// The greatest template that is read, in bytes: a ConfigMap holds no more.
const MAX_TEMPLATE: usize = 1024 * 1024;

impl EntryTemplate {
    /// The entry's text. An empty one when there is no template at all.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn render(&self) -> Result<String, Error> {
        let template = match (&self.live, &self.file) {
            (Some(live), _) => live.clone(),
            (None, Some(file)) if fs::exists(file).unwrap_or(true) => {
                String::from_utf8_lossy(&hostfs::read(file, MAX_TEMPLATE)?).into_owned()
            }
            _ => self.text.clone(),
        };
        let substitute = |text: String, (name, value): &(&str, String)| text.replace(name, value);
        Ok(self.variables.iter().fold(template, substitute))
    }
}

impl InstallerSettings {
    /// Checks the template as it is now.
    ///
    /// # Errors
    /// It gives no entry for the plugin.
    pub fn check_template(&self) -> Result<(), Error> {
        EntryCache::default().reload_template(self).map(drop)
    }

    /// The directories in which a change may concern us.
    pub(crate) fn watched_directories(&self) -> Vec<PathBuf> {
        let mut all = vec![self.conf_dir.clone(), self.source.clone()];
        all.extend(self.targets.iter().cloned());
        if let Some(kubeconfig) = &self.kubeconfig {
            all.extend(self.kubeconfig_path.parent().map(ToOwned::to_owned));
            all.extend(kubeconfig.input_files().filter_map(|file| file.parent().map(ToOwned::to_owned)));
        }
        all.extend(self.template.file.iter().filter_map(|file| file.parent()).map(ToOwned::to_owned));
        all.sort();
        all.dedup();
        all
    }
}
