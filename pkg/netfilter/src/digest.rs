//! What the rules of one owner look like in the kernel, as short texts that can be kept and compared later. It takes no
//! tool and understands no rule, so it serves where there are no iptables tools, whichever of their versions made the rules.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use model::Family;
use netlink::{
    Attribute, Attributes, ListBounds, Malformed, MessageFlags, NetlinkProtocol, NetlinkRequest,
    ReceivedMessage, Socket,
};
use nftables::{
    native::is_table_of,
    uapi::{
        DATA_VERDICT, EXPRESSION_DATA, EXPRESSION_NAME, GET_RULE, IMMEDIATE_DATA, INET, NFPROTO, RULE_CHAIN,
        RULE_COMPAT, RULE_EXPRESSIONS, RULE_TABLE, VERDICT_ACCEPT, VERDICT_CHAIN, VERDICT_CODE,
        VERDICT_RETURN, XT_NAME,
    },
};
use rules::{ChainSet, Hook};

use crate::{Error, captured::RuleEffect, legacy, presence::has_no_nf_tables};

/// How long the kernel may be silent.
const ANSWER: Duration = Duration::from_secs(5);

/// Where rules are: family, table and chain.
type ChainKey = (String, String, String);

/// A rule, as far as it matters here.
#[derive(Debug)]
pub(crate) struct DigestedRule {
    /// The chain that it is in.
    pub(crate) chain: String,
    /// The chain that it jumps to.
    pub(crate) jumps_to: Option<String>,
    /// Of all that it says, without its counters.
    pub(crate) hash: u64,
    /// Effect of the rule on a packet.
    pub(crate) effect: RuleEffect,
}

/// The rules of one owner: of each of its chains, and of each chain with jumps to these, what they were at the time.
/// Empty: there were none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleDigest(BTreeMap<String, String>);

impl RuleDigest {
    /// Of the calling thread's namespace, in both backends. Changes nothing.
    ///
    /// # Errors
    /// The kernel could not be asked (it wants CAP_NET_ADMIN), or its answer makes no sense.
    pub fn of_this_netns(owner: ChainSet) -> Result<RuleDigest, Error> {
        let mut found: BTreeMap<ChainKey, (usize, FnvHash)> = BTreeMap::new();
        let mut count = |family: &str, table: &str, rule: DigestedRule| {
            let (count, hash) = found.entry((family.to_owned(), table.to_owned(), rule.chain)).or_default();
            *count += 1;
            hash.number(rule.hash);
        };
        let mut note = |family: Family, table: &str, rule: DigestedRule| {
            let is_jump = rule.jumps_to.as_deref().is_some_and(|chain| owner.contains(chain));
            if is_jump || owner.contains(&rule.chain) {
                count(&family.to_string(), table, rule);
            }
        };
        for (family, number) in NFPROTO {
            nf_tables(number, ListBounds::NODE, |table, rule| note(family, table, rule))?;
            legacy::rules(family, |table, rule| note(family, table, rule))?;
        }
        if let Some(prefix) = owner.native {
            let mut note = |table: &str, rule| {
                if is_table_of(prefix, table) {
                    count("inet", table, rule);
                }
            };
            nf_tables(INET, ListBounds::NODE, &mut note)?;
        }
        let line = |((family, table, chain), (count, hash)): (ChainKey, (usize, FnvHash))| {
            (format!("{family} {table}: {chain}"), format!("{count} {:016x}", hash.0))
        };
        Ok(RuleDigest(found.into_iter().map(line).collect()))
    }

    /// Restores a digest from what [`RuleDigest::lines`] returned.
    #[must_use]
    pub fn from_lines(lines: BTreeMap<String, String>) -> RuleDigest {
        RuleDigest(lines)
    }

    /// A line for each chain, to be kept: family, table and chain; number of rules and a number that stands for them.
    #[must_use]
    pub fn lines(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// There were no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A built-in chain leads to them: traffic meets these rules.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        let is_hook = |chain: &str, native: bool| {
            Hook::ALL.iter().any(|hook| match native {
                true => hook.name().eq_ignore_ascii_case(chain),
                false => hook.name() == chain,
            })
        };
        let leads = |place: &String| {
            place.rsplit(' ').next().is_some_and(|chain| is_hook(chain, place.starts_with("inet ")))
        };
        self.0.keys().any(leads)
    }

    /// Returns how the rules `now` differ, as text; empty if they do not.
    #[must_use]
    pub fn differences(&self, now: &RuleDigest) -> Vec<String> {
        let rules = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        let lost = self.0.iter().filter_map(|(place, then)| match now.0.get(place) {
            None => Some(format!("{place}: its rules are missing")),
            Some(found) if found != then => {
                let mut what = format!("{place}: its rules were changed");
                if rules(found) != rules(then) {
                    // Writing to a String cannot fail.
                    let _ = write!(what, " (there are {}, and were {})", rules(found), rules(then));
                }
                Some(what)
            }
            Some(_) => None,
        });
        let added = now.0.keys().filter(|place| !self.0.contains_key(*place));
        lost.chain(added.map(|place| format!("{place}: rules were added"))).collect()
    }
}

/// All rules of a family in nf_tables, in their order, each with its table.
pub(crate) fn nf_tables(
    family: u8,
    bounds: ListBounds,
    mut note: impl FnMut(&str, DigestedRule),
) -> Result<(), Error> {
    // struct nfgenmsg: family, version 0, resource 0
    let question = NetlinkRequest::new(GET_RULE, MessageFlags::NONE, &[family, 0, 0, 0]);
    let opened = Socket::open_with_timeout(NetlinkProtocol::Netfilter, bounds.time.min(ANSWER));
    let replies = match opened.and_then(|socket| socket.bounded(bounds).dump(&question)) {
        Ok(replies) => replies,
        Err(error) if has_no_nf_tables(&error) => return Ok(()),
        Err(source) => return Err(Error::Presence(source)),
    };
    for reply in replies.iter() {
        let (table, rule) = told(&reply).map_err(|malformed| Error::Presence(malformed.into()))?;
        note(table, rule);
    }
    Ok(())
}

/// A rule as the kernel tells it, with its table.
pub(crate) fn told<'a>(message: &ReceivedMessage<'a>) -> Result<(&'a str, DigestedRule), Malformed> {
    let (_, attributes) = message.header::<4>()?;
    let text = |kind| attributes.find(kind).ok_or(Malformed("rule without a place"))?.str();
    Ok((text(RULE_TABLE)?, rule(text(RULE_CHAIN)?, &attributes)?))
}

pub(crate) fn rule(chain: &str, attributes: &Attributes<'_>) -> Result<DigestedRule, Malformed> {
    let mut hash = FnvHash::default();
    let mut jumps_to = None;
    let mut effect = RuleEffect::None;
    let mut is_plain = true;
    for expression in attributes.find(RULE_EXPRESSIONS).iter().flat_map(Attribute::nested) {
        let parts = expression?.nested();
        let name = parts.find(EXPRESSION_NAME).ok_or(Malformed("expression without a name"))?.str()?;
        hash.bytes(name.as_bytes());
        let Some(data) = parts.find(EXPRESSION_DATA).filter(|_| name != "counter") else { continue };
        hash.bytes(data.payload);
        if name == "immediate" {
            let verdict =
                data.nested().find(IMMEDIATE_DATA).and_then(|data| data.nested().find(DATA_VERDICT));
            let code = verdict.and_then(|verdict| verdict.nested().find(VERDICT_CODE));
            let code = code.map(|code| code.be32()).transpose()?.map(u32::cast_signed);
            if is_plain && matches!(code, Some(VERDICT_ACCEPT | VERDICT_RETURN)) {
                effect = RuleEffect::Leaves;
            }
            let target = verdict.and_then(|verdict| verdict.nested().find(VERDICT_CHAIN));
            jumps_to = target.map(|target| target.str()).transpose()?.map(str::to_owned).or(jumps_to);
            continue;
        }
        is_plain = false;
        let target = data.nested().find(XT_NAME).filter(|_| name == "target");
        if RuleEffect::is_redirection(target.map_or(Ok(name), |target| target.str())?) {
            effect = RuleEffect::Redirects;
        }
    }
    hash.bytes(attributes.find(RULE_COMPAT).map(|compat| compat.payload).unwrap_or_default());
    Ok(DigestedRule { chain: chain.to_owned(), jumps_to, hash: hash.0, effect })
}

/// FNV-1a: the plugin that kept a number and the agent that compares it may be of different versions, and std's hash may
/// be another one in each. Whoever can change the rules of a pod could do worse than to find two with the same number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FnvHash(pub(crate) u64);

impl Default for FnvHash {
    fn default() -> FnvHash {
        FnvHash(0xcbf2_9ce4_8422_2325)
    }
}

impl FnvHash {
    /// With its length, so that what follows cannot be taken for a part of it.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(lines: &[(&str, &str)]) -> RuleDigest {
        RuleDigest(lines.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn what_differs_is_reported_chain_by_chain() {
        let then = digest(&[("IPv4 nat: A", "3 01"), ("IPv4 nat: B", "1 02"), ("IPv4 nat: OUTPUT", "1 03")]);
        assert_eq!(then.differences(&then), Vec::<String>::new());
        let now = digest(&[("IPv4 nat: A", "2 09"), ("IPv4 nat: B", "1 08"), ("IPv6 nat: A", "1 07")]);
        let expected = [
            "IPv4 nat: A: its rules were changed (there are 2, and were 3)",
            "IPv4 nat: B: its rules were changed",
            "IPv4 nat: OUTPUT: its rules are missing",
            "IPv6 nat: A: rules were added",
        ];
        assert_eq!(then.differences(&now), expected);
    }

    #[test]
    fn rules_that_no_built_in_chain_leads_to_are_not_in_use() {
        assert!(digest(&[("IPv6 nat: ISTIO_OUTPUT", "3 01"), ("IPv6 nat: OUTPUT", "1 02")]).is_in_use());
        assert!(digest(&[("inet istio-proxy-nat: output", "1 02")]).is_in_use());
        assert!(!digest(&[("inet istio-proxy-nat: istio-output", "1 02")]).is_in_use());
        assert!(!digest(&[("IPv4 nat: ISTIO_OUTPUT", "3 01")]).is_in_use());
        assert!(!RuleDigest::default().is_in_use());
    }

    #[test]
    fn the_number_is_the_same_in_every_version() {
        let mut hash = FnvHash::default();
        hash.bytes(b"nat");
        hash.bytes(b"");
        assert_eq!(format!("{:016x}", hash.0), "1ac18d0145d772bd");
    }
}
