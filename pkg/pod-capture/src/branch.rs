//! Probes of pods with an AWS branch network interface (security groups for pods, strict mode): AWS's plugin routes
//! what the node sends to such a pod, and what the pod sends on its veth link, through the VPC, where the source
//! address of our probes is not routed. Two policy rules for each such pod keep the node's probes on the veth link, as
//! in Istio since 1.31.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
};

use hostnet::{PolicyRule, Route, RouteProtocol, RtnetlinkHandle, RuleAction};
use model::{Family, IpNet, TableId};

use crate::Error;

/// Priority before the main table, and before AWS's rules for packets from the node to pods.
const TO_POD: u32 = 512;
/// Tables of the kernel: a rule that looks up one of them is not about a pod.
const KERNEL_TABLES: [TableId; 4] = [TableId(0), TableId::DEFAULT, TableId::MAIN, TableId::LOCAL];
/// Protocol by which our rules are recognised, as on our routes.
const OURS: RouteProtocol = RouteProtocol(109);
/// Sysctl that AWS's plugin sets to 0 where it gives pods branch interfaces.
const EARLY_DEMUX: &str = "/proc/sys/net/ipv4/tcp_early_demux";

/// Returns whether pods of the current namespace's node may have branch interfaces.
pub(crate) fn may_have_branches() -> bool {
    fs::read_to_string(EARLY_DEMUX).is_ok_and(|early_demux| early_demux.trim() == "0")
}

/// Ensures the rules of exactly these pods.
///
/// # Errors
/// The kernel refuses. Rules of other pods are in place all the same.
pub(crate) fn ensure_rules<'a>(ips: impl Iterator<Item = &'a IpAddr>) -> Result<(), Error> {
    let mut handle = RtnetlinkHandle::open()?;
    let rules = read_rules(&mut handle)?;
    let desired = desired_pairs(&mut handle, &rules, &ips.copied().collect())?;
    let mut outcome = Ok(());
    for [to_pod, from_pod] in &desired {
        outcome = outcome.and(ensure_pair(&mut handle, to_pod, from_pod));
    }
    let stale = rules.iter().filter(|rule| rule.protocol == OURS);
    for rule in stale.filter(|rule| !desired.iter().flatten().any(|desired| rule.is_match_for(desired))) {
        outcome = outcome.and(handle.delete_rule(rule).map(drop).map_err(Error::from));
    }
    outcome
}

/// Removes all rules of ours, even unexpected ones, and returns them as text.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn remove_rules() -> Result<Vec<String>, Error> {
    let mut handle = RtnetlinkHandle::open()?;
    let mut removed = Vec::new();
    for rule in read_rules(&mut handle)?.into_iter().filter(|rule| rule.protocol == OURS) {
        let _ = handle.delete_rule(&rule)?;
        removed.push(format!("policy rule {rule}"));
    }
    Ok(removed)
}

fn read_rules(handle: &mut RtnetlinkHandle) -> Result<Vec<PolicyRule>, Error> {
    let mut rules = handle.list_rules(Family::V4)?;
    rules.extend(handle.list_rules(Family::V6)?);
    Ok(rules)
}

/// Adds both rules or none: with only one, replies would take another path than requests.
fn ensure_pair(
    handle: &mut RtnetlinkHandle,
    to_pod: &PolicyRule,
    from_pod: &PolicyRule,
) -> Result<(), Error> {
    let made = handle.ensure_rule(to_pod)?;
    let answered = handle.ensure_rule(from_pod).map(drop);
    if answered.is_err() && made == hostnet::ChangeOutcome::Yes {
        let _ = handle.delete_rule(to_pod)?;
    }
    Ok(answered?)
}

/// Returns a pair of rules for each pod whose traffic AWS's plugin redirects: the plugin has a policy rule for packets
/// that arrive on the pod's link, and in the table of that rule the route to the pod by this link.
fn desired_pairs(
    handle: &mut RtnetlinkHandle,
    rules: &[PolicyRule],
    ips: &BTreeSet<IpAddr>,
) -> Result<Vec<[PolicyRule; 2]>, Error> {
    let mut pods = Vec::new();
    let mut tables: BTreeMap<TableId, Vec<Route>> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.protocol != OURS && !rule.unmodelled) {
        let (Some(name), RuleAction::Lookup(table)) = (&rule.iif, rule.action) else { continue };
        if KERNEL_TABLES.contains(&table) {
            continue;
        }
        let Some(link) = handle.link_by_name(name)? else { continue };
        let routes = match tables.remove(&table) {
            Some(routes) => routes,
            None => handle.list_routes(Some(table))?,
        };
        for ip in ips.iter().filter(|ip| Family::from_ip(**ip) == rule.family) {
            if routes.iter().any(|route| route.dst == Some(IpNet::from(*ip)) && route.oif == Some(link.index))
            {
                pods.push(rule_pair(*ip, name, table, rule.priority.unwrap_or_default()));
            }
        }
        tables.insert(table, routes);
    }
    Ok(pods)
}

/// Returns rules by which packets of the node to the pod take its link, and packets that arrive on it for the node are
/// delivered locally, before AWS's rule of this priority redirects them.
fn rule_pair(ip: IpAddr, link: &str, table: TableId, priority: u32) -> [PolicyRule; 2] {
    let family = Family::from_ip(ip);
    let rule = |priority, table| PolicyRule::new(family, Some(priority), RuleAction::Lookup(table));
    let (dest, iif) = (Some(IpNet::from(ip)), Some(link.to_owned()));
    [
        PolicyRule { protocol: OURS, dest, ..rule(TO_POD, table) },
        PolicyRule { protocol: OURS, iif, ..rule(priority.saturating_sub(1), TableId::LOCAL) },
    ]
}
