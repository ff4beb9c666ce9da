//! The node's own part: its probes of captured pods get a source address by which the pods' rules let them pass.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use firewall::{Backend, FamilyChanges, Firewall, FirewallOptions, NativeTables, ObservedTables};
use ipset::{SetName, SetSpec};
use journal::{Journal, JournalSection};
use model::{Family, PodUid};
use rules::{ChainSet, RuleSet, inpod};

use crate::{Error, branch::BranchRules};

/// Sets and rules on the node, in the namespace in which they were opened.
#[derive(Debug)]
pub struct NodeProbes {
    rules: ProbeRules,
    sets: ipset::IpsetHandle,
    branches: BranchRules,
    /// Why probes of pods with a branch interface fail, until it is reported.
    branch_error: Option<Error>,
}

/// The rules among them: all that takes tools, which take seconds where others have tens of thousands of rules.
#[derive(Clone, Debug)]
pub struct ProbeRules {
    config: inpod::InPodRulesConfig,
    families: Vec<Family>,
    options: FirewallOptions,
    journal: Journal,
}

impl ProbeRules {
    /// Puts the rules in place where they are not, in the calling thread's namespace, and removes those that an earlier agent left
    /// in other tables; the sets must exist. Returns the differences that were found and repaired, as text.
    ///
    /// # Errors
    /// The step that failed.
    pub fn ensure_rules(&self) -> Result<Vec<String>, Error> {
        let (firewall, observed) = Firewall::open(&self.options)?;
        let changes = self.plan_changes(&observed);
        if firewall.backend() == Backend::Nft {
            // A legacy table that was used once stays until its namespace ends.
            self.journal.note_chains(JournalSection::ProbeChains, &changes.changed_tables())?;
        }
        firewall.apply(&changes, Vec::new())?;
        // Also the native table of Istio's agent, whose set nobody maintains any more.
        let repaired = [changes.reason_texts(), firewall.remove_elsewhere(ChainSet::PROBES)?].concat();
        // The rules that were just made are observed next.
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
    /// One of the names is not valid for a set. They are constants, so this is a defect.
    pub fn set_names(&self) -> Result<Vec<SetName>, Error> {
        self.families.iter().map(|family| Ok(SetName::new(probe_set_name(*family))?)).collect()
    }

    /// The node's firewall as it is.
    ///
    /// # Errors
    /// A tool, or the kernel, could not be asked.
    pub fn observe_tables(&self) -> Result<ObservedTables, Error> {
        Ok(Firewall::open(&self.options)?.1)
    }

    /// The rules of a family; none in one that is not captured.
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
    /// Opens them for the calling thread's namespace. `families`: those in which pods are captured; `journal`: the file that says
    /// what the node was like before.
    ///
    /// # Errors
    /// The kernel has no sets, or refuses.
    pub fn open(
        config: inpod::InPodRulesConfig,
        families: Vec<Family>,
        options: FirewallOptions,
        journal: &Path,
    ) -> Result<NodeProbes, Error> {
        let branches = BranchRules::open(config.branch_probes);
        // The node's rules ask x_tables and sets.
        let options = FirewallOptions { native: NativeTables::Never, ..options };
        let rules = ProbeRules { config, families, options, journal: Journal::for_file(journal) };
        Ok(NodeProbes { rules, sets: ipset::IpsetHandle::open()?, branches, branch_error: None })
    }

    /// The rules, for a thread of the same namespace that may wait for tools.
    pub fn rules(&self) -> &ProbeRules {
        &self.rules
    }

    /// Whether there may be policy rules of ours for pods with a branch interface.
    pub fn has_branches(&self) -> bool {
        self.branches.is_possible
    }

    /// Makes the sets where they are not; members stay as they are. They come before the rules.
    ///
    /// # Errors
    /// The kernel refuses. Also what failed in [`NodeProbes::reconcile_branches`] and concerns only probes of pods with a branch
    /// interface.
    pub fn ensure_sets(&mut self) -> Result<(), Error> {
        for family in self.rules.families.clone() {
            self.sets.create_set(&probe_set_spec(family)?)?;
        }
        self.branch_error.take().map_or(Ok(()), Err)
    }

    /// The addresses in the sets, each with the UID of its pod, if it has one.
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

    /// Whether there are sets of ours: they are made first, and go last.
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

    /// Adds addresses of a pod; those of families that are not captured are left out.
    ///
    /// # Errors
    /// The kernel refuses, as it does without sets.
    pub fn add_addresses(&mut self, ips: &[IpAddr], uid: &PodUid) -> Result<(), Error> {
        let pairs: BTreeMap<IpAddr, PodUid> = ips.iter().map(|ip| (*ip, uid.clone())).collect();
        self.add_all(&pairs)
    }

    fn add_all(&mut self, pairs: &BTreeMap<IpAddr, PodUid>) -> Result<(), Error> {
        for family in self.rules.families.clone() {
            let of = pairs.iter().filter(|(ip, _)| Family::of_ip(**ip) == family);
            self.sets.add_owned(&probe_set_spec(family)?.name, of.map(|(ip, uid)| (*ip, uid)))?;
        }
        Ok(())
    }

    /// Makes the sets, which hold what was found, hold what is desired instead; other members stay. Tells how many were added
    /// or given to another pod, and how many removed.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn replace_members(
        &mut self,
        found: &BTreeMap<IpAddr, Option<PodUid>>,
        desired: &BTreeMap<IpAddr, PodUid>,
    ) -> Result<(usize, usize), Error> {
        let families = self.rules.families.clone();
        let captured = |ip: &IpAddr| families.contains(&Family::of_ip(*ip));
        let missing: BTreeMap<IpAddr, PodUid> = desired
            .iter()
            .filter(|(ip, uid)| captured(ip) && found.get(*ip) != Some(&Some((*uid).clone())))
            .map(|(ip, uid)| (*ip, uid.clone()))
            .collect();
        let left: Vec<IpAddr> =
            found.keys().filter(|ip| !desired.contains_key(*ip) || !captured(ip)).copied().collect();
        self.add_all(&missing)?;
        for ip in &left {
            let _ = self.sets.remove_member(&probe_set_spec(Family::of_ip(*ip))?.name, *ip)?;
        }
        Ok((missing.len(), left.len()))
    }

    /// Keeps probes of pods with a branch interface on their links; the addresses are those of all captured pods. That probes
    /// of some pods fail must not keep others from being captured, so what fails is reported by [`NodeProbes::ensure_sets`].
    pub fn reconcile_branches(&mut self, desired: &BTreeMap<IpAddr, PodUid>) {
        self.branch_error = self.branches.ensure_rules(desired.keys()).err();
    }

    /// Takes away rules, of both backends, the built-in chains that came with them, and sets; tells what.
    ///
    /// # Errors
    /// The step that failed.
    pub fn remove_all(&mut self) -> Result<Vec<String>, Error> {
        let (firewall, observed) = Firewall::open(&self.rules.options)?;
        let changes = observed.plan_removal(ChainSet::PROBES);
        firewall.apply(&changes, Vec::new())?;
        let mut removed = [changes.reason_texts(), firewall.remove_elsewhere(ChainSet::PROBES)?].concat();
        self.rules.journal.remove_chains(JournalSection::ProbeChains)?;
        removed.extend(BranchRules::remove_rules()?);
        for family in Family::BOTH {
            let name = probe_set_spec(family)?.name;
            if self.sets.destroy_set(&name)? == ipset::RemoveOutcome::Yes {
                removed.push(format!("set {}", name.as_str()));
            }
        }
        Ok(removed)
    }
}

/// The set of captured pods' addresses of a family; Istio's own name.
pub const fn probe_set_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "istio-inpod-probes-v4",
        Family::V6 => "istio-inpod-probes-v6",
    }
}

fn probe_set_spec(family: Family) -> Result<SetSpec, Error> {
    Ok(SetSpec { name: SetName::new(probe_set_name(family))?, family })
}
