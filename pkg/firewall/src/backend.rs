//! Backends: the tables of one of the two iptables implementations, or native tables of nf_tables.

use std::str::FromStr;

use iptables_legacy::{IptablesTools, ToolKind};
use rules::{ChainSet, SavedTables};

use crate::Error;

model::word_enum! {
    /// A backend.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Backend {
        /// iptables commands on the kernel's nf_tables.
        Nft = "nft",
        /// The kernel's ip_tables.
        Legacy = "legacy",
        /// Tables of nf_tables' family `inet`, as Istio creates them with `NATIVE_NFTABLES`.
        Native = "native",
    }
}

impl Backend {
    /// Returns the kind of tools for these tables; native tables have no iptables tools.
    pub(crate) fn tool_kind(self) -> ToolKind {
        match self {
            Backend::Legacy => ToolKind::Legacy,
            Backend::Nft | Backend::Native => ToolKind::Nft,
        }
    }
}

impl From<ToolKind> for Backend {
    fn from(kind: ToolKind) -> Backend {
        match kind {
            ToolKind::Nft => Backend::Nft,
            ToolKind::Legacy => Backend::Legacy,
        }
    }
}

/// Returns the backend for an empty network namespace: nf_tables if the kernel has them, else that of the host's tools.
///
/// # Errors
/// Neither is available.
pub fn available_backend() -> Result<Backend, Error> {
    match nftables::read_generation() {
        Ok(_) => Ok(Backend::Nft),
        Err(_) => Ok(IptablesTools::from_environment().default_kind()?.into()),
    }
}

/// A text that names no backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an iptables backend; allowed: nft, legacy, iptables-nft, iptables-legacy")]
pub struct UnknownBackend(pub String);

impl FromStr for Backend {
    type Err = UnknownBackend;

    /// Parses `--iptables-backend` and `FORCE_IPTABLES_BINARY`.
    fn from_str(text: &str) -> Result<Backend, UnknownBackend> {
        match text {
            "nft" | "iptables-nft" => Ok(Backend::Nft),
            "legacy" | "iptables-legacy" => Ok(Backend::Legacy),
            other => Err(UnknownBackend(other.to_owned())),
        }
    }
}

/// Owners of all rules that any of our programs may have created, in any namespace.
pub(crate) const OWNERS: [ChainSet; 3] = [ChainSet::SIDECAR, ChainSet::NODE, ChainSet::PROBES];

/// Returns the name prefixes of the owners' native tables.
pub(crate) fn native_prefixes() -> impl Iterator<Item = &'static str> {
    OWNERS.iter().filter_map(|owner| owner.native)
}

/// Summary of the tables of a backend in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldTables {
    /// Whether there are chains of ours, or jumps to them.
    pub(crate) ours: bool,
    /// Whether there are any rules or chains beyond empty built-in ones.
    pub(crate) any: bool,
}

impl HeldTables {
    /// Summarizes the saves of all families.
    pub(crate) fn from_saves<'a>(saves: impl Iterator<Item = &'a SavedTables>) -> HeldTables {
        saves.fold(HeldTables::default(), |held, saved| HeldTables {
            ours: held.ours || OWNERS.iter().any(|owner| !owner.remove(saved).is_empty()),
            any: held.any || !saved.is_blank(),
        })
    }
}

/// Selects the backend of a namespace by the content of each; `None` if no content counts, so that the default applies.
/// Our own chains take precedence over foreign rules, and nft over legacy. `native`: native tables of ours exist;
/// foreign ones do not count.
pub(crate) fn by_content(
    nft: HeldTables,
    legacy: HeldTables,
    native: bool,
    prefers_native: bool,
) -> Option<Backend> {
    let either = |nft, legacy: bool| if nft { Some(Backend::Nft) } else { legacy.then_some(Backend::Legacy) };
    let ours = either(nft.ours, legacy.ours).or_else(|| native.then_some(Backend::Native));
    let setting = prefers_native.then_some(Backend::Native);
    ours.or(setting).or_else(|| either(nft.any, legacy.any))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(rules: &str) -> SavedTables {
        SavedTables::parse(&format!("*nat\n:OUTPUT ACCEPT [0:0]\n{rules}COMMIT\n")).unwrap()
    }

    #[test]
    fn our_chains_decide_first_then_the_setting_then_anybodys_rules_and_nft_before_legacy() {
        let (blank, foreign) = (saved(""), saved("-A OUTPUT -j ACCEPT\n"));
        let ours = saved(":ISTIO_OUTPUT - [0:0]\n");
        let of_a_node = saved(":ztunnel-PREROUTING - [0:0]\n");
        let of_probes = saved(":ISTIO_POSTRT - [0:0]\n");
        let cases = [
            (&blank, &blank, None),
            (&foreign, &blank, Some(Backend::Nft)),
            (&blank, &foreign, Some(Backend::Legacy)),
            (&foreign, &foreign, Some(Backend::Nft)),
            (&foreign, &ours, Some(Backend::Legacy)),
            (&foreign, &of_a_node, Some(Backend::Legacy)),
            (&foreign, &of_probes, Some(Backend::Legacy)),
            (&ours, &foreign, Some(Backend::Nft)),
            (&ours, &ours, Some(Backend::Nft)),
        ];
        for (nft, legacy, expected) in cases {
            let [nft, legacy] = [nft, legacy].map(|saved| HeldTables::from_saves([saved].into_iter()));
            assert_eq!(by_content(nft, legacy, false, false), expected);
            let ours = expected.filter(|_| nft.ours || legacy.ours).or(Some(Backend::Native));
            assert_eq!(by_content(nft, legacy, true, false), ours);
            assert_eq!(by_content(nft, legacy, false, true), ours);
        }
    }
}
