//! The node's part: its probes of captured pods get a source address by which the pods' rules let them pass.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use firewall::{Backend, FamilyChanges, Firewall, FirewallOptions, NativeTables, ObservedTables};
use ipset::{SetName, SetSpec};
use journal::{Journal, JournalSection};
use model::{Family, PodUid};
use rules::{ChainSet, RuleSet, inpod};

use crate::{Error, branch};

/// Sets and rules on the node, in the namespace in which this was opened.
#[derive(Debug)]
pub struct NodeProbes {
    /// The rules, for a thread of the same namespace that may wait for tools.
    pub rules: ProbeRules,
    sets: ipset::IpsetHandle,
    /// Whether there may be policy rules of ours for pods with a branch interface.
    pub has_branches: bool,
    /// Error of probes of pods with a branch interface, until it is reported.
    branch_error: Option<Error>,
}

/// The rules for probes: they may need tools, which take seconds where other components have tens of thousands of
/// rules.
#[derive(Clone, Debug)]
pub struct ProbeRules {
    config: inpod::InPodRulesConfig,
    families: Vec<Family>,
    options: FirewallOptions,
    journal: Journal,
}

impl ProbeRules {
    /// Adds missing rules in the calling thread's namespace, and removes those that an earlier agent left in other
    /// tables; the sets must exist. Returns the differences that were found and repaired, as text.
    ///
    /// # Errors
    /// The step that failed.
    pub fn ensure_rules(&self) -> Result<Vec<String>, Error> {
        let (firewall, observed) = Firewall::open(&self.options)?;
        let changes = self.plan_changes(&observed);
        if firewall.backend() == Backend::Nft {
            // A legacy table, once used, exists until its namespace is removed.
            self.journal.note_chains(JournalSection::ProbeChains, &changes.changed_tables())?;
        }
        firewall.apply(&changes, Vec::new())?;
        // This includes the native table of Istio's agent, whose set is no longer maintained.
        let repaired = [changes.reason_texts(), firewall.remove_elsewhere(ChainSet::PROBES)?].concat();
        // Rules that were just added are observed next time.
        match firewall.inactive_rules(ChainSet::PROBES, &observed)? {
            inactive if repaired.is_empty() && !inactive.is_empty() => {
                Err(Error::Inactive(inactive.join("; ")))
            }
            _ => Ok(repaired),
        }
    }

    /// Returns the names of the sets.
    ///
    /// # Errors
    /// One of the names is not valid for a set. The names are constants, so this is a defect.
    pub fn set_names(&self) -> Result<Vec<SetName>, Error> {
        self.families.iter().map(|family| Ok(SetName::new(probe_set_name(*family))?)).collect()
    }

    /// Observes the node's firewall.
    ///
    /// # Errors
    /// A tool failed, or the kernel could not be queried.
    pub fn observe_tables(&self) -> Result<ObservedTables, Error> {
        Ok(Firewall::open(&self.options)?.1)
    }

    /// Returns the rules of a family; an empty set for a family that is not captured.
    pub fn desired_rules(&self, family: Family) -> RuleSet {
        RuleSet::if_redirected(&self.families, family, |family| {
            inpod::host(&self.config, probe_set_name(family), family)
        })
    }

    /// Returns the changes that lead from the observed to the desired state.
    pub fn plan_changes(&self, observed: &ObservedTables) -> FamilyChanges {
        observed.plan_changes(ChainSet::PROBES, |family| self.desired_rules(family))
    }
}

impl NodeProbes {
    /// Opens sets and rules for the calling thread's namespace. `families`: those in which pods are captured;
    /// `journal`: the file with the node's state before us.
    ///
    /// # Errors
    /// The kernel has no sets, or refuses.
    pub fn open(
        config: inpod::InPodRulesConfig,
        families: Vec<Family>,
        options: FirewallOptions,
        journal: &Path,
    ) -> Result<NodeProbes, Error> {
        let has_branches = config.branch_probes && branch::may_have_branches();
        // The node's rules use matches of x_tables and sets.
        let options = FirewallOptions { native: NativeTables::Never, ..options };
        let rules = ProbeRules { config, families, options, journal: Journal::for_file(journal) };
        Ok(NodeProbes { rules, sets: ipset::IpsetHandle::open()?, has_branches, branch_error: None })
    }

    /// Removes policy rules that an earlier agent left for pods with a branch interface, if there may be none. Returns
    /// them as text.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_stale_branches(&self) -> Result<Vec<String>, Error> {
        if self.has_branches { Ok(Vec::new()) } else { branch::remove_rules() }
    }

    /// Creates missing sets, before the rules; members stay as they are.
    ///
    /// # Errors
    /// As [`NodeProbes::create_sets`]. Also the error of [`NodeProbes::reconcile_branches`], which concerns only probes of
    /// pods with a branch interface.
    pub fn ensure_sets(&mut self) -> Result<(), Error> {
        self.create_sets()?;
        self.branch_error.take().map_or(Ok(()), Err)
    }

    /// Creates missing sets.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn create_sets(&mut self) -> Result<(), Error> {
        for family in self.rules.families.clone() {
            self.sets.create_set(&probe_set_spec(family)?)?;
        }
        Ok(())
    }

    /// Returns the addresses in the sets, each with the UID of its pod, if it has one.
    ///
    /// # Errors
    /// The kernel refuses to list.
    pub fn set_members(&mut self) -> Result<BTreeMap<IpAddr, Option<PodUid>>, Error> {
        let mut found = BTreeMap::new();
        for family in Family::BOTH {
            found.extend(self.sets.member_owners(&probe_set_spec(family)?.name)?.unwrap_or_default());
        }
        Ok(found)
    }

    /// Returns whether sets of ours exist: they are created first, and removed last.
    ///
    /// # Errors
    /// The kernel refuses to list.
    pub fn sets_exist(&mut self) -> Result<bool, Error> {
        for family in Family::BOTH {
            if self.sets.member_owners(&probe_set_spec(family)?.name)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds addresses of a pod, except those of families that are not captured.
    ///
    /// # Errors
    /// The kernel refuses, as it does without sets.
    pub fn add_addresses(&mut self, ips: &[IpAddr], uid: &PodUid) -> Result<(), Error> {
        let pairs: BTreeMap<IpAddr, PodUid> = ips.iter().map(|ip| (*ip, uid.clone())).collect();
        self.add_all(&pairs)
    }

    fn add_all(&mut self, pairs: &BTreeMap<IpAddr, PodUid>) -> Result<(), Error> {
        for family in self.rules.families.clone() {
            let of = pairs.iter().filter(|(ip, _)| Family::from_ip(**ip) == family);
            self.sets.add_owned(&probe_set_spec(family)?.name, of.map(|(ip, uid)| (*ip, uid)))?;
        }
        Ok(())
    }

    /// Replaces the `found` members of the sets with the `desired` ones; other members stay. Returns how many were
    /// added or reassigned to another pod, and how many were removed.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn replace_members(
        &mut self,
        found: &BTreeMap<IpAddr, Option<PodUid>>,
        desired: &BTreeMap<IpAddr, PodUid>,
    ) -> Result<(usize, usize), Error> {
        let families = self.rules.families.clone();
        let captured = |ip: &IpAddr| families.contains(&Family::from_ip(*ip));
        let missing: BTreeMap<IpAddr, PodUid> = desired
            .iter()
            .filter(|(ip, uid)| captured(ip) && found.get(*ip) != Some(&Some((*uid).clone())))
            .map(|(ip, uid)| (*ip, uid.clone()))
            .collect();
        let left: Vec<IpAddr> =
            found.keys().filter(|ip| !desired.contains_key(*ip) || !captured(ip)).copied().collect();
        self.add_all(&missing)?;
        for ip in &left {
            let _ = self.sets.remove_member(&probe_set_spec(Family::from_ip(*ip))?.name, *ip)?;
        }
        Ok((missing.len(), left.len()))
    }

    /// Keeps probes of pods with a branch interface on their links; the addresses are those of all captured pods.
    /// Failing probes of some pods must not keep others from being captured, so the error is reported by
    /// [`NodeProbes::ensure_sets`].
    pub fn reconcile_branches(&mut self, desired: &BTreeMap<IpAddr, PodUid>) {
        if self.has_branches {
            self.branch_error = branch::ensure_rules(desired.keys()).err();
        }
    }

    /// Removes rules, of both backends, the built-in chains that were created with them, and sets. Returns the removed
    /// objects as text.
    ///
    /// # Errors
    /// The step that failed.
    pub fn remove_all(&mut self) -> Result<Vec<String>, Error> {
        let (firewall, observed) = Firewall::open(&self.rules.options)?;
        let changes = observed.plan_removal(ChainSet::PROBES);
        firewall.apply(&changes, Vec::new())?;
        let mut removed = [changes.reason_texts(), firewall.remove_elsewhere(ChainSet::PROBES)?].concat();
        self.rules.journal.remove_chains(JournalSection::ProbeChains)?;
        removed.extend(branch::remove_rules()?);
        for family in Family::BOTH {
            let name = probe_set_spec(family)?.name;
            if self.sets.destroy_set(&name)? {
                removed.push(format!("set {}", name.as_str()));
            }
        }
        Ok(removed)
    }
}

/// Returns the name of the set of captured pods' addresses of a family, as in Istio.
pub const fn probe_set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "istio-inpod-probes-v4",
        Family::V6 => "istio-inpod-probes-v6",
    }
}

fn probe_set_spec(family: Family) -> Result<SetSpec, Error> {
    Ok(SetSpec { name: SetName::new(probe_set_name(family))?, family })
}
