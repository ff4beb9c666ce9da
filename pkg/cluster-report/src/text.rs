//! Reports as text for terminals. Colours only repeat what marks and text express.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
};

use report::{
    MembershipEffect, SimulatedPod, format_count, sanitize_text, simulation_notes,
    tables::{Cell, Colour, joined_ips, paint, pod_row, render_table, simulated_row},
};

use crate::{
    check::{CheckLine, CheckReport, ExceptedPod, Verdict},
    cluster::NodeMessage,
    finding::{Finding, Section, Severity},
    preflight::PreflightReport,
    rows::{PodList, PodRow, VerifyReport},
    simulate::{SimulatedRow, SimulationReport},
};

/// Maximum number of findings shown for one check, by default.
const SHOWN: usize = 10;
/// Maximum number of pods shown for a simulation, by default.
const SHOWN_PODS: usize = 50;
/// Maximum number of pods with excluded traffic listed by a check.
const SHOWN_EXCEPTED: usize = 3;
/// Maximum number of probes shown for a pod.
const SHOWN_PROBES: usize = 4;
/// Maximum number of probe source addresses shown: if they are detected, each node may have its own.
const SHOWN_SOURCES: usize = 4;

/// Renders `millrace check`: sections, a mark for each check, and its findings below. `all` shows every finding.
pub fn check_text(report: &CheckReport, all: bool, colour: bool) -> String {
    let mut text = render_sections(&report.checks, &report.findings, all, colour);
    text.push_str(&render_conclusion(report, colour));
    text
}

/// Renders `millrace check --pre` like [`check_text`].
pub fn preflight_text(report: &PreflightReport, all: bool, colour: bool) -> String {
    let mut text = render_sections(&report.checks, &report.findings, all, colour);
    let _ = writeln!(text, "{} would run an agent", node_count(report.nodes));
    if report.checked > 0 {
        let _ = writeln!(text, "{} checked by a pod", format_count(report.checked, "node"));
    }
    text.push_str(&verdict_text(report.verdict, colour));
    text
}

fn render_sections(checks: &[CheckLine], findings: &[Finding], all: bool, colour: bool) -> String {
    let mut text = String::new();
    for section in Section::ALL {
        let title = section.as_str();
        let mut lines = checks.iter().filter(|line| line.section == section).peekable();
        if lines.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "{}\n{}", paint(title, Colour::Bold, colour), "-".repeat(title.len()));
        for line in lines {
            one_check(&mut text, findings, line, if all { usize::MAX } else { SHOWN }, colour);
        }
        text.push('\n');
    }
    text
}

/// Appends one check; writing to a String cannot fail.
fn one_check(text: &mut String, findings: &[Finding], line: &CheckLine, most: usize, colour: bool) {
    let findings: Vec<_> = findings.iter().filter(|finding| finding.code == line.code).collect();
    let (mark, shade) = severity_mark(line.severity);
    let _ = writeln!(text, "{} {}", paint(mark, shade, colour), line.title);
    for finding in findings.iter().take(most) {
        match finding.object.title().as_str() {
            "" => writeln!(text, "    {}", finding.message),
            title => writeln!(text, "    {}: {}", sanitize_text(title), finding.message),
        }
        .unwrap_or_default();
    }
    if findings.len() > most {
        let _ = writeln!(text, "    and {} more: -o wide shows all", findings.len() - most);
    }
    if !line.unknown.is_empty() {
        let _ = writeln!(text, "    unknown: {}", line.unknown.join("; "));
    }
    // Advice can differ between pods; a node's own check has a page for each code.
    let mut common: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for finding in &findings {
        let known = common.entry(&finding.link).or_insert(Some(&finding.hint));
        *known = known.filter(|hint| *hint == finding.hint);
    }
    let mut hints: Vec<(String, &str)> = Vec::new();
    for finding in &findings {
        let is_own =
            finding.check.is_some() || common.get(finding.link.as_str()).is_some_and(Option::is_some);
        let hint = if is_own { finding.hint.clone() } else { report::link_docs(line.code.hint()) };
        let hint = (sanitize_text(&hint), finding.link.as_str());
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    for (hint, link) in hints {
        let _ = writeln!(text, "    {hint}\n    see {link} for hints");
    }
}

/// Returns the mark of a result, and its colour.
fn severity_mark(failed: Option<Severity>) -> (&'static str, Colour) {
    let mark = match failed {
        None => "√",
        Some(Severity::Error) => "×",
        Some(Severity::Warning) => "‼",
        Some(Severity::Unknown) => "?",
    };
    (mark, Colour::for_severity(failed))
}

/// Renders `millrace simulate`: one line for each pod, then the problems. `all` shows every pod.
pub fn simulation_text(report: &SimulationReport, all: bool, colour: bool) -> String {
    let mut text = format!("{}\n\n", sanitize_text(&report.change.to_string()));
    let most = if all { usize::MAX } else { SHOWN_PODS };
    let row = |row: &SimulatedRow| {
        let [pod, effect, now, then, connections, why] = simulated_row(&row.pod, row.effect);
        vec![pod, Cell::plain(&row.node), effect, now, then, connections, why]
    };
    if report.pods.is_empty() {
        text.push_str("No pods.\n");
    } else {
        text.push_str(&render_table(
            &["POD", "NODE", "EFFECT", "NOW", "THEN", "CONNECTIONS", "WHY"],
            report.pods.iter().take(most).map(row),
            colour,
        ));
    }
    if report.pods.len() > most {
        let _ = writeln!(text, "and {} more: -o wide shows all", report.pods.len() - most);
    }
    let number = |effect| report.count_pods(effect);
    let changed = match number(MembershipEffect::Changes) {
        0 => String::new(),
        changed => format!("; that would be captured otherwise: {changed}"),
    };
    let _ = writeln!(
        text,
        "\nPods that would join ambient mode: {}; that would leave it: {}{changed}; that would stay as they are: {}; unknown: {}.",
        number(MembershipEffect::Joins),
        number(MembershipEffect::Leaves),
        number(MembershipEffect::Unchanged),
        number(MembershipEffect::Unknown)
    );
    for (reset, outcome) in [(false, "go on outside of the mesh until they close"), (true, "are reset")] {
        let open = report.open_connections(reset);
        if open > 0 {
            let _ = writeln!(text, "{open} open TCP connections of pods that would join {outcome}.");
        }
    }
    let moved: Vec<(usize, IpAddr)> =
        report.pods.iter().filter_map(|row| Some((row.probes, row.probe_source?))).collect();
    if !moved.is_empty() {
        let count = format_count(moved.iter().map(|(probes, _)| probes).sum(), "probe");
        let sources: BTreeSet<String> = moved.iter().map(|(_, source)| source.to_string()).collect();
        let shown: Vec<&str> = sources.iter().map(String::as_str).take(SHOWN_SOURCES).collect();
        let rest = if sources.len() > shown.len() { ", ..." } else { "" };
        let (pods, shown) = (format_count(moved.len(), "pod"), shown.join(", "));
        let _ = writeln!(text, "{count} of {pods} that would join will come from {shown}{rest}.");
        text.push_str(&probe_lines(&report.pods));
    }
    for note in simulation_notes(&report.change, report.pods.iter().map(|row| &row.pod)) {
        let _ = writeln!(text, "{note}");
    }
    for finding in &report.findings {
        let (mark, shade) = severity_mark(Some(finding.severity));
        let title = sanitize_text(&finding.object.title());
        let _ = writeln!(text, "{} {title}: {}", paint(mark, shade, colour), finding.message);
        let _ = writeln!(text, "    {}\n    see {} for hints", sanitize_text(&finding.hint), finding.link);
    }
    text
}

/// Returns the first probes of the first pods, one line for each pod.
fn probe_lines(rows: &[SimulatedRow]) -> String {
    let probed = || rows.iter().filter(|row| !row.listed_probes.is_empty());
    let line = |row: &SimulatedRow| {
        let shown: Vec<String> =
            row.listed_probes.iter().take(SHOWN_PROBES).map(ToString::to_string).collect();
        let more = row.probes.saturating_sub(shown.len());
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let SimulatedPod { namespace, name, .. } = &row.pod;
        sanitize_text(&format!("Probes of {namespace}/{name}: {}{more}.", shown.join(", "))) + "\n"
    };
    let more = probed().count().saturating_sub(SHOWN);
    let more = (more > 0).then(|| format!("Probes of {} are in the JSON.\n", format_count(more, "more pod")));
    probed().take(SHOWN).map(line).chain(more).collect()
}

fn node_count(nodes: Option<usize>) -> String {
    nodes.map_or_else(|| "an unknown number of nodes".to_owned(), |nodes| format_count(nodes, "node"))
}

fn excepted_clause(pods: usize) -> String {
    if pods == 0 { String::new() } else { format!(" ({pods} with traffic outside by intent)") }
}

/// Returns the first pods with traffic excluded by intent, one line each.
fn excepted_lines(excepted: &[ExceptedPod]) -> String {
    let line = |pod: &ExceptedPod| {
        sanitize_text(&format!("    {}: outside by intent: {}", pod.pod, pod.exceptions.join("; ")))
    };
    let more = excepted.len().saturating_sub(SHOWN_EXCEPTED);
    let more = (more > 0).then(|| format!("    and {more} more: millrace list shows what stays outside"));
    excepted.iter().take(SHOWN_EXCEPTED).map(line).chain(more).map(|line| line + "\n").collect()
}

fn render_conclusion(report: &CheckReport, colour: bool) -> String {
    let counts = &report.counts;
    let (nodes, agents) = (node_count(counts.nodes), format_count(counts.agents, "agent"));
    let mut text = format!("{nodes}, {agents}, {} of which answered; ", counts.answered);
    // Without an answer, omitting the number of pods is better than showing 0.
    let _ = match counts.answered {
        0 => writeln!(text, "nothing is known of their pods"),
        _ => writeln!(
            text,
            "{}, {} captured{}, {} bypassing the mesh",
            format_count(counts.pods, "pod"),
            counts.captured,
            excepted_clause(counts.excepted),
            counts.bypassing
        ),
    };
    text.push_str(&excepted_lines(&report.excepted));
    if report.partial {
        text.push_str("The result is partial: not every node answered, or not everything could be read.\n");
    }
    let unknown = report.checks.iter().filter(|line| !line.unknown.is_empty()).count();
    if unknown > 0 {
        let all = report.checks.len();
        let _ = writeln!(text, "{unknown} of {all} checks could not be determined, or only in part");
    }
    text.push_str(&verdict_text(report.verdict, colour));
    text
}

fn verdict_text(verdict: Verdict, colour: bool) -> String {
    let (mark, shade, text) = match verdict {
        Verdict::Healthy => ("√", Colour::Green, "healthy"),
        Verdict::Unhealthy => ("×", Colour::Red, "unhealthy"),
        Verdict::Unknown => ("?", Colour::Yellow, "not determined"),
    };
    format!("Status check results are {} {text}\n", paint(mark, shade, colour))
}

/// Renders `millrace list`: one line for each pod. `wide` adds address, phase and UID.
pub fn list_text(list: &PodList, wide: bool, colour: bool) -> String {
    if list.pods.is_empty() {
        let text = match list.status(false) {
            0 => "No pods.\n",
            _ if list.unknown.is_empty() => "Unknown: not every node answered.\n",
            _ => "Unknown: not every node answered or could be observed completely.\n",
        };
        return text.to_owned();
    }
    let rows = list.pods.iter().map(|PodRow { node, pod }| {
        let more = [joined_ips(pod), pod.phase.clone(), pod.uid.to_string()];
        let mut row = pod_row(pod, if wide { &more } else { &[] });
        row.insert(1, Cell::plain(node));
        row
    });
    let titles: &[&str] = if wide {
        &["POD", "NODE", "CAPTURE", "MODE", "SINCE", "IP", "PHASE", "UID", "WHY"]
    } else {
        &["POD", "NODE", "CAPTURE", "MODE", "SINCE", "WHY"]
    };
    render_table(titles, rows, colour)
}

/// Renders `millrace verify`: differences, one line each, then what is unknown.
pub fn verify_text(report: &VerifyReport, colour: bool) -> String {
    let mut rows = Vec::new();
    for node in &report.nodes {
        let lines = node.differences.iter().map(|what| ("differs", Colour::Red, what));
        let lines = lines.chain(node.unknown.iter().map(|what| ("unknown", Colour::Yellow, what)));
        rows.extend(lines.map(|(kind, shade, what)| {
            vec![Cell::plain(&node.node), Cell::coloured(kind, shade), Cell::plain(what)]
        }));
    }
    match (rows.is_empty(), report.partial) {
        (true, true) if report.nodes.is_empty() => "Unknown: no agent answered.\n".to_owned(),
        (true, true) => "No difference was found on the nodes that answered.\n".to_owned(),
        (true, false) if report.nodes.is_empty() => "No agent was found.\n".to_owned(),
        (true, false) => format!("All {} nodes are as desired.\n", report.nodes.len()),
        (false, _) => render_table(&["NODE", "STATE", "WHAT"], rows, colour),
    }
}

/// Returns the missing nodes, and why, as lines for standard error; empty: none is missing.
pub fn partial_text(unanswered: &[NodeMessage]) -> String {
    shortened_lines(&format!("partial: {} nodes did not answer", unanswered.len()), unanswered)
}

/// Returns unknown parts of nodes, as lines for standard error; empty: none are unknown.
pub fn not_known_text(unknown: &[NodeMessage]) -> String {
    shortened_lines("unknown:", unknown)
}

/// Returns a head and the first messages; empty without messages.
fn shortened_lines(head: &str, messages: &[NodeMessage]) -> String {
    if messages.is_empty() {
        return String::new();
    }
    let mut text = format!("{head}\n");
    for NodeMessage { node, message } in messages.iter().take(SHOWN) {
        let _ = writeln!(text, "  {}: {}", sanitize_text(node), sanitize_text(message));
    }
    if messages.len() > SHOWN {
        let _ = writeln!(text, "  and {} more", messages.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests;
