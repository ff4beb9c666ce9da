//! How the node is, in a sentence, and what there is to say besides.

use super::{html::HtmlWriter, when};
use crate::{CaptureState, Observer, RedirectionMode, StateReport};

/// How much somebody should care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HeadlineLevel {
    /// Nothing is to be done.
    Well,
    /// It may pass by itself, or is not known.
    Watch,
    /// Somebody should look.
    Wrong,
}

impl HeadlineLevel {
    /// Its sign, which is never all that tells: the sentence says it too.
    fn sign(self) -> &'static str {
        match self {
            HeadlineLevel::Well => "✓",
            HeadlineLevel::Watch => "!",
            HeadlineLevel::Wrong => "✗",
        }
    }

    fn class(self) -> &'static str {
        match self {
            HeadlineLevel::Well => "headline well",
            HeadlineLevel::Watch => "headline watch",
            HeadlineLevel::Wrong => "headline wrong",
        }
    }
}

/// A sentence, and how much it matters.
pub(super) type HeadlineSentence = (HeadlineLevel, String);

/// The title of the window: the sentence first, because that is what a narrow tab shows.
pub(super) fn title(state: &StateReport) -> String {
    let node = if state.node.name.is_empty() { "this node" } else { &state.node.name };
    format!("{} – {node} – Millrace", sentence(state).1)
}

/// The part at the top of the page.
pub(super) fn headline(html: &mut HtmlWriter, state: &StateReport) {
    let (level, words) = sentence(state);
    let besides = besides(state);
    let worst = besides.iter().map(|(level, _)| *level).max().unwrap_or(HeadlineLevel::Well).max(level);
    html.element("section", &[("id", "headline"), ("aria-labelledby", "headline-words")], |html| {
        // Read out when it changes, and only the parts that did.
        html.element("div", &[("id", "news"), ("class", worst.class()), ("aria-live", "polite")], |html| {
            html.element("h1", &[("id", "headline-words")], |html| {
                html.text_element("span", &[("class", "sign"), ("aria-hidden", "true")], level.sign());
                html.text(&words);
            });
            if !besides.is_empty() {
                html.element("ul", &[("id", "besides")], |html| {
                    besides.iter().for_each(|said| item(html, said));
                });
            }
        });
        seen(html, state);
        health(html, state);
        blind(html, state);
    });
}

fn item(html: &mut HtmlWriter, (level, words): &HeadlineSentence) {
    html.element("li", &[], |html| {
        html.text_element("span", &[("class", "sign"), ("aria-hidden", "true")], level.sign());
        html.text(words);
    });
}

/// How the node's pods are, in a sentence: the worst that can be said.
pub(super) fn sentence(state: &StateReport) -> HeadlineSentence {
    let count = |capture| state.pods.iter().filter(|pod| pod.capture == capture).count();
    let members = CaptureState::ALL.into_iter().filter(|it| is_member(*it)).map(count).sum();
    let of = |some: usize| match (some, members) {
        (1, 1) => "The only pod that belongs to the mesh".to_owned(),
        (all, total) if all == total => format!("All {all} pods that belong to the mesh"),
        (some, total) => format!("{some} of {total} pods that belong to the mesh"),
    };
    let is = |some: usize| if some == 1 { "is" } else { "are" };
    match worst(state) {
        Some(CaptureState::Bypassing) => {
            let some = count(CaptureState::Bypassing);
            (
                HeadlineLevel::Wrong,
                format!("{} {} it.", of(some), if some == 1 { "bypasses" } else { "bypass" }),
            )
        }
        Some(CaptureState::Held) => {
            let some = count(CaptureState::Held);
            (
                HeadlineLevel::Wrong,
                format!("{} {} held back, and can reach nothing through it.", of(some), is(some)),
            )
        }
        Some(CaptureState::Unknown) => {
            let some = count(CaptureState::Unknown);
            (HeadlineLevel::Watch, format!("It is not known whether {} captured.", pods(some, "is", "are")))
        }
        Some(CaptureState::Pending) => {
            let some = count(CaptureState::Pending);
            (HeadlineLevel::Watch, format!("{} {} on the way into it.", of(some), is(some)))
        }
        Some(_) => (HeadlineLevel::Well, format!("{} {} captured.", of(members), is(members))),
        None => (HeadlineLevel::Well, "No pod of this node belongs to the mesh.".to_owned()),
    }
}

/// Everything else that somebody at this page should know, in sentences.
fn besides(state: &StateReport) -> Vec<HeadlineSentence> {
    let mut said = Vec::new();
    said.extend(others(state));
    let mut say = |level, words: String| said.push((level, words));
    if let Some(trouble) = &state.node.trouble {
        say(HeadlineLevel::Wrong, format!("The node: {trouble}"));
    }
    if state.node.way == Some(RedirectionMode::Node) && state.node.active_slot.is_none() {
        say(HeadlineLevel::Wrong, "No ztunnel of this node is ready.".to_owned());
    }
    if state.node.started.is_none() {
        let words = "No agent runs on this node: what is desired is what the last one wrote down.";
        say(HeadlineLevel::Wrong, words.to_owned());
    } else if !state.node.synced {
        let words = "Facts about pods and namespaces have not been read whole since the agent's start.";
        say(HeadlineLevel::Watch, words.to_owned());
    }
    match state.network.differences().count() {
        0 => {}
        1 => say(
            HeadlineLevel::Wrong,
            "1 object of the node's network differs from the desired state.".to_owned(),
        ),
        some => say(
            HeadlineLevel::Wrong,
            format!("{some} objects of the node's network are not as they should be."),
        ),
    }
    let files = state.installation.iter().filter(|file| !file.ok).count();
    if files > 0 {
        let are = if files == 1 { "1 installed file is" } else { &format!("{files} installed files are") };
        say(HeadlineLevel::Wrong, format!("{are} not as they should be."));
    }
    if !state.seen.blind.is_empty() {
        say(HeadlineLevel::Watch, format!("Could not be observed: {}.", things(state.seen.blind.len())));
    }
    said
}

/// States of pods that are not the headline's, but worth a sentence.
fn others(state: &StateReport) -> Vec<HeadlineSentence> {
    let headline = worst(state);
    let count = |capture| state.pods.iter().filter(|pod| pod.capture == capture).count();
    let states = [
        (CaptureState::Held, HeadlineLevel::Wrong, "is held back", "are held back"),
        (CaptureState::Unknown, HeadlineLevel::Watch, "could not be observed", "could not be observed"),
        (
            CaptureState::Pending,
            HeadlineLevel::Watch,
            "is on the way into the mesh",
            "are on the way into the mesh",
        ),
        (
            CaptureState::Leaving,
            HeadlineLevel::Watch,
            "has left the mesh and is not released yet",
            "have left the mesh and are not released yet",
        ),
    ];
    let worth = states.into_iter().filter(|(capture, ..)| Some(*capture) != headline && count(*capture) > 0);
    worth
        .map(|(capture, level, one, more)| (level, format!("{}.", pods(count(capture), one, more))))
        .collect()
}

/// `1 pod is`, `3 pods are`.
fn pods(some: usize, one: &str, more: &str) -> String {
    if some == 1 { format!("1 pod {one}") } else { format!("{some} pods {more}") }
}

fn things(some: usize) -> String {
    if some == 1 { "one thing".to_owned() } else { format!("{some} things") }
}

/// The worst state that a pod of the mesh is in; `None`: there is no such pod.
fn worst(state: &StateReport) -> Option<CaptureState> {
    let members = CaptureState::ALL.into_iter().filter(|capture| is_member(*capture));
    members.into_iter().find(|capture| state.pods.iter().any(|pod| pod.capture == *capture))
}

/// Whether a pod in this state belongs to the mesh, or may.
fn is_member(capture: CaptureState) -> bool {
    !matches!(capture, CaptureState::Outside | CaptureState::Leaving)
}

/// Who has looked, when, and how the node works.
fn seen(html: &mut HtmlWriter, state: &StateReport) {
    html.element("p", &[("id", "seen")], |html| {
        looked(html, state);
        if let Some(started) = &state.node.started {
            html.text(" The agent runs since ");
            when::time(html, started, &state.seen.at);
            html.text(".");
        }
        html.text(&format!(" {}", mode(state)));
    });
}

fn looked(html: &mut HtmlWriter, state: &StateReport) {
    let seen = &state.seen;
    if seen.at.is_empty() {
        return html.text("The kernel has not been asked yet.");
    }
    html.text("Looked at ");
    html.text_element("time", &[("id", "seen-at"), ("datetime", &seen.at)], &when::shown(&seen.at));
    let who = match seen.by {
        Observer::Agent => "the agent",
        Observer::Command => "a command, without an agent",
    };
    html.text(&format!(", in {}, by {who}.", when::milliseconds(seen.took_ms)));
}

/// How pods of ambient mode are captured here.
fn mode(state: &StateReport) -> String {
    let node = &state.node;
    if !node.ambient {
        return "Ambient mode is off.".to_owned();
    }
    let way = match node.way {
        Some(RedirectionMode::Node) => "by rules of the node",
        Some(RedirectionMode::InPod) => "from within their own network namespaces",
        Some(RedirectionMode::Sidecar) => "by sidecars",
        None => return "Ambient mode is on; the way of capture is not known yet.".to_owned(),
    };
    let chosen = if node.chosen == "auto" { " (chosen by what ztunnel speaks)" } else { "" };
    let fallback = match (node.way, node.fallback.as_deref()) {
        (Some(RedirectionMode::Node), Some("hold")) => " Without a ztunnel, their connections wait.",
        (Some(RedirectionMode::Node), Some("reject")) => " Without a ztunnel, their connections are refused.",
        (Some(RedirectionMode::Node), Some("open")) => {
            " Without a ztunnel, their connections go past the mesh."
        }
        _ => "",
    };
    format!("Pods of ambient mode are captured {way}{chosen}.{fallback}")
}

fn health(html: &mut HtmlWriter, state: &StateReport) {
    if state.health.is_empty() {
        return;
    }
    html.element("ul", &[("id", "health"), ("class", "chips"), ("aria-label", "Health")], |html| {
        for part in &state.health {
            let class = if part.ok { "chip well" } else { "chip wrong" };
            html.element("li", &[("class", class)], |html| {
                let sign = if part.ok { "✓" } else { "✗" };
                html.text_element("span", &[("class", "sign"), ("aria-hidden", "true")], sign);
                html.text(&part.part);
                html.text(if part.ok { " is ready" } else { " is not ready" });
                if !part.why.is_empty() {
                    html.text(&format!(": {}", part.why));
                }
            });
        }
    });
}

/// What nobody knows: neither good nor bad may be read into it.
fn blind(html: &mut HtmlWriter, state: &StateReport) {
    if state.seen.blind.is_empty() {
        return;
    }
    html.element("div", &[("id", "blind"), ("class", "panel watch")], |html| {
        html.text_element("h2", &[], "Could not be looked at");
        html.element("ul", &[], |html| {
            for blind in &state.seen.blind {
                html.element("li", &[], |html| {
                    html.text_element("strong", &[], &blind.what);
                    html.text(&format!(": {}", blind.why));
                });
            }
        });
    });
}
