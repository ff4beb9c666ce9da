//! How the node is, in a sentence, what to do about it, and what there is to say besides.

use std::{cmp::Reverse, collections::BTreeSet};

use super::{groups::PodGroup, html::HtmlWriter, when};
use crate::{
    CaptureState, Observer, RedirectionMode, StateReport,
    explain::{self, MissingZtunnel},
    tables::{self, Colour},
};

/// How much somebody should care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HeadlineLevel {
    /// Nothing is to be done.
    Well,
    /// Something may pass by itself, or is not known.
    Watch,
    /// Somebody should look.
    Wrong,
}

impl HeadlineLevel {
    /// How much a pod in this state matters.
    pub(super) fn of(capture: CaptureState) -> HeadlineLevel {
        match tables::colour_of(capture) {
            Colour::Red => HeadlineLevel::Wrong,
            Colour::Yellow => HeadlineLevel::Watch,
            _ => HeadlineLevel::Well,
        }
    }

    /// Returns the sign of the level. The text always says the same, so the sign never carries the meaning alone.
    pub(super) fn sign(self) -> &'static str {
        match self {
            HeadlineLevel::Well => "✓",
            HeadlineLevel::Watch => "!",
            HeadlineLevel::Wrong => "✗",
        }
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            HeadlineLevel::Well => "well",
            HeadlineLevel::Watch => "watch",
            HeadlineLevel::Wrong => "wrong",
        }
    }
}

/// A sentence about the node, and what to do about it.
pub(super) struct Statement {
    level: HeadlineLevel,
    words: String,
    remedy: Vec<String>,
    /// Title of the remedy.
    about: &'static str,
}

impl Statement {
    fn new(level: HeadlineLevel, words: impl Into<String>, remedy: Vec<String>) -> Statement {
        Statement { level, words: words.into(), remedy, about: "What to do:" }
    }
}

/// Everything that somebody at this page should know; the worst first, and never none.
pub(super) fn statements(state: &StateReport, groups: &[PodGroup<'_>]) -> Vec<Statement> {
    let mut all = vec![of_pods(state, groups)];
    if let Some((missing, remedy)) = no_ztunnel(state) {
        let is_said = all.iter().any(|one| one.words.to_lowercase().contains(&missing.to_lowercase()));
        let remedy = remedy.iter().map(|line| (*line).to_owned()).collect();
        let statement = || Statement::new(HeadlineLevel::Wrong, format!("{missing}."), remedy);
        all.extend((!is_said).then(statement));
    }
    let faults = explain::node_faults(state).into_iter();
    all.extend(faults.map(|(words, remedy)| Statement::new(HeadlineLevel::Wrong, words, remedy)));
    all.extend(others(groups));
    let unseen = explain::of_seeing(state).into_iter();
    all.extend(unseen.map(|words| Statement::new(HeadlineLevel::Watch, words, Vec::new())));
    all.sort_by_key(|one| Reverse(one.level));
    all
}

/// The ztunnel that this node lacks; `None`: it has one, needs none, or nobody can say.
pub(super) fn no_ztunnel(state: &StateReport) -> Option<MissingZtunnel> {
    let is_needed = state.node.ambient_enabled && state.observation.observer == Observer::Agent;
    // As long as no capture mode is in use, a ztunnel need not be connected, but there has to be one.
    let way = state.node.mode.unwrap_or(RedirectionMode::InPod);
    is_needed.then(|| explain::missing_ztunnel(state, way)).flatten()
}

/// How the node's pods are: the worst state that pods of the mesh are in, and its cause.
fn of_pods(state: &StateReport, groups: &[PodGroup<'_>]) -> Statement {
    let members: Vec<_> = groups.iter().filter(|group| is_member(group.capture)).collect();
    let Some(worst) = members.first() else {
        return Statement::new(HeadlineLevel::Well, "No pod of this node belongs to the mesh.", Vec::new());
    };
    let alike: Vec<_> = members.iter().filter(|group| group.capture == worst.capture).collect();
    let some = alike.iter().map(|group| group.pods.len()).sum();
    let is = if some == 1 { "is" } else { "are" };
    let of = match (some, members.iter().map(|group| group.pods.len()).sum()) {
        (1, 1) => "The only pod that belongs to the mesh".to_owned(),
        (all, total) if all == total => format!("All {all} pods that belong to the mesh"),
        (some, total) => format!("{some} of {total} pods that belong to the mesh"),
    };
    let fact = match worst.capture {
        CaptureState::Unknown => format!("It is unknown whether {} captured", pods(some, is)),
        CaptureState::Bypassing => format!("{of} {is} bypassing it"),
        capture => format!("{of} {is} {capture}"),
    };
    let level = HeadlineLevel::of(worst.capture);
    let remedy = worst.pods.first().map_or_else(Vec::new, |pod| explain::advice(state, pod));
    let (due, remedy) = match alike.len() {
        _ if level == HeadlineLevel::Well => (String::new(), Vec::new()),
        1 => (due(worst), remedy),
        causes => (format!(", for {causes} different causes"), remedy),
    };
    let about = if alike.len() > 1 { "What to do about the most frequent cause:" } else { "What to do:" };
    Statement { level, words: format!("{fact}{due}."), remedy, about }
}

/// The cause alone, as the end of a sentence; nothing where the state is all that is known.
fn due(group: &PodGroup<'_>) -> String {
    if group.code == group.capture.word() {
        return String::new();
    }
    let cause = group.clause();
    let cause = cause.split_once(", because ").map_or(cause.as_str(), |(_, why)| why);
    format!(": {}", cause.split(", so ").next().unwrap_or_default())
}

/// States of pods that are not the first statement's, but worth a sentence.
fn others(groups: &[PodGroup<'_>]) -> impl Iterator<Item = Statement> {
    let worst = groups.iter().map(|group| group.capture).find(|capture| is_member(*capture));
    let count = |capture| {
        groups.iter().filter(|group| group.capture == capture).map(|group| group.pods.len()).sum::<usize>()
    };
    CaptureState::ALL.into_iter().filter_map(move |capture| {
        let (level, some) = (HeadlineLevel::of(capture), count(capture));
        let is_worth = level != HeadlineLevel::Well && Some(capture) != worst && some > 0;
        let is = if some == 1 { "is" } else { "are" };
        is_worth.then(|| Statement::new(level, format!("{} {capture}.", pods(some, is)), Vec::new()))
    })
}

/// `1 pod is`, `3 pods are`.
fn pods(some: usize, is: &str) -> String {
    format!("{} {is}", crate::text::count(some, "pod"))
}

/// Whether a pod in this state belongs to the mesh, or may.
pub(super) fn is_member(capture: CaptureState) -> bool {
    !matches!(capture, CaptureState::Outside | CaptureState::Leaving)
}

/// The title of the window: the sentence first, because that is what a narrow tab shows.
pub(super) fn title(state: &StateReport, said: &[Statement]) -> String {
    let node = if state.node.name.is_empty() { "this node" } else { &state.node.name };
    format!("{} – {node} – Millrace", said.first().map_or("", |worst| &worst.words))
}

/// The part at the top of the page; each advice stands with the first sentence that it is about.
pub(super) fn headline(html: &mut HtmlWriter, said: &[Statement]) {
    let Some((worst, besides)) = said.split_first() else { return };
    let mut seen: BTreeSet<_> = worst.remedy.iter().collect();
    // Read out when it changes, and only the parts that did.
    let class = format!("headline {}", worst.level.class());
    html.element("div", &[("id", "news"), ("class", &class), ("aria-live", "polite")], |html| {
        html.element("h1", &[("id", "headline-words")], |html| sentence(html, worst));
        if !worst.remedy.is_empty() {
            html.text_element("p", &[], worst.about);
            html.element("ol", &[("id", "remedy")], |html| {
                worst.remedy.iter().for_each(|line| html.text_element("li", &[], line));
            });
        }
        if besides.is_empty() {
            return;
        }
        html.element("ul", &[("id", "besides")], |html| {
            for one in besides {
                html.element("li", &[], |html| {
                    sentence(html, one);
                    let advice = one.remedy.iter().filter(|line| seen.insert(*line));
                    advice.for_each(|line| html.text(&format!(" {line}")));
                });
            }
        });
    });
}

fn sentence(html: &mut HtmlWriter, one: &Statement) {
    html.text_element("span", &[("class", "sign"), ("aria-hidden", "true")], one.level.sign());
    html.text(&one.words);
}

/// Observer of the node, time, and capture mode.
pub(super) fn seen(html: &mut HtmlWriter, state: &StateReport) {
    html.element("p", &[("id", "seen")], |html| {
        observed(html, state);
        html.text(&format!(" {}", mode(state)));
    });
}

fn observed(html: &mut HtmlWriter, state: &StateReport) {
    let seen = &state.observation;
    if seen.observed_at.is_empty() {
        return html.text("The kernel has not been queried yet.");
    }
    html.text("Observed at ");
    html.text_element(
        "time",
        &[("id", "seen-at"), ("datetime", &seen.observed_at)],
        &when::shown(&seen.observed_at),
    );
    let who = match seen.observer {
        Observer::Agent => "the agent",
        Observer::Command => "a command, without an agent",
    };
    html.text(&format!(", in {}, by {who}.", when::milliseconds(seen.duration_ms)));
}

/// How pods of ambient mode are captured here.
fn mode(state: &StateReport) -> String {
    let node = &state.node;
    let Some(way) = node.mode.filter(|_| node.ambient_enabled) else {
        let is = if node.ambient_enabled { "on; the capture mode is not known yet" } else { "off" };
        return format!("Ambient mode is {is}.");
    };
    let fallback = node.no_ztunnel_policy.as_ref().filter(|_| way == RedirectionMode::Node);
    let fallback = fallback.map_or_else(String::new, |policy| format!("; no-ztunnel-policy: {policy}"));
    let chosen = if node.configured_mode == "auto" { " (auto)" } else { "" };
    format!("Capture mode: {way}{chosen}{fallback}.")
}
