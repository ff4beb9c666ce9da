//! Settings of the debug state: where it is served, and which settings it shows.

use std::{net::SocketAddr, path::PathBuf};

use cni_types::run_dir;
use flags::{Flag, FlagValues, ValueSource};
use report::EffectiveSetting;
use telemetry::http::parse_listen_address;

use super::{DEBUG_SOCKET, DaemonSettings, SettingsReader};
use crate::options;

/// Name of the file with the last state observed by an agent, beside the socket.
const LAST_STATE: &str = "last-state.json";
pub(crate) const HISTORY: &str = "history.jsonl";
/// The only value that is omitted: it is long, and visible in the conflist.
pub(super) const TEMPLATE: Flag = options::CNI_NETWORK_CONFIG;

impl SettingsReader<'_> {
    /// Reads the address. An agent in the node's network namespace, whose loopback interface is shared by all containers with
    /// hostNetwork, opens the port only if one is configured.
    pub(super) fn read_debug_address(&mut self, shares_node_network: bool) -> Option<SocketAddr> {
        let is_asked_for = self.values.get(&options::CTRLZ_PORT).1 != ValueSource::Default;
        let port = self.parse_port(&options::CTRLZ_PORT).filter(|_| is_asked_for || !shares_node_network);
        let address = self.parse_flag(&options::CTRLZ_ADDRESS, |text| parse_listen_address(text).map(Some));
        Some((address?, port?).into())
    }

    pub(super) fn log_socket(&self) -> Option<PathBuf> {
        let path = self.shared_path(&options::LOG_UDS_ADDRESS, run_dir::LOG_SOCKET);
        Some(path).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    pub(super) fn debug_socket(&self) -> PathBuf {
        match self.log_socket() {
            Some(beside) => beside.with_file_name(DEBUG_SOCKET),
            None => PathBuf::from(self.run_dir()).join(DEBUG_SOCKET),
        }
    }
}

/// Returns every value, and its source.
pub(super) fn effective_settings(values: &FlagValues) -> Vec<EffectiveSetting> {
    let all = values.iter().filter(|(flag, _, _)| *flag != TEMPLATE.long);
    all.map(|(flag, text, source)| EffectiveSetting {
        name: flag.to_owned(),
        value: text.to_owned(),
        source: match source {
            ValueSource::Default => "default".to_owned(),
            ValueSource::Variable(variable) => format!("environment {variable}"),
            _ => "flag".to_owned(),
        },
    })
    .collect()
}

impl DaemonSettings {
    /// Returns the file with the last debug state, for commands that find no agent.
    pub fn last_state(&self) -> PathBuf {
        self.debug_socket.with_file_name(LAST_STATE)
    }

    /// Returns the file with the history of changes.
    pub fn history_path(&self) -> PathBuf {
        self.ambient_traces.agent.history.clone()
    }

    /// Returns the file to which the plugin logs while no agent receives its lines, and the previous one.
    pub fn plugin_logs(&self) -> [PathBuf; 2] {
        [run_dir::LOG_FILE.to_owned(), format!("{}.1", run_dir::LOG_FILE)]
            .map(|name| self.debug_socket.with_file_name(name))
    }

    /// Returns the file that records since when the plugin's credential has been refused.
    pub fn refused_credential(&self) -> PathBuf {
        self.debug_socket.with_file_name(agent_protocol::REFUSED_CREDENTIAL)
    }
}
