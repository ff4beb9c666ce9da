//! Settings of `install-cni`: [`options`] has its flags and variables, [`DaemonSettings`] their validated values; all mistakes are
//! reported together.

use std::{fmt, fs, net::SocketAddr, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use ::repair::RepairOptions;
use agent::RecordIndex;
use flags::{Flag, FlagValues, ValueSource};
use kube_api::{ApiConnection, ObjectRef};
use model::{ApiServerTrust, PodName, parse_switch};
use report::EffectiveSetting;
use telemetry::logging::{LogOptions, OutputLevel};

mod ambient;
mod ambient_options;
mod debug;
mod entry;
mod in_cluster;
mod installation;
pub mod options;
mod repair;
mod simulated;
mod token;

pub use ambient_options::{AmbientOptions, EventSettings, PodSource};
use debug::{TEMPLATE, effective_settings};
pub use in_cluster::in_cluster;
pub use simulated::SimulatedSettings;
pub use token::token_times;

/// Mount path of the service account.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Name of the socket of the agent's debug state.
const DEBUG_SOCKET: &str = "debug.sock";
/// When to remove the installation at exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CleanupOnExit {
    /// When the DaemonSet was deleted, or no longer selects this node.
    #[default]
    Auto,
    /// At every exit, as Istio does.
    Always,
    /// Never.
    Never,
}

/// Settings of the daemon.
#[derive(Debug)]
pub struct DaemonSettings {
    /// Settings of the installer.
    pub installer: installer::InstallerSettings,
    /// Port of `/metrics`.
    pub monitoring_port: Option<u16>,
    /// Socket for the plugin's log lines.
    pub log_socket: Option<PathBuf>,
    /// Socket for the plugin's requests.
    pub agent_socket: PathBuf,
    /// Socket of the agent's debug state, for the commands.
    pub debug_socket: PathBuf,
    /// Index of the plugin's records of ADDs, shared by all of the agent's parts.
    pub records: Arc<RecordIndex>,
    /// Connection to the API server; `None` if the environment has none and no part needs it.
    pub api: Option<ApiConnection>,
    /// ConfigMap with the template, and its key.
    pub config_map: Option<(ObjectRef, String)>,
    /// The agent's identity in the cluster.
    pub identity: AgentIdentity,
    /// When to remove the installation at exit.
    pub cleanup: CleanupOnExit,
    /// Whether the node gets a condition with our readiness.
    pub node_condition: bool,
    /// Whether pods of the mesh are also counted by namespace.
    pub metrics_by_namespace: bool,
    /// Interval of proofs by packets; `None`: only on request.
    pub proof_interval: Option<Duration>,
    /// Settings of ambient mode; `None` if it is off.
    pub ambient: Option<AmbientOptions>,
    /// Paths of ambient mode's files, whether it is on or not, for an uninstallation.
    pub ambient_traces: AmbientOptions,
    /// Repair of broken pods; `None` if it is off.
    pub repair: Option<RepairOptions>,
    /// Whether pods without rules get native tables.
    pub native_nftables: bool,
    /// Address of the debug state over HTTP; `None`: not served.
    pub debug: Option<SocketAddr>,
    /// Directory to which the container runtime binds network namespaces.
    pub netns_directory: PathBuf,
    /// Mount of the node's /proc, which may be missing.
    pub host_proc: PathBuf,
    /// Flags and variables from which all of this was read.
    pub values: FlagValues,
    /// Every value, and its source, except the template, which is long and visible in the conflist.
    pub config: Vec<EffectiveSetting>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    /// Values that were set explicitly, for the log.
    pub chosen: Vec<String>,
}

/// The agent's identity in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentIdentity {
    /// Our namespace; empty if unknown.
    pub namespace: String,
    /// Our pod.
    pub pod: String,
    /// Our node.
    pub node: String,
    /// Our DaemonSet; empty: the owner of our pod.
    pub daemon_set: String,
}

impl AgentIdentity {
    /// Returns our pod, if known.
    pub fn own_pod(&self) -> Option<PodName> {
        let own = PodName { namespace: self.namespace.clone(), name: self.pod.clone() };
        Some(own).filter(|own| !own.namespace.is_empty() && !own.name.is_empty())
    }
}

/// All mistakes of a configuration, never empty. Formats one per line.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SettingsErrors(pub Vec<String>);

/// Sources of values other than flags.
pub trait HostEnvironment {
    /// Returns a variable; `None` if it is unset or not UTF-8.
    fn variable(&self, name: &str) -> Option<String>;

    /// Returns the host name.
    fn host_name(&self) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    }

    /// Returns the namespace of the service account.
    fn account_namespace(&self) -> Option<String> {
        let namespace = fs::read_to_string(format!("{SERVICE_ACCOUNT}/namespace")).ok()?;
        Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty())
    }

    /// Returns the pod that the service account's token was issued for.
    fn account_pod(&self) -> Option<String> {
        token::pod_name(&fs::read_to_string(format!("{SERVICE_ACCOUNT}/token")).ok()?)
    }
}

/// Environment of this process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEnvironment;

impl HostEnvironment for ProcessEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

/// Reads values and collects mistakes. After a mistake a method returns a default, which is never used: [`DaemonSettings::read`]
/// returns the mistakes.
struct SettingsReader<'a> {
    values: &'a FlagValues,
    around: &'a dyn HostEnvironment,
    mistakes: Vec<String>,
    warnings: Vec<String>,
    /// Minimum level of the plugin's log.
    plugin_level: &'static str,
}

/// Maximum duration of a proof.
const LEAST_PROOF_INTERVAL: Duration = Duration::from_secs(1);

/// Port of `/healthz` and `/readyz`.
pub const HEALTH_PORT: u16 = 8000;
/// Name of the file whose lock admits one agent to the node, beside the sockets.
const LOCK_FILE: &str = "agent.lock";

impl DaemonSettings {
    /// Returns the file that is locked by one agent at a time.
    pub fn lock_file(&self) -> PathBuf {
        self.debug_socket.with_file_name(LOCK_FILE)
    }

    /// Returns the TCP ports of the agent.
    pub fn listening_ports(&self) -> Vec<u16> {
        let debug = self.debug.map(|debug| debug.port());
        [Some(HEALTH_PORT), self.monitoring_port, debug].into_iter().flatten().collect()
    }

    /// Reads and validates all settings; returns the log options separately, because they are needed first.
    ///
    /// # Errors
    /// All mistakes, each with its flag or variable.
    pub fn read(
        values: &FlagValues,
        around: &dyn HostEnvironment,
    ) -> Result<(DaemonSettings, LogOptions), SettingsErrors> {
        let mut reader = SettingsReader {
            values,
            around,
            mistakes: Vec::new(),
            warnings: Vec::new(),
            plugin_level: "info",
        };
        let log = reader.read_log_options();
        if let Some(log) = &log {
            reader.plugin_level = plugin_level(log);
        }
        let settings = reader.read_settings();
        match log {
            Some(log) if reader.mistakes.is_empty() => Ok((settings, log)),
            _ => Err(SettingsErrors(reader.mistakes)),
        }
    }
}

impl SettingsReader<'_> {
    /// Returns zero, which means never, or at least [`LEAST_PROOF_INTERVAL`].
    fn proof_interval(&mut self) -> Option<Duration> {
        self.parse_flag(&options::PROOF_INTERVAL, |text| match flags::duration_or_seconds(text) {
            Some(Duration::ZERO) => Ok(None),
            Some(interval) if interval >= LEAST_PROOF_INTERVAL => Ok(Some(interval)),
            _ => Err(format!("{text:?} is neither 0 nor a duration of at least 1s")),
        })
    }

    fn read_settings(&mut self) -> DaemonSettings {
        let identity = self.agent_identity();
        let server = in_cluster::server_url(self.around, &mut self.mistakes);
        let trust = self.server_trust();
        let config_map = self.config_map(&identity);
        let installer = self.read_installer(server.clone(), &trust, config_map.is_some(), &identity);
        self.other_parts();
        let native_nftables = self.parse_boolean(&options::NATIVE_NFTABLES);
        let existing = self.existing_connections();
        let records = Arc::new(RecordIndex::new(self.debug_socket().with_file_name(agent_protocol::RECORDS)));
        let is_ambient = self.parse_boolean(&options::AMBIENT_ENABLED);
        let mut ambient_traces = self.read_ambient(&identity, existing, native_nftables, &records);
        // The plugin skips these by its template: an agent that enrolled their pods would capture them a moment later.
        let excluded = &mut ambient_traces.agent.policy.excluded_namespaces;
        let skipped = installer.excluded_namespaces().into_iter();
        excluded.extend(skipped.filter(|name| !self.excluded_namespaces().contains(name)));
        let repair = self.read_repair_options(&identity, existing);
        let debug = self.read_debug_address(is_ambient && ambient_traces.host_network.is_none());
        DaemonSettings {
            installer,
            monitoring_port: self.parse_port(&options::MONITORING_PORT),
            debug_socket: self.debug_socket(),
            log_socket: self.log_socket(),
            agent_socket: self.agent_socket(),
            records,
            api: server.map(|server| in_cluster::account_connection(server, trust, "install-cni")),
            config_map,
            identity,
            cleanup: self.read_cleanup(),
            node_condition: self.parse_boolean(&options::NODE_CONDITION),
            metrics_by_namespace: self.parse_boolean(&options::METRICS_BY_NAMESPACE),
            proof_interval: self.proof_interval(),
            ambient: is_ambient.then(|| ambient_traces.clone()),
            ambient_traces,
            repair,
            native_nftables,
            debug,
            netns_directory: self.netns_directory(),
            host_proc: self.flag_text(&options::HOST_PROC).into(),
            values: self.values.clone(),
            config: effective_settings(self.values),
            warnings: std::mem::take(&mut self.warnings),
            chosen: changed_settings(self.values),
        }
    }

    fn flag_text(&self, flag: &Flag) -> String {
        self.values.flag_text(flag).to_owned()
    }

    fn optional_text(&self, flag: &Flag) -> Option<String> {
        Some(self.flag_text(flag)).filter(|text| !text.is_empty())
    }

    fn add_mistake(&mut self, flag: &Flag, what: impl fmt::Display) {
        let name = match self.values.get(flag) {
            (_, ValueSource::Variable(variable)) => format!("{variable} (--{flag})"),
            _ => format!("--{flag}"),
        };
        self.mistakes.push(format!("{name}: {what}"));
    }

    /// Returns the result of `parse` for a flag's text.
    fn parse_flag<T: Default>(&mut self, flag: &Flag, parse: impl FnOnce(&str) -> Result<T, String>) -> T {
        parse(self.values.flag_text(flag)).unwrap_or_else(|mistake| {
            self.add_mistake(flag, mistake);
            T::default()
        })
    }

    fn parse_value<T: Default + FromStr<Err: ToString>>(&mut self, flag: &Flag) -> T {
        self.parse_flag(flag, |text| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    fn parse_boolean(&mut self, flag: &Flag) -> bool {
        self.parse_flag(flag, parse_switch)
    }

    /// Parses a port; `None`: disabled.
    fn parse_port(&mut self, flag: &Flag) -> Option<u16> {
        self.parse_flag(flag, |text| match text.parse::<i64>() {
            _ if text.is_empty() => Ok(None),
            Ok(..=0) => Ok(None),
            Ok(number) => u16::try_from(number).map(Some).map_err(|_| format!("{text:?} is not a port")),
            Err(_) => Err(format!("{text:?} is not a port")),
        })
    }

    fn read_log_options(&mut self) -> Option<LogOptions> {
        let parsed = LogOptions::parse(self.values);
        if !self.values.flag_text(&flags::LOG_ROTATE).is_empty() {
            self.warnings.push("--log_rotate: the file is appended to, and not rotated".to_owned());
        }
        let mut log = parsed.map_err(|mistake| self.mistakes.push(mistake)).ok()?;
        self.warnings.append(&mut log.warnings);
        Some(log)
    }

    fn agent_identity(&self) -> AgentIdentity {
        let host_name = || self.around.host_name();
        let node = self
            .optional_text(&options::NODE_NAME)
            .or_else(|| self.optional_text(&options::REPAIR_NODE_NAME));
        AgentIdentity {
            namespace: self
                .optional_text(&options::POD_NAMESPACE)
                .or_else(|| self.around.account_namespace())
                .unwrap_or_default(),
            // Old charts do not set POD_NAME, and with hostNetwork the host name is the node's.
            pod: self
                .optional_text(&options::POD_NAME)
                .or_else(|| self.around.account_pod())
                .unwrap_or_else(host_name),
            node: node.unwrap_or_else(host_name),
            daemon_set: self.flag_text(&options::DAEMON_SET),
        }
    }

    /// Returns the mount in this container of the directory to which the host's runtime binds network namespaces, which depends on
    /// the manifest. Istio's charts mount it at the host's own path up to 1.20, and below `/host` since.
    fn netns_directory(&self) -> PathBuf {
        let (text, source) = self.values.get(&options::NETNS_DIR);
        let chosen = PathBuf::from(text);
        let Ok(below) = chosen.strip_prefix("/") else { return chosen };
        let below = PathBuf::from(self.flag_text(&options::HOST_ROOT)).join(below);
        // An explicit value takes precedence, and nothing but a mount can be below the root of the host.
        let places = match source {
            ValueSource::Default => [&below, &chosen],
            _ => [&chosen, &below],
        };
        places.into_iter().find(|place| place.is_dir()).unwrap_or(&chosen).clone()
    }

    fn server_trust(&mut self) -> ApiServerTrust {
        if self.parse_boolean(&options::SKIP_TLS_VERIFY) {
            return ApiServerTrust::Anybody;
        }
        let file = self.optional_text(&options::KUBE_CA_FILE);
        ApiServerTrust::Authority(file.unwrap_or_else(|| format!("{SERVICE_ACCOUNT}/ca.crt")).into())
    }

    fn config_map(&mut self, identity: &AgentIdentity) -> Option<(ObjectRef, String)> {
        let reference = self.optional_text(&options::CNI_CONFIG_MAP)?;
        let (namespace, name) = match reference.split_once('/') {
            Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
            None => (identity.namespace.clone(), reference.clone()),
        };
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            let what = format!("{reference:?} is not [namespace/]name, or the agent's namespace is unknown");
            self.add_mistake(&options::CNI_CONFIG_MAP, what);
            return None;
        }
        Some((
            ObjectRef { group: "", kind: "ConfigMap", namespace, name },
            self.flag_text(&options::CNI_CONFIG_MAP_KEY),
        ))
    }

    fn read_cleanup(&mut self) -> CleanupOnExit {
        let is_default = self.values.get(&options::CLEANUP_ON_EXIT).1 == ValueSource::Default;
        if self.parse_boolean(&options::AMBIENT_DISABLE_SAFE_UPGRADE) && is_default {
            return CleanupOnExit::Always;
        }
        self.parse_flag(&options::CLEANUP_ON_EXIT, |text| match text {
            "auto" | "" => Ok(CleanupOnExit::Auto),
            "always" => Ok(CleanupOnExit::Always),
            "never" => Ok(CleanupOnExit::Never),
            _ => Err(format!("{text:?} must be one of auto, always, never")),
        })
    }

    /// Validates values that other parts of the agent need later, so that mistakes are reported at the start.
    fn other_parts(&mut self) {
        self.parse_boolean(&options::ENABLE_AMBIENT_DETECTION_RETRY);
        if self.parse_boolean(&options::EBPF_ENABLED) {
            self.warnings.push("there is no eBPF mode: --ebpf-enabled has no effect".to_owned());
        }
        if !self.parse_boolean(&options::AMBIENT_RECONCILE_POD_RULES_ON_STARTUP) {
            let what = "pods' rules are always kept as they should be: \
                        --ambient-reconcile-pod-rules-on-startup=false has no effect";
            self.warnings.push(what.to_owned());
        }
        let links = self.values.service_links();
        self.warnings.extend(
            links.map(|(name, text)| format!("{name} is {text:?}, an address of a Service: it is ignored")),
        );
        let ignored = self.values.ignored_flags();
        self.warnings
            .extend(ignored.map(|flag| format!("--{flag} was removed with Istio 1.19 and has no effect")));
    }
}

/// Returns the log level in the plugin's terms.
fn plugin_level(log: &LogOptions) -> &'static str {
    match log.scope_level("cni") {
        OutputLevel::None | OutputLevel::Fatal => OutputLevel::Error.as_str(),
        level => level.as_str(),
    }
}

/// Returns values that differ from the defaults, except the template, which is long and visible in the conflist.
fn changed_settings(values: &FlagValues) -> Vec<String> {
    let all =
        values.iter().filter(|(flag, _, source)| *source != ValueSource::Default && *flag != TEMPLATE.long);
    all.map(|(flag, text, source)| match source {
        ValueSource::Variable(variable) => format!("{flag}={text:?} ({variable})"),
        _ => format!("{flag}={text:?}"),
    })
    .collect()
}

#[cfg(test)]
mod tests;
