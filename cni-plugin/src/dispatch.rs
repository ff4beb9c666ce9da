//! Dispatch of commands, and the plugin's output.

use std::{ffi::OsString, io::Read};

use agent_protocol::{AgentRequest, CniVerb};
use cni_types::{CniCommand, CniEnvironment, CniError, CniVersion, ErrorCode, NetConf};
use model::ContainerId;

use crate::{
    agent::{AgentClient, AgentOrApi},
    attach,
    call::{PluginCall, read_configuration},
    check,
    log::CallLog,
    offline_enrol, record,
};

/// Output of the process, and its exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginOutput {
    /// Output for the runtime.
    pub stdout: String,
    /// Output for the runtime's log.
    pub stderr: String,
    /// Whether the exit status is 0; otherwise it is 1.
    pub success: bool,
}

const ABOUT: &str = concat!("CNI plugin istio-cni ", env!("CARGO_PKG_VERSION"), " (Millrace)\n");

/// Handles the call described by environment and stdin.
pub fn answer_call(lookup: impl Fn(&str) -> Option<OsString>, stdin: &mut impl Read) -> PluginOutput {
    let command = match CniCommand::from_lookup(&lookup) {
        Ok(Some(command)) => command,
        Ok(None) => return about_output(),
        Err(error) => return error_output(&error, String::new()),
    };
    match command {
        CniCommand::Version => success_output(cni_types::version_output(), String::new()),
        CniCommand::Del => release_container(&lookup, stdin),
        CniCommand::Add | CniCommand::Check => about_container(command, &lookup, stdin),
        CniCommand::Status | CniCommand::Gc => about_plugin(command, &lookup, stdin),
    }
}

fn about_output() -> PluginOutput {
    let versions = cni_types::SUPPORTED.map(CniVersion::as_str).join(", ");
    let versions = format!("CNI protocol versions supported: {versions}\n");
    let provider = format!("TLS provider: {}\n", apiclient::describe_tls_provider());
    success_output(String::new(), format!("{ABOUT}{versions}{provider}"))
}

fn success_output(stdout: String, stderr: String) -> PluginOutput {
    PluginOutput { stdout, stderr, success: true }
}

fn error_output(error: &CniError, stderr: String) -> PluginOutput {
    PluginOutput { stdout: error.to_json(), stderr, success: false }
}

/// DEL. A sidecar's rules are removed with the pod's network namespace; an ambient pod's addresses are released. Nothing may keep a
/// pod from ending, neither an empty netns nor an invalid configuration.
fn release_container(lookup: &impl Fn(&str) -> Option<OsString>, stdin: &mut impl Read) -> PluginOutput {
    let Ok(call) = PluginCall::read(CniCommand::Del, lookup, stdin) else {
        return success_output(String::new(), String::new());
    };
    let mut log = CallLog::new(&call);
    let record = record::find_for_container(&call);
    record::delete_for_container(&call); // first, because an agent that still has it receives the DEL anyway
    attach::release_pod(&call, record, &mut log);
    success_output(String::new(), log.send_lines())
}

fn about_container(
    command: CniCommand,
    lookup: &impl Fn(&str) -> Option<OsString>,
    stdin: &mut impl Read,
) -> PluginOutput {
    let call = match PluginCall::read(command, lookup, stdin) {
        Ok(call) => call,
        Err(error) => return error_output(&error, String::new()),
    };
    let mut log = CallLog::new(&call);
    let verb = if command == CniCommand::Check { CniVerb::Check } else { CniVerb::Add };
    let (ambient, is_add) = (call.conf.ambient_enabled, command == CniCommand::Add);
    let ips = match (ambient, is_add) {
        (true, true) => offline_enrol::addresses_at_start(&call),
        (true, false) => offline_enrol::pod_addresses(&call),
        (false, _) => Ok(Vec::new()),
    };
    let netns = (ambient && is_add).then(|| attach::pods_netns(&call)).transpose();
    let authority = AgentOrApi::new(&call, verb, netns, ips);
    let done = match command {
        CniCommand::Check => check::check_pod(&call, &authority, &mut log),
        _ => attach::add_pod(&call, &authority, &mut log),
    };
    let done = done.map_err(|error| error.with_version(call.conf.cni_version));
    if is_add {
        record::save_outcome(&call, authority.into_facts(), &mut log, done.as_ref().err());
    }
    if let Err(error) = &done {
        log.error(format!("{command} failed: {}", error.msg));
    }
    let stderr = log.send_lines();
    match done {
        Ok(stdout) => success_output(stdout, stderr),
        Err(error) => error_output(&error, stderr),
    }
}

/// Handles STATUS and GC.
fn about_plugin(
    command: CniCommand,
    lookup: &impl Fn(&str) -> Option<OsString>,
    stdin: &mut impl Read,
) -> PluginOutput {
    let checked =
        CniEnvironment::parse(command, lookup).and_then(|_| read_configuration(stdin)).and_then(|conf| {
            conf.check_command(command)?;
            match command {
                CniCommand::Status => check_availability(&conf),
                _ => collect_garbage(&conf),
            }
            .map_err(|error| error.with_version(conf.cni_version))
        });
    match checked {
        Ok(()) => success_output(String::new(), String::new()),
        Err(error) => error_output(&error, String::new()),
    }
}

/// STATUS: fails only for a fault that keeps every pod from starting and that no pod can repair. While it fails the kubelet starts
/// no pod with a network of its own, and the agent may be such a pod: so neither its absence nor a missing credential, which it
/// writes, is a failure. No queries: the runtime calls every few seconds.
fn check_availability(conf: &NetConf) -> Result<(), CniError> {
    if conf.ambient_enabled {
        return Ok(()); // the agent makes the rules of ambient pods; the ADD of a pod with a sidecar reports missing features
    }
    let missing = |error: firewall::Error| CniError::new(ErrorCode::NotAvailable, error.to_string());
    firewall::available_backend().map(drop).map_err(missing)
}

/// GC: besides records, only ambient pods leave objects outside of their namespace. Without an agent they are left to the next one.
fn collect_garbage(conf: &NetConf) -> Result<(), CniError> {
    let missing =
        || CniError::new(ErrorCode::InvalidConfig, format!("{} is missing", cni_types::VALID_ATTACHMENTS));
    let valid = conf.valid_attachments.as_ref().ok_or_else(missing)?;
    record::remove_stale(conf, &valid.iter().map(ContainerId::as_str).collect());
    if !conf.ambient_enabled {
        return Ok(());
    }
    let (attachments, network) = (valid.clone(), conf.name.clone());
    let request = AgentRequest { attachments, network, ..AgentRequest::new(CniVerb::Gc) };
    let answer = AgentClient::for_check(conf.agent_socket.as_deref()).send_request(&request, None);
    let error = answer.ok().and_then(|answer| answer.error);
    error.map_or(Ok(()), |why| Err(CniError::new(ErrorCode::Other, why)))
}
