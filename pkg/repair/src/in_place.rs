//! Repair in place: applies the plugin's rules in the network namespace of a running pod.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use agent_protocol::PodRecord;
use conntrack::ConnectionsReport;
use conntrack::sockets::TcpSocket;
use enrolment::{
    EnrolmentPolicy, InvalidAnnotation, PodDecision, SidecarRedirect, inpod::existing_connections,
};
use firewall::FirewallOptions;
use model::{ExistingConnections, Family, Pod, PodName, PodUid};
use netns::{Netns, UserNamespace};
use pod_capture::{NetnsAnswer, NetnsFinder, NetnsQuery, recorded_netns};
use pod_identity::{Ambiguity, KnownPods, PodIds, newest_by_pod};
use redirect::{FamilyChoice, PreparedNetns};
use rules::{ChainSet, RecordedRules, inpod::InPodRulesConfig};
use tracing::{info, warn};

/// Applies rules in pods of this node. Requires access to the node's processes and their namespaces.
#[derive(Clone)]
pub struct InPlaceRepair {
    /// Where the processes of the whole node are seen, such as `/host/proc`.
    pub proc: PathBuf,
    /// How rules are changed.
    pub firewall: FirewallOptions,
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
    NetnsDiscovery(#[from] pod_capture::Error),
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

impl InPlaceRepair {
    /// Applies missing rules of a pod that the plugin would redirect, verifies them in the kernel, and returns the differences that
    /// were restored. Blocks for some tens of milliseconds. `pods`: all known pods of the node.
    ///
    /// # Errors
    /// The step that failed. Completed steps are kept and count in the next attempt.
    pub fn repair_pod(
        &self,
        pod: &Pod,
        redirect: Arc<SidecarRedirect>,
        pods: &KnownPods,
    ) -> Result<Vec<String>, InPlaceError> {
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
        let recorded = record.and_then(|record| recorded_redirect(record, Some(&redirect)));
        let (redirect, rules) =
            recorded.map_or((redirect, None), |(redirect, rules)| (redirect, Some(rules)));
        let families = family_choice(&redirect, rules.as_ref());
        self.restore_pod(&netns, &pod.name(), &redirect, families, rules.as_ref(), existing)
    }

    /// Restores a pod's rules in its namespace, the recorded ones if there are any, and returns the differences.
    pub(crate) fn restore_pod(
        &self,
        netns: &Netns,
        name: &PodName,
        redirect: &SidecarRedirect,
        families: FamilyChoice,
        recorded: Option<&RecordedRules>,
        existing: Option<ExistingConnections>,
    ) -> Result<Vec<String>, InPlaceError> {
        let existing = existing.unwrap_or(self.existing);
        let user_namespace = netns.foreign_owner()?.map(Arc::new);
        let proxies = self.proxy_users(redirect, user_namespace.as_deref());
        let options = FirewallOptions { user_namespace, ..self.firewall.clone() };
        let act = |options: &FirewallOptions| {
            restore_rules(redirect, families, recorded, (existing, proxies.as_slice()), options)
        };
        let ((missing, connections), warning) = firewall::run_inside(netns, &options, act)?;
        if let Some(warning) = warning {
            warn!(target: "repair", namespace = %name.namespace, pod = %name.name, warning, "repaired with a warning");
        }
        if let Some(connections) = connections {
            info!(target: "repair", namespace = %name.namespace, pod = %name.name, %connections, "repaired a pod with open connections");
        }
        Ok(missing)
    }

    /// Returns the users of a pod's proxy, as the kernel shows the owners of sockets to this process.
    fn proxy_users(&self, redirect: &SidecarRedirect, within: Option<&UserNamespace>) -> Vec<u32> {
        let config = &redirect.config;
        let Some(users) = within else { return config.proxy_uids.clone() };
        let owners = config.proxy_uids.iter().zip(&config.proxy_gids);
        let on_node = owners.filter_map(|(uid, gid)| users.owner_on_node(&self.proc, *uid, *gid));
        on_node.map(|(uid, _)| uid).collect()
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

/// Returns the rules that a pod's ADD recorded, and the decision from which they result, which does not follow later
/// changes of the pod's annotations: `present`, if the record lacks the pod. `None`: there are no rules that this
/// version understands.
pub(crate) fn recorded_redirect(
    record: &PodRecord,
    present: Option<&Arc<SidecarRedirect>>,
) -> Option<(Arc<SidecarRedirect>, RecordedRules)> {
    let rules = Some(RecordedRules::from_lines(record.rules.clone())).filter(RecordedRules::is_usable)?;
    let decide = |pod| enrolment::decide(pod, None, &EnrolmentPolicy::default());
    let redirect = match record.pod.as_deref().map(decide) {
        Some(Ok(PodDecision::Sidecar(redirect))) => Arc::from(redirect),
        _ => Arc::clone(present?),
    };
    Some((redirect, rules))
}

/// Returns the choice of a pod's families: those of its recorded rules, and those by its addresses.
pub(crate) fn family_choice(redirect: &SidecarRedirect, recorded: Option<&RecordedRules>) -> FamilyChoice {
    match recorded {
        Some(rules) if rules.has_family(Family::V6) => FamilyChoice::Both,
        _ => FamilyChoice::by_setting(redirect.dual_stack),
    }
}

/// Restores rules, and verifies that the kernel shows them. `proxies`: users whose connections are not concerned.
fn restore_rules(
    redirect: &SidecarRedirect,
    families: FamilyChoice,
    recorded: Option<&RecordedRules>,
    (existing, proxies): (ExistingConnections, &[u32]),
    options: &FirewallOptions,
) -> Result<(Vec<String>, Option<ConnectionsReport>), InPlaceError> {
    let concerns = |socket: &TcpSocket| !socket.is_local() && !proxies.contains(&socket.user);
    let (done, connections) = PreparedNetns::observe(options)?.apply_by(
        &redirect.config,
        families,
        recorded,
        |firewall, changes, waiting| {
            conntrack::apply_changes(firewall, changes, waiting, existing, &concerns)
        },
    )?;
    let observed = redirect::verify(&redirect.config, families, recorded, options)?;
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

#[cfg(test)]
mod tests {
    use redirect::DesiredRules;
    use serde_json::json;

    use super::*;

    fn pod(excluded_ports: &str) -> (Pod, Arc<SidecarRedirect>) {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "annotations": {
                "sidecar.istio.io/status": "{}",
                "traffic.sidecar.istio.io/excludeOutboundPorts": excluded_ports,
            }},
            "spec": {"containers": [{"name": "istio-proxy"}, {"name": "app"}]},
        });
        let pod = serde_json::from_value::<Pod>(pod).unwrap();
        match enrolment::decide(&pod, None, &EnrolmentPolicy::default()) {
            Ok(PodDecision::Sidecar(redirect)) => (pod, Arc::from(redirect)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn later_annotations_do_not_change_what_an_add_recorded() {
        let ((pod, then), (_, now)) = (pod("80"), pod("443"));
        assert_ne!(then, now);
        let rules = DesiredRules::for_families(&then.config, &Family::BOTH).rules;
        let record = PodRecord { rules: rules.lines().clone(), ..PodRecord::default() };
        assert_eq!(recorded_redirect(&record, Some(&now)), Some((Arc::clone(&now), rules.clone())));
        assert_eq!(recorded_redirect(&record, None), None);
        let record = PodRecord { pod: Some(Box::new(pod)), ..record };
        for present in [Some(&now), None] {
            assert_eq!(recorded_redirect(&record, present), Some((Arc::clone(&then), rules.clone())));
        }
        assert_eq!(recorded_redirect(&PodRecord { rules: BTreeMap::new(), ..record }, Some(&now)), None);
    }
}
