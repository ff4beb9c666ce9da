//! Which ports and networks: every one, or those of a list, as Istio's flags and annotations write it.

use std::str::FromStr;

use model::{IpNet, Port, list_elements};

/// A selection of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSelection {
    /// Every port (`*`).
    All,
    /// These; an empty list is none.
    List(Vec<Port>),
}

impl PortSelection {
    /// No port.
    pub const NONE: PortSelection = PortSelection::List(Vec::new());

    /// True for an empty list.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self, PortSelection::List(list) if list.is_empty())
    }
}

/// The text is no selection of ports or networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("allowed: {0}")]
pub struct InvalidSelection(pub &'static str);

impl FromStr for PortSelection {
    type Err = InvalidSelection;

    /// `*`, nothing, or a comma-separated list of plain decimals, as [`list_elements`] reads it.
    fn from_str(text: &str) -> Result<PortSelection, InvalidSelection> {
        let invalid = InvalidSelection("'*', nothing, or a comma-separated list of ports from 0 to 65535");
        if list_elements(text).eq(["*"]) {
            return Ok(PortSelection::All);
        }
        let ports = list_elements(text).map(|port| port_number(port).ok_or(invalid));
        ports.collect::<Result<_, _>>().map(PortSelection::List)
    }
}

fn port_number(text: &str) -> Option<Port> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok().map(Port)).flatten()
}

/// A selection of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkSelection {
    /// Every address (`*`).
    All,
    /// These, of both families; an empty list is none.
    List(Vec<IpNet>),
}

impl FromStr for NetworkSelection {
    type Err = InvalidSelection;

    /// `*`, nothing, or a comma-separated list of networks with their length; host bits may be set.
    fn from_str(text: &str) -> Result<NetworkSelection, InvalidSelection> {
        let invalid = InvalidSelection("'*', nothing, or a comma-separated list of networks as 10.0.0.0/8");
        if list_elements(text).eq(["*"]) {
            return Ok(NetworkSelection::All);
        }
        let networks = list_elements(text).map(|network| network.parse().map_err(|_| invalid));
        networks.collect::<Result<_, _>>().map(NetworkSelection::List)
    }
}
