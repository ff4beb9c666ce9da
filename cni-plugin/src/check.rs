//! CHECK: whether the pod is still redirected.
//!
//! Fails only for a pod that is known to bypass the mesh: a runtime that restarts calls CHECK for every sandbox, one after the
//! other, and makes the kubelet replace those that fail. So rules of every version and setting that redirect the traffic are
//! accepted; a record of the ADD shows whether the pod belongs to the mesh without any query; and what cannot be determined in time
//! counts as in order.

use agent_protocol::PodRecord;
use cni_types::{CniError, ErrorCode};
use enrolment::{EnrolmentReason, PodDecision, SidecarRedirect};
use firewall::CapturedTraffic;
use rules::ChainSet;

use crate::{
    agent::{AgentOrApi, AgentReply, Submitted, Unanswered},
    attach::{decide_by_facts, decide_early, open_netns, pod_title},
    call::PluginCall,
    log::CallLog,
    offline_enrol::{self, OfflineEnrolment},
    record,
};

/// Fails if the pod is known to bypass the mesh.
///
/// # Errors
/// The pod bypasses the mesh, or the call is invalid.
pub fn check_pod(call: &PluginCall, authority: &AgentOrApi, log: &mut CallLog) -> Result<String, CniError> {
    // CRI-O without its cache of results passes the configuration on disk; the pod may be in order nevertheless.
    if call.conf.prev_result()?.is_none() {
        log.info(format!("the runtime has no result of an earlier ADD of {}", pod_title(call)));
    }
    match judge_redirection(call, authority) {
        CheckVerdict::InOrder => {}
        CheckVerdict::Unknown(why) => {
            log.info(format!("cannot determine whether {} bypasses the mesh: {why}", pod_title(call)));
        }
        CheckVerdict::Bypasses(why) => {
            let message = format!("{} bypasses the mesh: its traffic is not redirected", pod_title(call));
            return Err(CniError::new(ErrorCode::Other, message).with_details(why));
        }
    }
    Ok(String::new())
}

/// Verdict on a pod.
#[derive(Debug)]
enum CheckVerdict {
    /// The pod's traffic is redirected, or the pod does not belong to the mesh.
    InOrder,
    /// Undetermined, with the reason.
    Unknown(String),
    /// Traffic that is not redirected.
    Bypasses(String),
}

/// Membership of a pod in the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Membership {
    Outside,
    Sidecar,
    /// With what the agent found.
    Ambient(AgentReply),
}

impl Membership {
    /// Returns the decision of its ADD; `None`: none was recorded, or one that changes with labels while the pod runs. A decision
    /// code unknown to this version is assumed to have made no rules.
    fn membership_by_record(record: &PodRecord) -> Option<Membership> {
        match record.decision.as_str() {
            SidecarRedirect::CODE => Some(Membership::Sidecar),
            code if code.is_empty() || EnrolmentReason::from_name(code).is_some() => None,
            _ => Some(Membership::Outside),
        }
    }

    /// Determines the membership by a query.
    ///
    /// # Errors
    /// Neither agent nor API server answered in time, or an annotation has become invalid.
    fn find_membership(call: &PluginCall, authority: &AgentOrApi) -> Result<Membership, String> {
        let Some(name) = &call.pod else { return Ok(Membership::Outside) };
        let unknown = |why: Unanswered| why.describe(name);
        let Submitted { pod, reply } = authority.submit_call(name, call.uid.as_ref()).map_err(unknown)?;
        let decision = decide_by_facts(call, authority, &pod).map_err(unknown)?;
        Ok(match decision.map_err(|invalid| invalid.to_string())? {
            PodDecision::Skip(_) => Membership::Outside,
            PodDecision::Sidecar(_) => Membership::Sidecar,
            PodDecision::Ambient(_) => Membership::Ambient(reply),
        })
    }
}

fn judge_redirection(call: &PluginCall, authority: &AgentOrApi) -> CheckVerdict {
    if decide_early(call).is_some_and(|decision| matches!(decision, PodDecision::Skip(_))) {
        return CheckVerdict::InOrder;
    }
    let record = record::find_for_container(call);
    let recorded = record.as_ref().and_then(Membership::membership_by_record);
    if recorded == Some(Membership::Outside) {
        return CheckVerdict::InOrder;
    }
    let missing = match missing_traffic(call, record.as_ref()) {
        Ok(None) => return CheckVerdict::InOrder,
        Ok(Some(missing)) => missing,
        Err(why) => return CheckVerdict::Unknown(why),
    };
    match recorded.map_or_else(|| Membership::find_membership(call, authority), Ok) {
        Ok(Membership::Outside) => CheckVerdict::InOrder,
        Ok(Membership::Sidecar) => CheckVerdict::Bypasses(format!("no rule redirects {missing}")),
        Ok(Membership::Ambient(reply)) => judge_enrolment(call, reply),
        Err(why) => CheckVerdict::Unknown(why),
    }
}

/// Returns traffic that no rule in the pod's network namespace redirects, of what its ADD recorded, else of what every rule set
/// redirects; and rules that the kernel does not evaluate. `None`: no traffic is missing. Rules of in-pod capture have chains with
/// equal names, except in native tables.
fn missing_traffic(call: &PluginCall, record: Option<&PodRecord>) -> Result<Option<String>, String> {
    let netns = open_netns(call)?;
    let recorded = record.map(|record| CapturedTraffic::from_lines(&record.captured));
    let expected =
        recorded.filter(|recorded| !recorded.is_empty()).unwrap_or_else(CapturedTraffic::any_outbound);
    let missing_of = |owner| CapturedTraffic::observe_netns(owner).map(|found| expected.missing_from(&found));
    let observed = netns.run_in(|| {
        let missing = missing_of(ChainSet::SIDECAR)?;
        if missing.is_empty() || (call.conf.ambient_enabled && missing_of(ChainSet::IN_POD)?.is_empty()) {
            return Ok(None);
        }
        let inactive = firewall::inactive_rules(ChainSet::SIDECAR).unwrap_or_default(); // traffic bypasses the mesh in any case
        Ok(Some([vec![missing.join(", ")], inactive].concat().join("; ")))
    });
    observed.map_err(|error| error.to_string())?.map_err(|error: firewall::Error| error.to_string())
}

/// Evaluates a pod of ambient mode whose namespace has no rules. The agent may know that it does not belong to the mesh; on a node
/// with node-level capture, the addresses in its sets decide, whatever the agent has observed by now.
fn judge_enrolment(call: &PluginCall, reply: AgentReply) -> CheckVerdict {
    let ips = offline_enrol::pod_addresses(call).unwrap_or_default();
    let by_node = OfflineEnrolment::open(call).map(|mut node| node.check_enrolled(&ips));
    match (reply, by_node) {
        (Ok(Ok(_)), _) | (_, Ok(Ok(()))) => CheckVerdict::InOrder,
        (Ok(Err(why)), _) | (Err(_), Ok(Err(why))) => CheckVerdict::Bypasses(why),
        (Err(_), Err(why)) => CheckVerdict::Unknown(format!(
            "no rule redirects its traffic, and only the agent knows how this node captures ({why})"
        )),
    }
}
