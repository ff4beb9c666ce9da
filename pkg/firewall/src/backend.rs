//! Where rules are: in the tables of one of the two iptables implementations, or in tables of nf_tables' own.

use std::str::FromStr;

use iptables_legacy::{IptablesTools, ToolKind};
use rules::{ChainSet, SavedTables};

use crate::Error;

model::word_enum! {
    /// A kind of tables.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Backend {
        /// iptables commands on the kernel's nf_tables.
        Nft = "nft",
        /// The kernel's ip_tables.
        Legacy = "legacy",
        /// Tables of family `inet` of nf_tables, as Istio makes them with `NATIVE_NFTABLES`.
        Native = "native",
    }
}

impl Backend {
    /// The tools for these tables; native ones have none of iptables.
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

/// The backend that a blank network namespace gets: nf_tables where the kernel has them, else that of the host's tools.
///
/// # Errors
/// Neither is there.
pub fn available_backend() -> Result<Backend, Error> {
    match nftables::read_generation() {
        Ok(_) => Ok(Backend::Nft),
        Err(_) => Ok(IptablesTools::from_environment().default_kind()?.into()),
    }
}

/// The text names no backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an iptables backend; allowed: nft, legacy, iptables-nft, iptables-legacy")]
pub struct UnknownBackend(pub String);

impl FromStr for Backend {
    type Err = UnknownBackend;

    /// Reads `--iptables-backend` and `FORCE_IPTABLES_BINARY`.
    fn from_str(text: &str) -> Result<Backend, UnknownBackend> {
        match text {
            "nft" | "iptables-nft" => Ok(Backend::Nft),
            "legacy" | "iptables-legacy" => Ok(Backend::Legacy),
            other => Err(UnknownBackend(other.to_owned())),
        }
    }
}

/// Owners of all rules that any of our programs may have made, wherever.
pub(crate) const OWNERS: [ChainSet; 3] = [ChainSet::SIDECAR, ChainSet::NODE, ChainSet::PROBES];

/// How the names of their native tables begin.
pub(crate) fn native_prefixes() -> impl Iterator<Item = &'static str> {
    OWNERS.iter().filter_map(|owner| owner.native)
}

/// Summary of what a backend holds in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldTables {
    /// Chains of ours, or jumps to such.
    pub(crate) ours: bool,
    /// Anything.
    pub(crate) any: bool,
}

impl HeldTables {
    /// By what its tools print, family by family.
    pub(crate) fn from_saves<'a>(saves: impl Iterator<Item = &'a SavedTables>) -> HeldTables {
        saves.fold(HeldTables::default(), |held, saved| HeldTables {
            ours: held.ours || OWNERS.iter().any(|owner| !owner.remove(saved).is_empty()),
            any: held.any || !saved.is_blank(),
        })
    }
}

/// Decides between the backends of a namespace by what each holds; none when none holds anything that counts, so that the
/// default applies. Our own chains decide before anybody else's rules, and nft before legacy. `native`: there are native
/// tables of ours; what others have there decides nothing.
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
