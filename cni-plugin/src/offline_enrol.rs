//! Enrolment without the agent, from the file that it wrote.

use std::{fs::File, io::Read as _, net::IpAddr, path::Path};

use agent_protocol::{SharedConfig, SharedNode};
use cni_types::{CniError, ErrorCode};
use model::{Family, PodUid};
use node_capture::EnrolledMembers;
use node_plan::{NodeConfig, ZtunnelFallback, ZtunnelSlot};

use crate::{
    attach::{open_netns, pod_title},
    call::PluginCall,
};

/// Default path of the agent's file.
const CONFIG: &str = "/etc/ambient-config/config.json";
const MAX_CONFIG: u64 = 1 << 20;

/// Node path as last configured by an agent.
#[derive(Debug)]
pub struct OfflineEnrolment {
    members: EnrolledMembers,
    active: Option<ZtunnelSlot>,
    fallback: ZtunnelFallback,
    /// IP versions for which the node has a path.
    families: Vec<u8>,
}

impl OfflineEnrolment {
    /// Reads the file and opens the objects that it names.
    ///
    /// # Errors
    /// No agent runs, and none has left a node path, as text.
    pub fn open(call: &PluginCall) -> Result<OfflineEnrolment, String> {
        let path = Path::new(call.conf.ambient_config.as_deref().unwrap_or(CONFIG));
        let SharedNode { config, fallback, active, families } =
            read_shared_node(path).map_err(|why| format!("{}: {why}", path.display()))?;
        let config: NodeConfig =
            serde_json::from_value(config).map_err(|error| format!("{}: {error}", path.display()))?;
        let fallback = fallback.parse()?;
        let active = ZtunnelSlot::BOTH.into_iter().find(|slot| active == Some(slot.number()));
        let members = EnrolledMembers::open(config).map_err(|error| error.to_string())?;
        Ok(OfflineEnrolment { members, active, fallback, families })
    }

    /// Whether the node has a path for the address.
    fn has_path(&self, ip: IpAddr) -> bool {
        self.families.contains(&Family::from_ip(ip).number())
    }

    /// Enrols a pod.
    ///
    /// # Errors
    /// The node has no path for its addresses, or the kernel refuses.
    pub fn enrol_pod(&mut self, ips: &[IpAddr], uid: &PodUid) -> Result<(), String> {
        if let Some(ip) = ips.iter().find(|ip| !self.has_path(**ip)) {
            return Err(format!(
                "the node has no ambient path for {}, which {ip} needs",
                Family::from_ip(*ip)
            ));
        }
        self.members.enrol_pod(ips, uid, self.active, self.fallback).map_err(|error| error.to_string())
    }

    /// Releases those of these addresses that belong to the pod.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn release_pod(&mut self, ips: &[IpAddr], uid: &PodUid) -> Result<(), String> {
        self.members.release_pod(ips, uid).map(drop).map_err(|error| error.to_string())
    }

    /// Checks that all addresses are enrolled for whose family the node has a path.
    ///
    /// # Errors
    /// An address is not enrolled.
    pub fn check_enrolled(&mut self, ips: &[IpAddr]) -> Result<(), String> {
        let ips: Vec<IpAddr> = ips.iter().copied().filter(|ip| self.has_path(*ip)).collect();
        Ok(self.members.check_members(&ips)?)
    }
}

fn read_shared_node(path: &Path) -> Result<SharedNode, String> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_CONFIG).read_to_end(&mut text));
    read.map_err(|error| error.to_string())?;
    let shared: SharedConfig = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    shared.node.ok_or_else(|| "it describes no node path".to_owned())
}

/// Returns the addresses of the pod's interface, from the result of the previous plugins.
///
/// # Errors
/// That result cannot be parsed.
pub fn pod_addresses(call: &PluginCall) -> Result<Vec<IpAddr>, CniError> {
    Ok(reported_addresses(call)?.unwrap_or_default())
}

/// Returns the addresses of a starting pod: as [`pod_addresses`], or those in its namespace if there was no previous plugin, as
/// when Multus calls us for a pod that selects our network, after creating the pod's own.
///
/// # Errors
/// As [`pod_addresses`], or the namespace cannot be observed.
pub fn addresses_at_start(call: &PluginCall) -> Result<Vec<IpAddr>, CniError> {
    match reported_addresses(call)? {
        Some(ips) => Ok(ips),
        None => observed_addresses(call).map_err(|why| {
            CniError::new(
                ErrorCode::Other,
                format!("cannot observe the addresses of {}: {why}", pod_title(call)),
            )
        }),
    }
}

/// Returns the addresses in the result; `None`: there is no result.
fn reported_addresses(call: &PluginCall) -> Result<Option<Vec<IpAddr>>, CniError> {
    let Some(ifname) = &call.environment.ifname else { return Ok(Some(Vec::new())) };
    let previous = call.conf.prev_result()?;
    Ok(previous.map(|previous| previous.result.pod_ips(ifname)))
}

fn observed_addresses(call: &PluginCall) -> Result<Vec<IpAddr>, String> {
    let observed = open_netns(call)?.run_in(redirect::pod_addresses).map_err(|error| error.to_string())?;
    observed.map_err(|error| error.to_string())
}
