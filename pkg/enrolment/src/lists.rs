//! List values of annotations: their limits, and excerpts for messages.

use model::{IfName, IpNet, Port, list_elements};
use rules::sidecar::{MAX_SINGLE_PORTS, NetworkSelection, PortSelection, port_matches};

/// Maximum number of interfaces that a pod may name, and their total size in bytes: each is several rules.
pub(crate) const MAX_INTERFACES: usize = 32;
pub(crate) const MAX_INTERFACES_BYTES: usize = 1024;

/// Maximum length of a value in messages, in characters.
const SHOWN: usize = 64;

/// Limits of a list, in bytes and in elements: each element is one rule or more, in each family. The API allows 256 kB.
pub(crate) const PORTS: ListLimit = ListLimit { bytes: 16 * 1024, elements: MAX_SINGLE_PORTS };
pub(crate) const NETWORKS: ListLimit = ListLimit { bytes: 16 * 1024, elements: 1024 };
pub(crate) const INTERFACES: ListLimit = ListLimit { bytes: MAX_INTERFACES_BYTES, elements: MAX_INTERFACES };

/// Limits of a list.
#[derive(Clone, Copy)]
pub(crate) struct ListLimit {
    pub(crate) bytes: usize,
    elements: usize,
}

impl ListLimit {
    fn can_hold(self, list: &str) -> bool {
        list.len() <= self.bytes && list_elements(list).count() <= self.elements
    }
}

pub(crate) fn parse_ports(text: &str) -> Option<PortSelection> {
    if text.len() > PORTS.bytes {
        return None;
    }
    let ports = text.parse().ok()?;
    let is_short = |list: &[Port]| port_matches(list).len() <= PORTS.elements;
    (!matches!(&ports, PortSelection::List(list) if !is_short(list))).then_some(ports)
}

pub(crate) fn parse_networks(text: &str) -> Option<NetworkSelection> {
    NETWORKS.can_hold(text).then(|| text.parse().ok())?
}

pub(crate) fn network_list(text: &str) -> Option<Vec<IpNet>> {
    NETWORKS.can_hold(text).then(|| list_elements(text).map(|network| network.parse().ok()).collect())?
}

pub(crate) fn parse_interfaces(text: &str) -> Option<Vec<IfName>> {
    INTERFACES.can_hold(text).then(|| list_elements(text).map(|name| IfName::new(name).ok()).collect())?
}

/// Returns the beginning of a foreign value, short enough for a log line.
pub(crate) fn excerpt(value: &str) -> String {
    value.chars().take(SHOWN).collect()
}
