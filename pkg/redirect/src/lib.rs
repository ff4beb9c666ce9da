//! Complete sidecar redirection of one network namespace: firewall rules of both families, and the policy route and
//! address that some of them need. Applied, compared with the kernel, or removed.
//!
//! Each operation observes first and changes only what differs, so repeating one changes nothing, and an incomplete
//! earlier attempt is completed. All act on the calling thread's namespace; [`firewall::run_inside`] enters a pod's.
//!
//! Called by the plugin, `istio-iptables`, `istio-clean-iptables`, and repair in place.

mod error;
mod families;
mod routes;

use std::net::IpAddr;

use firewall::{
    Backend, CapturedTraffic, FamilyChanges, Firewall, FirewallOptions, ObservedTables, WaitingRestore,
};
use model::{Family, Mark};
use rules::{ChainSet, RecordedRules, RuleSet, sidecar};

pub use error::Error;
pub use families::{FamilyChoice, NoAddress, first_family, pod_addresses};

/// Result of applying or verifying the redirection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectReport {
    /// The backend in use.
    pub backend: Backend,
    /// The families that are redirected.
    pub families: Vec<Family>,
    /// Differences from the desired state that were found, as text; empty if there were none.
    pub differences: Vec<String>,
}

impl RedirectReport {
    /// Returns whether the kernel already matched the desired state.
    pub fn is_unchanged(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Brings the namespace into the state that `config` requires.
///
/// Routes are added first, and the tables that start redirection are changed last, so that no packet is captured before
/// it can be delivered. A route that cannot be added keeps no rules from being applied, without which traffic would
/// bypass the proxy.
///
/// # Errors
/// The step that failed. Completed steps are kept and count in the next attempt.
pub fn apply(
    config: &sidecar::SidecarConfig,
    families: FamilyChoice,
    options: &FirewallOptions,
) -> Result<RedirectReport, Error> {
    PreparedNetns::observe(options)?.apply(config, families)
}

/// A namespace that was just observed, for callers that have to wait for the configuration meanwhile.
#[derive(Debug)]
pub struct PreparedNetns {
    addresses: Vec<IpAddr>,
    firewall: Firewall,
    observed: ObservedTables,
    waiting: Vec<WaitingRestore>,
}

impl PreparedNetns {
    /// Observes the namespace. The observed objects must not change before they are used.
    ///
    /// # Errors
    /// The kernel could not be queried, or a tool failed.
    pub fn observe(options: &FirewallOptions) -> Result<PreparedNetns, Error> {
        let addresses = families::netns_addresses()?;
        let (firewall, observed) = Firewall::open(options)?;
        Ok(PreparedNetns { addresses, firewall, observed, waiting: Vec::new() })
    }

    /// Starts the tools that a new namespace will need. A tool that cannot be started is started again when it is
    /// needed, and its error is reported then.
    pub fn start_tools(&mut self) {
        if self.observed.families.is_empty() {
            let families = FamilyChoice::First.choose_families(&self.addresses).unwrap_or_default();
            self.waiting = families
                .into_iter()
                .filter_map(|family| self.firewall.start_restore(family).ok().flatten())
                .collect();
        }
    }

    /// Like [`apply`], from the observation.
    ///
    /// # Errors
    /// As [`apply`].
    pub fn apply(
        self,
        config: &sidecar::SidecarConfig,
        families: FamilyChoice,
    ) -> Result<RedirectReport, Error> {
        let (report, backend) = self.apply_by(config, families, None, Firewall::apply)?;
        Ok(RedirectReport { backend, ..report })
    }

    /// Like [`apply`], from the observation, for a caller that acts before and after the change of rules: `change`
    /// applies that change. `recorded`: rules of an earlier [`apply`], to be restored instead of those of `config`.
    ///
    /// # Errors
    /// As [`apply`].
    pub fn apply_by<T>(
        self,
        config: &sidecar::SidecarConfig,
        families: FamilyChoice,
        recorded: Option<&RecordedRules>,
        change: impl FnOnce(&Firewall, &FamilyChanges, Vec<WaitingRestore>) -> Result<T, firewall::Error>,
    ) -> Result<(RedirectReport, T), Error> {
        let chosen = families.choose_families(&self.addresses)?;
        let changes = sidecar_changes(config, &chosen, recorded, &self.observed)?;
        let routes = routes::ensure_routes(config, &families.choose_routed(&self.addresses)?);
        let done = change(&self.firewall, &changes, self.waiting)?;
        // Rules of another backend stay effective until those of this one are.
        let elsewhere = self.firewall.remove_elsewhere(ChainSet::SIDECAR)?;
        let differences = [routes?, changes.reason_texts(), elsewhere].concat();
        Ok((RedirectReport { backend: self.firewall.backend(), families: chosen, differences }, done))
    }
}

/// Compares the namespace with the state that `config` requires, and changes nothing. `recorded`: as in
/// [`PreparedNetns::apply_by`].
///
/// # Errors
/// The kernel could not be queried, or a tool failed.
pub fn verify(
    config: &sidecar::SidecarConfig,
    families: FamilyChoice,
    recorded: Option<&RecordedRules>,
    options: &FirewallOptions,
) -> Result<RedirectReport, Error> {
    let PreparedNetns { addresses, firewall, observed, .. } = PreparedNetns::observe(options)?;
    let chosen = families.choose_families(&addresses)?;
    let mut differences = routes::missing_routes(config, &families.choose_routed(&addresses)?)?;
    differences.extend(sidecar_changes(config, &chosen, recorded, &observed)?.reason_texts());
    Ok(RedirectReport { backend: firewall.backend(), families: chosen, differences })
}

/// Compares the namespace with the rules of an earlier [`apply`], and with the policy routes that `config` requires.
/// Changes nothing, and needs no tool; returns the differences.
///
/// # Errors
/// The kernel could not be queried, or the rules are not understood.
pub fn compare_recorded(
    config: &sidecar::SidecarConfig,
    families: FamilyChoice,
    rules: &RecordedRules,
) -> Result<Vec<String>, Error> {
    let mut differences = missing_routes(config, families)?;
    let observed = ObservedTables::observe_pod()?;
    differences.extend(sidecar_changes(config, &[], Some(rules), &observed)?.reason_texts());
    // In this order: missing rules can be restored even if there are so many chains that they cannot be listed.
    let is_whole = differences.is_empty();
    Ok(if is_whole { firewall::inactive_rules(ChainSet::SIDECAR)? } else { differences })
}

/// Returns the missing policy routes and address that `config` requires, which no fingerprint of rules covers.
///
/// # Errors
/// The kernel could not be queried.
pub fn missing_routes(config: &sidecar::SidecarConfig, families: FamilyChoice) -> Result<Vec<String>, Error> {
    routes::missing_routes(config, &families.choose_routed(&families::netns_addresses()?)?)
}

/// Desired rules of sidecar redirection in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredRules {
    /// The rules, for [`compare_recorded`].
    pub rules: RecordedRules,
    /// The traffic that they redirect.
    pub captured: CapturedTraffic,
}

impl DesiredRules {
    /// Returns the rules that [`apply`] adds in these families.
    pub fn for_families(config: &sidecar::SidecarConfig, families: &[Family]) -> DesiredRules {
        let rules =
            |family| RuleSet::if_redirected(families, family, |family| sidecar::rule_set(config, family));
        let captured = Family::BOTH.into_iter().fold(CapturedTraffic::default(), |all, family| {
            all.union(CapturedTraffic::from_rules(family, &rules(family)))
        });
        DesiredRules { rules: RecordedRules::from_rules(rules), captured }
    }
}

/// Returns the rules of sidecar redirection in this namespace; `None`: some are not understood, or they are native
/// tables.
///
/// # Errors
/// The kernel could not be queried.
pub fn found_rules() -> Result<Option<RecordedRules>, Error> {
    let found = ObservedTables::observe_pod()?;
    let rules = || RecordedRules::from_found(ChainSet::SIDECAR, |family| found.family_tables(family));
    Ok(if found.native.is_some() { None } else { rules() })
}

/// Removes every rule, route and address that [`apply`] adds with any configuration, and returns them as text;
/// `tproxy_mark` identifies our policy rules. Both backends are cleaned unless one is forced, since an earlier run may
/// have used either. `dry_run`: nothing is changed.
///
/// # Errors
/// The first step that failed; the others are completed all the same.
pub fn remove_all(tproxy_mark: Mark, options: &FirewallOptions, dry_run: bool) -> Result<Vec<String>, Error> {
    let rules =
        options.possible_backends().into_iter().map(|backend| remove_rules(backend, options, dry_run));
    concat_results([routes::remove_routes(tproxy_mark, dry_run)].into_iter().chain(rules))
}

fn concat_results<E>(steps: impl Iterator<Item = Result<Vec<String>, E>>) -> Result<Vec<String>, E> {
    let done: Vec<_> = steps.collect(); // every step is completed before the first failure is returned
    Ok(done.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
}

fn remove_rules(backend: Backend, options: &FirewallOptions, dry_run: bool) -> Result<Vec<String>, Error> {
    let (firewall, observed) = Firewall::open(&FirewallOptions { forced: Some(backend), ..options.clone() })?;
    let changes = observed.plan_removal(ChainSet::SIDECAR);
    if !dry_run {
        firewall.apply(&changes, Vec::new())?;
    }
    Ok(changes.reason_texts())
}

fn sidecar_changes(
    config: &sidecar::SidecarConfig,
    desired: &[Family],
    recorded: Option<&RecordedRules>,
    observed: &ObservedTables,
) -> Result<FamilyChanges, Error> {
    let [v4, v6] = Family::BOTH.map(|family| match recorded {
        Some(recorded) => recorded.rule_set(family),
        None => Ok(RuleSet::if_redirected(desired, family, |family| sidecar::rule_set(config, family))),
    });
    let (v4, v6) = (v4?, v6?);
    let rules = |family| if family == Family::V4 { v4.clone() } else { v6.clone() };
    Ok(observed.plan_changes(ChainSet::SIDECAR, rules))
}
