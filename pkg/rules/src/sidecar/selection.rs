//! Selections of ports and networks: all, or those of a list, as in Istio's flags and annotations.

use std::{ops::RangeInclusive, str::FromStr};

use model::{IpNet, Port, list_elements};

use crate::ir::{Match, MatchValue, PortRange, Rule};

/// A selection of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSelection {
    /// Every port (`*`).
    All,
    /// These ports; an empty list selects none.
    List(Vec<Port>),
    /// These ranges, with one rule for each.
    Ranges(Vec<RangeInclusive<u16>>),
}

impl PortSelection {
    /// No port.
    pub const NONE: PortSelection = PortSelection::List(Vec::new());

    /// Returns whether the list is empty.
    pub fn is_none(&self) -> bool {
        matches!(self, PortSelection::List(list) if list.is_empty())
    }

    /// Like [`PortSelection::from_str`], with ranges as in iptables (`8000:8010`, `:1023`, `61000:`).
    ///
    /// # Errors
    /// The text is not such a list.
    pub fn from_ranges(text: &str) -> Result<PortSelection, InvalidSelection> {
        let allowed = "'*', nothing, or a comma-separated list of ports and ranges such as 80,8000:8010";
        let ranges = || list_elements(text).map(port_range).collect::<Option<_>>().map(PortSelection::Ranges);
        text.parse().ok().or_else(ranges).ok_or(InvalidSelection(allowed))
    }

    /// Returns this rule for each of the ports; for all ports, unchanged.
    pub(super) fn rules(&self, rule: &Rule) -> Vec<Rule> {
        let when = |condition| rule.clone().when(condition);
        match self {
            PortSelection::All => vec![rule.clone()],
            PortSelection::List(ports) => port_matches(ports).into_iter().map(when).collect(),
            PortSelection::Ranges(ranges) => ranges.iter().map(|range| when(range_match(range))).collect(),
        }
    }

    /// Returns whether `port` is selected.
    pub fn contains(&self, port: Port) -> bool {
        match self {
            PortSelection::All => true,
            PortSelection::List(ports) => ports.contains(&port),
            PortSelection::Ranges(ranges) => ranges.iter().any(|range| range.contains(&port.0)),
        }
    }
}

/// Maximum number of elements with one rule for each port, as Istio creates them, and as running pods have them. In
/// longer lists, each run of consecutive ports becomes one element, which takes a rule or more.
pub const MAX_SINGLE_PORTS: usize = 512;

/// Returns a condition for each rule that a list of ports takes. Their order does not matter.
pub fn port_matches(ports: &[Port]) -> Vec<Match> {
    if ports.len() <= MAX_SINGLE_PORTS {
        return ports.iter().map(|port| Match::DestPort(MatchValue::eq(*port))).collect();
    }
    let mut sorted: Vec<Port> = ports.to_vec();
    sorted.sort_unstable();
    // Port 0, which no packet has, starts no run: a run of all ports would be no condition.
    let runs = sorted.chunk_by(|port, next| port.0 > 0 && next.0.saturating_sub(port.0) <= 1 || port == next);
    let ranges = runs.filter_map(|run| Some(run.first()?.0..=run.last()?.0));
    ranges.map(|range| range_match(&range)).collect()
}

fn range_match(range: &RangeInclusive<u16>) -> Match {
    let (first, last) = (Port(*range.start()), Port(*range.end()));
    PortRange::new(first, last).map_or(Match::DestPort(MatchValue::eq(first)), Match::DestPortRange)
}

/// A text that is no selection of ports or networks.
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
        let ports = list_elements(text).map(|port| port_number(port).map(Port).ok_or(invalid));
        ports.collect::<Result<_, _>>().map(PortSelection::List)
    }
}

fn port_number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    let first = if first.is_empty() { 0 } else { port_number(first)? };
    let last = if last.is_empty() { u16::MAX } else { port_number(last)? };
    // No packet has port 0, and a range of all ports would be no condition.
    let first = if last == u16::MAX { first.max(1) } else { first };
    (first <= last && !text.is_empty()).then_some(first..=last)
}

/// A selection of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkSelection {
    /// Every address (`*`).
    All,
    /// These networks, of both families; an empty list selects none.
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
