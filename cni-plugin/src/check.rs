//! CHECK: whether the pod is still redirected.
//!
//! It fails only for a pod that is known to bypass the mesh: a runtime that starts anew asks this for every sandbox, one after
//! the other, and has the kubelet replace those that fail. So rules of every version and setting count that redirect the
//! traffic; a record of the ADD tells whether the pod belongs to the mesh before anyone is asked; and what cannot be
//! determined in time counts as in order.

use cni_types::{CniError, ErrorCode};
use enrolment::{EnrolmentReason, PodDecision, SidecarRedirect};
use firewall::CapturedTraffic;
use rules::ChainSet;
use wire::PodRecord;

use crate::{
    agent::AgentOrApi,
    attach::{decide_by_facts, decide_early, describe_unknown, open_netns, pod_title},
    call::PluginCall,
    log::CallLog,
    offline_enrol::{self, OfflineEnrolment},
    record,
};

/// Fails if the pod is known to bypass the mesh.
///
/// # Errors
/// It does, or the call is invalid.
pub fn check_pod(call: &PluginCall, authority: &AgentOrApi, log: &mut CallLog) -> Result<String, CniError> {
    // CRI-O that has lost its cache of results calls with the configuration on disk; the pod may be in order all the same.
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
    /// Why that could not be determined.
    Unknown(String),
    /// Which of its traffic is not redirected.
    Bypasses(String),
}

/// Whether a pod belongs to the mesh, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    Outside,
    Sidecar,
    Ambient,
}

impl Membership {
    /// As its ADD decided. `None`: it recorded no decision, or one that changes with labels while the pod runs. One that only
    /// another version knows made no rules as far as this one can determine.
    fn membership_by_record(record: &PodRecord) -> Option<Membership> {
        match record.decision.as_str() {
            SidecarRedirect::CODE => Some(Membership::Sidecar),
            code if code.is_empty() || EnrolmentReason::from_name(code).is_some() => None,
            _ => Some(Membership::Outside),
        }
    }

    fn membership_by_decision(decision: &PodDecision) -> Membership {
        match decision {
            PodDecision::Skip(_) => Membership::Outside,
            PodDecision::Sidecar(_) => Membership::Sidecar,
            PodDecision::Ambient(_) => Membership::Ambient,
        }
    }

    /// # Errors
    /// Neither agent nor API server answered in time, or an annotation is invalid now.
    fn find_membership(call: &PluginCall, authority: &AgentOrApi) -> Result<Membership, String> {
        let Some(name) = &call.pod else { return Ok(Membership::Outside) };
        let unknown = |error| describe_unknown(name, &error, authority.silence_reason());
        let pod = authority.submit_call(name, call.uid.as_ref()).map_err(unknown)?;
        let decision = decide_by_facts(call, authority, &pod).map_err(unknown)?;
        decision.as_ref().map(Membership::membership_by_decision).map_err(ToString::to_string)
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
        Ok(Membership::Ambient) => judge_enrolment(call, authority),
        Err(why) => CheckVerdict::Unknown(why),
    }
}

/// The traffic that no rule in the pod's network namespace redirects: of what its ADD recorded, else of what every rule set
/// redirects; and which rules are there that the kernel does not evaluate. `None`: there is none. Rules of in-pod capture have
/// chains of the same names, except in native tables.
fn missing_traffic(call: &PluginCall, record: Option<&PodRecord>) -> Result<Option<String>, String> {
    let netns = open_netns(call)?;
    let recorded = record.map(|record| CapturedTraffic::from_lines(&record.captured));
    let expected =
        recorded.filter(|recorded| !recorded.is_empty()).unwrap_or_else(CapturedTraffic::any_outbound);
    let missing_of = |owner| CapturedTraffic::of_this_netns(owner).map(|found| expected.missing_from(&found));
    let observed = netns.run_in(|| {
        let mut missing = missing_of(ChainSet::SIDECAR)?;
        if call.conf.ambient_enabled && !missing.is_empty() {
            missing = missing_of(ChainSet::IN_POD)?;
        }
        if missing.is_empty() {
            return Ok(None);
        }
        let inactive = firewall::inactive_rules(ChainSet::SIDECAR).unwrap_or_default(); // whatever else there is, it bypasses
        Ok(Some([vec![missing.join(", ")], inactive].concat().join("; ")))
    });
    observed.map_err(|error| error.to_string())?.map_err(|error: firewall::Error| error.to_string())
}

/// Judges a pod of ambient mode whose namespace has no rules. The agent may know that it does not belong to the mesh; on a node
/// that captures by the addresses in its sets, those tell, whatever the agent has observed by now.
fn judge_enrolment(call: &PluginCall, authority: &AgentOrApi) -> CheckVerdict {
    let ips = offline_enrol::pod_addresses(call).unwrap_or_default();
    let by_node = OfflineEnrolment::open(call).map(|mut node| node.check_enrolled(&ips));
    match (authority.check_result(), by_node) {
        (Some(Ok(())), _) | (_, Ok(Ok(()))) => CheckVerdict::InOrder,
        (Some(Err(why)), _) | (None, Ok(Err(why))) => CheckVerdict::Bypasses(why),
        (None, Err(why)) => CheckVerdict::Unknown(format!(
            "no rule redirects its traffic, and only the agent knows how this node captures ({why})"
        )),
    }
}
