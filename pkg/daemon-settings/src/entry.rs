//! The plugin's entry: a template, as in Istio 1.20, or generated from the settings, as in Istio 1.29 to 1.31; and settings that
//! depend on this choice.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use cni_types::{ConflistEntry, POD_ANNOTATIONS, run_dir};
use enrolment::selector::BY_LABELS;
use flags::{Flag, ValueSource};
use installer::{EntryTemplate, Json};
use model::parse_go_bool;

use super::{AgentIdentity, SettingsReader};
use crate::options;

/// Socket to which the plugin connects, unless its entry names another.
const PLUGINS_SOCKET: &str = "/var/run/istio-cni/agent.sock";

impl SettingsReader<'_> {
    /// Whether no template is configured, so that the entry is generated.
    pub(super) fn is_generated(&self) -> bool {
        let given =
            [&options::CNI_NETWORK_CONFIG, &options::CNI_NETWORK_CONFIG_FILE, &options::CNI_CONFIG_MAP];
        given.iter().all(|flag| self.flag_text(flag).trim().is_empty())
    }

    /// Whether the flag is true. An invalid value is reported elsewhere.
    fn is_on(&self, flag: &Flag) -> bool {
        parse_go_bool(&self.flag_text(flag)) == Some(true)
    }

    /// Returns the directory shared by plugin and agent.
    pub(super) fn run_dir(&self) -> String {
        self.flag_text(&options::CNI_AGENT_RUN_DIR)
    }

    /// Returns the path of `name` in the directory shared by plugin and agent, or the flag's value if the flag was set.
    pub(super) fn shared_path(&self, flag: &Flag, name: &str) -> String {
        match self.values.get(flag).1 {
            ValueSource::Default => run_dir::path(&self.run_dir(), name),
            _ => self.flag_text(flag),
        }
    }

    /// Returns the socket on which the plugin queries the agent.
    pub(super) fn agent_socket(&self) -> PathBuf {
        self.shared_path(&options::AGENT_SOCKET, run_dir::AGENT_SOCKET).into()
    }

    /// Returns the path of the plugin's kubeconfig, and the one that it would have with, or without, a template.
    pub(super) fn kubeconfig_paths(&mut self) -> (PathBuf, PathBuf) {
        let directory = self.run_dir();
        if !Path::new(&directory).is_absolute() {
            self.add_mistake(&options::CNI_AGENT_RUN_DIR, format!("{directory:?} is not an absolute path"));
        }
        let newer = PathBuf::from(run_dir::path(&directory, run_dir::KUBECONFIG));
        let older = Path::new(&self.flag_text(&options::MOUNTED_CNI_NET_DIR))
            .join(self.file_name(&options::KUBECFG_FILE_NAME));
        if self.is_generated() { (newer, older) } else { (older, newer) }
    }

    /// Returns the members added to an entry whose template lacks them: that ambient mode is on, which pods belong to it, the kind of
    /// tables, the namespaces of other agents, and paths that differ from the plugin's defaults.
    pub(super) fn entry_defaults(&self) -> Vec<(&'static str, Json)> {
        let is_ambient = self.is_on(&options::AMBIENT_ENABLED);
        let mut defaults = Vec::new();
        if is_ambient {
            defaults.push(("ambient_enabled", Json::Bool(true)));
        }
        let expected = match self.is_generated() {
            true => run_dir::path(&self.run_dir(), run_dir::AGENT_SOCKET),
            false => PLUGINS_SOCKET.to_owned(),
        };
        let socket = self.shared_path(&options::AGENT_SOCKET, run_dir::AGENT_SOCKET);
        if socket != expected {
            defaults.push(("agent_socket", Json::String(socket)));
        }
        if self.is_on(&options::NATIVE_NFTABLES) {
            defaults.push(("native_nftables", Json::Bool(true)));
        }
        let others: Vec<Json> = self.other_agent_namespaces().into_iter().map(Json::String).collect();
        defaults.extend((!others.is_empty()).then_some(("agent_namespaces", Json::List(others))));
        if !is_ambient {
            return defaults;
        }
        if self.values.get(&options::AMBIENT_CONFIG_FILE).1 != ValueSource::Default {
            defaults.push(("ambient_config", Json::String(self.flag_text(&options::AMBIENT_CONFIG_FILE))));
        }
        defaults.extend(self.selectors_as_json().map(|selectors| ("enablement_selectors", selectors)));
        defaults
    }

    /// Returns the selectors for the plugin's entry; `None`: the plugin evaluates labels and the annotation, or the operator's
    /// selectors are invalid, which is reported elsewhere.
    fn selectors_as_json(&self) -> Option<Json> {
        let text = match self.parse_selectors() {
            Ok(Some((_, written))) => written.to_string(),
            Ok(None) if self.is_always_in_pod() => BY_LABELS.to_owned(),
            _ => return None, // an invalid value is reported elsewhere
        };
        Json::parse(text.as_bytes()).ok()
    }

    /// Returns the entry with Istio's keys of 1.29 to 1.31, and the additional ones that the plugin needs.
    fn generated_entry(&self, identity: &AgentIdentity) -> String {
        let text = |text: &str| Json::String(text.to_owned());
        let empty = || Json::Object(BTreeMap::new());
        let level = match self.values.get(&options::LOG_LEVEL).1 {
            ValueSource::Default => self.plugin_level.to_owned(),
            _ => self.flag_text(&options::LOG_LEVEL),
        };
        let switch = |flag| Json::Bool(self.is_on(flag));
        let excluded = self.excluded_namespaces().into_iter().map(Json::String).collect::<Vec<_>>();
        let mut members = vec![
            ("cniVersion", text("0.3.1")),
            ("name", text(ConflistEntry::TYPE)),
            ("type", text(ConflistEntry::TYPE)),
            // Upstream writes these two as well, without content.
            ("ipam", empty()),
            ("dns", empty()),
            // Ours: with the pod's annotations most calls need no request.
            ("capabilities", Json::Object(BTreeMap::from([(POD_ANNOTATIONS.to_owned(), Json::Bool(true))]))),
            ("plugin_log_level", Json::String(level)),
            ("cni_agent_run_dir", Json::String(self.run_dir())),
            ("ambient_enabled", switch(&options::AMBIENT_ENABLED)),
            ("exclude_namespaces", if excluded.is_empty() { Json::Null } else { Json::List(excluded) }),
            ("pod_namespace", text(&identity.namespace)),
            ("native_nftables", switch(&options::NATIVE_NFTABLES)),
            ("enable_ambient_detection_retry", switch(&options::ENABLE_AMBIENT_DETECTION_RETRY)),
        ];
        if self.values.get(&options::LOG_UDS_ADDRESS).1 != ValueSource::Default {
            members.extend(
                self.optional_text(&options::LOG_UDS_ADDRESS)
                    .map(|path| ("log_uds_address", Json::String(path))),
            );
        }
        members.extend(self.entry_defaults());
        members.extend(self.selectors_as_json().map(|selectors| ("enablement_selectors", selectors)));
        let members = members.into_iter().map(|(key, value)| (key.to_owned(), value));
        Json::Object(members.collect()).to_go_text()
    }

    pub(super) fn entry_template(&mut self, has_config_map: bool, identity: &AgentIdentity) -> EntryTemplate {
        let (text, file) = (
            self.flag_text(&options::CNI_NETWORK_CONFIG),
            self.optional_text(&options::CNI_NETWORK_CONFIG_FILE),
        );
        let is_there = file.as_ref().is_some_and(|file| fs::exists(file).unwrap_or(true));
        if self.is_generated() {
            return EntryTemplate { text: self.generated_entry(identity), ..EntryTemplate::default() };
        }
        if let (true, Some(file), false, false) = (text.trim().is_empty(), &file, is_there, has_config_map) {
            let what = format!("{file} is not there, and --cni-network-config is empty");
            self.add_mistake(&options::CNI_NETWORK_CONFIG_FILE, what);
        }
        let (kubeconfig, directory) =
            (self.flag_text(&options::KUBECFG_FILE_NAME), self.flag_text(&options::CNI_NET_DIR));
        let around = |name: &str| self.around.variable(name).unwrap_or_default();
        let node = Some(around("KUBERNETES_NODE_NAME")).filter(|node| !node.is_empty());
        let variables = vec![
            ("__LOG_LEVEL__", self.flag_text(&options::LOG_LEVEL)),
            ("__LOG_UDS_ADDRESS__", self.shared_path(&options::LOG_UDS_ADDRESS, run_dir::LOG_SOCKET)),
            ("__CNI_EVENT_ADDRESS__", self.shared_path(&options::CNI_EVENT_ADDRESS, run_dir::EVENT_SOCKET)),
            ("__KUBECONFIG_FILENAME__", kubeconfig.clone()),
            ("__KUBECONFIG_FILEPATH__", format!("{}/{kubeconfig}", directory.trim_end_matches('/'))),
            ("__KUBERNETES_SERVICE_HOST__", around("KUBERNETES_SERVICE_HOST")),
            ("__KUBERNETES_SERVICE_PORT__", around("KUBERNETES_SERVICE_PORT")),
            ("__KUBERNETES_NODE_NAME__", node.unwrap_or_else(|| self.around.host_name())),
        ];
        EntryTemplate { live: None, file: file.map(PathBuf::from), text, variables }
    }
}
