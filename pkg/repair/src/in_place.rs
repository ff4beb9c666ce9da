//! Repair in place: applies the plugin's rules in the network namespace of a running pod.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use conntrack::ConnectionsReport;
use enrolment::{
    EnrolmentPolicy, InvalidAnnotation, PodDecision, SidecarRedirect, SkipReason, inpod::existing_connections,
};
use firewall::FirewallOptions;
use inpod::{NetnsAnswer, NetnsFinder, NetnsQuery, recorded_netns};
use model::{ExistingConnections, Family, Pod, PodName, PodUid};
use netns::Netns;
use pod_identity::{Ambiguity, KnownPods, PodIds, newest_by_pod};
use redirect::{FamilyChoice, PreparedNetns};
use rules::{ChainSet, RecordedRules, inpod::InPodRulesConfig};
use sockdiag::TcpSocket;
use tracing::{info, warn};
use wire::PodRecord;

/// Applies rules in pods of this node. Requires access to the node's processes and their namespaces.
#[derive(Clone)]
pub struct InPlaceRepair {
    /// Where the processes of the whole node are seen, such as `/host/proc`.
    pub proc: PathBuf,
    /// How rules are changed.
    pub firewall: FirewallOptions,
    /// The plugin's policy: a pod that it does not redirect is not repaired either.
    pub policy: EnrolmentPolicy,
    /// Treatment of the connections of pods without their own setting.
    pub existing: ExistingConnections,
    /// In which namespace the runtime added each pod.
    pub records: AddRecords,
}

/// The plugin's records of ADDs, read for every search for pods' network namespaces.
pub type AddRecords = Arc<dyn Fn() -> Vec<Arc<PodRecord>> + Send + Sync>;

/// Reason why a pod could not be repaired in place.
#[derive(Debug, thiserror::Error)]
pub enum InPlaceError {
    /// The node's own namespace cannot be opened.
    #[error("cannot open the node's network namespace: {0}")]
    Node(netns::Error),
    /// The node's processes cannot be listed.
    #[error("cannot search for its network namespace: {0}")]
    NetnsDiscovery(#[from] inpod::Error),
    /// No process of the pod was found, or none in a namespace with its address.
    #[error(
        "its network namespace was not found: none of its processes, the pause container's included, is in a network namespace that has its address"
    )]
    NotFound,
    /// Several namespaces fit, or the attribution of the fitting one is not certain.
    #[error("its network namespace could not be determined: {0}")]
    Ambiguous(Ambiguity),
    /// One of the pod's annotations is invalid.
    #[error("{0}")]
    Annotation(#[from] InvalidAnnotation),
    /// The pod's network namespace could not be redirected.
    #[error("cannot redirect it: {0}")]
    Redirect(#[from] redirect::Error),
    /// Rules were applied, but the kernel does not show them.
    #[error("the rules were applied, and are not in place afterwards: {}", .missing.join("; "))]
    NotInPlace {
        /// Differences that were restored; empty: another component had restored them.
        restored: Vec<String>,
        /// Differences that remain.
        missing: Vec<String>,
    },
    /// The rules are in place, but redirect nothing.
    #[error("its rules are in place, but {}", .0.join("; "))]
    Inactive(Vec<String>),
}

impl From<firewall::Error> for InPlaceError {
    fn from(error: firewall::Error) -> InPlaceError {
        InPlaceError::Redirect(error.into())
    }
}

impl From<netns::Error> for InPlaceError {
    fn from(error: netns::Error) -> InPlaceError {
        InPlaceError::Redirect(error.into())
    }
}

/// Result of a repair in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InPlaceReport {
    /// Rules are in place; the differences that were restored.
    Repaired(Vec<String>),
    /// Nothing was missing.
    Unchanged,
    /// The pod has no sidecar to which it could be redirected, with the reason.
    NotRedirected(SkipReason),
}

impl InPlaceRepair {
    /// Applies missing rules of a pod, and verifies them in the kernel. Blocks for some tens of milliseconds. `pods`:
    /// all known pods of the node.
    ///
    /// # Errors
    /// The step that failed. Completed steps are kept and count in the next attempt.
    pub fn repair_pod(&self, pod: &Pod, pods: &KnownPods) -> Result<InPlaceReport, InPlaceError> {
        let redirect = match enrolment::decide(pod, None, &self.policy)? {
            PodDecision::Sidecar(redirect) => redirect,
            PodDecision::Skip(reason) => return Ok(InPlaceReport::NotRedirected(reason)),
            PodDecision::Ambient(_) => return Ok(InPlaceReport::NotRedirected(SkipReason::NotInjected)),
        };
        let (ids, records) = (PodIds::from(pod), self.pod_records());
        let record = newest_by_pod(&records, [ids]).into_values().next();
        let recorded = record.and_then(recorded_netns);
        let query = NetnsQuery { ips: pod.status.ips(), known: None, recorded };
        let found = self.find_netns(pods, &BTreeMap::from([(pod.metadata.uid.clone(), query)]))?;
        let netns = match found.into_values().next() {
            Some(NetnsAnswer::Found(found)) => found.netns,
            Some(NetnsAnswer::Ambiguous(why)) => return Err(InPlaceError::Ambiguous(why)),
            Some(NetnsAnswer::Unchanged { .. }) | None => return Err(InPlaceError::NotFound),
        };
        let existing = existing_connections(&pod.metadata.annotations, &mut Vec::new());
        let families = family_choice(&redirect, record.and_then(recorded_rules).as_ref());
        Ok(match self.restore_pod(&netns, &pod.name(), &redirect, families, existing)? {
            missing if missing.is_empty() => InPlaceReport::Unchanged,
            missing => InPlaceReport::Repaired(missing),
        })
    }

    /// Restores a pod's rules in its namespace, and returns the differences.
    pub(crate) fn restore_pod(
        &self,
        netns: &Netns,
        name: &PodName,
        redirect: &SidecarRedirect,
        families: FamilyChoice,
        existing: Option<ExistingConnections>,
    ) -> Result<Vec<String>, InPlaceError> {
        let existing = existing.unwrap_or(self.existing);
        let user_namespace = netns.foreign_owner()?.map(Arc::new);
        let options = FirewallOptions { user_namespace, ..self.firewall.clone() };
        let act = |options: &FirewallOptions| restore_rules(redirect, families, existing, options);
        let ((missing, connections), warning) = firewall::run_inside(netns, &options, act)?;
        if let Some(warning) = warning {
            warn!(target: "repair", namespace = %name.namespace, pod = %name.name, warning, "repaired with a warning");
        }
        if let Some(connections) = connections {
            info!(target: "repair", namespace = %name.namespace, pod = %name.name, %connections, "repaired a pod with open connections");
        }
        Ok(missing)
    }

    /// Searches for the namespaces of pods; see [`NetnsFinder::find_netns`].
    pub(crate) fn find_netns(
        &self,
        pods: &KnownPods,
        queries: &BTreeMap<PodUid, NetnsQuery>,
    ) -> Result<BTreeMap<PodUid, NetnsAnswer>, InPlaceError> {
        let node = Netns::open(self.proc.join("1/ns/net")).map_err(InPlaceError::Node)?;
        Ok(NetnsFinder::new(&self.proc, node, InPodRulesConfig::default()).find_netns(pods, queries)?)
    }

    pub(crate) fn pod_records(&self) -> Vec<Arc<PodRecord>> {
        (self.records)()
    }
}

/// Returns the rules that a pod's ADD recorded; `None`: none that this version understands.
pub(crate) fn recorded_rules(record: &PodRecord) -> Option<RecordedRules> {
    Some(RecordedRules::from_lines(record.rules.clone())).filter(RecordedRules::is_usable)
}

/// Returns the choice of a pod's families: those of its recorded rules, and those by its addresses.
pub(crate) fn family_choice(redirect: &SidecarRedirect, recorded: Option<&RecordedRules>) -> FamilyChoice {
    match redirect.dual_stack {
        _ if recorded.is_some_and(|rules| rules.has_family(Family::V6)) => FamilyChoice::Both,
        true => FamilyChoice::Dual,
        false => FamilyChoice::First,
    }
}

/// Restores rules, and verifies that the kernel shows them.
fn restore_rules(
    redirect: &SidecarRedirect,
    families: FamilyChoice,
    existing: ExistingConnections,
    options: &FirewallOptions,
) -> Result<(Vec<String>, Option<ConnectionsReport>), InPlaceError> {
    let proxies = &redirect.config.proxy_uids;
    let concerns = |socket: &TcpSocket| !socket.is_local() && !proxies.contains(&socket.user);
    let (done, connections) = PreparedNetns::observe(options)?.apply_by(
        &redirect.config,
        families,
        |firewall, changes, waiting| {
            conntrack::apply_changes(firewall, changes, waiting, existing, &concerns)
        },
    )?;
    let observed = redirect::verify(&redirect.config, families, options)?;
    if !observed.differences.is_empty() {
        return Err(InPlaceError::NotInPlace { restored: done.differences, missing: observed.differences });
    }
    // The restored differences are reported first: the next comparison finds inactive rules.
    if !done.is_unchanged() {
        return Ok((done.differences, connections));
    }
    match firewall::inactive_rules(ChainSet::SIDECAR)? {
        inactive if inactive.is_empty() => Ok((done.differences, connections)),
        inactive => Err(InPlaceError::Inactive(inactive)),
    }
}
