//! `install-cni check`: from facts about a node to what would keep the agent from capturing pods there. The same judgement is
//! made at the agent's start, and stands in the document.

mod codes;

use std::{collections::BTreeSet, net::IpAddr};

use serde::Serialize;

use crate::{
    findings::{NodeFinding, PreflightCheck, Severity, exit_status},
    junit::{JunitCase, render_junit},
    sarif::{SarifResult, SarifRule, render_sarif},
    tables::{Cell, Colour, render_table},
    text::{format_count, link_docs, sanitize_text, to_sentence},
};

pub use codes::PreflightCode;

/// Name and version of the form of `install-cni check -o json`.
pub const PREFLIGHT_SCHEMA: &str = "millrace.node-preflight/v1";
/// The page that describes each code below an anchor of the same name.
const DOCS: &str = "docs/preflight.md";
/// Least number of files that the agent may need to open: for the 110 pods that the kubelet allows by default, and itself.
const FILES: u64 = 512;
/// Least memory, in MiB: several times what the agent needs with 250 pods (docs/sizing.md), without tools.
const MEMORY: u64 = 32;
/// Advice for what could not be determined.
const ASK_AGAIN: &str = "Run install-cni check in the agent's container, with the agent's permissions.";
/// So many numbers that are taken in pods are shown.
const SHOWN: usize = 4;
/// By how much clocks may differ, in seconds.
const SKEW: i64 = 60;

/// Result of doing something in a network namespace that is made for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The kernel accepted it.
    Accepted,
    /// The kernel, or the lack of a tool, makes it impossible; why.
    Refused(String),
    /// Whether it is possible is not known; why.
    NotTested(String),
}

/// Backends that hold rules on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablesInUse {
    /// Chains with rules in legacy tables.
    pub legacy_chains: Vec<String>,
    /// Tables and chains of nf_tables, as far as they could be listed.
    pub nft_names: Vec<String>,
    /// The agent can change legacy tables.
    pub has_legacy_tool: bool,
}

/// Sources of what the node sends to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSources {
    /// By its routes to pods that run.
    pub routes: BTreeSet<IpAddr>,
    /// Of its probes, as captured pods see them.
    pub used: Vec<IpAddr>,
    /// Sources in use that were to be detected by the routes, and are not of these.
    pub undetected: Vec<IpAddr>,
}

/// Times of the service account's token, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTimes {
    /// Issued at that time.
    pub issued: i64,
    /// Valid until then.
    pub expires: i64,
}

/// Context in which SELinux runs the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeLinuxContext {
    /// Type of the context.
    pub domain: String,
    /// The policy is enforced; `None`: could not be determined.
    pub enforcing: Option<bool>,
}

/// Profile with which AppArmor runs the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppArmorProfile {
    /// Name of the profile.
    pub name: String,
    /// Denials are enforced, and not only logged.
    pub enforced: bool,
}

/// A result of an observation, or why it could not be made.
pub type Observed<T> = Result<T, String>;

/// Something that was observed on the node. What does not concern an agent with its settings is not observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreflightFact {
    /// A trial, and whether no pod can be captured, as configured, if it is refused.
    Kernel(PreflightCode, Trial, bool),
    /// Backends in use.
    Tables(Observed<TablesInUse>),
    /// Objects that should not be there, a message for each, and how bad any of them is.
    Found(PreflightCode, Severity, Observed<Vec<String>>),
    /// Pods whose network namespaces were examined, and what other components have there of the numbers of captured pods.
    PodNumbers(Observed<(usize, Vec<String>)>),
    /// Sources of the node's packets to pods, and of its probes.
    ProbeSources(Observed<ProbeSources>),
    /// Number of files that the agent may open; `None`: any.
    Files(Option<u64>),
    /// Memory limit of the container in bytes; `None`: there is none.
    Memory(Observed<Option<u64>>),
    /// Times of the token, and the present time.
    Clock(Observed<TokenTimes>, i64),
    /// The network that the runtime takes, or why there is none.
    Network(Observed<Result<String, String>>),
    /// Context of SELinux; `None`: there is none.
    SeLinux(Observed<Option<SeLinuxContext>>),
    /// Profile of AppArmor; `None`: there is none.
    AppArmor(Observed<Option<AppArmorProfile>>),
}

/// The answer of `install-cni check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePreflight {
    /// [`PREFLIGHT_SCHEMA`].
    pub schema: &'static str,
    /// Name of the node.
    pub node: String,
    /// Every check that concerns this node and these settings.
    pub checks: Vec<PreflightCheck>,
}

/// Outcome of a check: severity and message, or what was found if it passed.
type Outcome = Result<String, (Severity, String)>;

/// Judges what was observed.
pub fn judge_preflight(facts: &[PreflightFact]) -> Vec<PreflightCheck> {
    let judged = facts.iter().map(|fact| {
        let (code, outcome) = judge_fact(fact);
        (code, make_check(code, outcome))
    });
    let mut judged: Vec<_> = judged.collect();
    judged.sort_by_key(|(code, _)| *code);
    judged.into_iter().map(|(_, check)| check).collect()
}

fn make_check(code: PreflightCode, outcome: Outcome) -> PreflightCheck {
    let (severity, message) = match outcome {
        Ok(message) => (None, message),
        Err((severity, message)) => (Some(severity), message),
    };
    let (consequence, advice) = match severity {
        None => (String::new(), ""),
        Some(Severity::Unknown) => (format!("Whether {} could not be determined.", code.check()), ASK_AGAIN),
        Some(_) => (code.consequence().to_owned(), code.advice()),
    };
    PreflightCheck {
        code: code.as_str().to_owned(),
        title: code.check().to_owned(),
        severity,
        message: sanitize_text(&message),
        consequence,
        advice: link_docs(advice),
        link: link_docs(&format!("{DOCS}#{}", code.as_str())),
    }
}

fn judge_fact(fact: &PreflightFact) -> (PreflightCode, Outcome) {
    use PreflightCode as Code;
    match fact {
        PreflightFact::Kernel(code, trial, required) => (*code, judge_trial(trial, *required)),
        PreflightFact::Tables(tables) => (Code::LegacyTables, judge_observation(tables, judge_tables)),
        PreflightFact::Found(code, severity, found) => {
            let judge = |found: &Vec<String>| match found.is_empty() {
                true => Ok(String::new()),
                false => Err((*severity, found.join("; "))),
            };
            (*code, judge_observation(found, judge))
        }
        PreflightFact::PodNumbers(found) => {
            let judge = |(pods, taken): &(usize, Vec<String>)| match taken.is_empty() {
                true => Ok(format!("network namespaces of pods examined: {pods}")),
                false => Err((Severity::Warning, join_some(taken))),
            };
            (Code::PodNumbersTaken, judge_observation(found, judge))
        }
        PreflightFact::ProbeSources(found) => (Code::ProbeSource, judge_observation(found, judge_sources)),
        PreflightFact::Files(most) => (
            Code::FewFiles,
            match most {
                Some(most) if *most < FILES => {
                    Err((Severity::Warning, format!("at most {most} files can be open")))
                }
                Some(most) => Ok(format!("at most {most} files can be open")),
                None => Ok("any number".to_owned()),
            },
        ),
        PreflightFact::Memory(limit) => (Code::LittleMemory, judge_observation(limit, judge_memory)),
        PreflightFact::Clock(times, now) => {
            (Code::Clock, judge_observation(times, |times| judge_clock(*times, *now)))
        }
        PreflightFact::Network(found) => (
            Code::NoNetwork,
            judge_observation(found, |network| network.clone().map_err(|why| (Severity::Warning, why))),
        ),
        PreflightFact::SeLinux(found) => (Code::SeLinux, judge_observation(found, judge_selinux)),
        PreflightFact::AppArmor(found) => (Code::AppArmor, judge_observation(found, judge_apparmor)),
    }
}

/// Judges an observation; one that could not be made is unknown.
fn judge_observation<T>(found: &Observed<T>, judge: impl FnOnce(&T) -> Outcome) -> Outcome {
    match found {
        Ok(found) => judge(found),
        Err(why) => Err((Severity::Unknown, why.clone())),
    }
}

fn join_some(found: &[String]) -> String {
    let more = found.len().saturating_sub(SHOWN);
    let more = (more > 0).then(|| format!("and {more} more"));
    found.iter().take(SHOWN).cloned().chain(more).collect::<Vec<_>>().join("; ")
}

fn judge_trial(trial: &Trial, required: bool) -> Outcome {
    match trial {
        Trial::Accepted => Ok(String::new()),
        Trial::Refused(why) if required => Err((Severity::Error, why.clone())),
        Trial::Refused(why) => Err((Severity::Warning, why.clone())),
        Trial::NotTested(why) => Err((Severity::Unknown, why.clone())),
    }
}

/// Beginnings of the names of tables and chains, and whose they are.
const OWNERS: [(&str, &str); 14] = [
    ("KUBE-", "kube-proxy or the kubelet"),
    ("kube-proxy", "kube-proxy or the kubelet"),
    ("cali", "Calico"),
    ("CILIUM_", "Cilium"),
    ("CNI-", "CNI plugins"),
    ("FLANNEL-", "Flannel"),
    ("DOCKER", "Docker"),
    ("docker-", "Docker"),
    ("firewalld", "firewalld"),
    ("ufw", "ufw"),
    ("ovn-kubernetes", "OVN-Kubernetes"),
    ("ANTREA-", "Antrea"),
    ("ISTIO_", "Istio or Millrace"),
    ("ztunnel-", "Istio or Millrace"),
];

fn judge_tables(tables: &TablesInUse) -> Outcome {
    let nft = match list_owners(&tables.nft_names) {
        owners if owners.is_empty() => owners,
        owners => format!("; nf_tables have those of {owners}"),
    };
    if tables.legacy_chains.is_empty() {
        return Ok(format!("no legacy tables with rules{nft}"));
    }
    let number = format_count(tables.legacy_chains.len(), "chain");
    let by = match list_owners(&tables.legacy_chains) {
        owners if owners.is_empty() => owners,
        owners => format!(", by their names of {owners}"),
    };
    let message = format!("legacy tables hold rules in {number}{by}");
    if tables.has_legacy_tool {
        return Ok(format!("{message}{nft}"));
    }
    Err((Severity::Warning, format!("{message}, and there is no iptables-legacy here{nft}")))
}

/// Empty: nobody is known who gives such names.
fn list_owners(names: &[String]) -> String {
    let owner =
        |name: &String| OWNERS.iter().find(|(start, _)| name.starts_with(start)).map(|(_, owner)| *owner);
    names.iter().filter_map(owner).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

fn judge_sources(sources: &ProbeSources) -> Outcome {
    fn list<'a>(ips: impl IntoIterator<Item = &'a IpAddr>) -> String {
        ips.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    }
    let routes = match sources.routes.is_empty() {
        true => "the node has no route to a pod that runs".to_owned(),
        false => format!("the node reaches its pods from {}", list(&sources.routes)),
    };
    match sources.undetected.is_empty() {
        true => Ok(format!("{routes}; probes come from {}", list(&sources.used))),
        false => {
            Err((Severity::Warning, format!("{routes}; not detected: {} is used", list(&sources.undetected))))
        }
    }
}

fn judge_memory(limit: &Option<u64>) -> Outcome {
    match limit.map(|limit| limit >> 20) {
        None => Ok("no limit".to_owned()),
        Some(limit) if limit < MEMORY => Err((Severity::Warning, format!("the memory limit is {limit} MiB"))),
        Some(limit) => Ok(format!("the memory limit is {limit} MiB")),
    }
}

/// Types that are known to be confined, and not to be. Of another one nobody here knows.
const CONFINED: [&str; 3] = ["container_t", "container_init_t", "svirt_lxc_net_t"];
const UNCONFINED: [&str; 4] = ["spc_t", "super_t", "unconfined_t", "unconfined_service_t"];

fn judge_selinux(context: &Option<SeLinuxContext>) -> Outcome {
    let Some(SeLinuxContext { domain, enforcing }) = context else { return Ok("no SELinux".to_owned()) };
    let is_one_of = |domains: &[&str]| domains.contains(&domain.as_str());
    match enforcing {
        _ if is_one_of(&UNCONFINED) => Ok(format!("the agent has the type {domain}, which is not confined")),
        Some(false) => Ok(format!("the agent has the type {domain}, and the policy is not enforced")),
        Some(true) if is_one_of(&CONFINED) => {
            Err((Severity::Warning, format!("the agent has the type {domain}, and the policy is enforced")))
        }
        Some(true) => Err((Severity::Unknown, format!("it is not known here what the type {domain} may do"))),
        None => {
            let message =
                format!("the agent has the type {domain}, and whether the policy is enforced cannot be seen");
            Err((Severity::Unknown, message))
        }
    }
}

fn judge_apparmor(profile: &Option<AppArmorProfile>) -> Outcome {
    match profile {
        None => Ok("no profile".to_owned()),
        Some(AppArmorProfile { name, enforced: false }) => Ok(format!("the profile {name} denies nothing")),
        Some(AppArmorProfile { name, enforced: true }) => {
            Err((Severity::Warning, format!("the profile {name} confines the agent")))
        }
    }
}

fn judge_clock(times: TokenTimes, now: i64) -> Outcome {
    let early = times.issued.saturating_sub(now);
    let late = now.saturating_sub(times.expires);
    let warning = |message| Err((Severity::Warning, message));
    if early > SKEW {
        return warning(format!(
            "the clock is at least {early} s behind the time at which the token was issued"
        ));
    }
    if late > SKEW {
        return warning(format!(
            "the token expired {late} s ago: the clock is ahead, or the kubelet does not renew the token"
        ));
    }
    Ok(String::new())
}

/// Returns what the checks found, as findings of the node: errors first.
pub(crate) fn findings_of(checks: &[PreflightCheck]) -> impl Iterator<Item = NodeFinding> {
    checks.iter().filter(|check| check.severity.is_some()).map(|check| NodeFinding {
        severity: check.severity,
        code: check.code.clone(),
        message: format!("{} {}", to_sentence(&check.message), check.consequence),
        advice: vec![check.advice.clone(), format!("See {}.", check.link)],
    })
}

/// Returns why no pod can be captured on this node, as configured; `None`: nothing is known that makes it impossible.
pub fn preflight_error(checks: &[PreflightCheck]) -> Option<String> {
    let errors = checks.iter().filter(|check| check.severity == Some(Severity::Error));
    let errors: Vec<String> = errors.map(|check| format!("{} ({})", check.message, check.code)).collect();
    (!errors.is_empty()).then(|| format!("capture is impossible on this node: {}", errors.join("; ")))
}

impl NodePreflight {
    /// The exit status for scripts: 0 if nothing is as bad as `least`; else 2 if something could not be determined and nothing is
    /// an error, and 1 in every other case.
    pub fn exit_status(&self, least: Severity) -> u8 {
        exit_status(self.checks.iter().filter_map(|check| check.severity).max(), least)
    }

    /// A table with a line for each check, then what follows from the findings.
    pub fn render_table(&self, colour: bool) -> String {
        let row = |check: &PreflightCheck| {
            vec![
                Cell::plain(&check.code),
                Cell::coloured(
                    check.severity.map_or("ok", Severity::code),
                    Colour::of_severity(check.severity),
                ),
                Cell::plain(match check.message.as_str() {
                    "" => &check.title,
                    message => message,
                }),
            ]
        };
        let rows: Vec<Vec<Cell>> = self.checks.iter().map(row).collect();
        let mut text = render_table(&["CODE", "SEVERITY", "FOUND"], &rows, colour);
        for check in self.checks.iter().filter(|check| check.severity.is_some()) {
            let lines = format!(
                "\n{}\n    {}\n    {}\n    see {} for hints\n",
                check.code, check.consequence, check.advice, check.link
            );
            text.push_str(&lines);
        }
        text
    }

    /// A test report in the form of JUnit.
    pub fn to_junit(&self, least: Severity) -> String {
        let case = |check: &PreflightCheck| JunitCase {
            class: "node".to_owned(),
            name: check.title.clone(),
            failed: check.severity.map(|severity| (severity, check.code.clone(), check.message.clone())),
        };
        render_junit("install-cni check", &self.checks.iter().map(case).collect::<Vec<_>>(), least)
    }

    /// Returns a log in the form of SARIF.
    pub fn to_sarif(&self) -> String {
        let advice =
            |check: &PreflightCheck| PreflightCode::from_name(&check.code).map_or("", PreflightCode::advice);
        let rule = |check: &PreflightCheck| SarifRule {
            code: check.code.clone(),
            check: check.title.clone(),
            help: format!("{} See {}.", link_docs(advice(check)), check.link),
            severity: None,
        };
        let result = |check: &PreflightCheck| {
            Some(SarifResult {
                code: check.code.clone(),
                severity: check.severity?,
                message: format!("{} {}", to_sentence(&check.message), check.consequence),
                object: Some(format!("Node/{}", self.node)),
                node: Some(self.node.clone()),
            })
        };
        let rules: Vec<SarifRule> = self.checks.iter().map(rule).collect();
        let results: Vec<SarifResult> = self.checks.iter().filter_map(result).collect();
        render_sarif("install-cni check", &rules, &results)
    }
}

#[cfg(test)]
mod tests;
