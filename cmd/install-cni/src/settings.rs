//! Flags and environment, checked and typed, with every mistake reported at once.

use std::{fmt, fs, path::PathBuf};

use flags::{Source, Values};
use installer::{Authority, Chaining, KubeconfigSettings, Template};
use kubeio::{Connection, Object, Trust};
use model::parse_go_bool;
use telemetry::logging::{LogFlags, LogOptions};

mod ambient;

use crate::ambient::Ambient;

/// Where the kubelet mounts the service account.
pub(crate) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Where the image has what is to be installed.
const SOURCE: &str = "/opt/cni/bin";
/// Where the host's directories for plugins are mounted; the second is optional.
const TARGETS: [&str; 2] = ["/host/opt/cni/bin", "/host/secondary-bin-dir"];

/// When to take everything away at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CleanupOnExit {
    /// When the DaemonSet is gone, or does not want this node any more.
    Auto,
    /// At every end, as Istio does.
    Always,
    /// Never.
    Never,
}

/// Everything that the daemon needs to know.
#[derive(Debug)]
pub(crate) struct Settings {
    /// For the installer.
    pub(crate) installer: installer::Settings,
    /// Port of `/metrics`.
    pub(crate) monitoring_port: Option<u16>,
    /// Socket for the plugin's log lines.
    pub(crate) log_socket: Option<PathBuf>,
    /// The API server; none when the environment names none and nobody needs it.
    pub(crate) api: Option<Connection>,
    /// The ConfigMap with the template, and its key.
    pub(crate) config_map: Option<(Object, String)>,
    /// Who we are.
    pub(crate) identity: Identity,
    /// What to do at the end.
    pub(crate) cleanup: CleanupOnExit,
    /// Ambient mode; none when it is off.
    pub(crate) ambient: Option<Ambient>,
    /// What the operator should know.
    pub(crate) warnings: Vec<String>,
    /// Values that somebody chose, for the log.
    pub(crate) chosen: Vec<String>,
}

/// Who we are to the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Our namespace; empty when nobody says.
    pub(crate) namespace: String,
    /// Our pod.
    pub(crate) pod: String,
    /// Our node.
    pub(crate) node: String,
    /// Our DaemonSet; empty: our pod's owner.
    pub(crate) daemon_set: String,
}

/// All mistakes of a configuration: never empty. Prints one per line.
#[derive(Debug)]
pub(crate) struct Mistakes(pub(crate) Vec<String>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Mistakes {}

/// Where values come from beside flags.
pub(crate) trait Surroundings {
    /// A variable; none when it is not set or not UTF-8.
    fn variable(&self, name: &str) -> Option<String>;
    /// The host's name.
    fn host_name(&self) -> String;
    /// The namespace of the service account.
    fn namespace(&self) -> Option<String>;
}

/// This process's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process;

impl Surroundings for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn host_name(&self) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    }

    fn namespace(&self) -> Option<String> {
        let namespace = fs::read_to_string(format!("{SERVICE_ACCOUNT}/namespace")).ok()?;
        Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty())
    }
}

/// Reads values and collects mistakes on the way.
struct Reader<'a> {
    values: &'a Values,
    around: &'a dyn Surroundings,
    mistakes: Vec<String>,
    warnings: Vec<String>,
}

impl Settings {
    /// Checks everything; how to log comes beside the rest, because it is needed first.
    ///
    /// # Errors
    /// All mistakes, each with the flag or variable that it was made in.
    pub(crate) fn read(
        values: &Values,
        around: &dyn Surroundings,
    ) -> Result<(Settings, LogOptions), Mistakes> {
        let mut reader = Reader { values, around, mistakes: Vec::new(), warnings: Vec::new() };
        let (log, settings) = (reader.log(), reader.settings());
        match (settings, log) {
            (Some(settings), Some(log)) if reader.mistakes.is_empty() => Ok((settings, log)),
            _ => Err(Mistakes(reader.mistakes)),
        }
    }
}

impl Reader<'_> {
    /// None only after a mistake.
    fn settings(&mut self) -> Option<Settings> {
        let identity = self.identity();
        let server = self.server();
        let authority = self.authority();
        let config_map = self.config_map(&identity);
        let installer = self.installer(server.clone(), &authority, config_map.is_some());
        let cleanup = self.cleanup();
        let monitoring_port = self.port("monitoring-port");
        self.other_parts();
        let ambient = self.ambient(&identity);
        let api = server.map(|server| connection(server, authority));
        Some(Settings {
            installer: installer?,
            monitoring_port: monitoring_port?,
            log_socket: self.optional("log-uds-address").map(PathBuf::from),
            api,
            config_map,
            identity,
            cleanup: cleanup?,
            ambient: ambient?,
            warnings: std::mem::take(&mut self.warnings),
            chosen: chosen(self.values),
        })
    }

    fn text(&self, flag: &str) -> String {
        self.values.text(flag).to_owned()
    }

    fn optional(&self, flag: &str) -> Option<String> {
        Some(self.text(flag)).filter(|text| !text.is_empty())
    }

    fn mistake(&mut self, flag: &str, what: impl fmt::Display) {
        let name = match self.values.get(flag) {
            (_, Source::Variable(variable)) => format!("{variable} (--{flag})"),
            _ => format!("--{flag}"),
        };
        self.mistakes.push(format!("{name}: {what}"));
    }

    /// Empty counts as false, as in Istio.
    fn boolean(&mut self, flag: &str) -> Option<bool> {
        let text = self.text(flag);
        if text.is_empty() {
            return Some(false);
        }
        let value = parse_go_bool(&text);
        if value.is_none() {
            self.mistake(flag, format!("{text:?} is neither true nor false"));
        }
        value
    }

    /// The outer value is none after a mistake, the inner one when the port is switched off.
    fn port(&mut self, flag: &str) -> Option<Option<u16>> {
        let text = self.text(flag);
        let number = if text.is_empty() { Ok(0) } else { text.parse::<i64>() };
        match number.ok().map(|number| (number <= 0, u16::try_from(number))) {
            Some((true, _)) => Some(None),
            Some((false, Ok(port))) => Some(Some(port)),
            _ => {
                self.mistake(flag, format!("{text:?} is no port"));
                None
            }
        }
    }

    fn log(&mut self) -> Option<LogOptions> {
        let text = |flag| self.values.text(flag);
        let parsed = LogOptions::parse(&LogFlags {
            log_target: text("log_target"),
            log_rotate: text("log_rotate"),
            log_rotate_max_age: text("log_rotate_max_age"),
            log_rotate_max_size: text("log_rotate_max_size"),
            log_rotate_max_backups: text("log_rotate_max_backups"),
            log_as_json: text("log_as_json"),
            log_output_level: text("log_output_level"),
            log_stacktrace_level: text("log_stacktrace_level"),
            log_caller: text("log_caller"),
        });
        parsed.map_err(|mistakes| self.mistakes.extend(mistakes)).ok()
    }

    fn identity(&self) -> Identity {
        let host_name = || self.around.host_name();
        let node = self.optional("node-name").or_else(|| self.optional("repair-node-name"));
        Identity {
            namespace: self.optional("pod-namespace").or_else(|| self.around.namespace()).unwrap_or_default(),
            pod: self.optional("pod-name").unwrap_or_else(host_name),
            node: node.unwrap_or_else(host_name),
            daemon_set: self.text("daemon-set"),
        }
    }

    /// URL of the API server, as Istio puts it into the kubeconfig.
    fn server(&mut self) -> Option<String> {
        let variable = |name: &str| self.around.variable(name).filter(|value| !value.is_empty());
        let protocol = variable("KUBERNETES_SERVICE_PROTOCOL").unwrap_or_else(|| "https".to_owned());
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        if port.parse::<u16>().is_err() {
            self.mistakes.push(format!("KUBERNETES_SERVICE_PORT: {port:?} is no port"));
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Some(format!("{protocol}://{host}:{port}"))
    }

    fn authority(&mut self) -> Authority {
        if self.boolean("skip-tls-verify") == Some(true) {
            return Authority::Anybody;
        }
        let file = self.optional("kube-ca-file");
        Authority::File(file.unwrap_or_else(|| format!("{SERVICE_ACCOUNT}/ca.crt")).into())
    }

    fn config_map(&mut self, identity: &Identity) -> Option<(Object, String)> {
        let reference = self.optional("cni-config-map")?;
        let (namespace, name) = match reference.split_once('/') {
            Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
            None => (identity.namespace.clone(), reference.clone()),
        };
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            let what = format!("{reference:?} is no [namespace/]name, or our own namespace is not known");
            self.mistake("cni-config-map", what);
            return None;
        }
        Some((Object { group: "", kind: "ConfigMap", namespace, name }, self.text("cni-config-map-key")))
    }

    fn installer(
        &mut self,
        server: Option<String>,
        authority: &Authority,
        has_config_map: bool,
    ) -> Option<installer::Settings> {
        let kubeconfig = self.kubeconfig(server, authority);
        let chaining = self.chaining();
        let template = self.template(has_config_map);
        let kubeconfig_name = self.file_name("kubecfg-file-name");
        let own_name = self.file_name("istio-owned-cni-config-filename");
        let settings = installer::Settings {
            source: SOURCE.into(),
            targets: TARGETS.map(PathBuf::from).to_vec(),
            conf_dir: self.text("mounted-cni-net-dir").into(),
            chaining: chaining?,
            template,
            defaults: self.entry_defaults(),
            kubeconfig: kubeconfig?,
            kubeconfig_name: kubeconfig_name?,
            own_name: own_name?,
        };
        // A file or a ConfigMap may become good while we run; a text cannot, but may be another after a restart.
        let is_fixed =
            !has_config_map && settings.template.file.is_none() && !settings.template.text.is_empty();
        if let (true, Err(error)) = (is_fixed, settings.check_template()) {
            self.mistake("cni-network-config", error);
        }
        Some(settings)
    }

    /// The outer value is none after a mistake.
    fn kubeconfig(
        &mut self,
        server: Option<String>,
        authority: &Authority,
    ) -> Option<Option<KubeconfigSettings>> {
        let mode = self.mode("kubeconfig-mode");
        if !self.boolean("write-kubeconfig")? {
            return Some(None);
        }
        if server.is_none() {
            let what = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set, for the plugin's kubeconfig";
            self.mistakes.push(what.to_owned());
        }
        let token = format!("{SERVICE_ACCOUNT}/token").into();
        Some(Some(KubeconfigSettings { mode: mode?, server: server?, authority: authority.clone(), token }))
    }

    /// Permission bits: as Go reads integers, `0600` is octal and `384` decimal.
    fn mode(&mut self, flag: &str) -> Option<u32> {
        let text = self.text(flag);
        let octal =
            text.strip_prefix("0o").or_else(|| text.strip_prefix('0').filter(|digits| !digits.is_empty()));
        let mode = match octal {
            Some(digits) => u32::from_str_radix(digits, 8),
            None => text.parse(),
        };
        let mode = mode.ok().filter(|mode| (1..=0o777).contains(mode));
        if mode.is_none() {
            self.mistake(flag, format!("{text:?} are no permission bits, such as 0600"));
        }
        mode
    }

    fn file_name(&mut self, flag: &str) -> Option<String> {
        let name = self.text(flag);
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            self.mistake(flag, format!("{name:?} is no file name"));
            return None;
        }
        Some(name)
    }

    fn chaining(&mut self) -> Option<Chaining> {
        let name = match self.optional("cni-conf-name") {
            Some(_) => Some(self.file_name("cni-conf-name")?),
            None => None,
        };
        let (chained, own) = (self.boolean("chained-cni-plugin")?, self.boolean("istio-owned-cni-config")?);
        match (chained, own) {
            (true, false) => Some(Chaining::Primary { name }),
            (true, true) => Some(Chaining::Own { primary: name }),
            (false, false) => {
                Some(Chaining::Standalone { name: name.unwrap_or_else(|| STANDALONE.to_owned()) })
            }
            (false, true) => {
                let what = "a complete copy of the network needs --chained-cni-plugin";
                self.mistake("istio-owned-cni-config", what);
                None
            }
        }
    }

    fn template(&mut self, has_config_map: bool) -> Template {
        let (text, file) = (self.text("cni-network-config"), self.optional("cni-network-config-file"));
        let is_there = file.as_ref().is_some_and(|file| fs::exists(file).unwrap_or(true));
        if text.trim().is_empty() && !is_there && !has_config_map {
            let what = match &file {
                Some(file) => format!("{file} is not there, and --cni-network-config is empty"),
                None => "one of these must give our entry: --cni-network-config, --cni-network-config-file, \
                         --cni-config-map (or their variables)"
                    .to_owned(),
            };
            self.mistake("cni-network-config-file", what);
        }
        let (kubeconfig, directory) = (self.text("kubecfg-file-name"), self.text("cni-net-dir"));
        let around = |name: &str| self.around.variable(name).unwrap_or_default();
        let node = Some(around("KUBERNETES_NODE_NAME")).filter(|node| !node.is_empty());
        let variables = vec![
            ("__LOG_LEVEL__", self.text("log-level")),
            ("__LOG_UDS_ADDRESS__", self.text("log-uds-address")),
            ("__KUBECONFIG_FILENAME__", kubeconfig.clone()),
            ("__KUBECONFIG_FILEPATH__", format!("{}/{kubeconfig}", directory.trim_end_matches('/'))),
            ("__KUBERNETES_SERVICE_HOST__", around("KUBERNETES_SERVICE_HOST")),
            ("__KUBERNETES_SERVICE_PORT__", around("KUBERNETES_SERVICE_PORT")),
            ("__KUBERNETES_NODE_NAME__", node.unwrap_or_else(|| self.around.host_name())),
        ];
        Template { live: None, file: file.map(PathBuf::from), text, variables }
    }

    fn cleanup(&mut self) -> Option<CleanupOnExit> {
        let text = self.text("cleanup-on-exit");
        match text.as_str() {
            "auto" | "" => Some(CleanupOnExit::Auto),
            "always" => Some(CleanupOnExit::Always),
            "never" => Some(CleanupOnExit::Never),
            _ => {
                self.mistake("cleanup-on-exit", format!("{text:?} is none of auto, always, never"));
                None
            }
        }
    }

    /// What other parts of the agent will need is checked too, so that a mistake shows now.
    fn other_parts(&mut self) {
        for flag in ["repair-delete-pods", "repair-label-pods", "repair-repair-pods"] {
            self.boolean(flag);
        }
        let status = self.text("repair-init-container-exit-code");
        if !status.is_empty() && status.parse::<i32>().is_err() {
            self.mistake("repair-init-container-exit-code", format!("{status:?} is no exit status"));
        }
        self.port("ctrlz_port");
        if self.boolean("repair-enabled") == Some(true) {
            self.warnings
                .push("race repair is not part of this version: --repair-enabled has no effect".to_owned());
        }
        if self.boolean("ebpf-enabled") == Some(true) {
            self.warnings.push("there is no eBPF mode: --ebpf-enabled has no effect".to_owned());
        }
        let ignored = self.values.ignored();
        self.warnings
            .extend(ignored.map(|flag| format!("--{flag} was removed with Istio 1.19 and has no effect")));
    }
}

/// Of standalone mode.
const STANDALONE: &str = "YYY-istio-cni.conf";

fn connection(server: String, authority: Authority) -> Connection {
    Connection {
        server,
        trust: match authority {
            Authority::File(file) => Trust::Authority(file),
            Authority::Anybody => Trust::Anybody,
        },
        token: format!("{SERVICE_ACCOUNT}/token").into(),
        user_agent: concat!("install-cni/", env!("CARGO_PKG_VERSION"), " (millrace)").to_owned(),
    }
}

/// Values that are not the defaults, but for the template, which is long and shows in the conflist.
fn chosen(values: &Values) -> Vec<String> {
    let all =
        values.iter().filter(|(flag, _, source)| *source != Source::Default && *flag != "cni-network-config");
    all.map(|(flag, text, source)| match source {
        Source::Variable(variable) => format!("{flag}={text:?} ({variable})"),
        _ => format!("{flag}={text:?}"),
    })
    .collect()
}

#[cfg(test)]
mod tests;
