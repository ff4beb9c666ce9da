//! Network configuration on stdin.

use std::collections::BTreeMap;

use model::ContainerId;
use serde_json::value::RawValue;

use crate::json::ObjectFields;
use crate::names::{excerpt, is_cni_name};
use crate::{CniCommand, CniError, CniVersion, ErrorCode, K8sNamespace, PrevResult, run_dir};

/// Maximum size of the configuration on stdin, in bytes. Annotations, the largest part, are at most 256 KiB of keys and values
/// (Kubernetes `TotalAnnotationSizeLimitB`), and Go writes each `<`, `>` and `&` as six bytes.
pub const MAX_STDIN: usize = 2 * 1024 * 1024;

/// Capability for which containerd passes all annotations of the pod (`runtimeConfig`, and `capabilities` of the conflist entry).
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Key of the attachments to be kept by `GC` (CNI spec 1.1.0, section 2, "GC").
pub const VALID_ATTACHMENTS: &str = "cni.dev/valid-attachments";
/// Name of [`VALID_ATTACHMENTS`] in the first text of CNI spec 1.1.0, corrected later (containernetworking/cni#1103).
const FORMER_VALID_ATTACHMENTS: &str = "cni.dev/attachments";

/// Validated configuration of one call (CNI spec 1.1.0, section 1; Istio 1.20, and 1.29 to 1.31). Keys are matched
/// case-insensitively; keys not listed here are ignored; empty strings count as absent.
///
/// If the newer Istio has another key for the same setting, it is used if the older one is absent. Files in `cni_agent_run_dir`
/// have the names of [`run_dir`].
#[derive(Debug)]
pub struct NetConf {
    /// `cniVersion`; missing means 0.1.0.
    pub cni_version: CniVersion,
    /// `name` of the network: alphanumeric, then alphanumerics, `_`, `.`, `-`.
    pub name: String,
    /// `prevResult`, byte for byte.
    pub prev_result: Option<Box<RawValue>>,
    /// `runtimeConfig` under [`POD_ANNOTATIONS`]; `None` if the runtime does not pass it.
    pub pod_annotations: Option<BTreeMap<String, String>>,
    /// Containers of [`VALID_ATTACHMENTS`]; `None` if the key is missing, which is an error at `GC`. `null` is an empty list, as
    /// written by Go.
    pub valid_attachments: Option<Vec<ContainerId>>,
    /// `log_level`, else `plugin_log_level`, as given.
    pub log_level: Option<String>,
    /// `log_uds_address`, else in `cni_agent_run_dir`: path of the agent's log socket.
    pub log_uds_address: Option<String>,
    /// `log_file`, else in `cni_agent_run_dir`: file for log lines while the agent is unavailable.
    pub log_file: Option<String>,
    /// `ambient_enabled`: whether to decide about ambient mode too.
    pub ambient_enabled: bool,
    /// `enablement_selectors`, a list, byte for byte: selects the pods of ambient mode; `None`: by their labels.
    pub enablement_selectors: Option<Box<RawValue>>,
    /// `native_nftables`.
    pub native_nftables: bool,
    /// `agent_socket`, else in `cni_agent_run_dir`: socket of the agent.
    pub agent_socket: Option<String>,
    /// `ambient_config`: path of the file shared by plugin and agent.
    pub ambient_config: Option<String>,
    /// `pod_namespace`, and those of `agent_namespaces`: the namespaces of the node's agents.
    pub agent_namespaces: Vec<K8sNamespace>,
    /// `kubernetes`.
    pub kubernetes: KubernetesConf,
}

/// The `kubernetes` part of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesConf {
    /// `kubeconfig`, else in `cni_agent_run_dir`: path of the file with the credential; `None`: the plugin queries only the agent.
    pub kubeconfig: Option<String>,
    /// `exclude_namespaces`, else the key of that name beside `kubernetes`: exact names.
    pub exclude_namespaces: Vec<String>,
    /// `intercept_type`; default `iptables`.
    pub intercept_type: String,
    /// `api_timeout_seconds`, 1 to 300, default 30: maximum time of one call for queries to the API server.
    pub api_timeout_seconds: u16,
    /// `kubelet_root_dir`; default `/var/lib/kubelet`: directory of the kubelet's files for pods.
    pub kubelet_root_dir: String,
}

impl NetConf {
    /// Parses and validates the configuration on stdin.
    ///
    /// # Errors
    /// Code 6 if it is not a JSON object, is larger than [`MAX_STDIN`], or a member has the wrong type; code 1 for an unsupported
    /// version; code 7 for an invalid name or a value out of range. The message has the member's path; the error has the
    /// configuration's version if known.
    pub fn parse(stdin: &[u8]) -> Result<Self, CniError> {
        let undecodable = |why| CniError::new(ErrorCode::Decode, format!("the configuration is {why}"));
        if stdin.len() > MAX_STDIN {
            return Err(undecodable(format!("larger than {MAX_STDIN} bytes")));
        }
        let text = str::from_utf8(stdin).map_err(|error| undecodable(format!("not UTF-8: {error}")))?;
        let fields = ObjectFields::parse("", text)
            .map_err(|wrong| undecodable(format!("not a JSON object: {}", wrong.what)))?;
        let version = parse_version(&fields)?;
        Self::from_fields(&fields, version).map_err(|error| error.with_version(version))
    }

    fn from_fields(fields: &ObjectFields<'_>, cni_version: CniVersion) -> Result<Self, CniError> {
        let directory = fields.text_member("cni_agent_run_dir")?;
        let shared = |name| directory.as_deref().map(|directory| run_dir::path(directory, name));
        let or_shared = |key, name| Ok::<_, CniError>(fields.text_member(key)?.or_else(|| shared(name)));
        let log_level = fields.text_member("log_level")?;
        let mut kubernetes = kubernetes_conf(fields)?;
        kubernetes.kubeconfig = kubernetes.kubeconfig.or_else(|| shared(run_dir::KUBECONFIG));
        Ok(NetConf {
            cni_version,
            name: network_name(fields)?,
            prev_result: fields.get("prevResult").map(ToOwned::to_owned),
            pod_annotations: pod_annotations(fields)?,
            valid_attachments: valid_attachments(fields)?,
            log_level: log_level.or(fields.text_member("plugin_log_level")?),
            log_uds_address: or_shared("log_uds_address", run_dir::LOG_SOCKET)?,
            log_file: or_shared("log_file", run_dir::LOG_FILE)?,
            ambient_enabled: fields.decode_member("ambient_enabled")?.unwrap_or(false),
            enablement_selectors: enablement_selectors(fields)?,
            native_nftables: fields.decode_member("native_nftables")?.unwrap_or(false),
            agent_socket: or_shared("agent_socket", run_dir::AGENT_SOCKET)?,
            ambient_config: fields.text_member("ambient_config")?,
            agent_namespaces: agent_namespaces(fields)?,
            kubernetes,
        })
    }

    /// Checks that the configuration's version supports the command (`CHECK` needs 0.4.0).
    ///
    /// # Errors
    /// Code 1.
    pub fn check_command(&self, command: CniCommand) -> Result<(), CniError> {
        let since = command.minimum_version();
        if self.cni_version >= since {
            return Ok(());
        }
        let msg = format!("cniVersion {} has no {command}; it came with {since}", self.cni_version);
        Err(CniError::new(ErrorCode::IncompatibleVersion, msg).with_version(self.cni_version))
    }

    /// Returns the parsed `prevResult`; `None` if absent.
    ///
    /// # Errors
    /// See [`PrevResult::parse`].
    pub fn prev_result(&self) -> Result<Option<PrevResult<'_>>, CniError> {
        let parse = |raw| PrevResult::parse(raw, self.cni_version);
        let parsed = self.prev_result.as_deref().map(parse).transpose();
        parsed.map_err(|error| error.with_version(self.cni_version))
    }

    /// Returns the output of a chained plugin that changes nothing: `prevResult` in the configuration's version, or, without one, a
    /// result that contains only the version.
    ///
    /// # Errors
    /// As [`NetConf::prev_result`].
    pub fn pass_through(&self) -> Result<String, CniError> {
        Ok(match self.prev_result()? {
            Some(prev) => prev.output_for(self.cni_version)?,
            None => format!("{{\"cniVersion\":\"{}\"}}", self.cni_version),
        })
    }
}

fn parse_version(fields: &ObjectFields<'_>) -> Result<CniVersion, CniError> {
    let text = fields.text_member("cniVersion")?.unwrap_or_default();
    text.parse()
        .map_err(|error| CniError::new(ErrorCode::IncompatibleVersion, format!("cniVersion: {error}")))
}

fn network_name(fields: &ObjectFields<'_>) -> Result<String, CniError> {
    match fields.text_member("name")? {
        None => Err(invalid_config("name", "is missing; a network needs one")),
        Some(name) if is_cni_name(&name) => Ok(name),
        Some(name) => {
            let form = "an alphanumeric followed by alphanumerics, '_', '.', '-'";
            Err(invalid_config("name", &format!("{:?} is not {form}", excerpt(&name))))
        }
    }
}

fn pod_annotations(fields: &ObjectFields<'_>) -> Result<Option<BTreeMap<String, String>>, CniError> {
    let Some(runtime) = fields.object_member("runtimeConfig")? else { return Ok(None) };
    let Some(map) = runtime.decode_member::<BTreeMap<String, Option<String>>>(POD_ANNOTATIONS)? else {
        return Ok(None);
    };
    Ok(Some(map.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect()))
}

fn valid_attachments(fields: &ObjectFields<'_>) -> Result<Option<Vec<ContainerId>>, CniError> {
    let keys = [VALID_ATTACHMENTS, FORMER_VALID_ATTACHMENTS];
    let Some(key) = keys.into_iter().find(|key| fields.has_key(key)) else { return Ok(None) };
    let containers = fields
        .object_list(key)?
        .into_iter()
        .map(|attachment| Ok(ContainerId::from(attachment.text_member("containerID")?.unwrap_or_default())));
    containers.collect::<Result<_, CniError>>().map(Some)
}

fn agent_namespaces(fields: &ObjectFields<'_>) -> Result<Vec<K8sNamespace>, CniError> {
    const OTHERS: &str = "agent_namespaces";
    let parse = |(key, text): (&str, String)| {
        K8sNamespace::new(&text).map_err(|error| invalid_config(key, &error.to_string()))
    };
    let own = fields.text_member("pod_namespace")?.map(|text| ("pod_namespace", text));
    let others = fields.decode_member::<Vec<String>>(OTHERS)?.unwrap_or_default();
    own.into_iter().chain(others.into_iter().map(|text| (OTHERS, text))).map(parse).collect()
}

fn enablement_selectors(fields: &ObjectFields<'_>) -> Result<Option<Box<RawValue>>, CniError> {
    const KEY: &str = "enablement_selectors";
    fields.object_list(KEY)?; // must be a list of objects, whose content is validated by `enrolment`
    Ok(fields.get(KEY).map(ToOwned::to_owned))
}

fn kubernetes_conf(beside: &ObjectFields<'_>) -> Result<KubernetesConf, CniError> {
    const EXCLUDED: &str = "exclude_namespaces";
    let excluded = beside.text_list(EXCLUDED)?;
    let fields = beside.object_member("kubernetes")?.unwrap_or_default();
    let seconds = fields.decode_member::<i64>("api_timeout_seconds")?.unwrap_or(30);
    let limit = u16::try_from(seconds).ok().filter(|seconds| (1..=300).contains(seconds));
    let text_or = |key, default: &str| {
        Ok::<_, CniError>(fields.text_member(key)?.unwrap_or_else(|| default.to_owned()))
    };
    Ok(KubernetesConf {
        kubeconfig: fields.text_member("kubeconfig")?,
        exclude_namespaces: match fields.get(EXCLUDED) {
            Some(_) => fields.text_list(EXCLUDED)?,
            None => excluded,
        },
        intercept_type: text_or("intercept_type", "iptables")?,
        api_timeout_seconds: limit.ok_or_else(|| {
            invalid_config("kubernetes.api_timeout_seconds", &format!("{seconds} is not from 1 to 300"))
        })?,
        kubelet_root_dir: text_or("kubelet_root_dir", "/var/lib/kubelet")?,
    })
}

fn invalid_config(path: &str, what: &str) -> CniError {
    CniError::new(ErrorCode::InvalidConfig, format!("{path}: {what}"))
}

#[cfg(test)]
mod tests;
