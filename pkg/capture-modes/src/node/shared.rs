//! The configuration file that plugin and agent share.

use agent_protocol::{SharedConfig, SharedNode};
use model::{Family, Reason};
use node_plan::DesiredState;

use crate::settings::CaptureSettings;

/// Mode as in Istio: the plugin may run as another user.
const MODE: u32 = 0o644;

/// Writes the file, if its content differs.
pub(crate) fn write_shared_config(settings: &CaptureSettings, desired: &DesiredState) -> Result<(), Reason> {
    let shared = SharedConfig {
        ztunnel_ready: desired.active.is_some(),
        redirect_mode: "iptables".to_owned(),
        node: Some(SharedNode {
            active: desired.active.map(node_plan::ZtunnelSlot::number),
            fallback: desired.fallback.to_string(),
            families: desired.families().into_iter().map(Family::number).collect(),
            config: serde_json::to_value(&settings.node).map_err(|error| error.to_string())?,
        }),
    };
    let text = serde_json::to_vec(&shared).map_err(|error| error.to_string())?;
    hostfs::write(&settings.shared_config, &text, MODE).map(drop).map_err(|error| error.to_string().into())
}
