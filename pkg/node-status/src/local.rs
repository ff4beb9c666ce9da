//! Contribution of this node's files and settings to the state document.

use std::fs;

use daemon_settings::DaemonSettings;
use report::{InstalledFile, StateReport};

/// Returns a document without content.
pub(super) fn empty_report() -> StateReport {
    StateReport { schema: report::SCHEMA.to_owned(), ..StateReport::default() }
}

/// Adds version, node and configuration from the settings.
pub fn complete_report(state: &mut StateReport, settings: &DaemonSettings) {
    env!("CARGO_PKG_VERSION").clone_into(&mut state.version);
    state.node.name.clone_from(&settings.identity.node);
    state.node.ambient_enabled = settings.ambient.is_some();
    state.config.clone_from(&settings.config);
}

/// Returns the file shared by agent and plugin in node-level capture; `None` in other modes.
pub fn shared_config(settings: &DaemonSettings) -> Option<InstalledFile> {
    let path = &settings.ambient.as_ref()?.agent.shared_config;
    let text = fs::read(path).ok()?;
    let read: Result<agent_protocol::SharedConfig, _> = serde_json::from_slice(&text);
    Some(InstalledFile {
        kind: "shared-config".to_owned(),
        path: path.display().to_string(),
        correct: read.is_ok(),
        message: match read {
            Ok(config) if config.ztunnel_ready => "it states that a ztunnel accepts traffic".to_owned(),
            Ok(_) => "it states that no ztunnel accepts traffic".to_owned(),
            Err(error) => format!("it cannot be read: {error}"),
        },
    })
}
