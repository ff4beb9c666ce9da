//! Settings of the installer.

use std::{fs, path::PathBuf};

use cni_types::Json;

use crate::{Error, KubeconfigSettings, entry::EntryCache};

/// Everything that the installer needs; paths are the container's.
#[derive(Clone, Debug)]
pub struct InstallerSettings {
    /// Source directory: every regular file in it is installed; the plugin `istio-cni` must be among them.
    pub source: PathBuf,
    /// Target directories; missing or read-only ones are skipped, but one must remain.
    pub targets: Vec<PathBuf>,
    /// Directory of network configurations.
    pub conf_dir: PathBuf,
    /// How our entry is chained.
    pub chaining: Chaining,
    /// Template of the plugin's entry.
    pub template: EntryTemplate,
    /// Members added to an entry whose template lacks them.
    pub defaults: Vec<(&'static str, Json)>,
    /// The plugin's credential; `None`: the plugin has none, and depends on the agent.
    pub kubeconfig: Option<KubeconfigSettings>,
    /// Path of the kubeconfig, also of one that is no longer desired.
    pub kubeconfig_path: PathBuf,
    /// Paths of kubeconfigs written under other settings, removed once no entry can refer to them.
    pub former_kubeconfigs: Vec<PathBuf>,
    /// File name of [`Chaining::Own`], also of one that is no longer desired.
    pub own_name: String,
    /// Permission bits of our own files, those of [`Chaining::Own`] and [`Chaining::Standalone`]; `None`: those of the primary
    /// network, and 0644.
    pub own_mode: Option<u32>,
    /// Whether the container runtime calls the plugins of a pod's ADD until the pod ends, even after our entry was removed. Then
    /// the plugin stays on the node.
    pub keeps_plugin: bool,
}

/// How our entry is chained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chaining {
    /// As the last plugin in the runtime's default network.
    Primary {
        /// File of that network; `None`: the first one that a runtime would use, waiting until one exists.
        name: Option<String>,
    },
    /// In a network of our own: a complete copy of the primary network with our entry at its end, in a file that sorts before the
    /// primary's, which stays unchanged.
    Own {
        /// File of the primary network; `None`: the first one that a runtime would use without ours.
        primary: Option<String>,
    },
    /// As a network of its own, in its own file, for callers that select it by name, such as Multus.
    Standalone {
        /// File name.
        name: String,
    },
}

/// Sources of the plugin's entry, in order of precedence.
#[derive(Clone, Debug, Default)]
pub struct EntryTemplate {
    /// Latest value from the cluster.
    pub live: Option<String>,
    /// File, if it exists.
    pub file: Option<PathBuf>,
    /// Literal text.
    pub text: String,
    /// Placeholders and their values: plain substitution, in this order, as Istio does.
    pub variables: Vec<(&'static str, String)>,
}

/// Maximum size of a template, in bytes: a ConfigMap holds no more.
const MAX_TEMPLATE: usize = 1024 * 1024;

impl EntryTemplate {
    /// Renders the entry's text; empty if no source has a template.
    ///
    /// # Errors
    /// The file exists and cannot be read.
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
    /// Validates the current template.
    ///
    /// # Errors
    /// The template has no entry for the plugin.
    pub fn check_template(&self) -> Result<(), Error> {
        EntryCache::default().reload_template(self).map(drop)
    }

    /// Returns the namespaces whose pods the plugin skips by the current template; none without a valid one.
    pub fn excluded_namespaces(&self) -> Vec<String> {
        let mut entries = EntryCache::default();
        drop(entries.reload_template(self)); // the installer reports its errors
        entries.current.map(|current| current.entry.excluded_namespaces()).unwrap_or_default()
    }

    /// Returns the directories whose changes may concern us.
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
