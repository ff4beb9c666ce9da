//! Rules of one pod's namespace.

use std::time::Instant;

use conntrack::ConnectionsReport;
use firewall::{
    FamilyChanges, Firewall, FirewallOptions, ObservedTables, RulesFingerprint, describe_owned_tables,
    foreign_effects, run_inside,
};
use hostnet::{LinkIndex, LocalDelivery, ObservedDelivery, RtnetlinkHandle};
use model::{ExistingConnections, Family};
use netns::Netns;
use rules::{
    ChainSet, RuleSet,
    inpod::{self, InPodRulesConfig, PRIORITY},
};

use conntrack::sockets::TcpSocket;

use crate::{
    BypassingConnections, Error,
    existing::{self, ExceptionFacts},
    overrule::{describe_renamed_loopback, narrower_route, overruling_route, overruling_rules, unread_rules},
};

/// Desired state of a pod's namespace.
#[derive(Clone, Copy, Debug)]
pub struct PodRulesSpec<'a> {
    /// Marks, ports and addresses.
    pub config: &'a InPodRulesConfig,
    /// Options of this pod.
    pub pod: &'a inpod::PodOptions,
    /// The families that are captured.
    pub families: &'a [Family],
    /// Treatment of connections that exist when the pod's traffic is redirected for the first time.
    pub existing: ExistingConnections,
}

/// Report of [`capture_pod`]: what was found and changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureReport {
    /// Differences from the desired state, as text; empty if there were none.
    pub differences: Vec<String>,
    /// Description of a step that failed without effect on the capture, as text.
    pub warning: Option<String>,
    /// Outcome for connections that existed before; `None` if there were none, or the traffic was redirected already.
    pub connections: Option<ConnectionsReport>,
}

/// State of a namespace, compared with the desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRulesSnapshot {
    /// Fingerprint of all rules there. `None`: could not be determined.
    rules: Option<RulesFingerprint>,
    /// The options with which the rules were compared.
    options: inpod::PodOptions,
    /// Missing parts of the policy route, as text.
    missing: Vec<String>,
    /// Differences of the firewall rules, as text.
    differing: Vec<String>,
    /// Policy rules and routes of other components that precede ours, as text.
    overruling: Vec<String>,
    /// Effects of other components' firewall rules ahead of ours, as text.
    foreign: Vec<String>,
    /// Connections that bypass ztunnel.
    outside: BypassingConnections,
}

impl PodRulesSnapshot {
    /// Returns the differences from the desired state, as text.
    pub fn differences(&self) -> impl Iterator<Item = &str> {
        self.missing.iter().chain(&self.differing).map(String::as_str)
    }

    /// Returns whether everything is as desired.
    pub fn is_complete(&self) -> bool {
        self.differences().next().is_none()
    }

    /// Returns the generation of nf_tables' rules that was observed; `None`: the kernel has none, or did not report it.
    pub fn generation(&self) -> Option<u32> {
        self.rules.as_ref()?.generation()
    }

    /// Returns whether everything is as desired, and the kernel's notifications show when it no longer is: there are no
    /// legacy tables, and no connections that close. Legacy tables that are created later are not notified.
    pub fn is_covered_by_notifications(&self) -> bool {
        let rules = self.rules.as_ref().filter(|rules| !rules.has_legacy());
        rules.is_some_and(|rules| rules.generation().is_some())
            && self.is_complete()
            && self.outside.count == 0
    }

    /// Returns the connections from before the pod was captured, which bypass ztunnel until they close.
    pub fn bypassing_connections(&self) -> &BypassingConnections {
        &self.outside
    }

    /// Returns the effects of foreign rules on traffic before ours are evaluated, by which it bypasses the mesh, or
    /// can; as text.
    pub fn bypass_reasons(&self) -> impl Iterator<Item = &str> {
        self.foreign.iter().chain(&self.overruling).map(String::as_str)
    }
}

/// Brings the namespace into the desired state. The policy route is added first, and the tables that start redirection
/// are changed last, so that no packet is captured before it can be delivered. If there are more routes than are read,
/// that error is returned only at the end: a pod must not be able to keep its rules from being restored.
///
/// # Errors
/// The step that failed. Completed steps are kept and count in the next attempt.
pub fn capture_pod(
    netns: &Netns,
    desired: &PodRulesSpec<'_>,
    options: &FirewallOptions,
) -> Result<CaptureReport, Error> {
    let act = |options: &FirewallOptions| {
        let (firewall, observed) = Firewall::open(options)?;
        // In an empty namespace each family gets rules: its tool is loaded while the routes are added.
        let blank = observed.families.is_empty();
        let waiting = desired.families.iter().filter(|_| blank);
        let waiting = waiting.filter_map(|family| firewall.start_restore(*family).ok().flatten()).collect();
        let (mut differences, unlisted) = ensure_delivery(desired)?;
        let changes = plan_changes(desired, &observed);
        let facts = ExceptionFacts::observe_netns(desired);
        let concerns = |socket: &TcpSocket| existing::is_redirected(desired, facts.as_ref(), socket);
        let connections =
            conntrack::apply_changes(&firewall, &changes, waiting, desired.existing, &concerns)?;
        differences.extend(changes.reason_texts());
        // The pod is captured at this point, even if foreign tables cannot be changed.
        let (removed, warning) = match firewall.remove_elsewhere(ChainSet::IN_POD) {
            Ok(removed) => (removed, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        differences.extend(removed);
        unlisted?;
        Ok::<_, Error>(CaptureReport { differences, connections, warning })
    };
    let (report, warning) = run_inside(netns, options, act)?;
    Ok(CaptureReport { warning: report.warning.or(warning), ..report })
}

/// Compares the namespace with the desired state, and changes nothing. No tool is needed. Rules that have not been
/// changed since they were compared `before` are not read again.
///
/// # Errors
/// The kernel could not be queried, or its answer is malformed.
pub fn observe_pod(
    netns: &Netns,
    desired: &PodRulesSpec<'_>,
    before: Option<&PodRulesSnapshot>,
    options: &FirewallOptions,
) -> Result<PodRulesSnapshot, Error> {
    netns.run_in(|| observe_netns(desired, before, options))?
}

/// Returns the families for which a namespace is captured, or was and has not been released: it has the policy rule.
/// (Chains of the same names exist in pods with a sidecar, too.)
///
/// # Errors
/// The kernel could not be queried.
pub fn captured_families(netns: &Netns, config: &InPodRulesConfig) -> Result<Vec<Family>, Error> {
    netns.run_in(|| families_with_rule(&mut RtnetlinkHandle::open_in_pod()?, config))?
}

/// Like [`captured_families`], but in the namespace of the handle.
pub(crate) fn families_with_rule(
    handle: &mut RtnetlinkHandle,
    config: &InPodRulesConfig,
) -> Result<Vec<Family>, Error> {
    let mut captured = Vec::new();
    for family in Family::BOTH {
        let rule = local_delivery(config).policy_rule(family);
        if handle.has_rule(&rule)? {
            captured.push(family);
        }
    }
    Ok(captured)
}

/// Like [`observe_pod`], but for many pods, one after the other on one thread, each with its snapshot `before`. `None`:
/// the kernel could not be queried, or `until` has passed, because this pod or earlier ones have lists that take long to
/// read.
pub fn observe_each(
    pods: &[(&Netns, PodRulesSpec<'_>, Option<&PodRulesSnapshot>)],
    options: &FirewallOptions,
    until: Instant,
) -> Vec<Option<PodRulesSnapshot>> {
    let netns: Vec<&Netns> = pods.iter().map(|(netns, ..)| *netns).collect();
    let observe = |place: usize| {
        let (_, desired, before) = pods.get(place).filter(|_| Instant::now() < until)?;
        observe_netns(desired, *before, options).ok().filter(|_| Instant::now() < until)
    };
    let observed = Netns::run_in_each(&netns, observe).unwrap_or_default();
    observed.into_iter().map(|observed| observed.ok().flatten()).collect()
}

/// Removes everything that [`capture_pod`] creates, with any options and by any backend, and returns it as text.
///
/// # Errors
/// The step that failed. The policy route stays as long as rules may exist: without it, packets that they mark would
/// leave the pod, and nothing would show that the pod has rules ([`captured_families`]).
pub fn release_pod(
    netns: &Netns,
    config: &InPodRulesConfig,
    options: &FirewallOptions,
) -> Result<Vec<String>, Error> {
    let (removed, _) = run_inside(netns, options, |options| {
        let mut removed = release_rules(options)?;
        removed.extend(remove_delivery(config)?);
        Ok::<_, Error>(removed)
    })?;
    Ok(removed)
}

fn release_rules(options: &FirewallOptions) -> Result<Vec<String>, Error> {
    let (firewall, observed) = Firewall::open(options)?;
    let changes = observed.plan_removal(ChainSet::IN_POD);
    firewall.apply(&changes, Vec::new())?;
    Ok([changes.reason_texts(), firewall.remove_elsewhere(ChainSet::IN_POD)?].concat())
}

fn family_rules<'a>(desired: &'a PodRulesSpec<'_>) -> impl Fn(Family) -> RuleSet + 'a {
    let rules = |family| inpod::pod_rules(desired.config, desired.pod, family);
    move |family| RuleSet::if_redirected(desired.families, family, rules)
}

fn plan_changes(desired: &PodRulesSpec<'_>, observed: &ObservedTables) -> FamilyChanges {
    observed.plan_changes(ChainSet::IN_POD, family_rules(desired))
}

fn local_delivery(config: &InPodRulesConfig) -> LocalDelivery {
    let local = config.local_route();
    LocalDelivery { mark: local.mark, table: local.table, priority: Some(PRIORITY) }
}

/// Adds missing policy routes. Returns what was missing, and the error of one that could not be compared or, in a pod
/// that was captured before, added: a process in the pod may have shut down `lo`, and shall not keep its rules from being
/// restored.
fn ensure_delivery(desired: &PodRulesSpec<'_>) -> Result<(Vec<String>, Result<(), hostnet::Error>), Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let lo = LinkIndex::LOOPBACK;
    let (mut made, mut unlisted) = (Vec::new(), Ok(()));
    for family in desired.families {
        let known = made.len();
        match handle.ensure_local_delivery(*family, lo, &local_delivery(desired.config), &mut made) {
            Ok(()) => {}
            Err(error) if error.is_excess() => {
                unlisted = Err(error);
                handle = RtnetlinkHandle::open_in_pod()?; // the kernel would continue that list
            }
            Err(_) if !is_deliverable(&mut handle, *family)? => {
                drop(handle.delete_local_delivery(*family, lo, &local_delivery(desired.config))?);
                made.truncate(known);
            }
            Err(error) if made.len() == known => unlisted = Err(error), // the policy rule was there
            Err(error) => return Err(error.into()),
        }
    }
    Ok((made, unlisted))
}

fn remove_delivery(config: &InPodRulesConfig) -> Result<Vec<String>, Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let lo = LinkIndex::LOOPBACK;
    let mut removed = Vec::new();
    for family in Family::BOTH {
        removed.extend(handle.delete_local_delivery(family, lo, &local_delivery(config))?);
    }
    Ok(removed)
}

fn observe_netns(
    desired: &PodRulesSpec<'_>,
    before: Option<&PodRulesSnapshot>,
    options: &FirewallOptions,
) -> Result<PodRulesSnapshot, Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let (mut missing, mut overruled) = (Vec::new(), Vec::new());
    overruled.extend(describe_renamed_loopback(&mut handle)?);
    for family in desired.families {
        let delivery = local_delivery(desired.config);
        let ours = delivery.policy_rule(*family);
        let (rules, is_all) = handle.rules_until(*family, Some(PRIORITY))?;
        let has_rule = !is_all || rules.iter().any(|found| found.is_match_for(&ours));
        let ObservedDelivery { missing: lacks, narrower } =
            handle.observe_local_delivery(*family, has_rule, &delivery)?;
        if lacks.is_empty() || is_deliverable(&mut handle, *family)? {
            let mut precede = overruling_rules(&rules, desired.config);
            precede.extend((!is_all).then(|| unread_rules(*family)));
            precede.extend(narrower.map(|route| narrower_route(&route, *family, desired.config)));
            if lacks.is_empty() && precede.is_empty() {
                overruled.extend(overruling_route(&mut handle, *family, desired.config)?);
            }
            overruled.extend(precede);
            missing.extend(lacks);
        }
    }
    // Read before the rules themselves: a change meanwhile gets another fingerprint.
    let rules = RulesFingerprint::observe_netns().ok();
    let is_same = |before: &&PodRulesSnapshot| before.rules == rules && before.options == *desired.pod;
    let unchanged = before.filter(is_same).filter(|_| rules.is_some());
    let (differing, foreign) = match unchanged {
        Some(before) => (before.differing.clone(), before.foreign.clone()),
        None => {
            let options = FirewallOptions { is_pod: true, ..options.clone() };
            let (firewall, observed) = Firewall::open(&options)?;
            let marks = [desired.config.proxy, desired.config.connection];
            let foreign = foreign_effects(ChainSet::IN_POD, &marks, firewall.backend())?;
            let differing = plan_changes(desired, &observed).reason_texts();
            // No other comparison covers rules with our names in other tables.
            let mut differing = [differing, firewall.list_elsewhere(ChainSet::IN_POD)?].concat();
            if !differing.is_empty() {
                differing.splice(..0, describe_owned_tables()); // the reason why it cannot be repaired
            }
            (differing, foreign)
        }
    };
    // New ones can appear only when the pod is captured.
    let known = before.map(|before| &before.outside).filter(|outside| outside.count == 0);
    // If connection tracking cannot be queried, the last result stays valid; at first there are none, because none could
    // be kept.
    let observe = || BypassingConnections::observe_netns().or_else(|| Some(before?.outside.clone()));
    let outside = known.cloned().or_else(observe).unwrap_or(BypassingConnections::NONE);
    let options = desired.pod.clone();
    Ok(PodRulesSnapshot { rules, options, missing, differing, overruling: overruled, foreign, outside })
}

/// Returns whether local delivery is possible. Without IPv6 on the loopback, its route is refused, and no packet could use it.
/// Read only when something is missing: the kernel searches the settings of all namespaces for those of one.
fn is_deliverable(handle: &mut RtnetlinkHandle, family: Family) -> Result<bool, Error> {
    let Some(lo) = handle.link_by_index(LinkIndex::LOOPBACK)?.filter(|_| family == Family::V6) else {
        return Ok(family == Family::V4);
    };
    let off = hostnet::sysctl::read(&format!("net/ipv6/conf/{}/disable_ipv6", lo.name))?;
    Ok(off.is_some_and(|value| value.trim() != "1"))
}
