//! Traffic that the rules of one owner redirect, by their effect on a packet, whichever version or setting created
//! them. Reads the kernel's rules without any tool, and takes no lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use iptables_legacy::LegacyRule;
use model::Family;
use netlink::{Attributes, ListBounds, Malformed, NetlinkProtocol, ReceivedMessage, Socket};
use nftables::uapi::{
    DATA_VERDICT, EXPRESSION_DATA, EXPRESSION_NAME, GET_RULE, IMMEDIATE_DATA, RULE_CHAIN, RULE_EXPRESSIONS,
    RULE_TABLE, VERDICT_ACCEPT, VERDICT_CHAIN, VERDICT_CODE, VERDICT_CONTINUE, VERDICT_RETURN, XT_NAME,
    query_message,
};
use rules::{ChainSet, Hook, Rule, RuleSet, Target};

use crate::{
    Error,
    foreign::{inactive_chains, is_native_table},
    presence::or_empty,
};

/// Limits for one list of rules of a pod: a caller has at most two seconds in all, and no pod has megabytes of rules.
const BOUNDS: ListBounds = ListBounds { time: Duration::from_millis(300), bytes: ListBounds::POD.bytes };

/// Effect of a rule on a packet, as far as redirection is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RuleEffect {
    /// No effect that is relevant here, or a jump.
    #[default]
    None,
    /// Redirects to a local port.
    Redirects,
    /// Has no conditions, and lets every packet leave the chain.
    Leaves,
}

impl RuleEffect {
    /// Returns whether a target of iptables, or an expression of nf_tables, redirects packets to a local port.
    pub(crate) fn is_redirection(name: &str) -> bool {
        matches!(name, "REDIRECT" | "TPROXY" | "redir" | "tproxy")
    }
}

/// A rule, reduced to its effect on the path of packets.
#[derive(Debug)]
pub(crate) struct TracedRule {
    /// The chain of the rule.
    pub(crate) chain: String,
    /// The target chain of its jump, if any.
    pub(crate) jumps_to: Option<String>,
    /// Effect of the rule on a packet.
    pub(crate) effect: RuleEffect,
}

impl TracedRule {
    fn from_legacy(rule: &LegacyRule<'_>) -> TracedRule {
        let effect = match rule.target {
            _ if rule.leaves_chain => RuleEffect::Leaves,
            name if RuleEffect::is_redirection(name) => RuleEffect::Redirects,
            _ => RuleEffect::None,
        };
        let jumps_to = rule.target_chain.map(str::to_owned);
        TracedRule { chain: rule.chain.to_owned(), jumps_to, effect }
    }

    fn from_rule(chain: &str, rule: &Rule) -> TracedRule {
        let is_plain = Rule::new(rule.target.clone()) == *rule;
        let effect = match rule.target {
            Target::Redirect(_) | Target::Tproxy { .. } => RuleEffect::Redirects,
            Target::Return | Target::Accept if is_plain => RuleEffect::Leaves,
            _ => RuleEffect::None,
        };
        let jumps_to = match &rule.target {
            Target::Jump(chain) | Target::Goto(chain) => Some(chain.to_string()),
            _ => None,
        };
        TracedRule { chain: chain.to_owned(), jumps_to, effect }
    }
}

/// Traffic of one direction, of one family or, in tables of family `inet`, of both (`None`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CapturedFlow {
    family: Option<Family>,
    hook: Hook,
}

/// The directions of a pod's traffic that rules redirect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedTraffic(BTreeSet<CapturedFlow>);

/// The hooks at which traffic is redirected.
const HOOKS: [(Hook, &str); 2] = [(Hook::Prerouting, "inbound"), (Hook::Output, "outbound")];
const BOTH_FAMILIES: &str = "IPv4 or IPv6";

impl fmt::Display for CapturedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = HOOKS.iter().find(|(hook, _)| *hook == self.hook).map_or("", |(_, name)| name);
        match self.family {
            Some(family) => write!(f, "{family} {direction}"),
            None => write!(f, "{BOTH_FAMILIES} {direction}"),
        }
    }
}

impl CapturedFlow {
    fn parse(text: &str) -> Option<CapturedFlow> {
        let (family, direction) = text.rsplit_once(' ')?;
        let hook = HOOKS.iter().find(|(_, name)| *name == direction).map(|(hook, _)| *hook)?;
        if family == BOTH_FAMILIES {
            return Some(CapturedFlow { family: None, hook });
        }
        let family = Family::BOTH.into_iter().find(|known| known.to_string() == family)?;
        Some(CapturedFlow { family: Some(family), hook })
    }

    /// Returns whether `found` redirects this traffic, too.
    fn is_within(&self, found: &CapturedFlow) -> bool {
        self.hook == found.hook
            && (self.family == found.family || self.family.is_none() || found.family.is_none())
    }
}

impl CapturedTraffic {
    /// Observes the calling thread's namespace, in both backends and in native tables. Rules that the kernel does not
    /// evaluate redirect nothing. Changes nothing.
    ///
    /// # Errors
    /// The kernel could not be queried (requires CAP_NET_ADMIN), its answer is malformed, or there are more rules than
    /// any pod has.
    pub fn observe_netns(owner: ChainSet) -> Result<CapturedTraffic, Error> {
        let mut tables = BTreeMap::new();
        let is_relevant = |rule: &TracedRule| owner.contains(&rule.chain) || is_relevant_in_hook(rule, owner);
        nf_tables(|number, table, rule| {
            let family = Family::from_address_family(number);
            if is_native_table(owner, number, table) || family.is_some() && is_relevant(&rule) {
                note_rule(&mut tables, (family, 0, table.to_owned()), rule);
            }
        })?;
        if !tables.is_empty() {
            for ((number, table), chain) in inactive_chains(owner, BOUNDS)? {
                let key = (Family::from_address_family(number), 0, table);
                match chain {
                    Some(chain) => drop(tables.get_mut(&key).and_then(|chains| chains.0.remove(&chain))),
                    None => drop(tables.remove(&key)),
                }
            }
        }
        for family in Family::BOTH {
            iptables_legacy::read_rules(family, |table, rule| {
                let rule = TracedRule::from_legacy(rule);
                if is_relevant(&rule) {
                    note_rule(&mut tables, (Some(family), 1, table.to_owned()), rule);
                }
            })?;
        }
        Ok(CapturedTraffic::from_chains(&tables))
    }

    /// Returns the traffic that these rules redirect in a family.
    pub fn from_rules(family: Family, rules: &RuleSet) -> CapturedTraffic {
        let mut tables = BTreeMap::new();
        for (table, rules) in &rules.tables {
            let jumps = rules.jumps.iter().map(|jump| (jump.hook.as_str(), &jump.rule));
            let chains = rules.chains.iter();
            let others = chains.flat_map(|(chain, rules)| rules.iter().map(|rule| (&*chain.0, rule)));
            for (chain, rule) in jumps.chain(others) {
                let key = (Some(family), 0, table.as_str().to_owned());
                note_rule(&mut tables, key, TracedRule::from_rule(chain, rule));
            }
        }
        CapturedTraffic::from_chains(&tables)
    }

    fn from_chains(tables: &BTreeMap<TableKey, TableChains>) -> CapturedTraffic {
        let flows = tables.iter().flat_map(|((family, ..), chains)| {
            let captured = HOOKS.iter().filter(|(hook, _)| chains.capture_at(*hook));
            captured.map(|(hook, _)| CapturedFlow { family: *family, hook: *hook })
        });
        CapturedTraffic(flows.collect())
    }

    /// Returns the union of this traffic and `other`.
    #[must_use]
    pub fn union(mut self, other: CapturedTraffic) -> CapturedTraffic {
        self.0.extend(other.0);
        self
    }

    /// Returns outbound traffic of any family: every rule set of a sidecar or of in-pod capture redirects some of it,
    /// with any settings.
    pub fn any_outbound() -> CapturedTraffic {
        CapturedTraffic([CapturedFlow { family: None, hook: Hook::Output }].into())
    }

    /// Parses the result of [`CapturedTraffic::to_lines`]. Lines of another version that are unknown here are ignored.
    pub fn from_lines(lines: &[String]) -> CapturedTraffic {
        CapturedTraffic(lines.iter().filter_map(|line| CapturedFlow::parse(line)).collect())
    }

    /// Returns a line for each family and direction, for storage.
    pub fn to_lines(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// Returns whether no traffic is redirected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the traffic that was redirected and is not redirected `now`, line by line; empty: none.
    pub fn missing_from(&self, now: &CapturedTraffic) -> Vec<String> {
        let lost = self.0.iter().filter(|flow| !now.0.iter().any(|found| flow.is_within(found)));
        lost.map(ToString::to_string).collect()
    }
}

/// Reads all rules of nf_tables in their order, each with the number of its family and its table.
fn nf_tables(mut note: impl FnMut(u8, &str, TracedRule)) -> Result<(), Error> {
    let opened = Socket::open_with_timeout(NetlinkProtocol::Netfilter, BOUNDS.time);
    let dump = |socket: Socket| socket.with_bounds(BOUNDS).dump(&query_message(GET_RULE, 0, &[]));
    let replies = or_empty(opened.and_then(dump))?;
    for reply in replies.iter() {
        let (table, rule) = parse_rule(&reply).map_err(|malformed| Error::Presence(malformed.into()))?;
        note(reply.payload.first().copied().unwrap_or_default(), table, rule);
    }
    Ok(())
}

/// Parses a rule of a kernel message, with its table.
pub(crate) fn parse_rule<'a>(message: &ReceivedMessage<'a>) -> Result<(&'a str, TracedRule), Malformed> {
    let (_, attributes) = message.split_header::<4>()?;
    let text = |kind| Ok(attributes.find(kind).ok_or(Malformed("rule without a place"))?.read_name());
    Ok((text(RULE_TABLE)?, parse_traced_rule(text(RULE_CHAIN)?, &attributes)?))
}

fn parse_traced_rule(chain: &str, attributes: &Attributes<'_>) -> Result<TracedRule, Malformed> {
    let mut jumps_to = None;
    let mut effect = RuleEffect::None;
    let mut is_plain = true;
    for expression in attributes.find_nested(RULE_EXPRESSIONS) {
        let parts = expression?.nested_attributes();
        let name = parts.find(EXPRESSION_NAME).ok_or(Malformed("expression without a name"))?.read_str()?;
        let Some(data) = parts.find(EXPRESSION_DATA).filter(|_| name != "counter") else { continue };
        let data = data.nested_attributes();
        if name == "immediate" {
            let Some(verdict) = data.find_nested(IMMEDIATE_DATA).find(DATA_VERDICT) else { continue };
            let verdict = verdict.nested_attributes();
            let code = verdict.find_be32(VERDICT_CODE)?.map(u32::cast_signed);
            if code == Some(VERDICT_CONTINUE) {
                continue;
            }
            if is_plain && matches!(code, Some(VERDICT_ACCEPT | VERDICT_RETURN)) {
                effect = RuleEffect::Leaves;
            }
            jumps_to = verdict.find(VERDICT_CHAIN).map(|target| target.read_name().to_owned());
            break; // the kernel accepts further verdicts, and evaluates none of them
        }
        is_plain = false;
        let target = data.find(XT_NAME).filter(|_| name == "target");
        if RuleEffect::is_redirection(target.map_or(Ok(name), |target| target.read_str())?) {
            effect = RuleEffect::Redirects;
        }
    }
    Ok(TracedRule { chain: chain.to_owned(), jumps_to, effect })
}

/// Family, backend and name of a table.
type TableKey = (Option<Family>, u8, String);

fn note_rule(tables: &mut BTreeMap<TableKey, TableChains>, table: TableKey, rule: TracedRule) {
    tables.entry(table).or_default().0.entry(rule.chain.clone()).or_default().push(rule);
}

/// Returns whether a rule of a built-in chain is relevant: a jump to chains of the owner, or a rule that keeps packets
/// from them.
fn is_relevant_in_hook(rule: &TracedRule, owner: ChainSet) -> bool {
    HOOKS.iter().any(|(hook, _)| hook.as_str() == rule.chain)
        && (rule.effect == RuleEffect::Leaves
            || rule.jumps_to.as_deref().is_some_and(|chain| owner.contains(chain)))
}

/// The rules of a table, in their order, by chain.
#[derive(Debug, Default)]
struct TableChains(BTreeMap<String, Vec<TracedRule>>);

impl TableChains {
    /// Returns whether packets of the hook reach a rule that redirects them. A redirection in the built-in chain itself
    /// is for DNS.
    fn capture_at(&self, hook: Hook) -> bool {
        let base = self.0.iter().find(|(chain, _)| hook.as_str().eq_ignore_ascii_case(chain));
        let mut visited = BTreeSet::new();
        let passing = base.map(|(_, rules)| rules.as_slice()).unwrap_or_default().iter();
        let mut passing = passing.take_while(|rule| rule.effect != RuleEffect::Leaves);
        passing
            .any(|rule| rule.jumps_to.as_deref().is_some_and(|chain| self.can_redirect(chain, &mut visited)))
    }

    /// Returns whether packets in a chain reach such a rule. The kernel limits the depth of jumps.
    fn can_redirect<'a>(&'a self, chain: &'a str, visited: &mut BTreeSet<&'a str>) -> bool {
        // A chain that redirects nothing but DNS: `ISTIO_OUTPUT_DNS`, `istio-output-dns`.
        let is_for_dns = chain.to_ascii_uppercase().ends_with("DNS");
        if is_for_dns || !visited.insert(chain) {
            return false;
        }
        let rules = self.0.get(chain).map(Vec::as_slice).unwrap_or_default().iter();
        let mut passing = rules.take_while(|rule| rule.effect != RuleEffect::Leaves);
        passing.any(|rule| {
            rule.effect == RuleEffect::Redirects
                || rule.jumps_to.as_deref().is_some_and(|next| self.can_redirect(next, visited))
        })
    }
}

#[cfg(test)]
mod tests {
    use netlink::{MessageFlags, NetlinkRequest};
    use nftables::uapi::{ELEMENT, VERDICT_JUMP};

    use super::*;

    fn captured(lines: &[&str]) -> CapturedTraffic {
        CapturedTraffic::from_lines(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn lines_are_kept_and_those_of_other_versions_left_out() {
        let all = ["IPv4 inbound", "IPv4 outbound", "IPv6 outbound", "IPv4 or IPv6 inbound"];
        let kept = captured(&all);
        assert_eq!(kept.to_lines().len(), all.len());
        assert_eq!(CapturedTraffic::from_lines(&kept.to_lines()), kept);
        assert!(captured(&["IPv9 inbound", "IPv4 sideways", "", "outbound"]).is_empty());
    }

    #[test]
    fn traffic_counts_as_captured_by_rules_of_any_backend() {
        let both = captured(&["IPv4 inbound", "IPv4 outbound", "IPv6 outbound"]);
        let native = captured(&["IPv4 or IPv6 inbound", "IPv4 or IPv6 outbound"]);
        assert!(both.missing_from(&both).is_empty() && both.missing_from(&native).is_empty());
        assert_eq!(native.missing_from(&both), [""; 0]);
        assert_eq!(both.missing_from(&captured(&["IPv4 inbound", "IPv4 outbound"])), ["IPv6 outbound"]);
        assert_eq!(native.missing_from(&captured(&["IPv4 outbound"])), ["IPv4 or IPv6 inbound"]);
        assert_eq!(CapturedTraffic::any_outbound().missing_from(&captured(&["IPv6 outbound"])), [""; 0]);
        let inbound = captured(&["IPv4 inbound"]);
        assert_eq!(CapturedTraffic::any_outbound().missing_from(&inbound), ["IPv4 or IPv6 outbound"]);
    }

    fn rule(chain: &str, jumps_to: Option<&str>, effect: RuleEffect) -> TracedRule {
        TracedRule { chain: chain.to_owned(), jumps_to: jumps_to.map(str::to_owned), effect }
    }

    fn table(rules: Vec<TracedRule>) -> TableChains {
        let mut tables = BTreeMap::new();
        rules.into_iter().for_each(|rule| note_rule(&mut tables, (None, 0, String::new()), rule));
        tables.into_values().next().unwrap_or_default()
    }

    fn verdict_rule(verdicts: [(i32, Option<&str>); 2]) -> TracedRule {
        let mut request = NetlinkRequest::new(GET_RULE, MessageFlags::NONE, &[0; 4]);
        request.put_str(RULE_TABLE, "nat").put_str(RULE_CHAIN, "OUTPUT").put_nested(
            RULE_EXPRESSIONS,
            |list| {
                for (code, chain) in verdicts {
                    list.put_nested(ELEMENT, |element| {
                        element.put_str(EXPRESSION_NAME, "immediate").put_nested(EXPRESSION_DATA, |data| {
                            data.put_nested(IMMEDIATE_DATA, |content| {
                                content.put_nested(DATA_VERDICT, |verdict| {
                                    verdict.put_bytes(VERDICT_CODE, &code.to_be_bytes());
                                    if let Some(chain) = chain {
                                        verdict.put_str(VERDICT_CHAIN, chain);
                                    }
                                });
                            });
                        });
                    });
                }
            },
        );
        let bytes = request.finish(0, MessageFlags::NONE).unwrap();
        let message = netlink::MessageIter::new(bytes).next().unwrap().unwrap();
        parse_rule(&message).unwrap().1
    }

    /// `continue` leads to the next expression.
    #[test]
    fn a_rule_leads_to_its_first_verdict() {
        use RuleEffect::{Leaves, None as Nothing};
        let to_ours = (VERDICT_JUMP, Some("ISTIO_OUTPUT"));
        let (goes_on, accepts) = ((VERDICT_CONTINUE, None), (VERDICT_ACCEPT, None));
        for (verdicts, jumps_to, effect) in [
            ([(VERDICT_JUMP, Some("ELSEWHERE")), to_ours], Some("ELSEWHERE"), Nothing),
            ([goes_on, to_ours], Some("ISTIO_OUTPUT"), Nothing),
            ([goes_on, accepts], None, Leaves),
            ([accepts, to_ours], None, Leaves),
        ] {
            let found = verdict_rule(verdicts);
            assert_eq!((found.jumps_to.as_deref(), found.effect), (jumps_to, effect), "{verdicts:?}");
        }
    }

    #[test]
    fn a_hook_captures_what_reaches_a_redirection() {
        use RuleEffect::{Leaves, None as Nothing, Redirects};
        let whole = || {
            vec![
                rule("OUTPUT", Some("ISTIO_OUTPUT"), Nothing),
                rule("ISTIO_OUTPUT", None, Nothing),
                rule("ISTIO_OUTPUT", Some("ISTIO_REDIRECT"), Nothing),
                rule("ISTIO_REDIRECT", None, Redirects),
            ]
        };
        assert!(table(whole()).capture_at(Hook::Output) && !table(whole()).capture_at(Hook::Prerouting));
        for (what, first) in [
            ("all packets leave the hook", rule("OUTPUT", None, Leaves)),
            ("all packets leave the chain", rule("ISTIO_OUTPUT", None, Leaves)),
        ] {
            let rules = std::iter::once(first).chain(whole()).collect();
            assert!(!table(rules).capture_at(Hook::Output), "{what}");
        }
        let mut last = whole();
        last.push(rule("ISTIO_OUTPUT", None, Leaves));
        assert!(table(last).capture_at(Hook::Output));
        let only_dns = vec![
            rule("OUTPUT", None, Redirects),
            rule("OUTPUT", Some("ISTIO_OUTPUT_DNS"), Nothing),
            rule("ISTIO_OUTPUT_DNS", None, Redirects),
        ];
        assert!(!table(only_dns).capture_at(Hook::Output));
        let circle = vec![rule("OUTPUT", Some("A"), Nothing), rule("A", Some("A"), Nothing)];
        assert!(!table(circle).capture_at(Hook::Output));
    }
}
