//! Which of the two iptables implementations to use.

use std::{fmt, str::FromStr};

use rules::{Owner, Saved};

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

/// Decides between the backends of a namespace by what each holds; none when neither holds anything, so that the
/// host's default applies. Our own chains decide before anybody else's rules, and nft before legacy.
pub(crate) fn by_content(nft: &[&Saved], legacy: &[&Saved]) -> Option<Backend> {
    let either = |test: &dyn Fn(&Saved) -> bool| {
        if nft.iter().any(|saved| test(saved)) {
            Some(Backend::Nft)
        } else {
            legacy.iter().any(|saved| test(saved)).then_some(Backend::Legacy)
        }
    };
    let ours =
        |saved: &Saved| [Owner::SIDECAR, Owner::NODE].iter().any(|owner| !owner.remove(saved).is_empty());
    either(&ours).or_else(|| either(&|saved| !saved.is_blank()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(rules: &str) -> Saved {
        Saved::parse(&format!("*nat\n:OUTPUT ACCEPT [0:0]\n{rules}COMMIT\n")).unwrap()
    }

    #[test]
    fn our_chains_decide_first_then_anybodys_rules_and_nft_before_legacy() {
        let (blank, foreign) = (saved(""), saved("-A OUTPUT -j ACCEPT\n"));
        let ours = saved(":ISTIO_OUTPUT - [0:0]\n");
        let of_a_node = saved(":ztunnel-PREROUTING - [0:0]\n");
        let cases = [
            (&blank, &blank, None),
            (&foreign, &blank, Some(Backend::Nft)),
            (&blank, &foreign, Some(Backend::Legacy)),
            (&foreign, &foreign, Some(Backend::Nft)),
            (&foreign, &ours, Some(Backend::Legacy)),
            (&foreign, &of_a_node, Some(Backend::Legacy)),
            (&ours, &foreign, Some(Backend::Nft)),
            (&ours, &ours, Some(Backend::Nft)),
        ];
        for (nft, legacy, expected) in cases {
            assert_eq!(by_content(&[nft], &[legacy]), expected);
        }
    }
}
