//! One pod's namespace.

use std::time::Instant;

use conntrack::ConnectionsReport;
use hostnet::{LocalDelivery, RtnetlinkHandle};
use model::{ExistingConnections, Family};
use netfilter::{FamilyChanges, Firewall, FirewallOptions, ObservedTables, foreign, inside};
use netns::Netns;
use rules::{
    ChainSet, RuleSet,
    inpod::{self, InPodRulesConfig, PRIORITY},
};

use sockdiag::TcpSocket;

use crate::{Error, OutsideConnections, existing, overrule::overruling};

/// Desired state of a pod's namespace.
#[derive(Clone, Copy, Debug)]
pub struct PodRulesSpec<'a> {
    /// Marks, ports and addresses.
    pub config: &'a InPodRulesConfig,
    /// Options of this pod.
    pub pod: &'a inpod::PodOptions,
    /// The families that are captured.
    pub families: &'a [Family],
    /// Handling of connections that exist when the pod's traffic is redirected for the first time.
    pub existing: ExistingConnections,
}

/// Report of [`capture`] or [`verify`]: what was found, and done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureReport {
    /// Differences from the desired state, as text; empty if there were none.
    pub differences: Vec<String>,
    /// For a [`glance`] later; what [`verify`] saw.
    pub seen: PodRulesSnapshot,
    /// Description of what did not work as well as it could, as text.
    pub warning: Option<String>,
    /// Result for connections that were there before; `None` if there were none, or the traffic was redirected already.
    pub connections: Option<ConnectionsReport>,
}

/// State of a namespace, as far as it can be observed at next to no cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRulesSnapshot {
    rules: netfilter::RulesSnapshot,
    /// Missing parts of the policy route, as text.
    missing: Vec<String>,
    /// Policy rules of other components that precede ours, in words.
    overruling: Vec<String>,
    /// Effects of other components' firewall rules ahead of ours, as text.
    foreign: Vec<String>,
    /// Connections that bypass ztunnel; `None`: not looked for.
    outside: Option<OutsideConnections>,
}

impl PodRulesSnapshot {
    /// Nothing of ours was changed between `self` and `later`, and nothing is missing. Where the kernel cannot tell, it is
    /// `false`: whoever wants to know has to ask the tools.
    #[must_use]
    pub fn is_unchanged(&self, later: &PodRulesSnapshot) -> bool {
        let whole = self.missing.is_empty() && later.missing.is_empty();
        let unruled = self.overruling == later.overruling && self.foreign == later.foreign;
        whole && unruled && self.rules.is_unchanged(&later.rules)
    }

    /// A later look can be compared with it. What [`capture`] made has not been looked at yet.
    #[must_use]
    pub fn is_comparable(&self) -> bool {
        self.rules.is_comparable()
    }

    /// The generation of nf_tables' rules that was observed.
    #[must_use]
    pub fn generation(&self) -> Option<u32> {
        self.rules.generation()
    }

    /// Connections from before the pod was captured, which bypass ztunnel until they close.
    #[must_use]
    pub fn outside(&self) -> &OutsideConnections {
        static NONE: OutsideConnections = OutsideConnections::NONE;
        self.outside.as_ref().unwrap_or(&NONE)
    }

    /// Returns what rules of other components do to traffic before ours are asked, so that it bypasses the mesh, or can; as text.
    pub fn bypasses(&self) -> impl Iterator<Item = &str> {
        self.foreign.iter().chain(&self.overruling).map(String::as_str)
    }
}

/// Makes the namespace as it is wanted. The policy route comes first and the tables that switch traffic on last, so
/// that no packet is captured before it can be delivered. In a namespace with more rules of others than are read, chains
/// that are not as they were `before` are made anew.
///
/// # Errors
/// The step that failed. What was done before it stays and counts in the next attempt.
pub fn capture(
    netns: &Netns,
    wanted: &PodRulesSpec<'_>,
    before: Option<&PodRulesSnapshot>,
    options: &FirewallOptions,
) -> Result<CaptureReport, Error> {
    in_pod(netns, options, |options| {
        let (firewall, observed) = open(wanted, before, options)?;
        // Where nothing is yet, each family gets rules: its tool is loaded while the routes are made.
        let blank = observed.families.is_empty();
        let waiting = wanted.families.iter().filter(|_| blank);
        let waiting = waiting.filter_map(|family| firewall.start_restore(*family).ok().flatten()).collect();
        let mut differences = deliver(wanted)?;
        let changes = changes(wanted, &observed);
        let concerns = |socket: &TcpSocket| existing::concerns(wanted, socket);
        let connections = conntrack::apply(&firewall, &changes, waiting, wanted.existing, &concerns)?;
        differences.extend(changes.words());
        let mut report = CaptureReport { differences, connections, ..CaptureReport::default() };
        if observed.coarse {
            let (rules, lack) = netfilter::RulesSnapshot::of_made(&of_pod(&rules_of(wanted)))?;
            lack.map_or(Ok(()), |lack| Err(Error::Unstable(lack)))?;
            report.seen.rules = rules;
        }
        Ok(report)
    })
}

/// Compares the namespace with what is wanted, and changes nothing. `before`: what was seen when it was so, if it ever was.
///
/// # Errors
/// The kernel, or a tool, could not be asked.
pub fn verify(
    netns: &Netns,
    wanted: &PodRulesSpec<'_>,
    before: Option<&PodRulesSnapshot>,
    options: &FirewallOptions,
) -> Result<CaptureReport, Error> {
    in_pod(netns, options, |options| {
        let seen = look(wanted, None)?; // before the tables: what changes meanwhile is another generation
        let (_, observed) = open(wanted, before, options)?;
        let mut differences = seen.missing.clone();
        differences.extend(changes(wanted, &observed).words());
        Ok(CaptureReport { differences, seen, ..CaptureReport::default() })
    })
}

/// Whether a namespace is captured, or was and has not been released: it has the policy rule. (Chains of the same names
/// stand in pods with a sidecar, too.)
///
/// # Errors
/// The kernel could not be asked.
pub fn is_captured(netns: &Netns, config: &InPodRulesConfig) -> Result<bool, Error> {
    Ok(!captured_families(netns, config)?.is_empty())
}

/// The families of which a namespace has the policy rule.
///
/// # Errors
/// The kernel could not be asked.
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
        let rule = delivery(config).rule(family);
        if handle.rules(family)?.iter().any(|found| found.is(&rule)) {
            captured.push(family);
        }
    }
    Ok(captured)
}

/// Looks at what costs no child process.
///
/// # Errors
/// The kernel could not be asked.
pub fn glance(
    netns: &Netns,
    wanted: &PodRulesSpec<'_>,
    before: Option<&PodRulesSnapshot>,
) -> Result<PodRulesSnapshot, Error> {
    netns.run_in(|| look(wanted, before))?
}

/// Like [`glance`], but for many pods, one after the other on one thread: each with what was seen `before`. `None` means that
/// the kernel could not be asked, or that it was later than `until`, because pods before that one have lists that take long to
/// read.
#[must_use]
pub fn glance_each(
    pods: &[(&Netns, PodRulesSpec<'_>, &PodRulesSnapshot)],
    until: Instant,
) -> Vec<Option<PodRulesSnapshot>> {
    let netns: Vec<&Netns> = pods.iter().map(|(netns, ..)| *netns).collect();
    let look = |place: usize| {
        let (_, wanted, before) = pods.get(place).filter(|_| Instant::now() < until)?;
        look(wanted, Some(before)).ok()
    };
    let looked = Netns::run_in_each(&netns, look).unwrap_or_default();
    looked.into_iter().map(|looked| looked.ok().flatten()).collect()
}

/// Takes away all that [`capture`] makes, with whatever options and by whichever backend; and tells what.
///
/// # Errors
/// The step that failed. The policy route stays as long as rules may: without it what they mark would leave the pod, and nothing
/// would show that it has any ([`is_captured`]).
pub fn release(
    netns: &Netns,
    config: &InPodRulesConfig,
    options: &FirewallOptions,
) -> Result<Vec<String>, Error> {
    let (taken, _) = inside(netns, options, |options| {
        let mut taken = release_rules(options)?;
        taken.extend(undeliver(config)?);
        Ok::<_, Error>(taken)
    })?;
    Ok(taken)
}

fn in_pod(
    netns: &Netns,
    options: &FirewallOptions,
    act: impl Fn(&FirewallOptions) -> Result<CaptureReport, Error> + Send + Sync,
) -> Result<CaptureReport, Error> {
    let (report, warning) = inside(netns, options, act)?;
    Ok(CaptureReport { warning, ..report })
}

fn release_rules(options: &FirewallOptions) -> Result<Vec<String>, Error> {
    // The jumps to look for are those that capture makes, with every option.
    let (config, pod) =
        (InPodRulesConfig::default(), inpod::PodOptions { dns: true, ..inpod::PodOptions::default() });
    let jumps = |family| inpod::pod(&config, &pod, family);
    let wanted = netfilter::WantedRules { owner: ChainSet::IN_POD, rules: &jumps };
    let (firewall, observed) = Firewall::open_for(options, &wanted, None)?;
    let changes = observed.removal(ChainSet::IN_POD);
    firewall.apply(&changes, Vec::new())?;
    Ok([changes.words(), firewall.remove_elsewhere_of(&wanted)?].concat())
}

fn open(
    wanted: &PodRulesSpec<'_>,
    before: Option<&PodRulesSnapshot>,
    options: &FirewallOptions,
) -> Result<(Firewall, ObservedTables), Error> {
    let verified = before.and_then(|before| before.rules.own());
    Ok(Firewall::open_for(options, &of_pod(&rules_of(wanted)), verified)?)
}

fn rules_of<'a>(wanted: &'a PodRulesSpec<'_>) -> impl Fn(Family) -> RuleSet + 'a {
    let rules = |family| inpod::pod(wanted.config, wanted.pod, family);
    move |family| RuleSet::if_redirected(wanted.families, family, rules)
}

fn of_pod(rules: &dyn Fn(Family) -> RuleSet) -> netfilter::WantedRules<'_> {
    netfilter::WantedRules { owner: ChainSet::IN_POD, rules }
}

fn changes(wanted: &PodRulesSpec<'_>, observed: &ObservedTables) -> FamilyChanges {
    observed.changes(ChainSet::IN_POD, rules_of(wanted))
}

fn delivery(config: &InPodRulesConfig) -> LocalDelivery {
    let local = config.local_route();
    LocalDelivery { mark: local.mark, table: local.table, priority: Some(PRIORITY) }
}

fn deliver(wanted: &PodRulesSpec<'_>) -> Result<Vec<String>, Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let lo = handle.loopback()?;
    let mut made = Vec::new();
    for family in wanted.families {
        match handle.ensure_local_delivery(*family, lo, &delivery(wanted.config)) {
            Ok(missing) => made.extend(missing),
            Err(_) if !is_deliverable(*family)? => {
                drop(handle.delete_local_delivery(*family, lo, &delivery(wanted.config))?);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(made)
}

fn undeliver(config: &InPodRulesConfig) -> Result<Vec<String>, Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let lo = handle.loopback()?;
    let mut taken = Vec::new();
    for family in Family::BOTH {
        taken.extend(handle.delete_local_delivery(family, lo, &delivery(config))?);
    }
    Ok(taken)
}

fn look(wanted: &PodRulesSpec<'_>, before: Option<&PodRulesSnapshot>) -> Result<PodRulesSnapshot, Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let (mut missing, mut overruled) = (Vec::new(), Vec::new());
    for family in wanted.families {
        let rules = handle.rules(*family)?;
        let lacks = handle.missing_local_delivery(*family, &rules, &delivery(wanted.config))?;
        if lacks.is_empty() || is_deliverable(*family)? {
            missing.extend(lacks);
            overruled.extend(overruling(&rules, wanted.config));
        }
    }
    let rules =
        netfilter::RulesSnapshot::take(&of_pod(&rules_of(wanted)), before.map(|before| &before.rules));
    let untouched = before.filter(|before| before.rules.is_untouched(&rules));
    let foreign = match untouched {
        Some(before) => before.foreign.clone(),
        None => foreign(ChainSet::IN_POD, &[wanted.config.proxy, wanted.config.connection])?,
    };
    // There are new ones only when it is captured.
    let known = before.and_then(|before| before.outside.as_ref()).filter(|outside| outside.count == 0);
    let outside = Some(known.cloned().unwrap_or_else(OutsideConnections::of_this_netns));
    Ok(PodRulesSnapshot { rules, missing, overruling: overruled, foreign, outside })
}

/// Without IPv6 on `lo`, its route is refused, and no packet could use it. Asked only when something is missing: the kernel looks
/// through the settings of all namespaces for those of one.
fn is_deliverable(family: Family) -> Result<bool, Error> {
    let off = || hostnet::sysctl::read("net/ipv6/conf/lo/disable_ipv6");
    Ok(family == Family::V4 || off()?.is_some_and(|value| value.trim() != "1"))
}
