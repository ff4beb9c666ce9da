//! `install-cni check`: derives from facts about a node what would keep the agent from capturing pods there. The same evaluation
//! runs at the agent's start, and its result is in the document.

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

/// Name and version of the schema of `install-cni check -o json`.
pub const PREFLIGHT_SCHEMA: &str = "millrace.node-preflight/v1";
/// Page that describes each code under an anchor of that name.
const DOCS: &str = "docs/preflight.md";
/// Minimum number of files that the agent needs to open: for the 110 pods that the kubelet allows by default, and itself.
const FILES: u64 = 512;
/// Minimum memory, in MiB: several times what the agent needs with 250 pods (docs/sizing.md), without tools.
const MEMORY: u64 = 32;
/// Advice for a check whose result is unknown.
const ASK_AGAIN: &str = "Run install-cni check in the agent's container, with the agent's permissions.";
/// Maximum number of conflicting numbers in pods that are listed.
const SHOWN: usize = 4;
/// Maximum clock skew, in seconds.
const SKEW: i64 = 60;

/// Result of a trial operation in a temporary network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The kernel accepted the operation.
    Accepted,
    /// The kernel refused it, or a tool is missing; with the reason.
    Refused(String),
    /// Unknown whether it is possible; with the reason.
    NotTested(String),
}

/// Backends that hold rules on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablesInUse {
    /// Chains with rules in legacy tables.
    pub legacy_chains: Vec<String>,
    /// Tables and chains of nf_tables, as far as they could be listed.
    pub nft_names: Vec<String>,
    /// Whether the agent can change legacy tables.
    pub has_legacy_tool: bool,
}

/// Source addresses of the node's packets to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSources {
    /// Sources by the node's routes to running pods.
    pub routes: BTreeSet<IpAddr>,
    /// Sources of its probes, as captured pods see them.
    pub used: Vec<IpAddr>,
    /// Sources in use that were to be detected from the routes, and are not among them.
    pub undetected: Vec<IpAddr>,
}

/// Times of the service account's token, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTimes {
    /// Time of issue.
    pub issued: i64,
    /// Time of expiry.
    pub expires: i64,
}

/// SELinux context of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeLinuxContext {
    /// Type of the context.
    pub domain: String,
    /// Whether the policy is enforced; `None`: unknown.
    pub enforcing: Option<bool>,
}

/// AppArmor profile of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppArmorProfile {
    /// Name of the profile.
    pub name: String,
    /// Whether denials are enforced, not only logged.
    pub enforced: bool,
}

/// Result of an observation, or why it failed.
pub type Observed<T> = Result<T, String>;

/// An observed fact about the node. Facts that do not concern an agent with its settings are not observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreflightFact {
    /// Trial, and whether a refusal makes capture impossible for all pods, as configured.
    Kernel(PreflightCode, Trial, bool),
    /// Backends in use.
    Tables(Observed<TablesInUse>),
    /// Objects that should not exist, a message for each, and their severity.
    Found(PreflightCode, Severity, Observed<Vec<String>>),
    /// Number of pods whose network namespaces were examined, and foreign objects there with numbers of captured pods.
    PodNumbers(Observed<(usize, Vec<String>)>),
    /// Sources of the node's packets to pods, and of its probes.
    ProbeSources(Observed<ProbeSources>),
    /// Limit of open files; `None`: unlimited.
    Files(Option<u64>),
    /// Memory limit of the container in bytes; `None`: unlimited.
    Memory(Observed<Option<u64>>),
    /// Times of the token, and the current time.
    Clock(Observed<TokenTimes>, i64),
    /// Network that the runtime uses, or why there is none.
    Network(Observed<Result<String, String>>),
    /// SELinux context; `None`: SELinux is not in use.
    SeLinux(Observed<Option<SeLinuxContext>>),
    /// AppArmor profile; `None`: none.
    AppArmor(Observed<Option<AppArmorProfile>>),
}

/// Output of `install-cni check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePreflight {
    /// Schema: [`PREFLIGHT_SCHEMA`].
    pub schema: &'static str,
    /// Name of the node.
    pub node: String,
    /// All checks that apply to this node and these settings.
    pub checks: Vec<PreflightCheck>,
}

/// Result of a check: severity and message, or a description if it passed.
type Outcome = Result<String, (Severity, String)>;

/// Evaluates the observed facts.
pub fn judge_preflight(facts: &[PreflightFact]) -> Vec<PreflightCheck> {
    let mut judged: Vec<(PreflightCode, Outcome)> = facts.iter().map(judge_fact).collect();
    judged.sort_by_key(|(code, _)| *code);
    judged.into_iter().map(|(code, outcome)| make_check(code, outcome)).collect()
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
        PreflightFact::Files(most) => {
            let describe = |most: u64| format!("at most {most} files can be open");
            (Code::FewFiles, judge_limit(*most, FILES, "any number", describe))
        }
        PreflightFact::Memory(limit) => {
            let describe = |limit: u64| format!("the memory limit is {limit} MiB");
            let judge = |limit: &Option<u64>| {
                judge_limit(limit.map(|limit| limit >> 20), MEMORY, "no limit", describe)
            };
            (Code::LittleMemory, judge_observation(limit, judge))
        }
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

/// Evaluates an observation; a failed one is unknown.
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

/// Prefixes of table and chain names, and the components that use them.
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
    let nft = owners_clause("; nf_tables have those of", &tables.nft_names);
    if tables.legacy_chains.is_empty() {
        return Ok(format!("no legacy tables with rules{nft}"));
    }
    let number = format_count(tables.legacy_chains.len(), "chain");
    let by = owners_clause(", by their names of", &tables.legacy_chains);
    let message = format!("legacy tables hold rules in {number}{by}");
    if tables.has_legacy_tool {
        return Ok(format!("{message}{nft}"));
    }
    Err((Severity::Warning, format!("{message}, and there is no iptables-legacy here{nft}")))
}

/// Returns a clause that lists the owners of names; empty: none is known.
fn owners_clause(begin: &str, names: &[String]) -> String {
    let owner =
        |name: &String| OWNERS.iter().find(|(start, _)| name.starts_with(start)).map(|(_, owner)| *owner);
    let owners: BTreeSet<&str> = names.iter().filter_map(owner).collect();
    let owners: Vec<&str> = owners.into_iter().collect();
    if owners.is_empty() { String::new() } else { format!("{begin} {}", owners.join(", ")) }
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

/// Evaluates a limit; `None`: unlimited.
fn judge_limit(limit: Option<u64>, least: u64, unlimited: &str, describe: impl Fn(u64) -> String) -> Outcome {
    match limit {
        None => Ok(unlimited.to_owned()),
        Some(limit) if limit < least => Err((Severity::Warning, describe(limit))),
        Some(limit) => Ok(describe(limit)),
    }
}

/// Types known to be confined. Of any other it is unknown.
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

/// Returns the checks' findings as findings of the node: errors first.
pub(crate) fn preflight_findings(checks: &[PreflightCheck]) -> impl Iterator<Item = NodeFinding> {
    checks.iter().filter(|check| check.severity.is_some()).map(|check| NodeFinding {
        severity: check.severity,
        code: check.code.clone(),
        message: format!("{} {}", to_sentence(&check.message), check.consequence),
        advice: vec![check.advice.clone(), format!("See {}.", check.link)],
    })
}

/// Returns why no pod can be captured on this node, as configured; `None`: no known fact makes it impossible.
pub fn preflight_error(checks: &[PreflightCheck]) -> Option<String> {
    let errors = checks.iter().filter(|check| check.severity == Some(Severity::Error));
    let errors: Vec<String> = errors.map(|check| format!("{} ({})", check.message, check.code)).collect();
    (!errors.is_empty()).then(|| format!("capture is impossible on this node: {}", errors.join("; ")))
}

impl NodePreflight {
    /// Returns the exit status for scripts: 0 if all severities are below `least`; else 2 if something is unknown and nothing is an
    /// error, and 1 in every other case.
    pub fn exit_status(&self, least: Severity) -> u8 {
        exit_status(self.checks.iter().filter_map(|check| check.severity).max(), least)
    }

    /// Renders a table with a line for each check, then the consequences of the findings.
    pub fn render_table(&self, colour: bool) -> String {
        let row = |check: &PreflightCheck| {
            vec![
                Cell::plain(&check.code),
                Cell::coloured(
                    check.severity.map_or("ok", Severity::code),
                    Colour::for_severity(check.severity),
                ),
                Cell::plain(match check.message.as_str() {
                    "" => &check.title,
                    message => message,
                }),
            ]
        };
        let mut text = render_table(&["CODE", "SEVERITY", "FOUND"], self.checks.iter().map(row), colour);
        for check in self.checks.iter().filter(|check| check.severity.is_some()) {
            let lines = format!(
                "\n{}\n    {}\n    {}\n    see {} for hints\n",
                check.code, check.consequence, check.advice, check.link
            );
            text.push_str(&lines);
        }
        text
    }

    /// Returns a JUnit test report.
    pub fn to_junit(&self, least: Severity) -> String {
        let case = |check: &PreflightCheck| JunitCase {
            class: "node".to_owned(),
            name: check.title.clone(),
            failed: check.severity.map(|severity| (severity, check.code.clone(), check.message.clone())),
        };
        render_junit("install-cni check", &self.checks.iter().map(case).collect::<Vec<_>>(), least)
    }

    /// Returns a SARIF log.
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
