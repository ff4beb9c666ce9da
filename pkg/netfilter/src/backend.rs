//! Which of the two iptables implementations to use.

use std::{fmt, str::FromStr};

use rules::{ChainSet, SavedTables};

/// An implementation of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// iptables commands on the kernel's nf_tables.
    Nft,
    /// The kernel's ip_tables.
    Legacy,
}

/// The text names no backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no iptables backend; allowed: nft, legacy, iptables-nft, iptables-legacy")]
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

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Nft => "nft",
            Backend::Legacy => "legacy",
        })
    }
}

/// Whose rules any of our programs may have made, wherever.
pub(crate) const OWNERS: [ChainSet; 3] = [ChainSet::SIDECAR, ChainSet::NODE, ChainSet::PROBES];

/// What a backend holds of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldTables {
    /// Chains of ours, or jumps to such.
    pub(crate) ours: bool,
    /// Anything.
    pub(crate) any: bool,
}

impl HeldTables {
    /// By what its tools print, family by family.
    pub(crate) fn of<'a>(saves: impl Iterator<Item = &'a SavedTables>) -> HeldTables {
        saves.fold(HeldTables::default(), |held, saved| HeldTables {
            ours: held.ours || OWNERS.iter().any(|owner| !owner.remove(saved).is_empty()),
            any: held.any || !saved.is_blank(),
        })
    }
}

/// Decides between the backends of a namespace by what each holds; none when neither holds anything, so that the
/// host's default applies. Our own chains decide before anybody else's rules, and nft before legacy.
pub(crate) fn by_content(nft: HeldTables, legacy: HeldTables) -> Option<Backend> {
    let either = |nft, legacy: bool| if nft { Some(Backend::Nft) } else { legacy.then_some(Backend::Legacy) };
    either(nft.ours, legacy.ours).or_else(|| either(nft.any, legacy.any))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(rules: &str) -> SavedTables {
        SavedTables::parse(&format!("*nat\n:OUTPUT ACCEPT [0:0]\n{rules}COMMIT\n")).unwrap()
    }

    #[test]
    fn our_chains_decide_first_then_anybodys_rules_and_nft_before_legacy() {
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
            assert_eq!(
                by_content(HeldTables::of([nft].into_iter()), HeldTables::of([legacy].into_iter())),
                expected
            );
        }
    }
}
