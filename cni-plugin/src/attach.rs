//! ADD: decides, then acts in the pod's namespace; and DEL.

use std::{
    fs,
    panic::resume_unwind,
    path::Path,
    sync::{Arc, Mutex, mpsc},
    thread,
};

use cni_types::{CniError, ErrorCode, run_dir};
use enrolment::{
    EnrolmentPolicy, EnrolmentReason, InvalidAnnotation, PodDecision, RuntimeCall, SidecarRedirect,
};
use firewall::{FirewallOptions, NativeTables};
use model::Pod;
use netns::Netns;
use redirect::{DesiredRules, FamilyChoice, PreparedNetns, RedirectReport};
use rules::sidecar;

use agent_protocol::{CniVerb, PodRecord};

use crate::{
    agent::{self, AgentClient, AgentOrApi, AgentReply, AgentSilence, Submitted, Unanswered},
    call::PluginCall,
    facts::LookupError,
    log::CallLog,
    netns_lock,
    offline_enrol::{self, OfflineEnrolment},
    record, refusal,
};

/// ADD: brings the pod into the mesh, if it belongs there, and returns the previous result.
///
/// # Errors
/// The pod must not start: it may belong to the mesh and could not be brought in.
pub fn add_pod(call: &PluginCall, authority: &AgentOrApi, log: &mut CallLog) -> Result<String, CniError> {
    let result = call.conf.pass_through()?; // before any change: it may be unreadable
    if let Some(decision) = decide_early(call) {
        log.record_decision(&decision);
        log.info(decision.to_string());
        return Ok(result);
    }
    let (decision, redirected) = if is_injected(call) {
        prepare_while_deciding(call, authority, log)
    } else {
        decide_then_redirect(call, authority, log)
    };
    let (decision, reply) = decision?;
    log.record_decision(&decision);
    match &decision {
        PodDecision::Skip(_) => log.info(decision.to_string()),
        PodDecision::Ambient(reason) => log.info(ensure_enrolled(call, authority, *reason, reply)?),
        PodDecision::Sidecar(redirect) => {
            log_warnings(log, &redirect.warnings);
            if let Some(RedirectResult { report, rules, warning }) = redirected? {
                log_warnings(log, warning.as_slice());
                log.rules = rules;
                log.info(format!("{decision}; {}", redirect_summary(&report)));
            }
        }
    }
    Ok(result)
}

/// Result of the redirection in a pod's namespace.
struct RedirectResult {
    report: RedirectReport,
    /// Rules, for the record.
    rules: DesiredRules,
    warning: Option<String>,
}

/// A decision, and what the agent did.
type Decided = (PodDecision, AgentReply);

/// A decision, and the result of the redirection, if any.
type AttachOutcome = (Result<Decided, CniError>, Result<Option<RedirectResult>, CniError>);

/// Decides first, then redirects if required: the call does not indicate whether it will be.
fn decide_then_redirect(call: &PluginCall, authority: &AgentOrApi, log: &mut CallLog) -> AttachOutcome {
    let decision = decide_from_pod(call, authority, log);
    let redirected = match &decision {
        Ok((PodDecision::Sidecar(redirect), _)) => redirect_pod(call, false, || Some(redirect.clone())),
        _ => Ok(None),
    };
    (decision, redirected)
}

/// Prepares while deciding, if the call shows that the pod was injected: while the query about the pod is pending, its namespace is
/// observed and the tools are loaded. Both take about as long. If no redirection is required, nothing was changed.
fn prepare_while_deciding(call: &PluginCall, authority: &AgentOrApi, log: &mut CallLog) -> AttachOutcome {
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    thread::scope(|scope| {
        let wait = || receiver.lock().ok()?.recv().ok();
        let spawned = thread::Builder::new().spawn_scoped(scope, move || redirect_pod(call, true, wait));
        let Ok(work) = spawned else { return decide_then_redirect(call, authority, log) };
        let decision = decide_from_pod(call, authority, log);
        if let Ok((PodDecision::Sidecar(redirect), _)) = &decision {
            drop(sender.send(redirect.clone())); // the receiver is dropped if the work has already failed
        }
        drop(sender);
        (decision, work.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Observes the pod's namespace, waits for `order`, and applies it.
fn redirect_pod(
    call: &PluginCall,
    start_tools: bool,
    order: impl Fn() -> Option<Box<SidecarRedirect>> + Send + Sync,
) -> Result<Option<RedirectResult>, CniError> {
    if let Some(file) = &call.dry_run {
        return order().map_or(Ok(None), |redirect| write_only(call, &redirect, file));
    }
    let (done, warning) = in_pod(call, |options| {
        let _lock = netns_lock::acquire().map_err(RedirectFailure::NetnsLock)?;
        let mut prepared = PreparedNetns::observe(options)?;
        if start_tools {
            prepared.start_tools();
        }
        let Some(redirect) = order() else { return Ok(None) };
        let report = prepared.apply(&redirect.config, FamilyChoice::by_setting(redirect.dual_stack))?;
        let rules = DesiredRules::for_families(&redirect.config, &report.families);
        Ok(Some((report, rules)))
    })?;
    Ok(done.map(|(report, rules)| RedirectResult { report, rules, warning }))
}

/// Dry run: writes the input of a restore in an empty namespace, one family after the other, without any change.
fn write_only(
    call: &PluginCall,
    redirect: &SidecarRedirect,
    file: &Path,
) -> Result<Option<RedirectResult>, CniError> {
    let choice = FamilyChoice::by_setting(redirect.dual_stack);
    let (families, _) = in_pod(call, |_| Ok(choice.choose_in_netns()?))?;
    let text: String =
        families.iter().map(|family| sidecar::restore_text(&redirect.config, *family)).collect();
    let failed = |error| CniError::new(ErrorCode::Io, format!("cannot write {}: {error}", file.display()));
    fs::write(file, text).map_err(failed).map(|()| None)
}

/// Whether the runtime passed the annotations, and the injector's is among them.
pub(crate) fn is_injected(call: &PluginCall) -> bool {
    call.conf.pod_annotations.as_ref().is_some_and(|annotations| annotations.contains_key(enrolment::STATUS))
}

fn log_warnings(log: &mut CallLog, warnings: &[String]) {
    warnings.iter().for_each(|warning| log.warn(warning.clone()));
}

/// Decides from the call alone, where that suffices, to avoid unneeded queries.
pub(crate) fn decide_early(call: &PluginCall) -> Option<PodDecision> {
    let known = RuntimeCall { pod: call.pod.as_ref(), annotations: call.conf.pod_annotations.as_ref() };
    enrolment::decide_early(&known, &enrolment_policy(call))
}

/// Decides from the pod itself.
fn decide_from_pod(
    call: &PluginCall,
    authority: &AgentOrApi,
    log: &mut CallLog,
) -> Result<Decided, CniError> {
    let Some(name) = &call.pod else {
        return Ok((PodDecision::Skip(enrolment::SkipReason::NoPod), Ok(Ok(false))));
    };
    if let Err(invalid) = &call.enablement {
        return Err(invalid.clone());
    }
    let later = |why: &Unanswered| CniError::new(ErrorCode::TryAgainLater, why.describe(name));
    let Submitted { pod, reply } = match authority.submit_call(name, call.uid.as_ref()) {
        Ok(submitted) => submitted,
        Err(why @ Unanswered { error: LookupError::Agent(_), .. }) => {
            return Err(authority.explain_refusal(later(&why)));
        }
        Err(why) => return Ok((decide_without_facts(call, &why, later, log)?, Ok(Ok(false)))),
    };
    refusal::remove_record(call);
    if let Err(AgentSilence { message, is_gap: false }) = &reply {
        log.warn(format!("{message}; asked the API server"));
    }
    let decision = decide_by_facts(call, authority, &pod).map_err(|why| later(&why))?;
    let decision = decision.map_err(|error| CniError::new(ErrorCode::Other, error.to_string()))?;
    match (&decision, call.conf.kubernetes.intercept_type.as_str()) {
        (PodDecision::Sidecar(_), other) if other != INTERCEPT_TYPE => Err(CniError::new(
            ErrorCode::InvalidConfig,
            format!("kubernetes.intercept_type is {other:?}; allowed: {INTERCEPT_TYPE:?}"),
        )),
        _ => Ok((decision, reply)),
    }
}

/// Decides from the pod and, if needed, its namespace.
///
/// # Errors
/// The namespace could not be determined; the inner error: an annotation is invalid.
pub(crate) fn decide_by_facts(
    call: &PluginCall,
    authority: &AgentOrApi,
    pod: &Pod,
) -> Result<Result<PodDecision, InvalidAnnotation>, Unanswered> {
    let policy = enrolment_policy(call);
    let namespace = match enrolment::needs_namespace(pod, &policy) {
        true => Some(authority.find_namespace(&pod.metadata.namespace)?),
        false => None,
    };
    Ok(enrolment::decide(pod, namespace.as_ref(), &policy))
}

/// Decides on a pod known to neither agent nor API server: from the node alone, if the rules of [`refusal`] permit.
fn decide_without_facts(
    call: &PluginCall,
    why: &Unanswered,
    later: impl Fn(&Unanswered) -> CniError,
    log: &mut CallLog,
) -> Result<PodDecision, CniError> {
    match refusal::judge_add(call, &why.error) {
        Some(Ok(warning)) => {
            log.warn(warning);
            Ok(PodDecision::Skip(enrolment::SkipReason::NotInjected))
        }
        Some(Err(blocked)) => {
            let error = later(why);
            Err(CniError { msg: format!("{}; {blocked}", error.msg), ..error })
        }
        None => Err(later(why)),
    }
}

/// The only supported interception type, as in Istio.
const INTERCEPT_TYPE: &str = "iptables";

fn enrolment_policy(call: &PluginCall) -> EnrolmentPolicy {
    // An ADD that needs invalid selectors fails; at CHECK they do not make a running pod bypass the mesh.
    let enablement = call.enablement.clone().unwrap_or_else(|_| Some(Vec::new()));
    EnrolmentPolicy {
        excluded_namespaces: call.conf.kubernetes.exclude_namespaces.clone(),
        agent_namespaces: call.conf.agent_namespaces.iter().map(|found| found.as_str().to_owned()).collect(),
        ambient: call.conf.ambient_enabled,
        // As in the agent: selectors imply a version of Istio in which the annotation is ignored.
        ignores_opt_out: enablement.is_some(),
        enablement,
        ..EnrolmentPolicy::default()
    }
}

/// Ensures that an ambient pod is enrolled, and returns how: by the agent, else from the agent's files on the node, else by the
/// agent's successor.
///
/// # Errors
/// The pod was not enrolled: it must not start outside of the mesh.
fn ensure_enrolled(
    call: &PluginCall,
    authority: &AgentOrApi,
    reason: EnrolmentReason,
    reply: AgentReply,
) -> Result<String, CniError> {
    let decision = PodDecision::Ambient(reason);
    let silence = match reply {
        Ok(done) => return enrolled_by_agent(call, authority, &decision, done),
        Err(silence) => silence,
    };
    let Err(why) = enrolled_alone(call) else { return Ok(format!("{decision}; {}", silence.message)) };
    match authority.await_successor() {
        Ok(done) => enrolled_by_agent(call, authority, &decision, done),
        Err(silence) => {
            let message = format!(
                "{} belongs to ambient mode ({reason}) and could not be enrolled: {}, and {why}",
                pod_title(call),
                silence.message
            );
            Err(authority.explain_refusal(CniError::new(ErrorCode::TryAgainLater, message)))
        }
    }
}

/// Describes the agent's result `done`, for a log line.
fn enrolled_by_agent(
    call: &PluginCall,
    authority: &AgentOrApi,
    decision: &PodDecision,
    done: Result<bool, String>,
) -> Result<String, CniError> {
    match done {
        Ok(true) => Ok(format!("{decision}; the agent did it")),
        // The agent knows more than the call: for instance, which pods are ztunnel.
        Ok(false) => Ok("skipped: not in ambient mode, according to the agent".to_owned()),
        Err(why) => {
            let message = format!("the node agent failed to handle {}: {why}", pod_title(call));
            Err(authority.explain_refusal(CniError::new(ErrorCode::TryAgainLater, message)))
        }
    }
}

/// Enrols from the agent's files on the node.
///
/// # Errors
/// There are no such files, or the kernel refuses.
fn enrolled_alone(call: &PluginCall) -> Result<(), String> {
    let ips = offline_enrol::addresses_at_start(call).map_err(|error| error.msg)?;
    if ips.is_empty() {
        return Err("the plugins before this one gave the pod no address".to_owned());
    }
    OfflineEnrolment::open(call)?.enrol_pod(&ips, &call.uid.clone().unwrap_or_default())
}

/// DEL: releases an ambient pod's addresses: those that the call reports, else those of the `record` of its ADD. Failures are only
/// logged, because a pod must not be kept from ending.
pub fn release_pod(call: &PluginCall, record: Option<PodRecord>, log: &mut CallLog) {
    if !call.conf.ambient_enabled {
        return;
    }
    let PodRecord { ips: recorded, uid, pod_uid, .. } = record.unwrap_or_default();
    let reported = offline_enrol::pod_addresses(call).unwrap_or_default();
    let ips = if reported.is_empty() { recorded } else { reported };
    let mut request = agent::request_for_call(CniVerb::Del, call, ips.clone());
    if request.uid.is_empty() {
        request.uid = if pod_uid.is_empty() { uid } else { pod_uid };
    }
    // Identifies the sandbox of a pod whose ADD was not received by any agent.
    let netns = call.environment.netns.as_ref().and_then(|path| Netns::open(path.as_path()).ok());
    let agent = AgentClient::new(call.conf.agent_socket.as_deref());
    let done = match agent.send_request(&request, netns.as_ref()) {
        Ok(answer) => answer.error.map_or(Ok(()), Err),
        // Without a UID the current owner of the addresses is unknown; left to the agent.
        Err(_) if ips.is_empty() || request.uid.is_empty() => Ok(()),
        Err(_) => OfflineEnrolment::open(call).and_then(|mut node| node.release_pod(&ips, &request.uid)),
    };
    if let Err(why) = done {
        log.warn(format!("{} is not released yet: {why}", pod_title(call)));
    }
}

pub(crate) fn pod_title(call: &PluginCall) -> String {
    call.pod.as_ref().map_or_else(|| "the pod".to_owned(), |pod| format!("pod {pod}"))
}

fn netns_path(call: &PluginCall) -> &Path {
    call.environment.netns.as_ref().map_or(Path::new(""), |netns| netns.as_path())
}

/// Reason why the actions in the pod's namespace were not, or not all, executed.
#[derive(Debug)]
enum RedirectFailure {
    NetnsLock(netns_lock::NetnsBusy),
    Redirect(redirect::Error),
}

impl<E: Into<redirect::Error>> From<E> for RedirectFailure {
    fn from(error: E) -> RedirectFailure {
        RedirectFailure::Redirect(error.into())
    }
}

/// Executes actions in the pod's namespace; the second value is a warning.
fn in_pod<T: Send>(
    call: &PluginCall,
    act: impl Fn(&FirewallOptions) -> Result<T, RedirectFailure> + Send + Sync,
) -> Result<(T, Option<String>), CniError> {
    let what = |error: &dyn std::fmt::Display| {
        format!("cannot redirect {} in {}: {error}", pod_title(call), netns_path(call).display())
    };
    let netns = pods_netns(call)?;
    let owner = netns.foreign_owner().map_err(|error| CniError::new(ErrorCode::Other, what(&error)))?;
    let lock_directory = record::run_dir(&call.conf).map(|directory| directory.join(run_dir::LOCKS));
    let native = NativeTables::by_setting(call.conf.native_nftables);
    let user_namespace = owner.map(Arc::new);
    let options = FirewallOptions { user_namespace, lock_directory, native, ..FirewallOptions::default() };
    firewall::run_inside(&netns, &options, act).map_err(|failure| match failure {
        RedirectFailure::NetnsLock(error) => CniError::new(ErrorCode::TryAgainLater, what(&error)),
        RedirectFailure::Redirect(error) => CniError::new(ErrorCode::Other, what(&error)),
    })
}

/// Returns the namespace in `CNI_NETNS`. Never our own, which is the node's: a pod that shares it is not passed to CNI plugins, and
/// a sidecar's rules there would cut off the node.
pub(crate) fn pods_netns(call: &PluginCall) -> Result<Netns, CniError> {
    open_netns(call).map_err(|why| {
        let what = format!("cannot redirect {}: CNI_NETNS: {why}", pod_title(call));
        CniError::new(ErrorCode::InvalidEnvironment, what)
    })
}

/// Opens the namespace like [`pods_netns`].
///
/// # Errors
/// The reason why it cannot be used.
pub(crate) fn open_netns(call: &PluginCall) -> Result<Netns, String> {
    let path = netns_path(call);
    let netns = Netns::open(path).map_err(|error| error.to_string())?;
    let own = Netns::current().map_err(|error| error.to_string())?;
    match own.id() == netns.id() {
        true => Err(format!("{} is the network namespace of the node itself", path.display())),
        false => Ok(netns),
    }
}

fn redirect_summary(report: &RedirectReport) -> String {
    let families: Vec<String> = report.families.iter().map(ToString::to_string).collect();
    let changed = if report.is_unchanged() { "nothing to change" } else { "rules are in place" };
    format!("{changed} ({}, {} backend)", families.join(" and "), report.backend)
}
