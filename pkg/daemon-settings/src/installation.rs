//! Settings of the installation.

use std::path::{Path, PathBuf};

use flags::Flag;
use installer::{Chaining, KubeconfigSettings};
use model::ApiServerTrust;

use super::{AgentIdentity, SERVICE_ACCOUNT, SettingsReader};
use crate::options;

/// Source directory in the image.
const SOURCE: &str = "/opt/cni/bin";
/// Mounts of the host's plugin directories; the second is optional.
const TARGETS: [&str; 2] = ["/host/opt/cni/bin", "/host/secondary-bin-dir"];

/// File that CRI-O adds to every container, and containerd to none. ocicni, with which CRI-O calls plugins, stores a pod's network
/// at the ADD, and uses that for CHECK and DEL (ocicni.go, `forEachNetwork` with `fromCache`).
const CRIO_CONTAINER: &str = "/run/.containerenv";

/// File name in standalone mode.
const STANDALONE: &str = "YYY-istio-cni.conf";

impl SettingsReader<'_> {
    pub(super) fn read_installer(
        &mut self,
        server: Option<String>,
        trust: &ApiServerTrust,
        has_config_map: bool,
        identity: &AgentIdentity,
    ) -> installer::InstallerSettings {
        let kubeconfig = self.read_kubeconfig(server, trust);
        let chaining = self.read_chaining();
        let template = self.entry_template(has_config_map, identity);
        let (kubeconfig_path, former) = self.kubeconfig_paths();
        let group_read = self.parse_boolean(&options::CNI_CONF_GROUP_READ);
        let own_name = self.file_name(&options::ISTIO_OWNED_CNI_CONFIG_FILENAME);
        let settings = installer::InstallerSettings {
            source: SOURCE.into(),
            targets: TARGETS.map(PathBuf::from).to_vec(),
            conf_dir: self.flag_text(&options::MOUNTED_CNI_NET_DIR).into(),
            chaining,
            template,
            defaults: self.entry_defaults(),
            kubeconfig,
            kubeconfig_path,
            former_kubeconfigs: vec![former],
            own_name,
            own_mode: match (self.is_generated(), group_read) {
                (_, true) => Some(0o640),
                (true, false) => Some(0o600),
                (false, false) => None,
            },
            keeps_plugin: Path::new(CRIO_CONTAINER).exists(),
        };
        // A file or a ConfigMap may become valid at run time; a literal text only by a restart.
        let is_fixed =
            !has_config_map && settings.template.file.is_none() && !settings.template.text.is_empty();
        if let (true, Err(error)) = (is_fixed, settings.check_template()) {
            self.add_mistake(&options::CNI_NETWORK_CONFIG, error);
        }
        settings
    }

    fn read_kubeconfig(
        &mut self,
        server: Option<String>,
        trust: &ApiServerTrust,
    ) -> Option<KubeconfigSettings> {
        let mode = self.parse_mode(&options::KUBECONFIG_MODE);
        if !self.parse_boolean(&options::WRITE_KUBECONFIG) {
            return None;
        }
        if server.is_none() {
            let what = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set, for the plugin's kubeconfig";
            self.mistakes.push(what.to_owned());
        }
        let token = format!("{SERVICE_ACCOUNT}/token").into();
        Some(KubeconfigSettings { mode, server: server?, trust: trust.clone(), token })
    }

    /// Parses permission bits as Go parses integers: `0600` is octal and `384` decimal.
    fn parse_mode(&mut self, flag: &Flag) -> u32 {
        self.parse_flag(flag, |text| {
            let octal = text
                .strip_prefix("0o")
                .or_else(|| text.strip_prefix('0').filter(|digits| !digits.is_empty()));
            let mode = match octal {
                Some(digits) => u32::from_str_radix(digits, 8),
                None => text.parse(),
            };
            let mode = mode.ok().filter(|mode| (1..=0o777).contains(mode));
            mode.ok_or_else(|| format!("{text:?} is not a mode such as 0600"))
        })
    }

    pub(super) fn file_name(&mut self, flag: &Flag) -> String {
        self.parse_flag(flag, |name| match name {
            "" | "." | ".." => Err(format!("{name:?} is not a file name")),
            _ if name.contains('/') => Err(format!("{name:?} is not a file name")),
            _ => Ok(name.to_owned()),
        })
    }

    fn read_chaining(&mut self) -> Chaining {
        let name = self.optional_text(&options::CNI_CONF_NAME);
        let name = name.map(|_| self.file_name(&options::CNI_CONF_NAME));
        let is_owned = self.parse_boolean(&options::ISTIO_OWNED_CNI_CONFIG);
        match (self.parse_boolean(&options::CHAINED_CNI_PLUGIN), is_owned) {
            (true, false) => Chaining::Primary { name },
            (true, true) => Chaining::Own { primary: name },
            (false, _) => {
                if is_owned {
                    let what = "there is no network to copy with --chained-cni-plugin=false: --istio-owned-cni-config has no effect";
                    self.warnings.push(what.to_owned());
                }
                Chaining::Standalone { name: name.unwrap_or_else(|| STANDALONE.to_owned()) }
            }
        }
    }
}
